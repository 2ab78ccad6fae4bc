"""Job files: YAML documents (Muster's own, or `batch/v1` Jobs) into the API's JobSpec.

Muster's form has the fields of the API under the same names, with durations as `4h`, quantities as Kubernetes writes
them, enums by their short names, and pod templates as plain YAML. So the message's descriptor is the schema: a key
that is no field is an error that names the key, its line and the nearest field there is. Whether the values make sense
together is decided by the server, once, for every kind of client.
"""

from __future__ import annotations

import datetime
import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from muster.api.v1 import job_pb2
from muster.client.bounds import INT32, INTEGERS, bounds
from muster.client.durations import parse_duration_ms

SERVER_FIELDS: Final = frozenset({"submitter"})  # never written by users
JSON_FIELDS: Final = frozenset({"template", "objects"})  # JSON text in the API, plain YAML here
THE_JOB: Final = "the job"
NAMES_TOLD: Final = 4  # of the fields of a list's items
DURATION: Final = "google.protobuf.Duration"
TIMESTAMP: Final = "google.protobuf.Timestamp"


class JobFileError(ValueError):
    """A mistake in a job file: where, and what to write instead."""

    def __init__(self, source: str, line: int, message: str) -> None:
        super().__init__(f"{source}:{line}: {message}")
        self.source = source
        self.line = line
        self.message = message


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML without dates: `2026-01-02` in a template is text, as Kubernetes reads it."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(path: str | Path) -> job_pb2.JobSpec:
    """The one job of a file. Raises JobFileError, also when there are several."""
    specs = load_all(path)
    if len(specs) != 1:
        raise JobFileError(str(path), 1, f"holds {len(specs)} jobs where one is expected (load_all reads many)")
    return specs[0]


def load_all(path: str | Path, *, queue: str = "") -> list[job_pb2.JobSpec]:
    """All jobs of a file, in order. `queue` is for those that name none."""
    return parse(Path(path).read_text(encoding="utf-8"), source=str(path), queue=queue)


def parse(text: str, *, source: str = "<text>", queue: str = "") -> list[job_pb2.JobSpec]:
    """All jobs of a text of one or more YAML documents. Raises JobFileError."""
    reader = Reader(source)
    specs: list[job_pb2.JobSpec] = []
    for node in documents(text, source):
        spec = reader.job(node)
        if not spec.queue:
            spec.queue = queue
        specs.append(spec)
    return specs


def documents(text: str, source: str, what: str = "a job") -> Iterator[yaml.MappingNode]:
    """The documents of a text that say something. Raises JobFileError."""
    try:
        for node in yaml.compose_all(text, Loader=_Loader):
            if isinstance(node, yaml.ScalarNode) and node.value in ("", "null"):
                continue  # an empty document between two separators
            if not isinstance(node, yaml.MappingNode):
                raise JobFileError(source, node.start_mark.line + 1, f"{what} is a mapping of keys to values")
            yield node
    except yaml.MarkedYAMLError as error:
        line = (error.problem_mark.line + 1) if error.problem_mark else 1
        raise JobFileError(source, line, f"this is not YAML: {error.problem}") from None


def is_empty(node: yaml.Node) -> bool:
    """Whether the node is a key's missing value."""
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


