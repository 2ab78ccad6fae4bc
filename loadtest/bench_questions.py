"""Questions to a follower: explain and what-if with 100,000 pending jobs on 10,000 nodes that run 50,000 pods.

Fifty leaf queues in ten departments, twenty shapes of jobs; every node is full but for crumbs, one leaf has less than
its share. A leader decides and a follower applies what it commits, as in admission; asked is the follower, with the
functions admission answers with, up to the message that goes to the client. Each kind of question is asked

    first          the first of its kind after the follower has loaded its snapshot and got ready (`prepare`)
    after changes  right after a transaction in which a hundred jobs ended, others started and a node was cordoned
    again          with nothing changed since

and the slowest of the three is the figure. Getting ready is measured by itself, with its longest step.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

from loadtest.harness import Measure, Result, at_most, medians

from muster.core import commands as c
from muster.core import snapshot
from muster.core import transitions as tr
from muster.core.apply import apply, apply_transaction
from muster.core.decide import decide, leader_elected, transaction
from muster.core.demand import demand, startable
from muster.core.entitlements import EntitlementEngine, entitlements
from muster.core.errors import Rejected
from muster.core.explain import explain
from muster.core.model import GroupPlacement, InboxPosition, JobSpec, NodeSpec, PodPhase, QueueSpec, TaskGroup
from muster.core.prepare import prepare, rehearse
from muster.core.queue_changes import plan
from muster.core.standing import standings
from muster.core.state import CellState
from muster.core.whatif import forecast_job, forecast_queues
from muster.wire import explanations, forecasts

PENDING: Final = 100_000
NODES: Final = 10_000
PODS_PER_NODE: Final = 5
RUNNING: Final = NODES * PODS_PER_NODE
DEPARTMENTS: Final = 10
LEAVES: Final = 5  # of each
SHAPES: Final = 20
TURNS: Final = 3  # of each kind, in one run
ENDING: Final = 100  # jobs that end at a time
WORK: Final = 1 << 20
NOW_MS: Final = 1_700_000_000_000
GPU: Final = "nvidia.com/gpu"
GIB: Final = 1 << 30
TARGET: Final = at_most(50)

Ask = Callable[[CellState, int], object]


def group(shape: int, *, devices: int = 1, pods: int = 1, zone: str = "") -> TaskGroup:
    more, kind = divmod(shape, SHAPES)
    requests = (("cpu", 4000 + 100 * kind + more), ("memory", (16 + kind) * GIB), (GPU, 1000 * devices))
    return TaskGroup("main", pods, pods, requests, node_selector=(("zone", zone),) if zone else ())


def crumb(cpu_millis: int, zone: str = "") -> TaskGroup:
    return TaskGroup("main", 1, 1, (("cpu", cpu_millis),), node_selector=(("zone", zone),) if zone else ())


def spec(number: int, leaf: str, tasks: tuple[TaskGroup, ...], priority: int = 0) -> JobSpec:
    return JobSpec(
        id=f"{number:032x}",
        namespace=leaf.replace("/", "-"),
        name=f"job-{number}",
        queue=leaf,
        tasks=tasks,
        submitter=f"user-{number % 10}",
        request_id=f"r{number}",
        priority=priority,
    )


def path_of(leaf: int) -> str:
    return f"dept-{leaf // LEAVES}/leaf-{leaf % LEAVES}"


POOR: Final = path_of(DEPARTMENTS * LEAVES - 1)  # the leaf that has nothing


class Bench:
    """A leader and a follower. `change` is what happens in a moment of a busy cell."""

    def __init__(self) -> None:
        self.leader = CellState("main")
        self.follower = CellState("main")
        self._seq = 0
        self._commit(leader_elected(self.leader, leader="bench", now_ms=NOW_MS))
        self._fill()
        self._settle()
        self._entitle()
        self._ended = 0
        self._cordoned = 0

    def _fill(self) -> None:
        state = self.leader
        for n in range(NODES):
            apply(state, tr.NodeUpserted(n, self._node(n)))
        apply(state, tr.ClusterSynced("sim-a"))
        leaves: list[str] = []
        for d in range(DEPARTMENTS):
            top = f"q{len(state.queues) + 1}"
            apply(state, tr.QueueUpserted(QueueSpec(top, f"dept-{d}", "", weight=d + 1)))
            for leaf in range(LEAVES):
                leaves.append(f"q{len(state.queues) + 1}")
                apply(state, tr.QueueUpserted(QueueSpec(leaves[-1], f"leaf-{leaf}", top, preemption="ANY")))
        shapes = [(group(shape),) for shape in range(SHAPES)]
        for n in range(RUNNING + PENDING):
            runs = n < RUNNING
            leaf = n // PODS_PER_NODE % (len(leaves) - 1) if runs else n % len(leaves)
            job = spec(n, path_of(leaf), shapes[n % SHAPES], n % 3)
            apply(state, tr.JobQueued(job, leaves[leaf], InboxPosition(1, 0)))
            if runs:
                where = GroupPlacement(0, ((n // PODS_PER_NODE, 1),), bytes([n % PODS_PER_NODE]))
                apply(state, tr.JobPlaced(job.id, 1, (where,)))

    @staticmethod
    def _node(n: int, *, cordoned: bool = False) -> NodeSpec:
        allocatable = (("cpu", 64_000), ("memory", 256 * GIB), (GPU, 1000 * PODS_PER_NODE), ("pods", 110))
        labels = (("zone", f"z{n % 10}"),)
        name = f"node-{n:05d}"
        return NodeSpec(
            "sim-a",
            name,
            allocatable,
            labels=labels,
            cordoned=cordoned,
            device_resource=GPU,
            devices=PODS_PER_NODE,
        )

    def load(self) -> None:
        """The follower starts: from a snapshot of what the leader has."""
        self.follower = snapshot.load(snapshot.dump(self.leader))

    def change(self) -> None:
        """A hundred jobs end, whoever is next starts, a node is cordoned and the last one is not any more."""
        facts = []
        for n in range(self._ended, self._ended + ENDING):
            job = self.leader.jobs[f"{n * 7919 % RUNNING:032x}"]
            if job.charged:
                facts.append(c.PodFact(job.id, job.epoch, 0, int(PodPhase.SUCCEEDED)))
        self._ended += ENDING
        nodes = (self._node(self._cordoned), self._node(self._cordoned + 1, cordoned=True))
        self._cordoned += 1
        self._decide([c.PodsObserved("sim-a", tuple(facts))])
        self._decide([c.NodesReported("sim-a", nodes)])
        self._settle()

    def _entitle(self) -> None:
        """As fair-share does."""
        state = self.leader
        asked = startable(state, state.queues, demand(state))
        found = entitlements(state.queues, asked, state.nodes.capacity())
        published = tuple(c.Entitlement(queue, amounts) for queue, amounts in sorted(found.items()))
        self._decide([c.EntitlementsComputed(state.ledger_seq, published)])
        self._settle()

    def _decide(self, items: list[c.AnyItem]) -> bool:
        """One transaction; whether there was anything to do."""
        state = self.leader
        entries = [(InboxPosition(state.position.seq, at), item) for at, item in enumerate(items)]
        decision = decide(state, entries, state.now_ms + 10, WORK)
        if not decision.transitions:
            return False
        name, now_ms = f"1-{self._seq}", state.now_ms + 10
        self._commit(transaction(state, decision, transaction_id=name, now_ms=now_ms, work_limit=WORK))
        return True

    def _settle(self) -> None:
        while self._decide([]):
            pass

    def _commit(self, tx: tr.Transaction) -> None:
        self._seq += 1
        apply_transaction(self.leader, tx, self._seq)
        apply_transaction(self.follower, tx, self._seq)  # void until it is loaded


# --- questions ------------------------------------------------------------------------------------------------------


def explained(job_of: Callable[[CellState, int], str]) -> Ask:
    return lambda state, n: explanations.to_proto(explain(state, job_of(state, n), state.now_ms))


def in_order(of: Callable[[int, int], int]) -> Callable[[CellState, int], str]:
    """A job of a class at a place in its order."""

    def find(state: CellState, n: int) -> str:
        classes = list(state.pending.classes.values())
        found = classes[n * 37 % len(classes)]
        return found.keys[found.head + of(len(found), n)][2]

    return find


def forecast(says: str, job: Callable[[int], tuple[str, TaskGroup, int]]) -> Ask:
    """`says` is what the answer must be, for a figure of another answer means nothing."""
    today = EntitlementEngine()  # as admission keeps one

    def ask(state: CellState, n: int) -> object:
        leaf, task, priority = job(n)
        wanted = spec(10_000_000 + n, leaf, (task,), priority)
        try:
            told = forecast_job(state, wanted, state.now_ms, today)
        except Rejected as why:
            return expect(says, why.message, why)
        return expect(says, told.summary, forecasts.job_to_proto(told))

    return ask


def expect(says: str, said: str, answer: object) -> object:
    if says not in said:
        raise RuntimeError(f'not "{says}" but "{said}"')
    return answer


def changed(wanted: dict[str, QueueSpec], moves: tuple[tuple[str, str], ...] = ()) -> Ask:
    today = EntitlementEngine()  # as admission keeps one

    def ask(state: CellState, _n: int) -> object:
        command = c.ChangeQueues(plan(state.queues, wanted, moves=moves))
        return forecasts.tree_to_proto(forecast_queues(state, command, state.now_ms, today), state.queues)

    return ask


RICH: Final = path_of(1)  # far above what it is entitled to


def questions() -> dict[str, Ask]:
    """By name. What admission keeps between questions, these keep too."""
    return {
        "explain the head of a queue": explained(in_order(lambda _length, _n: 0)),
        "explain a job in the middle": explained(in_order(lambda length, n: min(length // 2 + n, length - 1))),
        "explain the last job": explained(in_order(lambda length, _n: length - 1)),
        "explain a running job": explained(lambda state, n: next(iter(state.queues.get(f"q{3 + n % 3}").running))),
        "a job that starts": forecast("would start now", lambda n: (RICH, crumb(100 + n), 0)),
        "a job that starts, new node selector": forecast(
            "would start now", lambda n: (RICH, crumb(10, f"z{n % 10}"), 0)
        ),
        "a job that waits": forecast("would wait", lambda n: (RICH, group(n % SHAPES), 0)),
        "a job of a new shape that waits": forecast("would wait", lambda n: (RICH, group(SHAPES + n), 0)),
        "a job that displaces one": forecast("once 1 running job has", lambda n: (RICH, group(n % SHAPES), 9)),
        "a gang of 8 nodes that displaces 40 jobs": forecast(
            "once 40 running jobs have", lambda _: (RICH, group(0, devices=5, pods=8), 9)
        ),
        "a gang of 8 nodes that reclaims": forecast(
            "running jobs have", lambda _: (POOR, group(0, devices=5, pods=8), 9)
        ),
        "a job too large for any node": forecast("can never run", lambda n: (RICH, group(n, devices=6), 0)),
        "a weight": changed({"dept-0": QueueSpec("", "", "", weight=5)}),
        "a limit": changed({"dept-9": QueueSpec("", "", "", weight=10, limit=((GPU, 1_000_000),))}),
        "a queue that moves": changed({}, ((path_of(3), "dept-7/moved"),)),
        "shares of all queues": lambda state, _n: standings(state),
        "usage by account": lambda state, _n: state.accounts.report(0, state.now_ms),
    }


def timed_ms(work: Callable[[], object]) -> tuple[float, float]:
    """(wall, CPU)."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - wall_s) * 1e3, (time.process_time() - cpu_s) * 1e3


