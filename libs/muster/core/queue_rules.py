"""What a command may do to the tree of queues (rules Q1, Q4).

A change is validated as a whole before anything of it happens: names, parent, cycle, depth, limits against guarantees,
and the revision the caller has seen. Jobs live in leaves only, so a queue with jobs gets no children and a queue is
deleted only when it is empty. Nothing here ever loses or restarts a job.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from muster.core import commands, resources
from muster.core import transitions as tr
from muster.core.draft import Draft
from muster.core.errors import Code, Rejected
from muster.core.limits import AMOUNT_MAX, LABELS_MAX, QUEUE_DEPTH_MAX, QUEUES_MAX
from muster.core.members import NAMESPACE, USER
from muster.core.model import Allowance, Amounts, QueueSpec
from muster.core.promises import promised
from muster.core.queues import Queue, QueueTree
from muster.core.submission import PRIORITY_MAX, RUNTIME_MAX_MS, check_name, find_queue
from muster.core.words import several

WEIGHT_MAX: Final = 1_000_000
JOBS_MAX: Final = 1_000_000_000  # in an allowance
PREEMPTION_BACKOFF_MAX_MS: Final = 7 * 24 * 3600 * 1000
HALF_LIFE_MIN_MS: Final = 1000
HALF_LIFE_MAX_MS: Final = 366 * 24 * 3600 * 1000
STATES: Final = ("OPEN", "CLOSED", "STOPPED", "DRAINING")
ORDERINGS: Final = ("FIFO", "PRIORITY", "FAIR")
PREEMPTIONS: Final = ("NEVER", "LOWER_PRIORITY", "ANY")
FAIR_BETWEEN: Final = (NAMESPACE, USER)
COUNTS: Final = ("pending_jobs", "running_jobs")  # of an allowance, beside its resources


def check_queue(spec: QueueSpec) -> None:
    """Raises Rejected for settings that no cell would take, wherever the queue is. Names are checked with the path."""
    for field, value, known in (
        ("ordering", spec.ordering, ORDERINGS),
        ("preemption", spec.preemption, PREEMPTIONS),
        ("state", spec.state, STATES),
        ("fair_by", spec.fair_by, FAIR_BETWEEN),
    ):
        if value not in known:
            raise _invalid(field, f'"{value}" is not one of {", ".join(known)}')
    if not 0 <= spec.weight <= WEIGHT_MAX:
        raise _invalid("weight", f"{spec.weight} is not between 0 and {WEIGHT_MAX}")
    if not -PRIORITY_MAX <= spec.priority <= PRIORITY_MAX:
        raise _invalid("priority", f"{spec.priority} is not between -{PRIORITY_MAX} and {PRIORITY_MAX}")
    for field in ("guaranteed", "limit", "lending_limit"):
        _check_amounts(field, getattr(spec, field))
    for resource, most in spec.limit:
        own = dict(spec.guaranteed).get(resource, 0)
        if own > most:
            have = f"{resources.format_pair(resource, own)} is more than the limit of the queue itself"
            raise _invalid(f"guaranteed.{resource}", f"{have} ({resources.format_amount(resource, most)})")
    for field in ("per_namespace", "per_user"):
        _check_allowance(field, getattr(spec, field))
    if not 0 <= spec.min_runtime_ms <= RUNTIME_MAX_MS:
        raise _invalid("min_runtime", "is negative or longer than ten years")
    for field in ("preemption_backoff", "preemption_backoff_max"):
        if not 0 <= getattr(spec, f"{field}_ms") <= PREEMPTION_BACKOFF_MAX_MS:
            raise _invalid(field, "is negative or longer than seven days")
    if spec.preemption_backoff_max_ms and spec.preemption_backoff_ms > spec.preemption_backoff_max_ms:
        have = (
            f"{spec.preemption_backoff_max_ms // 1000} s at most are less than the {spec.preemption_backoff_ms // 1000}"
        )
        raise _invalid("preemption_backoff_max", f"{have} s that a job waits the first time")
    if spec.half_life_ms and not HALF_LIFE_MIN_MS <= spec.half_life_ms <= HALF_LIFE_MAX_MS:
        raise _invalid("half_life", "is not between a second and a year")
    if len(spec.labels) > LABELS_MAX:
        raise _invalid("labels", f"has {len(spec.labels)} entries, at most {LABELS_MAX} are allowed")


def _check_amounts(field: str, amounts: Amounts, others: tuple[str, ...] = ()) -> None:
    if list(amounts) != sorted(dict(amounts).items()):
        raise _invalid(field, "is not sorted or names a resource twice")
    for resource, amount in amounts:
        if resource == resources.GPU_MILLI:
            raise _invalid(f"{field}.{resource}", f'is counted as thousandths of "{resources.SHARED_DEVICE}"')
        wrong = resources.misnamed(resource, others)
        if wrong:
            raise _invalid(f"{field}.{resource[: resources.NAME_CHARS_MAX]}", wrong)
        if not 0 <= amount <= AMOUNT_MAX:
            have = resources.format_amount(resource, amount)
            raise _invalid(f"{field}.{resource}", f"{have} is negative or more than {AMOUNT_MAX}")


def _check_allowance(field: str, allowance: Allowance) -> None:
    for part, jobs in (("pending_jobs", allowance.pending_jobs), ("running_jobs", allowance.running_jobs)):
        if not -1 <= jobs <= JOBS_MAX:
            raise _invalid(f"{field}.{part}", f"{jobs} is not between 0 and {JOBS_MAX} (-1: no limit)")
    _check_amounts(f"{field}.resources", allowance.resources, COUNTS)


def upsert(draft: Draft, command: commands.UpsertQueue, *, alone: bool = True) -> None:
    """Create, change or move a queue, or raise Rejected. What changes nothing writes nothing.

    Not `alone`: the caller looks at limits and guarantees when all of its changes are made.
    """
    check_queue(command.spec)
    current = draft.tree.find(command.path)
    _check_revision(command.path, current, command.expected_revision)
    if current is None:
        if command.new_path:
            find_queue(draft.tree, command.path, "path")
        spec = _created(draft, command)
    else:
        spec = _changed(draft, current, command)
        if replace(spec, revision=current.spec.revision) == current.spec:
            return
    if spec.half_life_ms and spec.parent:
        have = f'queue "{command.new_path or command.path}" is below another: past usage fades in a whole tree alike'
        raise Rejected(Code.INVALID_ARGUMENT, "half_life", f"{have}, set it on the root queue only", "F4")
    if alone:
        _check_guarantees(draft.tree, command.new_path or command.path, spec)
    draft.editable_tree().put(spec)
    draft.emit(tr.QueueUpserted(spec))


def delete(draft: Draft, command: commands.DeleteQueue) -> None:
    """Delete an empty leaf, or raise Rejected."""
    queue = find_queue(draft.tree, command.path, "path")
    _check_revision(command.path, queue, command.expected_revision)
    if queue.children:
        have = f'queue "{queue.path}" has {several(len(queue.children), "queue")} below it: delete that first'
        raise Rejected(Code.FAILED_PRECONDITION, "path", have, "Q1")
    jobs = draft.live_jobs(queue)
    if jobs:
        have = f'queue "{queue.path}" has {several(jobs, "job")} not ended yet: close it, then wait or cancel them'
        raise Rejected(Code.FAILED_PRECONDITION, "path", have, "Q1")
    draft.editable_tree().remove(queue.id)
    draft.emit(tr.QueueRemoved(queue.id))


def _check_revision(path: str, current: Queue | None, expected: int) -> None:
    if expected == 0 and current is not None:
        raise Rejected(Code.ALREADY_EXISTS, "path", f'queue "{path}" exists already', "Q1")
    if expected > 0 and current is None:
        raise Rejected(Code.NOT_FOUND, "path", f'queue "{path}" does not exist', "Q1")
    if expected > 0 and current is not None and current.spec.revision != expected:
        have = f'queue "{path}" has changed: it has revision {current.spec.revision}, not {expected}; read it again'
        raise Rejected(Code.ABORTED, "expected_revision", have, "Q4")


def _created(draft: Draft, command: commands.UpsertQueue) -> QueueSpec:
    parent_path, _, name = command.path.rpartition("/")
    check_name("path", name)
    tree = draft.tree
    if len(tree) >= QUEUES_MAX:
        raise Rejected(Code.RESOURCE_EXHAUSTED, "path", f"there are {QUEUES_MAX} queues already", "Q1")
    parent = _parent(draft, parent_path, 1)
    return replace(command.spec, id=f"q{tree.next_number}", name=name, parent=parent.id if parent else "", revision=1)


def _changed(draft: Draft, current: Queue, command: commands.UpsertQueue) -> QueueSpec:
    old, tree = current.spec, draft.tree
    name, parent_id = old.name, old.parent
    if command.new_path and command.new_path != command.path:
        parent_path, _, name = command.new_path.rpartition("/")
        check_name("new_path", name)
        if f"{parent_path}/".startswith(f"{current.path}/"):
            have = f'queue "{current.path}" cannot move below itself ("{command.new_path}"): that would be a cycle'
            raise Rejected(Code.INVALID_ARGUMENT, "new_path", have, "Q1")
        if tree.find(command.new_path) is not None:
            raise Rejected(Code.ALREADY_EXISTS, "new_path", f'queue "{command.new_path}" exists already', "Q1")
        height = max(len(below.chain) for below in tree.subtree(current.id)) - len(current.chain) + 1
        parent = _parent(draft, parent_path, height)
        parent_id = parent.id if parent else ""
        if parent is not None:
            _check_room(draft, current, parent)
    return replace(command.spec, id=old.id, name=name, parent=parent_id, revision=old.revision + 1)


def _parent(draft: Draft, path: str, height: int) -> Queue | None:
    """The queue that takes a subtree of this height; None for the roots."""
    if not path:
        return None
    parent = find_queue(draft.tree, path, "path")
    if len(parent.chain) + height > QUEUE_DEPTH_MAX:
        raise _invalid("path", f"is more than {QUEUE_DEPTH_MAX} queues deep")
    if draft.live_jobs(parent):
        have = f'queue "{path}" has jobs: only a queue without jobs can have queues below it'
        raise Rejected(Code.FAILED_PRECONDITION, "path", have, "Q1")
    return parent


def _check_room(draft: Draft, moved: Queue, parent: Queue) -> None:
    """What runs in the queue comes with it, so it must be within the limits above its new place (I3, rule Q4)."""
    brought = draft.usage(moved)
    for above in parent.chain:
        if above in moved.chain:
            continue  # it counts there already
        used = draft.usage(above)
        for resource, most in above.spec.limit:
            total = used.get(resource, 0) + brought.get(resource, 0)
            if brought.get(resource, 0) and total > most:
                now, then = (resources.format_pair(resource, amount) for amount in (most, total))
                have = f'queue "{above.path}" may use {now}; with what runs in "{moved.path}" it would use {then}'
                raise Rejected(Code.FAILED_PRECONDITION, "new_path", f"{have}: raise its limit, or wait", "Q4")


def check_all_guarantees(tree: QueueTree) -> None:
    """As for each queue that is changed alone, for the whole tree. Raises Rejected with the queue in the field."""
    for queue in tree.subtree():
        if queue.spec.limit and queue.children:
            below = resources.total(promised(tree, child) for child in queue.children.values())
            over = _over(queue.spec.limit, below)
            if over is not None:
                raise _invalid(
                    named(queue.path, f"limit.{over}"), _too_little(queue.path, queue.spec.limit, below, over)
                )


def named(path: str, field: str) -> str:
    """The field of one of many queues."""
    return f'queues["{path}"].{field}' if field else f'queues["{path}"]'


def _check_guarantees(tree: QueueTree, path: str, spec: QueueSpec) -> None:
    """A limit below what is guaranteed further down is refused (rule Q1), from either side.

    Only what is guaranteed on the way up changes, so each queue of the path looks at its children and no further; it
    ends where nothing more is guaranteed than before.
    """
    changed: dict[str, Amounts] = {}  # what these queues will have promised

    def below(queue: str) -> Amounts:
        children = dict.fromkeys(tree.by_id[queue].children.values()) if queue in tree else {}
        children.pop(spec.id, None)
        if queue == spec.parent:
            children[spec.id] = None
        return resources.total(changed[child] if child in changed else promised(tree, child) for child in children)

    own = below(spec.id)
    over = _over(spec.limit, own)
    if over is not None:
        raise _invalid(f"limit.{over}", _too_little(path, spec.limit, own, over))
    old = tree.by_id.get(spec.id)
    if old is not None and old.spec.parent != spec.parent:
        for above in old.chain[1:]:  # what it leaves behind
            changed[above.id] = resources.larger(above.spec.guaranteed, below(above.id))
    changed[spec.id] = resources.larger(spec.guaranteed, own)
    for above in tree.by_id[spec.parent].chain if spec.parent else ():
        total = below(above.id)
        over = _over(above.spec.limit, total)
        if over is not None:
            field = f"guaranteed.{over}" if old is None or old.spec.parent == spec.parent else "new_path"
            raise _invalid(field, _too_little(above.path, above.spec.limit, total, over))
        changed[above.id] = resources.larger(above.spec.guaranteed, total)
        if changed[above.id] == promised(tree, above.id):
            return


def _over(limit: Amounts, guaranteed: Amounts) -> str | None:
    """The first resource of which more is guaranteed."""
    total = dict(guaranteed)
    return next((resource for resource, most in limit if total.get(resource, 0) > most), None)


def _too_little(path: str, limit: Amounts, guaranteed: Amounts, resource: str) -> str:
    most = resources.format_amount(resource, dict(limit)[resource])
    total = resources.format_pair(resource, dict(guaranteed)[resource])
    return f'queue "{path}" may use {most}, its children are guaranteed {total}'


def _invalid(field: str, message: str) -> Rejected:
    return Rejected(Code.INVALID_ARGUMENT, field, message, "Q1")
