"""Priority classes: names for a priority and for how long a job is left alone (rule P4).

A job that names a class gets what the class says when it is queued (`submission`), and keeps it: `JobQueued` carries
the job with priority and min_runtime filled in, so nothing that is decided later looks at a class. Changing or deleting
a class changes no job that exists, as in Kubernetes.
"""

from __future__ import annotations

from typing import Final

from muster.core import commands
from muster.core import transitions as tr
from muster.core.draft import Draft
from muster.core.errors import Code, Rejected
from muster.core.limits import LABELS_MAX, NAME_CHARS_MAX, PRIORITY_CLASSES_MAX
from muster.core.model import PriorityClass
from muster.core.submission import PRIORITY_MAX, RUNTIME_MAX_MS, check_name, find_class

RULE: Final = "P4"
LABEL_CHARS_MAX: Final = 317  # of a key as Kubernetes has them; values are shorter


def check_class(spec: PriorityClass) -> None:
    """Raises Rejected for a class that no cell would take."""
    check_name("name", spec.name, RULE)
    if not -PRIORITY_MAX <= spec.value <= PRIORITY_MAX:
        raise _invalid("value", f"{spec.value} is not between -{PRIORITY_MAX} and {PRIORITY_MAX}")
    if not 0 <= spec.min_runtime_ms <= RUNTIME_MAX_MS:
        raise _invalid("min_runtime", "is negative or longer than ten years")
    if len(spec.labels) > LABELS_MAX:
        raise _invalid("labels", f"has {len(spec.labels)} entries, at most {LABELS_MAX} are allowed")
    for key, value in spec.labels:
        if max(len(key), len(value)) > LABEL_CHARS_MAX:
            raise _invalid(f"labels.{key[:NAME_CHARS_MAX]}", f"is longer than {LABEL_CHARS_MAX} characters")


def upsert(draft: Draft, command: commands.UpsertPriorityClass) -> None:
    """Create or change a class, or raise Rejected. What changes nothing writes nothing."""
    spec = PriorityClass(command.name, command.value, command.labels, command.min_runtime_ms)
    check_class(spec)
    current = draft.classes.get(spec.name)
    if current == spec:
        return
    if current is None and len(draft.classes) >= PRIORITY_CLASSES_MAX:
        have = f"there are {PRIORITY_CLASSES_MAX} priority classes already: delete one"
        raise Rejected(Code.RESOURCE_EXHAUSTED, "name", have, RULE)
    draft.classes = {**draft.classes, spec.name: spec}
    draft.emit(tr.PriorityClassUpserted(spec))


def delete(draft: Draft, command: commands.DeletePriorityClass) -> None:
    """Forget a class, or raise Rejected."""
    find_class(draft.classes, command.name, "name")
    draft.classes = {name: spec for name, spec in draft.classes.items() if name != command.name}
    draft.emit(tr.PriorityClassRemoved(command.name))


def _invalid(field: str, message: str) -> Rejected:
    return Rejected(Code.INVALID_ARGUMENT, field, message, RULE)
