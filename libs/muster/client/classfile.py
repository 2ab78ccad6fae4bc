"""Priority class files: classes as YAML, read and written.

    priority_classes:
      high: {value: 1000, min_runtime: 10m}
      low: {value: -1000, labels: {team: batch}}

A class has the fields of the API's PriorityClass under the same names. What is not set has its default, so a file says
what the classes are, not what to change. The same file may hold `queues` and `moves`, which `queuefile` reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from google.protobuf.descriptor import FieldDescriptor

from muster.api.v1 import admin_pb2
from muster.client.durations import exact_duration
from muster.client.jobfile import JobFileError, Reader, documents, is_empty

KEY: Final = "priority_classes"
OTHERS: Final = ("queues", "moves")
FIELDS: Final[Mapping[str, FieldDescriptor]] = {
    field.name: field for field in admin_pb2.PriorityClass.DESCRIPTOR.fields if field.name != "name"
}


def load(path: str | Path) -> list[admin_pb2.PriorityClass]:
    """The classes of a file. Raises JobFileError."""
    return parse(Path(path).read_text(encoding="utf-8"), source=str(path))


def parse(text: str, *, source: str = "<text>") -> list[admin_pb2.PriorityClass]:
    """The classes of all documents of a text, in order. Raises JobFileError, also when there are none."""
    reader = Reader(source)
    found: list[admin_pb2.PriorityClass] = []
    for document in documents(text, source, "a file of priority classes"):
        for key, key_node, value in reader.pairs(document, "the file"):
            if key == KEY:
                found += _classes(reader, value)
            elif key not in OTHERS:
                reader.unknown(key_node, key, [KEY, *OTHERS], "the file")
    if not found:
        raise JobFileError(source, 1, f"names no priority class (write `{KEY}:` and a mapping of names to settings)")
    return found


def _classes(reader: Reader, node: yaml.Node) -> list[admin_pb2.PriorityClass]:
    found = []
    for name, _, settings in reader.pairs(node, KEY):
        of = admin_pb2.PriorityClass(name=name)
        if not is_empty(settings):
            for key, key_node, value in reader.pairs(settings, name):
                if key not in FIELDS:
                    reader.unknown(key_node, key, list(FIELDS), name)
                reader.field(value, of, FIELDS[key], f"{name}.{key}")
        found.append(of)
    return found


def dump(classes: Iterable[admin_pb2.PriorityClass]) -> str:
    """The text of a file with these classes."""
    return yaml.safe_dump({KEY: {of.name: plain(of) for of in classes}}, sort_keys=False, allow_unicode=True)


def plain(of: admin_pb2.PriorityClass) -> dict[str, Any]:
    """What is set, as it is written in a file; the value always is."""
    found: dict[str, Any] = {"value": of.value}
    if of.min_runtime.ToMilliseconds():
        found["min_runtime"] = exact_duration(of.min_runtime.ToMilliseconds())
    if of.labels:
        found["labels"] = dict(sorted(of.labels.items()))
    return found
