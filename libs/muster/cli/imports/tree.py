"""What the importers share: documents in, queues with exact quantities and notes out.

Files come from other systems and from hands, so every value is read by a function here that refuses it in one sentence
with its place. `Imported.finish` puts the tree in order and makes it one that a cell takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar

import yaml

from muster.api.v1 import admin_pb2, queue_pb2
from muster.cli.errors import CliError, Exit
from muster.core import resources
from muster.core.errors import Rejected
from muster.core.limits import AMOUNT_MAX, NAME_CHARS_MAX, QUEUE_CHANGES_MAX, QUEUE_DEPTH_MAX
from muster.core.queue_rules import JOBS_MAX, WEIGHT_MAX
from muster.core.submission import PRIORITY_MAX
from muster.wire.quantities import quantities

NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

WEIGHTS: Final = (0, WEIGHT_MAX)
PRIORITIES: Final = (-PRIORITY_MAX, PRIORITY_MAX)
COUNTS: Final = (0, JOBS_MAX)
OF_KUBERNETES: Final = "system-"  # how the priority classes that every cluster has begin
PRIORITY_CLASSES: Final = frozenset({"PriorityClass", "WorkloadPriorityClass"})

Totals = dict[str, int]  # resource -> canonical units
T = TypeVar("T")


@dataclass
class Imported:
    """The tree, the priority classes, and what of the definitions is in neither."""

    queues: list[queue_pb2.Queue] = field(default_factory=list)  # parents before children
    notes: list[str] = field(default_factory=list)
    classes: list[admin_pb2.PriorityClass] = field(default_factory=list)

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

    def finish(self) -> None:
        """Parents before children, siblings by name, missing parents added, and no limit below what is guaranteed."""
        known = {queue.path for queue in self.queues}
        for path in sorted(known):
            names = path.split("/")
            if len(names) > QUEUE_DEPTH_MAX:
                fail(path, f"is more than {QUEUE_DEPTH_MAX} queues deep")
            for depth in range(1, len(names)):
                above = "/".join(names[:depth])
                if above not in known:
                    known.add(above)
                    self.queues.append(queue_pb2.Queue(path=above))
        self.queues.sort(key=lambda queue: queue.path.split("/"))
        self._mend()
        if len(self.queues) > QUEUE_CHANGES_MAX:
            have = f"are {len(self.queues)}: apply them in parts, at most {QUEUE_CHANGES_MAX} change at once"
            self.note("the queues", have)

    def _mend(self) -> None:
        """A guarantee ends at the queue's own limit; a limit is no less than what is guaranteed below it."""
        below: dict[str, Totals] = {}
        for queue in reversed(self.queues):  # children first
            guaranteed = amounts(queue.guaranteed, queue.path)
            limit = amounts(queue.limit, queue.path)
            children = below.get(queue.path, {})
            for resource, most in limit.items():
                if children.get(resource, 0) > most:
                    limit[resource] = children[resource]
                    what = f"{resource} is raised to {text_of(resource, children[resource])}"
                    self.note(queue.path, f"limit of {what}, which the queues below are guaranteed")
                if guaranteed.get(resource, 0) > limit[resource]:
                    guaranteed[resource] = limit[resource]
                    what = f"{resource} is cut down to {text_of(resource, limit[resource])}"
                    self.note(queue.path, f"guarantee of {what}, its limit")
            for target, mended in ((queue.guaranteed, guaranteed), (queue.limit, limit)):
                target.clear()
                put(target, mended)
            above = below.setdefault(queue.path.rpartition("/")[0], {})
            for resource in {*guaranteed, *children}:
                more = max(guaranteed.get(resource, 0), children.get(resource, 0))
                above[resource] = above.get(resource, 0) + more

    def name(self, subject: str, name: str) -> str:
        """A name that Muster takes, with a note when it is another one."""
        mended = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:NAME_CHARS_MAX].strip("-")
        if not NAME.fullmatch(mended):
            fail(subject, f'"{name}" cannot be made a queue name')
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
        whole = isinstance(document, dict) and "items" in document
        for item in entries(document["items"], f"{source}: items") if whole else [document]:
            if isinstance(item, dict):
                yield item


