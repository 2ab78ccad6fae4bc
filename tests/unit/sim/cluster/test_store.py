import json
from typing import Any

import pytest

from muster.sim.cluster.kinds import NODES, PODS
from muster.sim.cluster.selectors import combine
from muster.sim.cluster.status import StatusError
from muster.sim.cluster.store import Store, Watch


def put(store: Store, name: str, namespace: str = "ns", **labels: str) -> int:
    return store.put(PODS, {"metadata": {"name": name, "namespace": namespace, "labels": labels}}).rv


def types(watch: Watch) -> list[tuple[str, str]]:
    events = [json.loads(line) for line in watch.take().splitlines()]
    return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


def code_of(call: Any, *args: Any, **options: Any) -> int:
    with pytest.raises(StatusError) as caught:
        call(*args, **options)
    return caught.value.code


def test_versions_grow_over_all_kinds() -> None:
    store = Store(10)
    first = put(store, "a")
    node = store.put(NODES, {"metadata": {"name": "n"}}).rv
    again = put(store, "a")
    gone = store.remove(PODS, "ns/a").rv
    assert [first, node, again, gone] == sorted({first, node, again, gone})
    assert store.rv == gone


def test_a_watch_from_a_version_gets_exactly_what_came_later() -> None:
    store = Store(100)
    put(store, "a")
    since = put(store, "b")
    put(store, "a")
    watch = store.watch(PODS, "", None, since_rv=since)
    put(store, "c")
    store.remove(PODS, "ns/b")
    assert types(watch) == [("MODIFIED", "a"), ("ADDED", "c"), ("DELETED", "b")]
    assert types(watch) == []


def test_a_watch_without_a_version_starts_with_what_is_there() -> None:
    store = Store(100)
    put(store, "b")
    put(store, "a", "other")
    watch = store.watch(PODS, "ns", None, since_rv=0)
    put(store, "c", "other")
    put(store, "d")
    assert types(watch) == [("ADDED", "b"), ("ADDED", "d")]


def test_objects_enter_and_leave_the_selection_of_a_watch() -> None:
    store = Store(100)
    put(store, "a", app="web")
    watch = store.watch(PODS, "", combine(PODS, "app=web", ""), since_rv=store.rv)
    put(store, "b", app="db")
    put(store, "b", app="web")
    put(store, "b", app="web")
    put(store, "a", app="db")
    store.remove(PODS, "ns/a")
    store.remove(PODS, "ns/b")
    assert types(watch) == [("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "a"), ("DELETED", "b")]


def test_history_is_bounded_and_the_past_is_gone() -> None:
    store = Store(3)
    revisions = [put(store, f"p{i}") for i in range(5)]
    assert code_of(store.watch, PODS, "", None, since_rv=revisions[0]) == 410
    watch = store.watch(PODS, "", None, since_rv=revisions[1])  # everything after it is still known
    assert types(watch) == [("ADDED", "p2"), ("ADDED", "p3"), ("ADDED", "p4")]


def test_history_of_one_kind_is_not_used_up_by_another() -> None:
    store = Store(3)
    since = put(store, "a")
    for i in range(10):
        store.put(NODES, {"metadata": {"name": f"n{i}"}})
    assert types(store.watch(PODS, "", None, since_rv=since)) == []


def test_truncation_expires_watches_and_pages_but_not_the_present() -> None:
    store = Store(100)
    since = put(store, "a")
    put(store, "b")
    page = store.list_page(PODS, "", None, limit=1)
    store.truncate_history()
    assert code_of(store.watch, PODS, "", None, since_rv=since) == 410
    assert code_of(store.list_page, PODS, "", None, limit=1, continue_token=page.continue_token) == 410
    assert types(store.watch(PODS, "", None, since_rv=store.rv)) == []


def test_a_version_from_the_future_is_refused_with_try_again() -> None:
    store = Store(100)
    assert code_of(store.watch, PODS, "", None, since_rv=store.rv + 1) == 504


def test_pages_are_one_snapshot() -> None:
    store = Store(100)
    for name in "abcde":
        put(store, name)
    first = store.list_page(PODS, "", None, limit=2)
    store.remove(PODS, "ns/c")
    put(store, "aa")
    second = store.list_page(PODS, "", None, limit=2, continue_token=first.continue_token)
    third = store.list_page(PODS, "", None, limit=2, continue_token=second.continue_token)
    names = [version.obj["metadata"]["name"] for page in (first, second, third) for version in page.versions]
    assert names == list("abcde")
    assert (first.remaining, second.remaining, third.remaining) == (3, 1, None)
    assert first.rv == second.rv == third.rv < store.rv
    assert third.continue_token == ""


@pytest.mark.parametrize("token", ["!!", "YQ", "MTox"])
def test_a_made_up_continue_token_is_refused(token: str) -> None:
    assert code_of(Store(10).list_page, PODS, "", None, limit=1, continue_token=token) == 400


def test_wake_is_called_when_a_watch_stops_being_empty_and_when_it_closes() -> None:
    store = Store(100)
    watch = store.watch(PODS, "", None, since_rv=store.rv)
    calls: list[int] = []
    watch.wake = lambda: calls.append(len(calls))
    put(store, "a")
    put(store, "b")
    assert len(calls) == 1
    watch.take()
    put(store, "c")
    assert len(calls) == 2
    watch.close()
    assert len(calls) == 3
    store.unwatch(watch)
    assert store.watches() == []