class Reader:
    """Turns YAML nodes into messages, field by field, and knows where each value stands."""

    def __init__(self, source: str) -> None:
        self._source = source

    def job(self, node: yaml.MappingNode) -> job_pb2.JobSpec:
        keys = {key.value: value for key, value in node.value}
        if "apiVersion" in keys or "kind" in keys:
            from muster.client import kubejob

            return kubejob.read(self, node)
        spec = job_pb2.JobSpec()
        self.message(node, spec, THE_JOB)
        if "array" in keys and not spec.array.size and not is_empty(keys["array"]):
            for key, _, value in self.pairs(keys["array"], "array"):
                if key == "size":
                    self.fail(value, "array.size must be at least 1")
        if spec.array.size and len(spec.tasks) == 1 and not spec.tasks[0].replicas:
            spec.tasks[0].replicas = min(spec.array.size, 2**31 - 1)  # an array says how many there are
        return spec

    def fail(self, node: yaml.Node, message: str) -> NoReturn:
        raise JobFileError(self._source, node.start_mark.line + 1, message)

    def pairs(self, node: yaml.Node, where: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """(key, key node, value node) of a mapping; a key that comes twice is an error."""
        if not isinstance(node, yaml.MappingNode):
            self.fail(node, f"{where} must be a mapping of keys to values")
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.fail(key, f"a key of {where} must be plain text")
            if key.value in seen:
                self.fail(key, f'key "{key.value}" of {where} is there twice')
            seen.add(key.value)
            yield key.value, key, value

    def unknown(self, node: yaml.Node, key: str, known: list[str], where: str) -> NoReturn:
        near = difflib.get_close_matches(key, known, 1)
        hint = f' (did you mean "{near[0]}"?)' if near else f" (known: {', '.join(known)})"
        self.fail(node, f'unknown key "{key}" in {where}{hint}')

    def plain(self, node: yaml.Node) -> Any:
        """The node as plain data."""
        loader = _Loader("")
        try:
            return loader.construct_document(node)
        except yaml.MarkedYAMLError as error:
            self.fail(node, f"cannot be read: {error.problem}")
        finally:
            loader.dispose()

    def message(self, node: yaml.Node, message: Message, where: str) -> None:
        fields = _fields_of(message.DESCRIPTOR)
        for key, key_node, value in self.pairs(node, where):
            field = fields.get(key)
            if field is None:
                self.unknown(key_node, key, list(fields), where)
            if not is_empty(value):
                self.field(value, message, field, key if where == THE_JOB else f"{where}.{key}")

    def field(self, node: yaml.Node, message: Message, field: FieldDescriptor, where: str) -> None:
        """One field of the message from its node."""
        target = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value_field = field.message_type.fields_by_name["value"]
            for key, _, value in self.pairs(node, where):
                target[key] = self._scalar(value, value_field, f"{where}.{key}")
        elif field.is_repeated:
            if not isinstance(node, yaml.SequenceNode):
                self.fail(node, f"{where} must be a list{_of_what(field)}")
            for position, item in enumerate(node.value):
                place = f"{where}[{position}]"
                if field.message_type is not None:
                    self.message(item, target.add(), place)
                else:
                    target.append(self._scalar(item, field, place))
        elif field.message_type is None:
            setattr(message, field.name, self._scalar(node, field, where))
        elif field.message_type.full_name == DURATION:
            target.FromMilliseconds(self.duration_ms(node, where))
        elif field.message_type.full_name == TIMESTAMP:
            target.FromDatetime(self._time(node, where))
        else:
            target.SetInParent()
            self.message(node, target, where)

    def _scalar(self, node: yaml.Node, field: FieldDescriptor, where: str) -> Any:
        if field.name in JSON_FIELDS:
            return self.json_text(node, where)
        if not isinstance(node, yaml.ScalarNode):
            self.fail(node, f"{where} must be a single value")
        if field.type == FieldDescriptor.TYPE_BOOL:
            if node.tag != "tag:yaml.org,2002:bool":
                self.fail(node, f"{where} must be true or false, not {node.value!r}")
            return self.plain(node)
        if field.type in INTEGERS:
            return self.integer(node, where, bounds(field))
        if field.type == FieldDescriptor.TYPE_ENUM:
            return self._enum(node, field, where)
        return node.value

    def integer(self, node: yaml.Node, where: str, between: tuple[int, int] = INT32) -> int:
        value = self.plain(node) if isinstance(node, yaml.ScalarNode) else None
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(node, f"{where} must be a whole number, not {node.value!r}")
        if not between[0] <= value <= between[1]:
            self.fail(node, f"{where} is out of range: {value} is not between {between[0]} and {between[1]}")
        return value

    def duration_ms(self, node: yaml.Node, where: str) -> int:
        try:
            return parse_duration_ms(str(node.value))
        except ValueError as error:
            self.fail(node, f"{where}: {error}")

    def json_text(self, node: yaml.Node, where: str) -> str:
        if not isinstance(node, yaml.MappingNode):
            self.fail(node, f"{where} must be a mapping")
        return json.dumps(self.plain(node), separators=(",", ":"), default=str)

    def _enum(self, node: yaml.ScalarNode, field: FieldDescriptor, where: str) -> int:
        assert field.enum_type is not None
        values = field.enum_type.values
        prefix = values[0].name.removesuffix("UNSPECIFIED")
        known = {value.name.removeprefix(prefix): value.number for value in values if value.number}
        if node.value.upper() not in known:
            self.fail(node, f"{where} must be one of {', '.join(known)}, not {node.value!r}")
        return int(known[node.value.upper()])

    def _time(self, node: yaml.Node, where: str) -> datetime.datetime:
        try:
            moment = datetime.datetime.fromisoformat(str(node.value))
        except ValueError:
            self.fail(node, f"{where} must be a time such as 2026-01-31T18:00:00Z, not {node.value!r}")
        if moment.tzinfo is None:
            self.fail(node, f"{where} must say its time zone (Z, +01:00): {node.value!r}")
        return moment.astimezone(datetime.UTC).replace(tzinfo=None)


def _fields_of(descriptor: Any) -> dict[str, FieldDescriptor]:
    return {field.name: field for field in descriptor.fields if field.name not in SERVER_FIELDS}


def _of_what(field: FieldDescriptor) -> str:
    """For people: what the items of a list have."""
    if field.message_type is None:
        return ""
    names = list(_fields_of(field.message_type))
    more = ", ..." if len(names) > NAMES_TOLD else ""
    return f", each item a mapping with {', '.join(names[:NAMES_TOLD])}{more}"
