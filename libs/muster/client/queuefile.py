"""Queue files: a tree of queues as YAML, read and written.

    queues:
      research:
        weight: 2
        guaranteed: {gpu: 64}
        queues:
          vision: {limit: {gpu: 48}}
    moves:
      - {path: team-a, new_path: research/team-a}
    revision: 812

A queue has the fields of the API's Queue under the same names; `queues` holds what is below it. A name may also be a
whole path. What is not set has its default, so a file says what the queues are, not what to change. `revision` is that
of the tree the file was made from: if that has changed meanwhile, the file is refused. Mistakes name the key, its line
and the nearest key there is. `dump` writes what `load` reads, without defaults. The same file may hold
`priority_classes`, which `classfile` reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from google.protobuf.descriptor import FieldDescriptor

from muster.api.v1 import queue_pb2
from muster.client.bounds import bounds
from muster.client.durations import exact_duration
from muster.client.jobfile import JobFileError, Reader, documents, is_empty
from muster.core import resources

IN_REQUEST: Final = re.compile(r'(?:queues\.)?(queues|moves)\[(\d+)\](?:\.([a-z_]+(?:\.[^\s:,"]*[^\s:,."])?))?')
REVISION: Final = "revision"  # of the tree that the file was made from
CLASSES: Final = "priority_classes"  # of the same file, for `classfile`
NOT_SET: Final = frozenset({"path", "id", "revision", "status"})  # by the server, or by the place in the file
EXPECTED: Final = queue_pb2.ApplyQueuesRequest.DESCRIPTOR.fields_by_name["expected_revision"]
AMOUNTS: Final = ("guaranteed", "limit", "lending_limit")
ALLOWANCES: Final = ("per_namespace", "per_user")
FIELDS: Final[Mapping[str, FieldDescriptor]] = {
    field.name: field for field in queue_pb2.Queue.DESCRIPTOR.fields if field.name not in NOT_SET
}


class TreeFile(NamedTuple):
    """What a file says, and where it says it."""

    request: queue_pb2.ApplyQueuesRequest
    source: str
    lines: Mapping[str, int]  # of queues by path, of what is in them by path and field

    def placed(self, text: str) -> str:
        """What the server says of the request, with places in the file: `tree.yaml:7: research/vision.limit.cpu`."""
        return IN_REQUEST.sub(self._place, text)

    def _place(self, found: re.Match[str]) -> str:
        listed, number, field = found[1], int(found[2]), found[3] or ""
        if number >= len(getattr(self.request, listed)):
            return found[0]
        if listed == "moves":
            return f"{self.source}:{self.lines[f'moves[{number}]']}: {found[0].removeprefix('queues.')}"
        path = self.request.queues[number].path
        keys = field.split(".")
        known = (".".join([path, *keys[:count]]) for count in range(len(keys), 0, -1))
        line = next((self.lines[key] for key in known if key in self.lines), self.lines[path])
        named = f"{path}.{field}" if field not in ("", "path") else f'queue "{path}"'
        return f"{self.source}:{line}: {named}"


def load(path: str | Path) -> queue_pb2.ApplyQueuesRequest:
    """The queues and moves of a file. Raises JobFileError."""
    return parse(Path(path).read_text(encoding="utf-8"), source=str(path))


def parse(text: str, *, source: str = "<text>") -> queue_pb2.ApplyQueuesRequest:
    """The queues and moves of all documents of a text. Raises JobFileError."""
    return read(text, source=source).request


def read(text: str, *, source: str) -> TreeFile:
    """As `parse`, with the lines. Raises JobFileError."""
    reader, lines = Reader(source), dict[str, int]()
    request = queue_pb2.ApplyQueuesRequest()
    for document in documents(text, source, "a queue file"):
        for key, key_node, value in reader.pairs(document, "the file"):
            if key == "queues":
                request.queues.extend(_queues(reader, value, "", lines))
            elif key == REVISION:
                if request.HasField("expected_revision"):
                    reader.fail(key_node, f'key "{REVISION}" of the file is there twice')
                request.expected_revision = reader.integer(value, REVISION, bounds(EXPECTED))
            elif key == "moves":
                known = len(request.moves)
                reader.field(value, request, queue_pb2.ApplyQueuesRequest.DESCRIPTOR.fields_by_name["moves"], "moves")
                for number, node in enumerate(value.value, known):
                    lines[f"moves[{number}]"] = node.start_mark.line + 1
            elif key != CLASSES:
                reader.unknown(key_node, key, ["queues", "moves", REVISION, CLASSES], "the file")
    if not request.queues and not request.moves:
        raise JobFileError(source, 1, "names no queues (write `queues:` and a mapping of names to settings)")
    return TreeFile(request, source, lines)


def _note(node: yaml.Node, where: str, lines: dict[str, int]) -> None:
    """On which lines the keys of a mapping are, and of the mappings in it; resources by their full names."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = f"{where}.{resources.full_pair(str(key.value), '1')[0]}"
            lines[inner] = key.start_mark.line + 1
            if key.value != "queues":
                _note(value, inner, lines)


