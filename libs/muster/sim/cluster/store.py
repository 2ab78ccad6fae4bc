"""The cluster's memory: objects by kind, one global resourceVersion, a bounded history, and watches.

Every change makes a new immutable `Version` (the object and its JSON, encoded once); an `Event` pairs the new version
with the one before. Lists join the encoded bytes, watches join lines that are encoded once however many clients look.
What a client can still ask for is what the history still holds: older positions are answered 410, as by a real API
server after compaction. A paged list is a snapshot: its later pages show what was there when the first was read.

Nothing here knows HTTP or asyncio: a watch is a buffer with a `wake` callback.
"""

from __future__ import annotations

import base64
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec

from .kinds import Kind
from .selectors import Predicate
from .status import StatusError, bad_request, expired

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
MAX_LIST_SNAPSHOTS = 64  # paged lists under way at once; the oldest is expired first
MAX_WATCH_BACKLOG_EVENTS = 100_000  # a client this far behind is cut off, as by a real server

_encode = msgspec.json.Encoder().encode


class Version:
    """One state of one object. Never changed after it is stored; `obj` is shared, so treat it as read-only."""

    __slots__ = ("key", "obj", "raw", "rv")

    def __init__(self, key: str, rv: int, obj: dict[str, Any]) -> None:
        self.key = key
        self.rv = rv
        self.obj = obj
        self.raw = _encode(obj)


class Event:
    __slots__ = ("_line", "old", "rv", "type", "version")

    def __init__(self, type_: str, version: Version, old: Version | None) -> None:
        self.type = type_
        self.version = version
        self.old = old  # kept for selectors: did the object match before?
        self.rv = version.rv
        self._line: bytes | None = None

    def line(self) -> bytes:
        if self._line is None:
            self._line = event_line(self.type, self.version.raw)
        return self._line


Listener = Callable[[Kind, Event], None]
Render = Callable[[str, Version], bytes]  # (event type, version) -> the object's bytes, for tables


