"""A mistyped name finds the one that is meant, however many there are, with few look-ups."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.state import CellState
from muster_admission.calls import Refused
from muster_admission.cell import Cell
from muster_admission.spelling import meant

LOOK_UPS_MAX = 75 * 65  # of the longest name; nothing that depends on how many names there are


class Names(dict[str, str]):
    """Counts what is asked of it; whoever goes through all names fails."""

    asked = 0

    def __contains__(self, name: object) -> bool:
        self.asked += 1
        return super().__contains__(name)

    def __iter__(self) -> Any:
        raise AssertionError("all names are looked at")


@pytest.mark.parametrize("typed", ["bert-lage", "bert-laarge", "bert-lrage", "bert-lavge", "Bert-Large", "ert-large"])
def test_one_slip_is_found(typed: str) -> None:
    assert meant(typed, {"bert-large", "other"}) == "bert-large"


@pytest.mark.parametrize("typed", ["bird-largo", "", "x" * 100])
def test_more_than_one_is_not(typed: str) -> None:
    assert meant(typed, {"bert-large", "other"}) is None


def test_a_mistyped_job_is_found_among_many_without_looking_at_them() -> None:
    state = CellState("main")
    names = state.by_name["default"] = Names({f"job-{n}": "id" for n in range(50_000)})
    state.by_name["team"] = {"train": "id"}
    follower = SimpleNamespace(state=state, catch_up=lambda: asyncio.sleep(0))
    cell = Cell(SimpleNamespace(cell="main"), follower, None, inbox=None, clock=None, tracing=None)  # type: ignore[arg-type]

    def told(reference: str) -> str:
        with pytest.raises(Refused) as caught:
            asyncio.run(cell.job(reference))
        return caught.value.status.message

    assert 'did you mean "job-49999"' in told("jb-49999")
    assert "did you mean" not in told("x" * 64)
    assert 'did you mean "team/train"' in told("team/tarin")
    assert names.asked <= 2 * LOOK_UPS_MAX
