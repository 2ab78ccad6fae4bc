"""What the importers make: queues with exact quantities, priority classes, and notes of what is in neither.

`Imported.finish` puts the tree in order and makes it one that a cell takes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from muster.api.v1 import admin_pb2, queue_pb2
from muster.cli.errors import CliError, Exit, nearest
from muster.cli.imports.reading import Fields, Lost, fail, name_of, section, settings, whole
from muster.core import resources
from muster.core.errors import Rejected
from muster.core.limits import AMOUNT_MAX, LABELS_MAX, NAME_CHARS_MAX, QUEUE_CHANGES_MAX, QUEUE_DEPTH_MAX
from muster.core.queue_rules import JOBS_MAX
from muster.core.submission import PRIORITY_MAX
from muster.wire.quantities import quantities

NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
RESOURCES_MAX: Final = 32  # that one setting of a queue can name

PRIORITIES: Final = (-PRIORITY_MAX, PRIORITY_MAX)
COUNTS: Final = (0, JOBS_MAX)
OF_KUBERNETES: Final = "system-"  # how the priority classes that every cluster has begin
PRIORITY_CLASSES: Final = frozenset({"PriorityClass", "WorkloadPriorityClass"})
OBJECT: Final[Fields] = {"apiVersion": None, "kind": None, "metadata": None, "spec": None, "status": None}
CLASS: Final[Fields] = {
    **OBJECT,
    "value": None,
    "description": Lost(),
    "globalDefault": Lost("a job that names no class has priority 0 here", usual=(False,)),
    "preemptionPolicy": Lost(
        "whether jobs preempt is their queue's (preemption)",
        usual=("PreemptLowerPriority",),
    ),
}

Totals = dict[str, int]  # resource -> canonical units


@dataclass
class Imported:
    """The tree, the priority classes, and what of the definitions is in neither."""

    queues: list[queue_pb2.Queue] = field(default_factory=list)  # parents before children
    notes: list[str] = field(default_factory=list)
    classes: list[admin_pb2.PriorityClass] = field(default_factory=list)
    _noted: set[str] = field(default_factory=set)
    _subjects: dict[str, str] = field(default_factory=dict)  # of what each path is made

    def note(self, subject: str, text: str) -> None:
        line = f"{subject}: {text}"
        if line not in self._noted:
            self._noted.add(line)
            self.notes.append(line)

    def add(self, path: str, subject: str) -> queue_pb2.Queue:
        """A new queue. What another one is made of already cannot be told from it, so the names must change."""
        if path in self._subjects:
            both = f"{self._subjects[path]} and {subject}"
            raise CliError(f'{both} would both be the queue "{path}" here: rename one of them', Exit.USAGE)
        self._subjects[path] = subject
        queue = queue_pb2.Queue(path=path)
        self.queues.append(queue)
        return queue

    def settings(self, subject: str, given: Mapping[str, Any], fields: Fields, path: str = "") -> None:
        """Note all settings that are lost or unknown, by their path."""
        settings(lambda text: self.note(subject, text), given, fields, path)

    def labels(self, queue: queue_pb2.Queue, document: Mapping[str, Any], subject: str) -> None:
        """Labels stay labels."""
        stated = section(section(document.get("metadata"), "metadata").get("labels"), f"{subject}: metadata.labels")
        if len(stated) > LABELS_MAX:
            self.note(subject, f"metadata.labels are left out: {len(stated)}, and a queue has at most {LABELS_MAX}")
        else:
            queue.labels.update({str(key): "" if value is None else str(value) for key, value in stated.items()})

    def resource(self, subject: str, path: str, name: str) -> bool:
        """Whether a queue can name the resource; if not, a note says so."""
        if not resources.misnamed(name) and name != resources.GPU_MILLI:
            return True
        known = [*resources.PLAIN_NAMES, *resources.DEVICE_RESOURCES]
        meant = resources.SHARED_DEVICE if name == resources.short_name(resources.SHARED_DEVICE) else name
        self.note(subject, f"{path}: {name} is no resource of a node{nearest(meant, known)} and is left out")
        return False

    def amounts(self, subject: str, path: str, given: Any, names: Mapping[str, str] | None = None) -> Totals:
        """Quantities in canonical units. `names`: what the system calls some resources. Raises CliError."""
        found: Totals = {}
        for stated, value in section(given, f"{subject}: {path}").items():
            name = (names or {}).get(str(stated), str(stated))
            if names and stated in names.values():
                why = f"is nothing there, where {name} is called {next(k for k, v in names.items() if v == name)}"
                self.note(subject, f"{path}.{stated} {why}, and is left out")
            elif self.resource(subject, path, name):
                found[name] = amount(name, value, f"{subject}: {path}.{stated}")
        return found

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
            guaranteed, limit = (_parsed(stated, queue.path) for stated in (queue.guaranteed, queue.limit))
            children = below.get(queue.path, {})
            for resource, most in list(limit.items()):
                if max(most, children.get(resource, 0)) >= AMOUNT_MAX:
                    del limit[resource]
                    self.note(
                        queue.path, f"limit of {resource} is left out: it is beyond {text_of(resource, AMOUNT_MAX)}"
                    )
                    continue
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
                if len(target) > RESOURCES_MAX:
                    fail(queue.path, f"names {len(target)} resources, at most {RESOURCES_MAX} are possible")
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

    def beside(self, document: Mapping[str, Any], source: str, why: str = "") -> None:
        """A document that is no queue: a priority class is one here as well, of others nothing is made."""
        kind = document.get("kind")
        if kind in PRIORITY_CLASSES:
            self._priority_class(document, f"{kind} {name_of(document, source)}")
            return
        metadata = section(document.get("metadata"), f"{source}: metadata")
        known = [str(metadata[key]) for key in ("namespace", "name") if metadata.get(key)]
        subject = f"{kind or 'a document'} {'/'.join(known) or 'without a name'}"
        self.note(subject, f"has no counterpart and is left out{f': {why}' if why else ''}")

    def _priority_class(self, document: Mapping[str, Any], subject: str) -> None:
        given = name_of(document, subject)
        if given.startswith(OF_KUBERNETES):
            self.note(subject, "is Kubernetes' own and left out")
            return
        self.settings(subject, document, CLASS)
        if document.get("value") is None:
            fail(subject, f"has no value{nearest('value', [str(key) for key in document])}")
        name = self.name(subject, given)
        value = whole(document["value"], f"{subject}: value", PRIORITIES)
        known = next((of for of in self.classes if of.name == name), None)
        if known is None:
            self.classes.append(admin_pb2.PriorityClass(name=name, value=value))
        elif known.value != value:
            have = f'has the value {value} and is left out: "{name}" is there already, with {known.value}'
            self.note(subject, have)


def text_of(resource: str, amount: int) -> str:
    return quantities([(resource, amount)])[resource]


def amount(resource: str, value: Any, where: str) -> int:
    """A quantity in canonical units. Raises CliError."""
    try:
        return resources.parse_quantity(resource, str(value), where)
    except Rejected as why:
        raise CliError(str(why), Exit.USAGE) from None


def _parsed(given: Mapping[str, str], where: str) -> Totals:
    return {name: amount(name, value, f"{where}.{name}") for name, value in given.items()}


def put(target: Any, totals: Mapping[str, int]) -> None:
    """Write amounts into a map of quantities."""
    target.update(quantities((resource, min(most, AMOUNT_MAX)) for resource, most in sorted(totals.items())))
