"""The informer on virtual time: nothing is missed, nothing is handed over out of order, and silence is noticed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from random import Random
from typing import Any

import pytest

from muster.runtime import kube
from muster.runtime.kube_objects import PODS, ListMeta, ListPage, ObjectMeta, Pod, Resource, WatchEvent
from muster.runtime.kube_watch import Informer, WatchSettings
from muster.sim import loop

Step = Any  # a batch of events, an exception to raise, or seconds to be silent


def pod(name: str, version: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, resource_version=version))


def event(kind: str, name: str, version: str) -> WatchEvent[Pod]:
    return WatchEvent(kind, pod(name, version))


class ScriptedApi:
    """Lists and watches as scripted; remembers what was asked."""

    cluster = "sim"

    def __init__(self) -> None:
        self.lists: deque[ListPage[Pod] | Exception] = deque()
        self.watches: deque[list[Step]] = deque()
        self.asked: list[str] = []
        self.at_s: list[float] = []

    def _note(self, what: str) -> None:
        self.asked.append(what)
        self.at_s.append(asyncio.get_running_loop().time())

    async def list_page(
        self, resource: Resource[Any], selector: str = "", *, limit: int = 500, continue_token: str = ""
    ) -> ListPage[Any]:
        self._note(f"list {continue_token}".strip())
        await asyncio.sleep(0.01)
        answer = self.lists.popleft() if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def watch(
        self, resource: Resource[Any], selector: str, resource_version: str, timeout_s: float
    ) -> AsyncGenerator[Sequence[WatchEvent[Any]], None]:
        self._note(f"watch {resource_version}")
        for step in self.watches.popleft() if self.watches else [1e6]:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, (int, float)):
                await asyncio.sleep(step)
            else:
                await asyncio.sleep(0.01)
                yield step


class Handler:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def listed(self, objects: Sequence[Pod]) -> None:
        self.seen.append("list " + ",".join(p.metadata.name for p in objects))

    def changed(self, events: Sequence[WatchEvent[Any]]) -> None:
        self.seen += [f"{e.type} {e.object.metadata.name}" for e in events]


def page(version: str, *names: str, more: str = "") -> ListPage[Pod]:
    return ListPage(items=[pod(n, version) for n in names], metadata=ListMeta(version, more))


Scenario = Callable[[ScriptedApi, Handler, Informer[Pod]], Coroutine[Any, Any, None]]


def play(api: ScriptedApi, scenario: Scenario, errors: list[kube.KubeError] | None = None) -> None:
    async def main() -> None:
        handler = Handler()
        informer = Informer(
            api,  # type: ignore[arg-type]  # only lists and watches
            PODS,
            "",
            handler,
            clock=loop.SimClock(),
            random=Random(3),
            settings=WatchSettings(),
            on_error=(errors if errors is not None else []).append,
        )
        task = asyncio.create_task(informer.run())
        await scenario(api, handler, informer)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    loop.run(main())


def test_pages_are_one_list_and_the_watch_goes_on_from_it() -> None:
    api = ScriptedApi()
    api.lists += [page("5", "a", more="t"), page("5", "b")]
    api.watches.append([[event("ADDED", "c", "6"), event("BOOKMARK", "", "9")], [event("DELETED", "a", "11")]])

    async def scenario(api: ScriptedApi, handler: Handler, informer: Informer[Pod]) -> None:
        await asyncio.sleep(2)
        assert handler.seen == ["list a,b", "ADDED c", "DELETED a"]
        assert api.asked == ["list", "list t", "watch 5", "watch 11"]

    play(api, scenario)


def test_a_broken_watch_resumes_from_the_last_version_bookmarks_included() -> None:
    api = ScriptedApi()
    api.lists.append(page("5", "a"))
    api.watches += [[[event("BOOKMARK", "", "8")], kube.Transient("reset")], [2000]]
    errors: list[kube.KubeError] = []

    async def scenario(api: ScriptedApi, handler: Handler, informer: Informer[Pod]) -> None:
        await asyncio.sleep(3)
        assert api.asked == ["list", "watch 5", "watch 8"]
        assert len(errors) == 1

    play(api, scenario, errors)


@pytest.mark.parametrize("steps", [[kube.Gone("old")], [[event("ADDED", "b", "6")], kube.Gone("old")]])
def test_gone_leads_back_to_the_list(steps: list[Step]) -> None:
    api = ScriptedApi()
    api.lists += [page("5", "a"), page("50", "b", "c")]
    api.watches.append(steps)

    async def scenario(api: ScriptedApi, handler: Handler, informer: Informer[Pod]) -> None:
        await asyncio.sleep(3)
        assert handler.seen[-1] == "list b,c"
        assert api.asked[-2:] == ["list", "watch 50"]

    play(api, scenario)


def test_a_continue_token_that_expires_begins_the_list_anew() -> None:
    api = ScriptedApi()
    api.lists += [page("5", "a", more="t"), kube.Gone("token expired"), page("7", "a", "b")]

    async def scenario(api: ScriptedApi, handler: Handler, informer: Informer[Pod]) -> None:
        await asyncio.sleep(3)
        assert handler.seen == ["list a,b"]

    play(api, scenario)


def test_a_silent_watch_is_dropped_and_shows_as_stale() -> None:
    api = ScriptedApi()
    api.lists.append(page("5", "a"))
    api.watches += [[10_000], [[event("ADDED", "b", "6")], 10_000]]

    async def scenario(api: ScriptedApi, handler: Handler, informer: Informer[Pod]) -> None:
        await asyncio.sleep(80)
        assert informer.stale_s() > 75
        await asyncio.sleep(20)
        assert handler.seen[-1] == "ADDED b"
        assert informer.stale_s() < 15

    play(api, scenario)


def test_failures_back_off_and_a_success_forgets_them() -> None:
    api = ScriptedApi()
    api.lists += [kube.Transient("down")] * 8 + [page("5", "a")]

    async def scenario(api: ScriptedApi, handler: Handler, informer: Informer[Pod]) -> None:
        await asyncio.sleep(120)
        gaps = [b - a for a, b in zip(api.at_s, api.at_s[1:8], strict=False)]
        assert gaps[0] < 0.3
        assert gaps[-1] > 5
        assert handler.seen == ["list a"]

    play(api, scenario)


def test_a_throttled_list_waits_as_told() -> None:
    api = ScriptedApi()
    api.lists += [kube.Throttled("busy", retry_after_s=10), page("5", "a")]

    async def scenario(api: ScriptedApi, handler: Handler, informer: Informer[Pod]) -> None:
        await asyncio.sleep(9)
        assert handler.seen == []
        await asyncio.sleep(12)
        assert handler.seen == ["list a"]

    play(api, scenario)


def test_watches_that_end_at_once_do_not_hammer_the_server() -> None:
    api = ScriptedApi()
    api.lists.append(page("5", "a"))
    api.watches += [[] for _ in range(1000)]

    async def scenario(api: ScriptedApi, handler: Handler, informer: Informer[Pod]) -> None:
        await asyncio.sleep(60)
        assert len(api.asked) < 20

    play(api, scenario)


@pytest.mark.parametrize("at_s", [0.005, 0.5], ids=["during a list", "during a watch"])
def test_relist_waits_for_a_list_that_began_after_it(at_s: float) -> None:
    api = ScriptedApi()
    api.lists += [page("5", "a"), page("9", "b")]

    async def scenario(api: ScriptedApi, handler: Handler, informer: Informer[Pod]) -> None:
        await asyncio.sleep(at_s)
        await informer.relist()
        assert handler.seen == ["list a", "list b"]

    play(api, scenario)
