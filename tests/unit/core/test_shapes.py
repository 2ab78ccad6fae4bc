"""Shapes and orders: shared by equal pods, kept in step, thrown away when too many (section 4 of the architecture)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core import shapes
from muster.core.candidates import move
from muster.core.model import NodeSpec, TaskGroup
from muster.core.nodes import NodeTable
from muster.core.overlay import Overlay
from muster.core.shapes import cache_of


def table_of(nodes: int, cpu: int = 8) -> NodeTable:
    table = NodeTable()
    for n in range(nodes):
        table.upsert(n, NodeSpec("c", f"n{n}", (("cpu", cpu * 1000), ("memory", 8))))
    return table


def pod(cpu: int, memory: int = 1, name: str = "g") -> TaskGroup:
    return TaskGroup(name, 1, 1, (("cpu", cpu * 1000), ("memory", memory)), template=name.encode())


def test_equal_pods_are_one_shape_whatever_they_are_called():
    cache = cache_of(table_of(1))
    assert cache.shape(pod(1, name="a")) is cache.shape(pod(1, name="b"))
    assert cache.shape(pod(1)) is not cache.shape(pod(2))


def test_shapes_that_ask_the_same_question_share_an_order():
    table = table_of(3)
    cache = cache_of(table)
    one, two = cache.shape(pod(1)), cache.shape(pod(2))
    assert one.orders(0, cache)[0] is two.orders(0, cache)[0]


def test_fit_vectors_follow_charges():
    table = table_of(3)
    shape = cache_of(table).shape(pod(2))
    assert shape.fit_now(table).counts.tolist() == [4, 4, 4]
    table.charge(1, (("cpu", 3000),), 1)
    assert shape.fit_now(table).counts.tolist() == [4, 2, 4]
    assert shape.fit_now(table).totals == [10]
    assert shape.fit_when_empty(table).totals == [12]
    table.remove(2)
    assert shape.fit_now(table).totals == [6]
    assert shape.fit_when_empty(table).totals == [8]


def test_too_many_shapes_are_forgotten_without_changing_a_decision(monkeypatch):
    monkeypatch.setattr(shapes, "SHAPES_MAX", 3)
    monkeypatch.setattr(shapes, "ORDERS_MAX", 1)
    monkeypatch.setattr(shapes, "OWN_ORDERS_MAX", 1)
    small, large = Overlay(table_of(6)), Overlay(table_of(6))
    jobs = [pod(1 + i % 5, 1 + i % 3) for i in range(40)]
    placed = [small.place_gang([job]) for job in jobs]
    monkeypatch.undo()
    assert placed == [large.place_gang([job]) for job in jobs]
    assert any(placed)


def test_a_shape_that_walks_in_vain_gets_an_order_of_its_own_with_the_same_answers():
    table = table_of(50)
    for n in range(49):
        table.charge(n, (("cpu", 1000), ("memory", 8)), 1)  # cpu is left, memory is not
    overlay = Overlay(table)
    job = [pod(1)]
    found = [overlay.place_gang(job)[0].runs[0][0] for _ in range(8)]
    assert found == [49] * 8
    shape = overlay.cache.shape(job[0])
    assert shape.own_order
    assert len(shape.orders(0, overlay.cache)[0].synced(table).keys) == 1
    assert overlay.place_gang(job) is None


def test_orders_follow_the_dominant_resource_when_hardware_changes():
    table = table_of(2, cpu=8)
    cache = cache_of(table)
    shape = cache.shape(pod(1, 2))
    shape.orders(0, cache)
    assert shape.dominant == table.columns["memory"]
    table.upsert(2, NodeSpec("c", "big", (("cpu", 1_000), ("memory", 10_000))))
    shape.orders(0, cache)
    assert shape.dominant == table.columns["cpu"]
    assert Overlay(table).place_gang([pod(1, 2)])[0].runs[0][0] == 2  # least cpu left over, though most memory


keys = st.lists(st.integers(0, 10_000), min_size=1, max_size=300, unique=True)


@given(keys, st.data())
@pytest.mark.parametrize("count", [1, 40, 200])
def test_moving_keys_keeps_the_order(count, values, data):
    held = sorted(values)
    chosen = data.draw(st.lists(st.sampled_from(values), max_size=count, unique=True))
    fresh = [20_000 + i for i in range(len(chosen))]
    expected = sorted([v for v in values if v not in chosen] + fresh)
    move(held, [((old,), (new,)) for old, new in zip(chosen, fresh, strict=True)])
    assert held == expected
