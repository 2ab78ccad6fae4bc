"""Many queues changed as one (rule Q4): validated as a whole, effective at one ledger position, or nothing at all.

`plan` compares what somebody wants the tree to be with what it is and says which commands lead there; `change_queues`
decides them together. Limits against guarantees are looked at only in the tree that comes out, so a guarantee may move
from one queue to its sibling in one step. `differences` tells people what changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from muster.core import commands, queue_rules
from muster.core.draft import Draft
from muster.core.errors import Code, Rejected
from muster.core.limits import QUEUE_CHANGES_MAX, TRANSACTION_BYTES_MAX
from muster.core.model import QueueSpec
from muster.core.queues import QueueTree
from muster.core.submission import find_queue

Change = commands.UpsertQueue | commands.DeleteQueue
UNCOMPARED: Final = ("id", "name", "parent", "revision")


class Difference(Struct, frozen=True):
    """One queue that differs between two trees. `fields`: (name, value before, value after)."""

    path: str
    kind: str  # created, changed, moved, deleted
    fields: tuple[tuple[str, object, object], ...] = ()


def plan(
    tree: QueueTree,
    wanted: Mapping[str, QueueSpec],
    *,
    moves: Sequence[tuple[str, str]] = (),
    prune_root: str | None = None,
) -> tuple[Change, ...]:
    """The commands that make the tree what is wanted. Each expects the revision that was compared with.

    `wanted` is by path, as it is after the `moves`. `prune_root`: delete what is below it ("": everywhere) and not
    wanted. Raises Rejected for a queue to move or to prune below that does not exist.
    """
    after = tree.copy() if moves else tree
    expected = {queue.id: queue.spec.revision for queue in tree.subtree()}
    changes: list[Change] = []
    for number, (path, new_path) in enumerate(moves):
        moved = find_queue(after, path, f"moves[{number}].path")
        changes.append(commands.UpsertQueue(path, moved.spec, _expect(expected, moved.id), new_path=new_path))
        parent_path, _, name = new_path.rpartition("/")
        parent = find_queue(after, parent_path, f"moves[{number}].new_path").id if parent_path else ""
        after.put(replace(moved.spec, name=name, parent=parent, revision=moved.spec.revision + 1))
    for path in sorted(wanted, key=lambda path: (path.count("/"), path)):  # parents first
        current = after.find(path)
        if current is None:
            changes.append(commands.UpsertQueue(path, wanted[path], 0))
            continue
        same = {field: getattr(current.spec, field) for field in UNCOMPARED}
        if replace(wanted[path], **same) != current.spec:
            changes.append(commands.UpsertQueue(path, wanted[path], _expect(expected, current.id)))
    if prune_root is not None:
        top = find_queue(after, prune_root, "prune_root").id if prune_root else ""
        keep = {"/".join(path.split("/")[:depth]) for path in wanted for depth in range(1, path.count("/") + 2)}
        unwanted = [q for q in after.subtree(top) if q.path not in keep and q.path != prune_root]
        changes += [commands.DeleteQueue(q.path, _expect(expected, q.id)) for q in reversed(unwanted)]  # children first
    return tuple(changes)


def _expect(expected: dict[str, int], queue: str) -> int:
    """The queue's revision when its command comes, for one command of several."""
    revision = expected[queue]
    expected[queue] = revision + 1
    return revision


def change_queues(draft: Draft, command: commands.ChangeQueues) -> None:
    """Decide all of it, or raise Rejected with nothing changed."""
    if len(command.changes) > QUEUE_CHANGES_MAX:
        have = f"{len(command.changes)} queues at once, at most {QUEUE_CHANGES_MAX} are allowed"
        raise Rejected(Code.INVALID_ARGUMENT, "queues", have, "LOG-8")
    if command.changes and command.expected_revision >= 0:
        draft.state.tree_log.check(command.expected_revision)
    before = (draft.tree, draft.bytes, draft.structural)
    written = len(draft.transitions)
    draft.tree = draft.tree.copy()
    try:
        for done, change in enumerate(command.changes):
            _one(draft, change, done)
            if draft.bytes - before[1] > TRANSACTION_BYTES_MAX:
                raise too_large(len(command.changes), done)
        queue_rules.check_all_guarantees(draft.tree)
    except Rejected:
        draft.tree, draft.bytes, draft.structural = before
        del draft.transitions[written:]
        raise
    draft.replanted = True
    draft.spend(len(command.changes))


def too_large(changes: int, fit: int) -> Rejected:
    """Of a change of which so much fits. What to do about it is to say less at once."""
    have = f"{changes:,} queues would change at once, about {fit:,} fit one transaction"
    advice = "apply the tree in parts, parents first, and prune each below its own root"
    return Rejected(Code.INVALID_ARGUMENT, "queues", f"{have}: {advice}", "LOG-8")


def _one(draft: Draft, change: Change, number: int) -> None:
    """Moves are the first of the changes, so their number is that in the request."""
    try:
        if isinstance(change, commands.UpsertQueue):
            queue_rules.upsert(draft, change, alone=False)
        else:
            queue_rules.delete(draft, change)
    except Rejected as why:
        named = f"{change.path}: " if change.path not in why.message else ""
        moved = why.field == "new_path"
        field = f"moves[{number}].new_path" if moved else queue_rules.named(change.path, why.field)
        raise Rejected(why.code, field, named + why.message, why.rule) from None


def differences(before: QueueTree, after: QueueTree) -> tuple[Difference, ...]:
    """What differs, in the order of the later tree; deleted queues last."""
    found: list[Difference] = []
    for queue in after.subtree():
        if queue.id not in before:
            found.append(Difference(queue.path, "created", _fields(QueueSpec("", "", ""), queue.spec)))
            continue
        old = before.get(queue.id)
        if old.spec is queue.spec:
            continue
        fields = _fields(old.spec, queue.spec)
        if old.path != queue.path and (old.spec.name, old.spec.parent) != (queue.spec.name, queue.spec.parent):
            found.append(Difference(queue.path, "moved", (("path", old.path, queue.path), *fields)))
        elif fields:
            found.append(Difference(queue.path, "changed", fields))
    gone: Iterable[str] = (queue.path for queue in before.subtree() if queue.id not in after)
    return (*found, *(Difference(path, "deleted") for path in gone))


def _fields(old: QueueSpec, new: QueueSpec) -> tuple[tuple[str, object, object], ...]:
    before, after = asdict(old), asdict(new)
    return tuple((f, before[f], after[f]) for f in after if f not in UNCOMPARED and before[f] != after[f])
