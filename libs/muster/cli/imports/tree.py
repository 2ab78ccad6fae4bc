"""What the importers share: documents in, queues with exact quantities and notes out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from muster.api.v1 import queue_pb2
from muster.cli.errors import CliError, Exit
from muster.core import resources
from muster.core.errors import Rejected
from muster.core.limits import NAME_CHARS_MAX
from muster.wire.quantities import quantities

NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

Totals = dict[str, int]  # resource -> canonical units


@dataclass
class Imported:
    """The tree, and what of the definitions is not in it."""

    queues: list[queue_pb2.Queue] = field(default_factory=list)  # parents before children
    notes: list[str] = field(default_factory=list)

    def note(self, subject: str, text: str) -> None:
        line = f"{subject}: {text}"
        if line not in self.notes:
            self.notes.append(line)

    def add(self, path: str) -> queue_pb2.Queue:
        """A new queue; one that is there already is a mistake in the file."""
        if any(queue.path == path for queue in self.queues):
            raise CliError(f'two definitions are named "{path}"', Exit.USAGE)
        queue = queue_pb2.Queue(path=path)
        self.queues.append(queue)
        return queue

    def sort(self) -> None:
        """Parents before children, siblings by name; missing parents are added."""
        known = {queue.path for queue in self.queues}
        for path in sorted(known):
            names = path.split("/")
            for depth in range(1, len(names)):
                above = "/".join(names[:depth])
                if above not in known:
                    known.add(above)
                    self.queues.append(queue_pb2.Queue(path=above))
        self.queues.sort(key=lambda queue: queue.path.split("/"))

    def name(self, subject: str, name: str) -> str:
        """A name that Muster takes, with a note when it is another one."""
        mended = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:NAME_CHARS_MAX].strip("-")
        if not NAME.fullmatch(mended):
            raise CliError(f'"{name}" cannot be made a queue name', Exit.USAGE)
        if mended != name:
            self.note(subject, f'is named "{mended}" here')
        return mended

    def unknown(self, subject: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
        """Note every setting that nothing is made of."""
        for key in given:
            if key not in known and given[key] not in (None, {}, [], ""):
                self.note(subject, f"{key} has no counterpart and is left out")


def documents(text: str, source: str) -> Iterator[dict[str, Any]]:
    """The mappings of a YAML text; a Kubernetes List is opened. Raises CliError."""
    try:
        found = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise CliError(f"{source} is not YAML: {error}", Exit.USAGE) from None
    for document in found:
        items = document.get("items") if isinstance(document, dict) and "items" in document else [document]
        for item in items or []:
            if isinstance(item, dict):
                yield item


def amounts(given: Mapping[str, Any] | None, where: str, names: Mapping[str, str] | None = None) -> Totals:
    """Quantities in canonical units. `names`: what the system calls some resources. Raises CliError."""
    found: Totals = {}
    for name, value in (given or {}).items():
        resource = (names or {}).get(name, name)
        try:
            found[resource] = resources.parse_quantity(resource, str(value), f"{where}.{name}")
        except Rejected as why:
            raise CliError(str(why), Exit.USAGE) from None
    return found


def put(target: Any, totals: Mapping[str, int]) -> None:
    """Write amounts into a map of quantities."""
    target.update(quantities(sorted(totals.items())))


def name_of(document: Mapping[str, Any], source: str) -> str:
    name = (document.get("metadata") or {}).get("name")
    if not name:
        raise CliError(f"{source}: a {document.get('kind', 'document')} has no metadata.name", Exit.USAGE)
    return str(name)
