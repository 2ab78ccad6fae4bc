"""A process's connection to a `SimKube`: the `KubeApi` of the simulation, with everything that can go wrong on the way.

A request is lost before it is carried out, carried out late, answered by nobody, or throttled; a watch is cut. Whoever
calls it sees the errors of `runtime.kube`, as from a real API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from muster.runtime import kube
from muster.runtime.kube_objects import ListMeta, ListPage, Pod, Resource, WatchEvent

if TYPE_CHECKING:
    from muster.sim.kube import Object, SimKube

T = TypeVar("T")


class SimKubeApi:
    """One client's `KubeApi`. `cut` and `restore` are its network."""

    def __init__(self, server: SimKube, agent: str) -> None:
        self._server = server
        self._agent = agent
        self.up = True

    @property
    def cluster(self) -> str:
        return self._server.cluster

    def cut(self) -> None:
        self.up = False

    def restore(self) -> None:
        self.up = True

    async def create_pod(self, namespace: str, body: bytes) -> Pod:
        obj = msgspec.json.decode(body)
        return _as(Pod, await self._write(lambda: self._server.create(namespace, obj, self._agent)))

    async def get_pod(self, namespace: str, name: str) -> Pod:
        return _as(Pod, await self._read(lambda: self._server.get(namespace, name)))

    async def delete_pod(self, namespace: str, name: str, *, uid: str, finished: bool = False) -> None:
        await self._write(lambda: self._server.delete(namespace, name, uid, self._agent, at_once=finished))

    async def patch_pod(self, namespace: str, name: str, body: bytes) -> Pod:
        patch = msgspec.json.decode(body)
        return _as(Pod, await self._write(lambda: self._server.patch(namespace, name, patch, self._agent)))

    async def bind_pod(self, namespace: str, name: str, node: str, *, uid: str) -> None:
        await self._write(lambda: self._server.bind(namespace, name, node, uid, self._agent))

    async def list_page(
        self,
        resource: Resource[T],
        selector: str = "",
        *,
        limit: int = kube.LIST_PAGE_OBJECTS_MAX,  # noqa: ARG002 - one page holds what a simulation has
        continue_token: str = "",  # noqa: ARG002
    ) -> ListPage[T]:
        def read() -> ListPage[T]:
            found = [o for o in self._server.listing(resource.plural) if _selected(o, selector)]
            items = [resource.decoder.decode(msgspec.json.encode(o)) for o in found]
            return ListPage(items=items, metadata=ListMeta(resource_version=str(self._server.version)))

        page: ListPage[T] = await self._read(read)
        return page

    async def watch(
        self, resource: Resource[T], selector: str, resource_version: str, timeout_s: float
    ) -> AsyncGenerator[Sequence[WatchEvent[T]], None]:
        server = self._server
        version = int(resource_version)
        until_s = asyncio.get_running_loop().time() + timeout_s
        await self._read(lambda: None)
        while asyncio.get_running_loop().time() < until_s:
            found = server.events_after(resource.plural, version)
            if not found:
                await server.wait_changed(until_s - asyncio.get_running_loop().time())
                continue
            await asyncio.sleep(server.rng.random() * server.faults.delay_max_s)
            if not self.up or server.rng.random() < server.faults.watch_cut_chance:
                raise kube.Transient("the watch was cut")
            version = found[-1][0]
            events = [
                resource.event_decoder.decode(msgspec.json.encode({"type": kind, "object": obj}))
                for _, _, kind, obj in found
                if _selected(obj, selector)
            ]
            if events:
                yield events

    async def close(self) -> None:
        self.up = False

    async def _read(self, carry_out: Any) -> Any:
        faults, rng = self._server.faults, self._server.rng
        await asyncio.sleep(rng.random() * faults.delay_max_s)
        if not self.up or rng.random() < faults.request_lost_chance:
            await asyncio.sleep(1.0)
            raise kube.Transient("no answer")
        return carry_out()

    async def _write(self, carry_out: Any) -> Any:
        faults, rng = self._server.faults, self._server.rng
        if rng.random() < faults.throttled_chance:
            raise kube.Throttled("too many requests", retry_after_s=0.5)
        if rng.random() < faults.late_chance:
            asyncio.get_running_loop().call_later(rng.uniform(1.0, 4.0), _carry_out_unheard, carry_out)
            await asyncio.sleep(1.0)
            raise kube.Transient("no answer")
        answer = await self._read(carry_out)
        await asyncio.sleep(rng.random() * faults.delay_max_s)
        if not self.up or rng.random() < faults.answer_lost_chance:
            raise kube.Transient("the answer was lost")
        return answer


def _carry_out_unheard(carry_out: Any) -> None:
    try:
        carry_out()
    except kube.KubeError:
        pass  # nobody is there to be told


def _as(struct: type[T], obj: Object) -> T:
    return msgspec.convert(obj, struct)


def _selected(obj: Object, selector: str) -> bool:
    labels = obj["metadata"].get("labels") or {}
    for part in filter(None, selector.split(",")):
        if part.startswith("!"):
            if part[1:] in labels:
                return False
        elif "=" in part:
            key, value = part.split("=", 1)
            if labels.get(key) != value:
                return False
        elif part not in labels:
            return False
    return True