def fail(where: str, message: str) -> NoReturn:
    raise CliError(f"{where}: {message}", Exit.USAGE)


def section(value: Any, where: str) -> Mapping[str, Any]:
    """A mapping, also when it is absent."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        fail(where, f"must be a mapping, not {value!r}")
    return value


def entries(value: Any, where: str) -> list[Mapping[str, Any]]:
    """A list of mappings, also when it is absent."""
    if value is None:
        return []
    if not isinstance(value, list):
        fail(where, f"must be a list, not {value!r}")
    return [section(item, f"{where}[{at}]") for at, item in enumerate(value)]


def words(value: Any, where: str) -> list[str]:
    """A list of words, also when it is absent."""
    if value is None:
        return []
    if not isinstance(value, list):
        fail(where, f"must be a list, not {value!r}")
    return [str(word) for word in value]


def whole(value: Any, where: str, bounds: tuple[int, int]) -> int:
    """A whole number."""
    try:
        number = int(str(value))
    except ValueError:
        fail(where, f"must be a whole number, not {value!r}")
    if not bounds[0] <= number <= bounds[1]:
        fail(where, f"{number} is not between {bounds[0]} and {bounds[1]}")
    return number


def one_of(known: Mapping[str, T], value: Any, where: str) -> T:
    """What a word stands for."""
    if not isinstance(value, str) or value not in known:
        fail(where, f"must be one of {', '.join(known)}, not {value!r}")
    return known[value]


def text_of(resource: str, amount: int) -> str:
    return quantities([(resource, amount)])[resource]


def amounts(given: Any, where: str, names: Mapping[str, str] | None = None) -> Totals:
    """Quantities in canonical units. `names`: what the system calls some resources. Raises CliError."""
    found: Totals = {}
    for name, value in section(given, where).items():
        resource = (names or {}).get(str(name), str(name))
        try:
            found[resource] = resources.parse_quantity(resource, str(value), f"{where}.{name}")
        except Rejected as why:
            raise CliError(str(why), Exit.USAGE) from None
    return found


def put(target: Any, totals: Mapping[str, int]) -> None:
    """Write amounts into a map of quantities."""
    target.update(quantities((resource, min(amount, AMOUNT_MAX)) for resource, amount in sorted(totals.items())))


def name_of(document: Mapping[str, Any], source: str) -> str:
    name = section(document.get("metadata"), f"{source}: metadata").get("name")
    if not name:
        raise CliError(f"{source}: a {document.get('kind', 'document')} has no metadata.name", Exit.USAGE)
    return str(name)


def spec_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    named = section(document.get("metadata"), "metadata").get("name")
    return section(document.get("spec"), f"{document.get('kind')} {named}: spec")


def beside_queues(imported: Imported, document: Mapping[str, Any], source: str) -> None:
    """A document that is no queue: a priority class is one here as well, of others nothing is made."""
    subject = f"{document.get('kind')} {name_of(document, source)}"
    if document.get("kind") in PRIORITY_CLASSES:
        _priority_class(imported, document, subject)
    else:
        imported.note(subject, "has no counterpart and is left out")


def _priority_class(imported: Imported, document: Mapping[str, Any], subject: str) -> None:
    given = name_of(document, subject)
    if given.startswith(OF_KUBERNETES):
        imported.note(subject, "is Kubernetes' own and left out")
        return
    name = imported.name(subject, given)
    value = whole(document.get("value", 0), f"{subject}: value", PRIORITIES)
    known = next((of for of in imported.classes if of.name == name), None)
    if known is None:
        imported.classes.append(admin_pb2.PriorityClass(name=name, value=value))
    elif known.value != value:
        imported.note(subject, f'has the value {value} and is left out: "{name}" is there already, with {known.value}')
    if document.get("globalDefault"):
        imported.note(subject, "globalDefault is left out: a job that names no class has priority 0 here")
    if document.get("preemptionPolicy") == "Never":
        imported.note(subject, "preemptionPolicy Never is left out: whether jobs preempt is their queue's (preemption)")
