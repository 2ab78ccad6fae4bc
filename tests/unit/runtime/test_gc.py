"""LOG-16: what is loaded is frozen, and collections happen when they do not hurt."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from muster.runtime.gc import BUSY_OBJECTS_MAX, IDLE_OBJECTS_MIN, Collector, state_loaded


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    collector.start()
    yield collector
    collector.stop()


def test_the_loaded_state_is_frozen_and_python_collects_nothing_by_itself(collector: Collector) -> None:
    assert gc.get_freeze_count() > 1000
    assert not gc.isenabled()


def test_a_state_that_is_loaded_is_never_walked(collector: Collector) -> None:
    collector.stop()
    collector.loading()
    assert not gc.isenabled()
    state = [[i] for i in range(BUSY_OBJECTS_MAX + 1000)]
    collector.start()
    collector.busy()
    assert collector.collections == 0
    later = [[i] for i in range(BUSY_OBJECTS_MAX + 1000)]
    state_loaded()
    collector.busy()
    assert collector.collections == 0
    assert state
    assert later


def test_python_collects_as_ever_while_nobody_has_taken_over() -> None:
    frozen = gc.get_freeze_count()
    state_loaded()
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen


def test_idle_collects_once_enough_has_come_together(collector: Collector) -> None:
    collector.idle()
    assert collector.collections == 0
    kept = [[i] for i in range(IDLE_OBJECTS_MIN + 1000)]
    collector.busy()
    assert collector.collections == 0
    frozen = gc.get_freeze_count()
    collector.idle()
    assert collector.collections == 1
    assert gc.get_freeze_count() >= frozen + len(kept), "what survived is not walked again"


def test_busy_collects_only_when_waiting_would_make_it_long(collector: Collector) -> None:
    kept = [[i] for i in range(BUSY_OBJECTS_MAX + 1000)]
    collector.busy()
    assert collector.collections == 1
    assert kept
