"""List, then watch, then list again when it must: the informer of Muster.

`Informer.run` lists all objects of a resource in pages and hands the full set to the handler, then follows the watch
from the list's resource version and hands over each batch of changes, in order. A watch that ends or breaks is resumed
from the last version seen (bookmarks move it while nothing changes); `Gone` (410) leads back to the list. A watch on
which nothing arrives for `silence_s`, not even a bookmark, is dropped and resumed: connections die without a word.
`relist` asks for a list that begins after the call, for callers that must not trust what was seen before.

The handler is called synchronously and must not block; both calls come from one task, so it needs no locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Generic, Protocol, TypeVar

from muster.runtime import kube
from muster.runtime.kube_objects import Resource, WatchEvent
from muster.runtime.ports import Clock

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

SHORT_WATCH_S: Final = 1.0


class Handler(Protocol[T_contra]):
    """Receives what a cluster holds."""

    def listed(self, objects: Sequence[T_contra]) -> None:
        """Everything there is now; what is not in it is gone."""

    def changed(self, events: Sequence[WatchEvent[Any]]) -> None:
        """ADDED, MODIFIED and DELETED, in the order of the server. Bookmarks are not handed on."""


@dataclass(frozen=True)
class WatchSettings:
    watch_timeout_s: float = 300.0  # asked of the server; plus up to a fifth, so that watches do not end together
    silence_s: float = 90.0  # servers send a bookmark about every minute
    backoff_first_s: float = 0.2
    backoff_max_s: float = 15.0
    page_objects: int = kube.LIST_PAGE_OBJECTS_MAX


class Informer(Generic[T]):
    """Keeps a handler up to date with one resource of one cluster."""

    def __init__(
        self,
        api: kube.KubeApi,
        resource: Resource[T],
        selector: str,
        handler: Handler[T],
        *,
        clock: Clock,
        random: Random,
        settings: WatchSettings | None = None,
        on_error: Callable[[kube.KubeError], None] = lambda _error: None,
    ) -> None:
        self._api = api
        self._resource = resource
        self._selector = selector
        self._handler = handler
        self._clock = clock
        self._random = random
        self._settings = settings or WatchSettings()
        self._on_error = on_error
        self._version = ""  # resume the watch here; "": list first
        self._heard_s = clock.monotonic()
        self._failures = 0
        self._lists_begun = 0
        self._lists_done = 0  # the number of the last list that was handed over
        self._list_wanted = 1  # no list before this one is good enough
        self._done = asyncio.Condition()
        self._watching: asyncio.Timeout | None = None  # the current wait for events

    @property
    def synced(self) -> bool:
        """Whether a full list was handed over."""
        return self._lists_done > 0

    @property
    def _must_list(self) -> bool:
        return self._lists_done < self._list_wanted

    async def relist(self) -> None:
        """Returns when a list that began after this call was handed over, however long that takes."""
        wanted = self._list_wanted = self._lists_begun + 1
        if self._watching is not None and not self._watching.expired():
            self._watching.reschedule(asyncio.get_running_loop().time())
        async with self._done:
            await self._done.wait_for(lambda: self._lists_done >= wanted)

    def stale_s(self) -> float:
        """Seconds since the server was last heard."""
        return self._clock.monotonic() - self._heard_s

    async def run(self) -> None:
        """For ever; ends by cancellation. The server's errors are counted, backed off and never raised."""
        while True:
            try:
                if not self._version or self._must_list:
                    await self._list()
                await self._watch()
            except kube.Gone:
                self._version = ""
                await self._back_off()
            except kube.Throttled as busy:
                self._on_error(busy)
                await self._clock.sleep(busy.retry_after_s * (1 + self._random.random()))
            except kube.KubeError as error:
                self._on_error(error)
                if isinstance(error, kube.Invalid):
                    self._version = ""  # some servers answer a version from another life with 400
                await self._back_off()

    async def _list(self) -> None:
        self._lists_begun += 1
        number = self._lists_begun
        objects: list[T] = []
        token = ""
        while True:
            page = await self._api.list_page(
                self._resource, self._selector, limit=self._settings.page_objects, continue_token=token
            )
            objects += page.items
            token = page.metadata.continue_
            if not token:
                break
        self._heard()
        self._handler.listed(objects)
        self._version = page.metadata.resource_version
        async with self._done:
            self._lists_done = number
            self._done.notify_all()

    async def _watch(self) -> None:
        """One watch, from its start to its end, whoever ends it."""
        began_s = self._clock.monotonic()
        timeout_s = self._settings.watch_timeout_s * (1 + self._random.random() / 5)
        stream = self._api.watch(self._resource, self._selector, self._version, timeout_s)
        async with aclosing(stream) as batches:
            while not self._must_list:
                try:
                    async with asyncio.timeout(self._settings.silence_s) as self._watching:
                        batch = await anext(batches)
                except StopAsyncIteration:
                    break
                except TimeoutError:
                    if self._must_list:
                        return
                    raise kube.Transient(f"nothing on the watch for {self._settings.silence_s:.0f} s") from None
                finally:
                    self._watching = None
                self._deliver(batch)
        if self._clock.monotonic() - began_s < SHORT_WATCH_S and not self._must_list:
            await self._back_off()  # a server that closes watches at once must not be hammered

    def _deliver(self, batch: Sequence[WatchEvent[Any]]) -> None:
        self._heard()
        events = [event for event in batch if event.type != "BOOKMARK"]
        if events:
            self._handler.changed(events)
        version = batch[-1].object.metadata.resource_version
        if version:
            self._version = version

    def _heard(self) -> None:
        self._heard_s = self._clock.monotonic()
        self._failures = 0

    async def _back_off(self) -> None:
        """Full jitter between half and all of an exponentially growing wait."""
        wait_s = min(self._settings.backoff_max_s, self._settings.backoff_first_s * 2 ** min(self._failures, 10))
        self._failures += 1
        await self._clock.sleep(wait_s * (0.5 + self._random.random() / 2))