def event_line(type_: str, raw: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (type_.encode(), raw)


def object_key(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


class Watch:
    """What one client is still to be sent. `take` empties it; `wake` is called when it stops being empty or open."""

    __slots__ = ("_lines", "_matches", "_prefix", "_render", "closed", "kind", "last_rv", "wake")

    def __init__(self, kind: Kind, namespace: str, matches: Predicate | None, render: Render | None) -> None:
        self.kind = kind
        self.closed = False
        self.wake: Callable[[], None] | None = None
        self.last_rv = 0  # everything up to here was offered
        self._lines: list[bytes] = []
        self._matches = matches
        self._prefix = namespace + "/" if namespace else ""
        self._render = render

    def offer(self, event: Event) -> None:
        self.last_rv = event.rv
        if self._prefix and not event.version.key.startswith(self._prefix):
            return
        type_ = event.type
        if self._matches is not None:
            now = self._matches(event.version.obj)
            before = event.old is not None and self._matches(event.old.obj)
            if type_ == DELETED:
                if not before:
                    return
            elif now:
                type_ = MODIFIED if before else ADDED
            elif before:
                type_ = DELETED  # it left the selection
            else:
                return
        if self._render is not None:
            self.push(event_line(type_, self._render(type_, event.version)))
        else:
            self.push(event.line() if type_ == event.type else event_line(type_, event.version.raw))

    def push(self, line: bytes) -> None:
        self._lines.append(line)
        if len(self._lines) > MAX_WATCH_BACKLOG_EVENTS:
            self.close()
        elif self.wake is not None and len(self._lines) == 1:
            self.wake()

    def initial(self, version: Version) -> None:
        """A synthetic ADDED for an object that exists when the watch starts without a position."""
        if self._prefix and not version.key.startswith(self._prefix):
            return
        if self._matches is None or self._matches(version.obj):
            raw = version.raw if self._render is None else self._render(ADDED, version)
            self.push(event_line(ADDED, raw))

    def take(self) -> bytes:
        lines, self._lines = self._lines, []
        return b"".join(lines)

    def close(self) -> None:
        self.closed = True
        if self.wake is not None:
            self.wake()


class ListPage:
    __slots__ = ("continue_token", "remaining", "rv", "versions")

    def __init__(self, versions: list[Version], rv: int, continue_token: str, remaining: int | None) -> None:
        self.versions = versions
        self.rv = rv
        self.continue_token = continue_token
        self.remaining = remaining


class Store:
    """All objects of one cluster."""

    def __init__(self, history_events: int) -> None:
        self.rv = 1  # of the newest change
        self.listeners: list[Listener] = []
        self._history_events = history_events
        self._tables: defaultdict[Kind, dict[str, Version]] = defaultdict(dict)
        self._history: defaultdict[Kind, deque[Event]] = defaultdict(deque)
        self._horizon: defaultdict[Kind, int] = defaultdict(int)  # events up to this version are forgotten
        self._compacted = 0  # horizon of kinds that have no history of their own
        self._watches: defaultdict[Kind, list[Watch]] = defaultdict(list)
        self._snapshots: OrderedDict[int, list[Version]] = OrderedDict()
        self._snapshot_id = 0

    # -- objects ---------------------------------------------------------------------------------------------------

    def get(self, kind: Kind, namespace: str, name: str) -> Version | None:
        return self._tables[kind].get(object_key(namespace, name))

    def table(self, kind: Kind) -> dict[str, Version]:
        """The live objects of a kind by key; read only."""
        return self._tables[kind]

    def put(self, kind: Kind, obj: dict[str, Any]) -> Version:
        """Create or replace. `obj["metadata"]` must be the caller's own: it is given the new resourceVersion."""
        metadata = obj["metadata"]
        key = object_key(metadata.get("namespace", ""), metadata["name"])
        table = self._tables[kind]
        old = table.get(key)
        version = table[key] = self._stamp(key, obj)
        self._publish(kind, Event(ADDED if old is None else MODIFIED, version, old))
        return version

    def remove(self, kind: Kind, key: str) -> Version:
        """Take the object out; the DELETED event shows its last state under the version of the removal."""
        old = self._tables[kind].pop(key)
        version = self._stamp(key, {**old.obj, "metadata": dict(old.obj["metadata"])})
        self._publish(kind, Event(DELETED, version, old))
        return version

    def _stamp(self, key: str, obj: dict[str, Any]) -> Version:
        self.rv += 1
        obj["metadata"]["resourceVersion"] = str(self.rv)
        return Version(key, self.rv, obj)

    def _publish(self, kind: Kind, event: Event) -> None:
        history = self._history[kind]
        history.append(event)
        if len(history) > self._history_events:
            self._horizon[kind] = history.popleft().rv
        for watch in self._watches[kind]:
            watch.offer(event)
        for listener in self.listeners:
            listener(kind, event)

    # -- lists -----------------------------------------------------------------------------------------------------

    def list_page(
        self, kind: Kind, namespace: str, matches: Predicate | None, *, limit: int = 0, continue_token: str = ""
    ) -> ListPage:
        if continue_token:
            snapshot_id, rv, start = self._parse_token(continue_token)
            versions = self._snapshots.get(snapshot_id)
            if versions is None or rv < max(self._horizon[kind], self._compacted):
                self._snapshots.pop(snapshot_id, None)
                raise expired(
                    "The provided continue parameter is too old to display a consistent list result. "
                    "You can start a new list without the continue parameter."
                )
        else:
            snapshot_id, rv, start = 0, self.rv, 0
            versions = self._select(kind, namespace, matches)
        if not limit or start + limit >= len(versions):
            self._snapshots.pop(snapshot_id, None)
            return ListPage(versions[start:], rv, "", None)
        if not snapshot_id:
            snapshot_id = self._keep_snapshot(versions)
        end = start + limit
        token = base64.urlsafe_b64encode(f"{snapshot_id}:{rv}:{end}".encode()).decode().rstrip("=")
        return ListPage(versions[start:end], rv, token, None if matches else len(versions) - end)

    def _select(self, kind: Kind, namespace: str, matches: Predicate | None) -> list[Version]:
        table = self._tables[kind]
        prefix = namespace + "/" if namespace else ""
        keys = sorted(key for key in table if key.startswith(prefix)) if prefix else sorted(table)
        versions = [table[key] for key in keys]
        return versions if matches is None else [version for version in versions if matches(version.obj)]

    def _keep_snapshot(self, versions: list[Version]) -> int:
        self._snapshot_id += 1
        self._snapshots[self._snapshot_id] = versions
        if len(self._snapshots) > MAX_LIST_SNAPSHOTS:
            self._snapshots.popitem(last=False)
        return self._snapshot_id

    @staticmethod
    def _parse_token(token: str) -> tuple[int, int, int]:
        try:
            text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
            snapshot_id, rv, start = (int(part) for part in text.split(":"))
        except ValueError as error:
            raise bad_request("continue key is not valid") from error
        return snapshot_id, rv, start

    # -- watches ---------------------------------------------------------------------------------------------------

    def watch(
        self, kind: Kind, namespace: str, matches: Predicate | None, *, since_rv: int, render: Render | None = None
    ) -> Watch:
        """Everything after `since_rv`; 0 means: first what is there now. Raises 410 when the history is gone."""
        watch = Watch(kind, namespace, matches, render)
        if since_rv == 0:
            for version in self._select(kind, namespace, None):
                watch.initial(version)
        else:
            horizon = max(self._horizon[kind], self._compacted)
            if since_rv < horizon:
                raise expired(f"too old resource version: {since_rv} ({horizon})")
            self.check_not_ahead(since_rv)
            history = self._history[kind]
            newer = _count_newer(history, since_rv)
            for event in islice(history, len(history) - newer, None):
                watch.offer(event)
        watch.last_rv = self.rv
        self._watches[kind].append(watch)
        return watch

    def check_not_ahead(self, rv: int) -> None:
        """A version this server has not reached: the client is told to try again, not given older state."""
        if rv > self.rv:
            raise StatusError(
                504,
                f"Too large resource version: {rv}, current: {self.rv}",
                details={"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]},
                retry_after_s=1,
            )

    def unwatch(self, watch: Watch) -> None:
        watches = self._watches[watch.kind]
        if watch in watches:
            watches.remove(watch)

    def watches(self, kind: Kind | None = None) -> list[Watch]:
        kinds = list(self._watches) if kind is None else [kind]
        return [watch for kind_ in kinds for watch in self._watches[kind_]]

    def truncate_history(self) -> None:
        """Forget every past event: a watch or list page from an older version than now is answered 410."""
        self._history.clear()
        self._horizon.clear()
        self._compacted = self.rv
        self._snapshots.clear()


def _count_newer(history: deque[Event], rv: int) -> int:
    """How many events at the end of `history` are newer than `rv`; few when the client was nearly up to date."""
    newer = 0
    for event in reversed(history):
        if event.rv <= rv:
            break
        newer += 1
    return newer
