"""What questions and plans look at, made before anybody asks.

Arrays of nodes, their orders and the table of victims are derived from the state, made at first use and then follow
what changes. `prepare` makes them, or catches up, a little at a time, so that a service can do it beside its other
work; `rehearse` asks one question of each kind, so that the first caller does not pay for what only the first one
needs. Neither changes an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from muster.core.candidates import Order
from muster.core.commands import ChangeQueues
from muster.core.explain import explain
from muster.core.shapes import cache_of
from muster.core.state import CellState
from muster.core.victim_table import read_some
from muster.core.whatif import forecast_queues

JOBS_A_STEP: Final = 1000
CLASSES_MAX: Final = 256  # pending classes that are looked at for orders
ORDERS_MAX: Final = 8  # that are kept ready; shapes share them, and another one is made in some ten milliseconds


def prepare(state: CellState) -> Iterator[None]:
    """Each step takes some milliseconds at most; the state may change between two steps."""
    while read_some(state, JOBS_A_STEP):
        yield
    if not len(state.nodes):
        return
    table = state.nodes
    _ = table.free, table.described
    yield
    cache = cache_of(table)
    waiting = [state.jobs[found.first()[2]].asks for found in islice(state.pending.classes.values(), CLASSES_MAX)]
    orders: dict[int, Order] = {}
    for task in dict.fromkeys(task for gang in waiting for task in gang.minimum_tasks or gang.tasks):
        shape = cache.shape(task)
        for cluster in cache.clusters():
            orders.update((id(order), order) for order in shape.orders(cluster, cache))
    for order in islice(orders.values(), ORDERS_MAX):
        order.synced(table)
        yield


def rehearse(state: CellState) -> None:
    """To be thrown away: a question about a job and one about the tree."""
    for found in islice(state.pending.classes.values(), 1):
        explain(state, found.first()[2])
    forecast_queues(state, ChangeQueues(()), state.now_ms)
