"""Who may leave for a job, in the order of rule P3, as arrays over all that runs (`victim_table`).

A job counts twice: its elastic part (what it has beyond its minimum) and its core. The order is

    borrowed before own, nearest common ancestor first, elastic before core, lower priority, less lost work, newer, id

The last two are the exact reverse of the order of age that P1 and P2b go by, where of equal submit times the smaller id
is the older: who has to leave of a batch is its newest job, which may take the place of no other in turn. Everything
before lost work is one integer, the `grade`. Lost work is the time that is not safe (`lost_work`) times the largest
share of the cell that the part takes, in integers.

Where the policy of a victim's queue is ANY, the victim comes back for the place of a newer job of equal priority, that
one for the place of a newer one still, and in the end it is the newest that is out. So a core counts there with the
most that it or a newer one would lose: who would lose least does not leave first only to make others leave after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from muster.core.jobs import Job
from muster.core.limits import QUEUE_DEPTH_MAX
from muster.core.members import USER, fair_member
from muster.core.node_arrays import BoolArray, Int64Array
from muster.core.potential import summed
from muster.core.preemption_rules import Outlook, asked_for, min_runtime_ms
from muster.core.queues import Queue
from muster.core.resources import PODS
from muster.core.state import CellState
from muster.core.victim_table import (
    ALIVE,
    CORE,
    ELASTIC,
    FIXED,
    IDENT,
    LEAF,
    NAMESPACE,
    PRIORITY,
    SHORTEST,
    SINCE,
    SUBMIT,
    SUBMITTER,
    TIRED,
    any_of,
    ident,
    table_of,
    unsaved,
)

SIZE_UNITS: Final = 1 << 20  # of the whole cell, in which sizes are measured
PRIORITY_BITS: Final = 33


class Ranking:
    """Who may leave for `job`, and in which order. Arrays are [line, ELASTIC or CORE]. `taken` may not, those with
    False not later either."""

    def __init__(self, state: CellState, job: Job, outlook: Outlook, taken: Mapping[str, bool]) -> None:
        self.table = table = table_of(state)
        self._columns = state.nodes.columns
        self._job = job
        self._outlook = outlook
        count = len(table.jobs)
        facts = table.facts[:count]
        lines = {line: later for job_id, later in taken.items() if (line := table.line(job_id)) is not None}
        self._taken, self._taken_for_now = list(lines), [line for line, later in lines.items() if later]
        self.later = False  # whether one of those may leave
        self.allowed: BoolArray = np.zeros((count, 2), np.bool_)
        self.grade: Int64Array = np.zeros((count, 2), np.int64)
        self.lost: Int64Array = np.zeros((count, 2), np.int64)
        self._ranks: Int64Array | None = None
        self.again_at_ms = 0  # when the first who is kept only by min_runtime is kept no longer
        if count and len(table.leaves):
            self._judge(facts, self._may(facts), state.now_ms)

    def ranks(self) -> Int64Array:
        """The place of every allowed part in the order of rule P3."""
        if self._ranks is None:
            lines, parts = np.nonzero(self.allowed)
            facts = self.table.facts
            keys = (-facts[lines, IDENT], -facts[lines, SUBMIT], self.lost[lines, parts], self.grade[lines, parts])
            order = np.lexsort(keys)
            ranks = np.zeros(self.allowed.shape, np.int64)
            ranks[lines[order], parts[order]] = np.arange(len(order))
            self._ranks = ranks
        return self._ranks

    def keep_entitlements(self) -> bool:
        """From now on without those who leave other queues below E even if nobody else leaves. False: nobody is left.

        The search would find them out one by one.
        """
        count, leaves = len(self.allowed), self.table.leaves
        leaf = self.table.facts[:count, LEAF]
        other = np.array([queue != self._job.queue for queue in leaves], np.bool_)[leaf]
        for resource in asked_for(self._job):
            column = self._columns.get(resource)
            if column is not None:
                total = self.table.total[:count, column]
                above = np.array([self._above(queue, resource) for queue in leaves], np.int64)
                self.allowed[:, CORE] &= ~(other & (total > 0) & (total > above[leaf]))
        return bool(self.allowed.any())

    def _above(self, leaf: str, resource: str) -> int:
        """By how much the committed usage of a leaf is above E."""
        if leaf not in self._outlook.tree:
            return 0
        own = self._outlook.entitled_of(leaf).amounts.get(resource, 0)
        return self._outlook.usage(leaf).get(resource, 0) - own

    def _may(self, facts: Int64Array) -> BoolArray:
        """Rule P2, as far as it is a matter of queue and priority."""
        job, outlook = self._job, self._outlook
        queue = outlook.tree.by_id[job.queue]
        if queue.spec.preemption == "NEVER":
            return np.zeros(len(facts), np.bool_)
        everyone = queue.spec.preemption == "ANY"
        lower = facts[:, PRIORITY] < job.spec.priority
        own = np.array([leaf == job.queue for leaf in self.table.leaves], np.bool_)[facts[:, LEAF]]
        by_priority = not queue.fifo and not job.charged  # inside its queue nobody leaves for an elastic part
        may = own & lower if by_priority else np.zeros(len(facts), np.bool_)
        if everyone and by_priority:
            newer = (facts[:, SUBMIT] > job.submit_ms) | (
                (facts[:, SUBMIT] == job.submit_ms) & (facts[:, IDENT] > ident(job.spec.id))
            )
            may |= own & newer & (facts[:, PRIORITY] == job.spec.priority) & self._of_one_member(facts, queue)
        if outlook.below(job):
            may |= ~own & self._over(facts) & (lower | everyone)
        self.later = bool(may[self._taken_for_now].any())
        may[self._taken] = False
        living: BoolArray = facts[:, ALIVE] == 1
        return may & living

    def _of_one_member(self, facts: Int64Array, queue: Queue) -> BoolArray:
        """`preemption_rules.are_of_one_member`."""
        if queue.spec.ordering != "FAIR":
            return np.ones(len(facts), np.bool_)
        column = SUBMITTER if queue.spec.fair_by == USER else NAMESPACE
        same: BoolArray = facts[:, column] == self.table.name_of(fair_member(queue.spec, self._job.spec))
        return same

    def _over(self, facts: Int64Array) -> BoolArray:
        """Whether its queue is above E in a resource that it and the job use (rule P2a)."""
        over = np.zeros(len(facts), np.bool_)
        total = self.table.total[: len(facts)]
        for resource in asked_for(self._job):
            column = self._columns.get(resource)
            if column is None or resource not in self._outlook.capacity:
                continue
            leaves = [
                leaf in self._outlook.tree
                and self._outlook.entitled_of(leaf).over(summed(self._outlook.usage_of(leaf)), resource)
                for leaf in self.table.leaves
            ]
            over |= np.array(leaves, np.bool_)[facts[:, LEAF]] & (total[:, column] > 0)
        return over

    def _judge(self, facts: Int64Array, may: BoolArray, now_ms: int) -> None:
        table, tree = self.table, self._outlook.tree
        of_queue = np.array([min_runtime_ms(tree.by_id[q]) if q in tree else 0 for q in table.leaves], np.int64)
        shortest = np.maximum(of_queue[facts[:, LEAF]], facts[:, SHORTEST])
        until = np.where(shortest > 0, facts[:, SINCE] + shortest, 0)
        movable = may & (facts[:, FIXED] == 0)
        spare = table.spare[: len(facts)]
        self.allowed[:, ELASTIC] = movable & any_of(spare)
        core = movable & ((facts[:, TIRED] == 0) | (facts[:, PRIORITY] < self._job.spec.priority))
        self.allowed[:, CORE] = core & (until <= now_ms)
        waiting = until[core & (until > now_ms)]
        self.again_at_ms = int(waiting.min()) if len(waiting) else 0
        own = self._own(facts, movable)
        away = self._distance()[facts[:, LEAF]]
        elapsed = unsaved(facts, now_ms)
        for part, amounts in ((ELASTIC, spare), (CORE, table.total[: len(facts)])):
            grade = (own[:, part] * QUEUE_DEPTH_MAX + away) * 2 + part
            self.grade[:, part] = (grade << PRIORITY_BITS) + facts[:, PRIORITY] + (1 << (PRIORITY_BITS - 1))
            self.lost[:, part] = elapsed * self._size(amounts)
        self._leave_in_turn(facts)

    def _leave_in_turn(self, facts: Int64Array) -> None:
        """The running maximum of lost work, from the newest on, over cores that would take each other's place."""
        lines = self.table.order()[::-1]  # the newest of a leaf and priority first
        lines = lines[self.allowed[lines, CORE]]
        lines = lines[self._takes_places()[facts[lines, LEAF]]]
        if not len(lines):
            return
        member = self._member(facts, lines)
        if member.any():  # members lie among each other
            again = np.lexsort((np.arange(len(lines)), member, facts[lines, PRIORITY], facts[lines, LEAF]))
            lines, member = lines[again], member[again]
        place = np.array((facts[lines, LEAF], facts[lines, PRIORITY], member))
        same = (place[:, 1:] == place[:, :-1]).all(axis=0)
        bounds = np.flatnonzero(np.concatenate(((True,), ~same, (True,))))
        lost = self.lost[lines, CORE]
        falls = np.flatnonzero(same & (lost[1:] < lost[:-1]))
        for group in np.unique(np.searchsorted(bounds, falls, side="right")).tolist():
            part = lost[bounds[group - 1] : bounds[group]]
            np.maximum.accumulate(part, out=part)
        self.lost[lines, CORE] = lost

    def _takes_places(self) -> BoolArray:
        """By leaf: whether its jobs may take the place of newer ones of equal priority (rule P2b)."""
        tree = self._outlook.tree
        found = [
            q in tree and tree.by_id[q].spec.preemption == "ANY" and not tree.by_id[q].fifo for q in self.table.leaves
        ]
        return np.array(found, np.bool_)

    def _member(self, facts: Int64Array, lines: Int64Array) -> Int64Array:
        """Between whose jobs age decides: of a fair leaf the number of the member (ADR 0018), else 0."""
        tree = self._outlook.tree
        fair = [tree.by_id[q].spec if q in tree else None for q in self.table.leaves]
        column = [
            (SUBMITTER if spec.fair_by == USER else NAMESPACE) if spec is not None and spec.ordering == "FAIR" else -1
            for spec in fair
        ]
        of = np.array(column, np.int64)[facts[lines, LEAF]]
        member: Int64Array = np.where(of < 0, 0, facts[lines, of] + 1)
        return member

    def _size(self, amounts: Int64Array) -> Int64Array:
        """The largest share of the cell, in SIZE_UNITS."""
        size = np.zeros(len(amounts), np.int64)
        for resource, whole in self._outlook.capacity.items():
            column = self._columns.get(resource)
            if column is not None:
                share = np.ceil(amounts[:, column] * (SIZE_UNITS / whole)).astype(np.int64)
                np.maximum(size, share, out=size)
        return size

    def _distance(self) -> Int64Array:
        """By leaf: how many levels above the job's queue the nearest common ancestor is."""
        tree = self._outlook.tree
        chain = {queue.id: level for level, queue in enumerate(tree.by_id[self._job.queue].chain)}
        found = []
        for leaf in self.table.leaves:
            above = tree.by_id[leaf].chain if leaf in tree else ()
            found.append(next((chain[q.id] for q in above if q.id in chain), QUEUE_DEPTH_MAX - 1))
        return np.array(found, np.int64)

    def _own(self, facts: Int64Array, movable: BoolArray) -> Int64Array:
        """1 where the part is within the cumulated E of its queue, 0 where it is borrowed (rule P3)."""
        concerned = np.zeros(len(self.table.leaves), np.bool_)
        concerned[facts[movable, LEAF]] = True
        order = self.table.order()
        order = order[concerned[facts[order, LEAF]]]
        own = np.ones((len(facts), 2), np.int64)
        leaf = facts[order, LEAF]
        starts = np.flatnonzero(np.diff(leaf, prepend=-1))
        for resource in self._outlook.capacity:
            column = self._columns.get(resource)
            if column is None or resource == PODS:
                continue
            used = self.table.total[order, column]
            if not used.any():
                continue
            summed_up = np.cumsum(used)
            base = np.repeat((summed_up - used)[starts], np.diff(np.append(starts, len(order))))
            upto = summed_up - base
            most = self._most(resource)[leaf]
            spare = self.table.spare[order, column]
            own[order, ELASTIC] &= ~((upto > most) & (spare > 0))
            own[order, CORE] &= ~((upto - spare > most) & (used - spare > 0))
        return own

    def _most(self, resource: str) -> Int64Array:
        """By leaf: E in the resource."""
        limitless = np.iinfo(np.int64).max
        found = []
        for leaf in self.table.leaves:
            if leaf not in self._outlook.tree:
                found.append(limitless)
                continue
            share = self._outlook.entitled_of(leaf)
            found.append(share.amounts.get(resource, 0 if share.complete else limitless))
        return np.array(found, np.int64)