def once(run: int) -> list[Measure]:
    """In a world of its own: every change ends jobs of the first day, and one day no node is any queue's alone."""
    bench = Bench()
    bench.load()
    gc.collect()
    gc.freeze()
    gc.disable()  # as a follower has it (LOG-16)
    try:
        found = [*_ready(bench.follower)]
        numbers = count(run * 200)  # new ones in every run
        asked = questions()
        names = list(asked)
        turned = (*names[run % len(names) :], *names[: run % len(names)])  # another one is the very first
        found += [_asked(bench, name, asked[name], numbers) for name in turned]
        order = {f"questions: {name}": place for place, name in enumerate(names)}
        return sorted(found, key=lambda measure: order.get(measure.name, -1))
    finally:
        gc.enable()
        gc.unfreeze()


def _ready(state: CellState) -> Iterator[Measure]:
    steps: list[tuple[float, float]] = []
    going = prepare(state)
    left = True
    while left:
        began = time.perf_counter(), time.process_time()
        left = next(going, going) is None
        steps.append(((time.perf_counter() - began[0]) * 1e3, (time.process_time() - began[1]) * 1e3))
    rehearsal = timed_ms(lambda: rehearse(state))
    cpu_ms = sum(cpu for _, cpu in steps) + rehearsal[1]
    longest = max(steps)[0]
    yield Measure(
        name="questions: getting ready",
        value=sum(wall for wall, _ in steps) + rehearsal[0],
        unit="ms",
        cpu_us={"follower": cpu_ms * 1e3},
        note=f"longest step {longest:.0f} ms, then a rehearsal of {rehearsal[0]:.0f} ms",
    )


def _asked(bench: Bench, name: str, ask: Ask, numbers: Iterator[int]) -> Measure:
    first = timed_ms(lambda: ask(bench.follower, next(numbers)))
    after, again = [], []
    for _ in range(TURNS):
        bench.change()
        after.append(timed_ms(lambda: ask(bench.follower, next(numbers))))
        again.append(timed_ms(lambda: ask(bench.follower, next(numbers))))
    phases = {"first": first, "after changes": middle(after), "again": middle(again)}
    slowest = max(phases.values())
    note = ", ".join(f"{phase} {wall:.1f}" for phase, (wall, _) in phases.items())
    return Measure(
        name=f"questions: {name}",
        value=slowest[0],
        unit="ms",
        target=TARGET,
        cpu_us={"follower": slowest[1] * 1e3},
        note=note,
    )


def middle(times: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(wall for wall, _ in times), statistics.median(cpu for _, cpu in times)


def main(runs: int) -> list[Result]:
    return medians([once(run) for run in range(runs)])