def _queues(reader: Reader, node: yaml.Node, above: str, lines: dict[str, int]) -> Iterator[queue_pb2.Queue]:
    """The queues of one mapping and all below them, parents first."""
    for name, name_node, value in reader.pairs(node, "queues"):
        path = f"{above}/{name}" if above else name
        lines[path] = name_node.start_mark.line + 1
        _note(value, path, lines)
        queue = queue_pb2.Queue(path=path)
        below: yaml.Node | None = None
        if not is_empty(value):
            for key, key_node, field_node in reader.pairs(value, path):
                if key == "queues":
                    below = None if is_empty(field_node) else field_node
                elif key in FIELDS:
                    reader.field(field_node, queue, FIELDS[key], f"{path}.{key}")
                    _name_in_full(reader, field_node, queue, key)
                else:
                    reader.unknown(key_node, key, [*FIELDS, "queues"], path)
        yield queue
        if below is not None:
            yield from _queues(reader, below, path, lines)


def _name_in_full(reader: Reader, node: yaml.Node, queue: queue_pb2.Queue, field: str) -> None:
    """The amounts of a field that was read, under the full names of their resources."""
    where = f"{queue.path}.{field}"
    if field in AMOUNTS:
        _rename(reader, node, getattr(queue, field), where)
    elif field in ALLOWANCES:
        for key, _, value in reader.pairs(node, where):
            if key == "resources" and not is_empty(value):
                _rename(reader, value, getattr(queue, field).resources, f"{where}.resources")


def _rename(reader: Reader, node: yaml.Node, amounts: MutableMapping[str, str], where: str) -> None:
    given = dict(amounts)
    amounts.clear()
    for key, key_node, _ in reader.pairs(node, where):
        name, text = resources.full_pair(key, given[key])
        wrong = resources.misnamed(name)
        if wrong:
            reader.fail(key_node, f"{where}: {wrong}")
        if name in amounts:
            reader.fail(key_node, f'"{name}" of {where} is there twice, the second time as "{key}"')
        amounts[name] = text


# --- writing --------------------------------------------------------------------------------------------------------


def dump(queues: Iterable[queue_pb2.Queue], revision: int = 0) -> str:
    """The text of a file with these queues, parents before children. With the revision of the tree that they are from
    it is refused when the tree has changed meanwhile."""
    top = {REVISION: revision} if revision else {}
    return yaml.safe_dump({**top, "queues": tree(queues)}, sort_keys=False, allow_unicode=True)


def tree(queues: Iterable[queue_pb2.Queue]) -> dict[str, Any]:
    """Nested plain data; a queue whose parent is not among them stands under its path."""
    top: dict[str, Any] = {}
    places: dict[str, dict[str, Any]] = {}
    for queue in queues:
        parent, _, name = queue.path.rpartition("/")
        settings = places[queue.path] = plain(queue)
        if parent in places:
            places[parent].setdefault("queues", {})[name] = settings
        else:
            top[queue.path] = settings
    return top


def plain(queue: queue_pb2.Queue) -> dict[str, Any]:
    """What differs from the defaults, as it is written in a file."""
    found: dict[str, Any] = {}
    for name, field in FIELDS.items():
        value = getattr(queue, name)
        if name == "weight":
            if queue.HasField("weight") and queue.weight != 1:
                found[name] = queue.weight
        elif field.message_type is not None and field.message_type.full_name == "google.protobuf.Duration":
            if value.ToMilliseconds():
                found[name] = exact_duration(value.ToMilliseconds())
        elif name in ALLOWANCES:
            if value.ListFields():
                found[name] = _allowance(value)
        elif field.enum_type is not None:
            prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
            text = field.enum_type.values_by_number[value].name.removeprefix(prefix)
            if value and text != DEFAULTS[name]:
                found[name] = text
        elif value:
            found[name] = dict(sorted(value.items())) if isinstance(value, Mapping) else value
    return found


DEFAULTS: Final = {"ordering": "PRIORITY", "preemption": "LOWER_PRIORITY", "state": "OPEN", "fair_by": "NAMESPACE"}


def _allowance(allowance: queue_pb2.Allowance) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if allowance.HasField("pending_jobs"):
        found["pending_jobs"] = allowance.pending_jobs
    if allowance.HasField("running_jobs"):
        found["running_jobs"] = allowance.running_jobs
    if allowance.resources:
        found["resources"] = dict(sorted(allowance.resources.items()))
    return found
