"""Which node is better: the order of rule G2's profiles as integer keys, and which devices a pod gets.

The rule for one pod, exactly: among the nodes it fits on now, take the least (tier, primary, secondary, node index).

    pod asks for     tier                      PACK primary, secondary                  SPREAD primary, secondary
    no device        0 node without devices,   leftover of the dominant resource,       most free of the dominant,
                     1 node with devices       leftover of cpu (memory if cpu leads)    most free of the other
    whole devices    0                         untouched devices left over, free cpu    most untouched devices, most cpu
    a device share   0                         leftover of the best device with room,   most free of all devices,
                                               free of all the node's devices           most free cpu

The dominant resource of a pod is the one of which it takes the greatest part of the cell's allocatable total (compared
as exact fractions; ties by name). PACK so fills the fullest node that still fits, finishes started devices and started
GPU nodes first, and keeps whole devices and whole nodes free; SPREAD takes the emptiest.

Since a pod's request is the same on every node, "least left over" is "least free among those with enough". So a key
does not depend on the pod but on the node and the kind of question, and all shapes that ask the same question share one
sorted order (`candidates`): the best node is the first that fits at or above the shape's own request.

Devices: whole ones are the lowest untouched indices, in the zone with the fewest untouched devices that has enough when
zones are known; a share goes to the device with the least sufficient room, the lowest index of those.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

from muster.core.limits import AMOUNT_MAX
from muster.core.resources import DEVICE_MILLIS
from muster.core.rows import CPU_COLUMN, MEMORY_COLUMN, Demand, NodeFacts, Row

INDEX_BITS: Final = 20  # limits.NODES_MAX
INDEX_MASK: Final = (1 << INDEX_BITS) - 1
AMOUNT_BITS: Final = 51  # limits.AMOUNT_MAX, inclusive
PRIMARY_SHIFT: Final = INDEX_BITS + AMOUNT_BITS
CEILING: Final = AMOUNT_MAX  # "most free first" is sorted by what is missing to this

PACK: Final = "PACK"
SPREAD: Final = "SPREAD"


class Measure(IntEnum):
    """What the primary part of a key counts."""

    COLUMN = 0  # free amount of a column
    UNTOUCHED = 1  # devices nobody uses
    DEVICE = 2  # free thousandths of one device; a node has a key for each different value


class Ranking(NamedTuple):
    """A question that nodes are sorted by. Shapes with the same ranking share an order."""

    policy: str
    measure: Measure
    primary: int  # column; unused by UNTOUCHED and DEVICE
    secondary: int  # column
    tier: int  # 0 nodes without devices, 1 nodes with devices; only for pods that ask for none
    device_column: int  # -1: pods that ask for no device


Entries = Callable[[Row, int], tuple[int, ...]]


def rankings(policy: str, demand: Demand, dominant: int) -> tuple[Ranking, ...]:
    """The questions a pod asks, best tier first."""
    spread = policy == SPREAD
    profile = SPREAD if spread else PACK
    device = demand.device_column
    if demand.whole:
        return (Ranking(profile, Measure.UNTOUCHED, 0, CPU_COLUMN, 0, device),)
    if demand.share:
        if spread:
            return (Ranking(profile, Measure.COLUMN, device, CPU_COLUMN, 0, device),)
        return (Ranking(profile, Measure.DEVICE, 0, device, 0, device),)
    other = MEMORY_COLUMN if dominant == CPU_COLUMN else CPU_COLUMN
    return tuple(Ranking(profile, Measure.COLUMN, dominant, other, tier, -1) for tier in (0, 1))


def key_range(ranking: Ranking, demand: Demand, dominant: int) -> tuple[int, int]:
    """Keys from `low` up to but without `high` belong to nodes that have enough of the primary measure."""
    if ranking.measure is Measure.COLUMN and not demand.share:
        least = dict(demand.pairs)[dominant]
    else:
        least = demand.whole or demand.share
    if ranking.policy == SPREAD:
        return 0, (CEILING - least + 1) << PRIMARY_SHIFT
    return least << PRIMARY_SHIFT, (CEILING + 1) << PRIMARY_SHIFT


def entries_of(ranking: Ranking) -> Entries:
    """The function from a row (nothing of it below zero) and its index to the row's keys under the ranking, negated:
    orders keep the best node last, because the nodes that change are the best ones and a list moves only what follows.
    """
    primary, secondary = ranking.primary, ranking.secondary
    if ranking.policy == SPREAD:
        if ranking.measure is Measure.UNTOUCHED:
            return lambda row, n: (
                -(
                    (CEILING - row.devices.count(DEVICE_MILLIS)) << PRIMARY_SHIFT
                    | (CEILING - row.free[secondary]) << INDEX_BITS
                    | n
                ),
            )
        return lambda row, n: (
            -((CEILING - row.free[primary]) << PRIMARY_SHIFT | (CEILING - row.free[secondary]) << INDEX_BITS | n),
        )
    if ranking.measure is Measure.COLUMN:
        return lambda row, n: (-(row.free[primary] << PRIMARY_SHIFT | row.free[secondary] << INDEX_BITS | n),)
    if ranking.measure is Measure.UNTOUCHED:
        return lambda row, n: (
            -(row.devices.count(DEVICE_MILLIS) << PRIMARY_SHIFT | row.free[secondary] << INDEX_BITS | n),
        )

    def by_device(row: Row, n: int) -> tuple[int, ...]:
        low = row.free[secondary] << INDEX_BITS | n
        return tuple(-(millis << PRIMARY_SHIFT | low) for millis in dict.fromkeys(row.devices) if millis)

    return by_device


def dominant_column(demand: Demand, totals: list[int], names: list[str], pods_column: int) -> int:
    """The column of which the pod takes the greatest part of `totals`; a pod that asks for nothing: its pod slot."""
    best, best_amount = -1, 0
    for column, amount in sorted(demand.pairs, key=lambda pair: names[pair[0]]):
        if column == pods_column or not amount:
            continue
        if best < 0 or amount * totals[best] > best_amount * totals[column]:
            best, best_amount = column, amount
    return pods_column if best < 0 else best


# --- devices --------------------------------------------------------------------------------------------------------


def choose_devices(row: Row, facts: NodeFacts, demand: Demand, count: int) -> bytes:
    """Devices for `count` pods that fit the row; for shares, `count` must fit the best device alone."""
    if demand.share:
        return bytes((best_share_device(row, demand.share),)) * count
    if not demand.whole:
        return b""
    untouched = [device for device, millis in enumerate(row.devices) if millis == DEVICE_MILLIS]
    if not facts.zones:
        return bytes(untouched[: demand.whole * count])
    chosen = bytearray()
    for _ in range(count):
        mine = _in_one_zone(untouched, facts, demand.whole)
        chosen += bytes(mine)
        untouched = [device for device in untouched if device not in mine]
    return bytes(chosen)


def best_share_device(row: Row, share: int) -> int:
    """The device with the least sufficient room, the lowest index of those."""
    devices = row.devices
    return devices.index(min(millis for millis in devices if millis >= share))


def sound_devices(row: Row, demand: Demand, count: int, devices: bytes) -> bool:
    """Whether these are devices that `count` pods can have now."""
    if len(devices) != count * demand.devices_per_pod():
        return False
    left = row.devices.copy()
    for device in devices:
        if device >= len(left) or left[device] < demand.device_millis:
            return False
        left[device] -= demand.device_millis
    return True


def _in_one_zone(untouched: list[int], facts: NodeFacts, wanted: int) -> list[int]:
    """The lowest `wanted` of the zone with the fewest untouched devices that has enough; else the lowest of all."""
    best: list[int] = []
    for zone in sorted(facts.zones, key=lambda zone: zone.id):
        mine = [device for device in untouched if device in zone.devices]
        if len(mine) >= wanted and (not best or len(mine) < len(best)):
            best = mine
    return (best or untouched)[:wanted]
