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

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final

import yaml
from google.protobuf.descriptor import FieldDescriptor

from muster.api.v1 import queue_pb2
from muster.client.bounds import bounds
from muster.client.durations import exact_duration
from muster.client.jobfile import JobFileError, Reader, documents, is_empty
from muster.core import resources

REVISION: Final = "revision"  # of the tree that the file was made from
CLASSES: Final = "priority_classes"  # of the same file, for `classfile`
NOT_SET: Final = frozenset({"path", "id", "revision", "status"})  # by the server, or by the place in the file
EXPECTED: Final = queue_pb2.ApplyQueuesRequest.DESCRIPTOR.fields_by_name["expected_revision"]
AMOUNTS: Final = ("guaranteed", "limit", "lending_limit")
ALLOWANCES: Final = ("per_namespace", "per_user")
FIELDS: Final[Mapping[str, FieldDescriptor]] = {
    field.name: field for field in queue_pb2.Queue.DESCRIPTOR.fields if field.name not in NOT_SET
}


def load(path: str | Path) -> queue_pb2.ApplyQueuesRequest:
    """The queues and moves of a file. Raises JobFileError."""
    return parse(Path(path).read_text(encoding="utf-8"), source=str(path))


def parse(text: str, *, source: str = "<text>") -> queue_pb2.ApplyQueuesRequest:
    """The queues and moves of all documents of a text. Raises JobFileError."""
    reader = Reader(source)
    request = queue_pb2.ApplyQueuesRequest()
    for document in documents(text, source, "a queue file"):
        for key, key_node, value in reader.pairs(document, "the file"):
            if key == "queues":
                request.queues.extend(_queues(reader, value, ""))
            elif key == REVISION:
                if request.HasField("expected_revision"):
                    reader.fail(key_node, f'key "{REVISION}" of the file is there twice')
                request.expected_revision = reader.integer(value, REVISION, bounds(EXPECTED))
            elif key == "moves":
                reader.field(value, request, queue_pb2.ApplyQueuesRequest.DESCRIPTOR.fields_by_name["moves"], "moves")
            elif key != CLASSES:
                reader.unknown(key_node, key, ["queues", "moves", REVISION, CLASSES], "the file")
    if not request.queues and not request.moves:
        raise JobFileError(source, 1, "names no queues (write `queues:` and a mapping of names to settings)")
    return request


def _queues(reader: Reader, node: yaml.Node, above: str) -> Iterator[queue_pb2.Queue]:
    """The queues of one mapping and all below them, parents first."""
    for name, _, value in reader.pairs(node, "queues"):
        path = f"{above}/{name}" if above else name
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
            yield from _queues(reader, below, path)


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
