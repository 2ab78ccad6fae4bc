"""Who shares one queue: what each namespace and each user has there (rules Q1, F5).

Kept only by queues that need it, because they have allowances per namespace or user, or are fair between them. A job
counts for its namespace and for its submitter. Pending jobs are those that wait, running ones those that are charged;
usage is charged usage. What a transaction in the making adds is kept beside (`Shift`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from muster.core import resources
from muster.core.model import Allowance, JobSpec, QueueSpec
from muster.core.words import several

Key = tuple[str, str]  # (NAMESPACE or USER, name)
NAMESPACE: Final = "NAMESPACE"
USER: Final = "USER"


class Member:
    """What one namespace or user has in one queue."""

    __slots__ = ("pending", "running", "usage")

    def __init__(self) -> None:
        self.pending = 0
        self.running = 0
        self.usage: dict[str, int] = {}

    def copy(self) -> Member:
        twin = Member()
        twin.pending, twin.running, twin.usage = self.pending, self.running, dict(self.usage)
        return twin

    def count(self, pending: int, running: int, amounts: Iterable[tuple[str, int]] = (), times: int = 1) -> None:
        self.pending += pending
        self.running += running
        resources.count(self.usage, amounts, times)

    @property
    def idle(self) -> bool:
        return not (self.pending or self.running or self.usage)


class Members(dict[Key, Member]):
    """By kind and name; only those that have anything."""

    def copy(self) -> Members:
        return Members({key: member.copy() for key, member in self.items()})

    def count(
        self, spec: JobSpec, pending: int, running: int, amounts: Iterable[tuple[str, int]] = (), times: int = 1
    ) -> None:
        """A job of the queue waits, runs, holds so much more (or less)."""
        for key in keys_of(spec):
            self.count_at(key, pending, running, amounts, times)

    def count_at(
        self, key: Key, pending: int, running: int, amounts: Iterable[tuple[str, int]] = (), times: int = 1
    ) -> None:
        """The same for one namespace or user, and any number of jobs."""
        member = self.get(key)
        if member is None:
            member = self[key] = Member()
        member.count(pending, running, amounts, times)
        if member.idle:
            del self[key]


def keys_of(spec: JobSpec) -> tuple[Key, Key]:
    return ((NAMESPACE, spec.namespace), (USER, spec.submitter))


def are_kept(spec: QueueSpec) -> bool:
    """Whether the queue has to know its members."""
    return spec.ordering == "FAIR" or spec.per_namespace != Allowance() or spec.per_user != Allowance()


def fair_member(spec: QueueSpec, job: JobSpec) -> str:
    """Between whom a queue with ordering FAIR is fair: whose job this is. "" in any other queue: all are alike."""
    if spec.ordering != "FAIR":
        return ""
    return job.submitter if spec.fair_by == USER else job.namespace


def allowances(spec: QueueSpec, job: JobSpec) -> tuple[tuple[Key, Allowance], ...]:
    """What the queue allows the job's namespace and user."""
    namespace, user = keys_of(job)
    return tuple((key, of) for key, of in ((namespace, spec.per_namespace), (user, spec.per_user)) if of != Allowance())


def called(key: Key) -> str:
    """For people: `user ann`."""
    return f"{key[0].lower()} {key[1] or '(none)'}"


class Exceeded(NamedTuple):
    """An allowance that one more job would exceed. `resource` is empty for a number of jobs."""

    key: Key
    resource: str
    used: int
    asked: int
    most: int

    @property
    def who(self) -> str:
        return called(self.key)

    def say(self, queue: str) -> str:
        """For people."""
        if not self.resource:
            running = several(self.used, "running job")
            return f"{self.who} has {running} in queue {queue}, which allows {self.most}"
        used = resources.format_amount(self.resource, self.used)
        most = resources.format_pair(self.resource, self.most)
        asked = resources.format_amount(self.resource, self.asked)
        return f"{self.who} uses {used} of {most} in queue {queue}, the job needs {asked}"


def exceeded(
    key: Key, allowance: Allowance, member: Member, need: Mapping[str, int], *, starts: bool = True
) -> Exceeded | None:
    """What keeps a job with `need` from starting (or, if it runs already, from growing)."""
    if starts and 0 <= allowance.running_jobs <= member.running:
        return Exceeded(key, "", member.running, 1, allowance.running_jobs)
    for resource, most in allowance.resources:
        asked, used = need.get(resource, 0), member.usage.get(resource, 0)
        if asked and used + asked > most:
            return Exceeded(key, resource, used, asked, most)
    return None
