"""How much each queue is entitled to, and that it gets just that: worked cases of others, through the services.

All jobs are there before the first node is, so nobody has the advantage of having come first; what was started before
fair-share had an answer is reclaimed. `tests/unit/core/test_entitlements.py` has the same cases on the computation
alone, and more of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from .scenario import GI, RESOURCES, Scenario, amounts, told

CPU, MEM = {"cpu": 1000}, {"memory": GI}


class Case(NamedTuple):
    """`queues`: path -> settings and, for a leaf, (jobs, size of one). `expected`: leaf -> units and jobs."""

    capacity: dict[str, int]
    queues: dict[str, tuple[dict[str, Any], tuple[int, dict[str, int]]]]
    expected: dict[str, dict[str, int]]


NOBODY = (0, CPU)


def cpu(**units: int) -> Any:
    return amounts(cpu=units["n"] * 1000)


CASES = {
    "weights 2 and 1 (Volcano queue.md)": Case(
        {"cpu": 6},
        {"q1": ({"weight": 2}, (6, CPU)), "q2": ({"weight": 1}, (6, CPU))},
        {"q1": {"cpu": 4}, "q2": {"cpu": 2}},
    ),
    "an unused share flows on (Volcano proportion)": Case(
        {"cpu": 6},
        {"q1": ({"weight": 2}, (2, CPU)), "q2": ({"weight": 1}, (6, CPU))},
        {"q1": {"cpu": 2}, "q2": {"cpu": 4}},
    ),
    "a limit caps (Volcano proportion)": Case(
        {"cpu": 6},
        {"q1": ({"weight": 2, "limit": cpu(n=3)}, (6, CPU)), "q2": ({"weight": 1}, (6, CPU))},
        {"q1": {"cpu": 3}, "q2": {"cpu": 3}},
    ),
    "a guarantee goes first (Volcano proportion)": Case(
        {"cpu": 6},
        {"q1": ({"weight": 2}, (6, CPU)), "q2": ({"weight": 1, "guaranteed": cpu(n=4)}, (6, CPU))},
        {"q1": {"cpu": 2}, "q2": {"cpu": 4}},
    ),
    "a lending limit withholds (Kueue lendingLimit)": Case(
        {"cpu": 10},
        {
            "q1": ({"guaranteed": cpu(n=6), "lending_limit": cpu(n=2)}, NOBODY),
            "q2": ({"guaranteed": cpu(n=4)}, (10, CPU)),
        },
        {"q1": {}, "q2": {"cpu": 6}},
    ),
    "weight 0 takes only what is left over (rule Q3)": Case(
        {"cpu": 10},
        {"q1": ({"weight": 0}, (10, CPU)), "q2": ({"weight": 1}, (4, CPU))},
        {"q1": {"cpu": 6}, "q2": {"cpu": 4}},
    ),
    "dominant shares of two users (Ghodsi et al., NSDI 2011, 4.1)": Case(
        {"cpu": 9, "memory": 18},
        {
            "a": ({}, (12, {"cpu": 1000, "memory": 4 * GI})),
            "b": ({}, (12, {"cpu": 3000, "memory": GI})),
        },
        {"a": {"cpu": 3, "memory": 12}, "b": {"cpu": 6, "memory": 2}},
    ),
    "no starvation by what a sibling's children leave (Volcano hdrf_test.go)": Case(
        {"cpu": 10, "memory": 10},
        {
            "sci": ({"weight": 50}, (10, CPU | MEM)),
            "eng": ({"weight": 50}, NOBODY),
            "eng/dev": ({"weight": 50}, (10, CPU)),
            "eng/prod": ({"weight": 50}, (10, MEM)),
        },
        {"sci": {"cpu": 5, "memory": 5}, "eng/dev": {"cpu": 5}, "eng/prod": {"memory": 5}},
    ),
    "a saturated resource does not block the other (Volcano hdrf.md)": Case(
        {"cpu": 30, "memory": 30},
        {
            "n1": ({"weight": 25}, (30, CPU)),
            "n2": ({"weight": 25}, (30, CPU)),
            "n3": ({"weight": 25}, NOBODY),
            "n3/c": ({}, (30, CPU)),
            "n3/m": ({}, (30, MEM)),
            "n4": ({"weight": 25}, (30, MEM)),
        },
        {
            "n1": {"cpu": 10},
            "n2": {"cpu": 10},
            "n3/c": {"cpu": 10},
            "n3/m": {"memory": 15},
            "n4": {"memory": 15},
        },
    ),
}
UNITS = {"cpu": 1000, "memory": GI}


@pytest.mark.parametrize("case", CASES)
@told()
async def test_every_queue_gets_what_it_is_entitled_to(cell: Scenario, case: str) -> None:
    capacity, queues, expected = CASES[case]
    for path, (settings, _) in queues.items():
        await cell.queue(path, preemption="ANY", **settings)
    for path, (_, (count, size)) in queues.items():
        if count:
            await cell.submit(path.replace("/", "-"), count, queue=path, **size)
    cell.node("node", **{resource: units * UNITS[resource] for resource, units in capacity.items()})
    wanted = {path: {r: units * UNITS[r] for r, units in given.items()} for path, given in expected.items()}
    await cell.until(lambda: {path: _entitled(cell, path) for path in expected} == wanted)
    await cell.until(lambda: {path: _used(cell, path) for path in expected} == wanted)
    await cell.rests()
    evicted = list(cell.evicted)
    await cell.is_silent()
    assert cell.evicted == evicted
    assert {path: _used(cell, path) for path in expected} == wanted


def _entitled(cell: Scenario, path: str) -> dict[str, int]:
    return {r: amount for r in UNITS if (amount := cell.entitled(path, r))}


def _used(cell: Scenario, path: str) -> dict[str, int]:
    return {r: amount for r in RESOURCES if (amount := cell.used(path, r))}
