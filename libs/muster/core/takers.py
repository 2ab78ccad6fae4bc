"""Who could take back what other queues use beyond their entitlement (rule P2a), as what-if questions want to know.

A cell may have a hundred thousand jobs that wait, so of each leaf only some speak for all: by the resources that they
ask for, the one of the highest priority and the one that asks for most. Jobs in backoff count, they are back before
long; jobs that have a plan do not, what they take is taken already. Placed jobs that want further replicas count as
the jobs that plans are made for (`further`).

    waiting(state, now_ms)            by leaf, who speaks for its jobs: the same under every tree
    Takers(outlook, waiting, leaves)  which of them are below their entitlement and may preempt under that tree
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import prod
from typing import Final

import numpy as np

from muster.core import resources
from muster.core.further import as_job, wanted
from muster.core.jobs import Job, may_grow
from muster.core.model import Amounts, JobState
from muster.core.node_arrays import Int64Array
from muster.core.potential import gained, summed
from muster.core.preemption_rules import Outlook, asked_for
from muster.core.queues import Usage
from muster.core.state import CellState
from muster.core.timers import Due

CLASSES_MAX: Final = 4096  # of pending jobs that are looked at, of all leaves together
CLASSES_MIN: Final = 16  # of each leaf, whatever
FIFO_HEADS_MAX: Final = 64  # of a class whose first job need not be the most important
BACKOFFS_MAX: Final = 2048  # timers that are looked at
GROWERS_MAX: Final = 512
NOBODY: Final = -(1 << 40)  # a priority below all others
EVERYBODY: Final = 1 << 40  # and one above

Speakers = dict[str, list[Job]]  # by leaf
Rank = tuple[int, int]


def waiting(state: CellState, now_ms: int) -> Speakers:
    """Who speaks for the jobs of each leaf that wait or could grow."""
    found: dict[str, dict[tuple[object, ...], tuple[Rank, Job]]] = {}
    for job in (*_pending(state), *_in_backoff(state), *_growing(state, now_ms)):
        asked = asked_for(job)
        kind, priority = tuple(asked), job.spec.priority
        best = found.setdefault(job.queue, {})
        ranks: list[tuple[str, Rank]] = [("", (priority, 0)), *((r, (amount, priority)) for r, amount in asked.items())]
        for part, rank in ranks:
            known = best.get((kind, part))
            if known is None or rank > known[0]:
                best[kind, part] = (rank, job)
    return {leaf: list({id(job): job for _, job in best.values()}.values()) for leaf, best in found.items()}


def _pending(state: CellState) -> Iterator[Job]:
    of_queue = state.pending.of_queue
    most = max(CLASSES_MAX // max(len(of_queue), 1), CLASSES_MIN)
    for leaf, classes in of_queue.items():
        heads = FIFO_HEADS_MAX if state.queues.get(leaf).fifo else 1
        for found in islice(classes.values(), most):
            if not found.key[4]:  # one that has a hold has a plan
                jobs = [state.jobs[key[2]] for key in found.keys[found.head : found.head + heads]]
                yield max(jobs, key=lambda job: job.spec.priority)


def _in_backoff(state: CellState) -> Iterator[Job]:
    for _, what, job_id, epoch in islice(state.timers.others, BACKOFFS_MAX):
        job = state.jobs.get(job_id) if what == Due.BACKOFF_OVER else None
        if job is not None and job.epoch == epoch and job.state is JobState.QUEUED and not state.is_pending(job):
            yield job


def _growing(state: CellState, now_ms: int) -> Iterator[Job]:
    for job_id in islice(state.pending.growing, GROWERS_MAX):
        job = state.jobs[job_id]
        if job_id in state.holds or not may_grow(job, now_ms):
            continue
        for group in range(len(job.gang.tasks)):
            if wanted(job, group) > 0:
                yield as_job(state.nodes, job, group, 1)


class Takers:
    """See the module's text. Arrays are by leaf, in the order of `leaves`: whom others than itself may take from it,
    for something in the resource: who is below `everyone`, or below `lower` if only priority counts (rules P2a, P4)."""

    def __init__(self, outlook: Outlook, waiting: Speakers, leaves: Sequence[str]) -> None:
        self._outlook = outlook
        self._leaves = leaves
        self.jobs: Speakers = {}
        for leaf, jobs in waiting.items():
            queue = outlook.tree.by_id.get(leaf)
            if queue is None or not queue.starts_jobs or queue.spec.preemption == "NEVER":
                continue
            may = [job for job in jobs if outlook.below(job)]
            if may:
                self.jobs[leaf] = may
        self._bounds: dict[str, dict[str, tuple[int, int]]] = {}  # resource -> leaf -> everyone, lower
        self.scale = prod(outlook.capacity.values())
        self._usage: dict[str, Usage] = {}
        self._gaps: dict[str, dict[str, int]] = {}
        self._gains: dict[int, int] = {}
        for leaf, jobs in self.jobs.items():
            everyone = outlook.tree.by_id[leaf].spec.preemption == "ANY"
            for job in jobs:
                for resource in asked_for(job):
                    bounds = self._bounds.setdefault(resource, {})
                    lower = max(bounds.get(leaf, (NOBODY, NOBODY))[1], job.spec.priority)
                    bounds[leaf] = (EVERYBODY if everyone else lower, lower)

    def resources(self) -> list[str]:
        """What they want of which shares are made."""
        return [resource for resource in self._bounds if resource in self._outlook.capacity]

    def bounds(self, resource: str) -> Int64Array:
        """[everyone or lower, leaf]"""
        by_leaf = self._bounds.get(resource, {})
        found = []
        for part in (0, 1):
            best = sorted(((bounds[part], leaf) for leaf, bounds in by_leaf.items()), reverse=True)[:2]
            of = [next((most for most, by in best if by != leaf), NOBODY) for leaf in self._leaves]
            found.append(of)
        return np.array(found, np.int64)

    def others(self, leaf: str) -> Iterator[Job]:
        """Those who may take from the leaf."""
        for of, jobs in self.jobs.items():
            if of != leaf:
                yield from jobs

    def gap_of_others(self, leaf: str, resource: str) -> int:
        """How far below their entitlement those are who want it, but for this leaf."""
        gaps = self._gaps.get(resource)
        if gaps is None:
            gaps = self._gaps[resource] = {}
            for of in self._bounds.get(resource, {}):
                amounts = self._outlook.entitled_of(of).amounts
                gaps[of] = max(amounts.get(resource, 0) - self._used(of).get(resource, 0), 0)
            gaps[""] = sum(gaps.values())
        return gaps[""] - gaps.get(leaf, 0)

    def gain(self, job: Job, got: Amounts = ()) -> int:
        """What its start adds to the use of entitlements, when its queue has got so much before: never more than
        without that."""
        known = self._gains.get(id(job)) if not got else None
        if known is None:
            usage = dict(self._used(job.queue))
            resources.count(usage, got, 1)
            share = self._outlook.entitled_of(job.queue)
            known = gained(usage, job.asks.minimum_map, share, self._outlook.capacity, self.scale)
            if not got:
                self._gains[id(job)] = known
        return known

    def _used(self, leaf: str) -> Usage:
        found = self._usage.get(leaf)
        if found is None:
            found = self._usage[leaf] = summed(self._outlook.usage_of(leaf))
        return found
