"""Who has used how much: resource-milliseconds, waits and lost work by queue, namespace, user and priority.

    what is charged and released (rule Q3), starts, ends, preemptions  ->  Accounts: one tally an account and period

Usage is amount x time, summed up as exact integers while transitions are applied, so it is part of the state and no
trimming of the ledger loses any of it (LOG-6). An *account* is a job's leaf queue (by id, so a move changes nothing),
namespace, submitter and priority; every other grouping is a sum over accounts.

Time is cut into periods: hours for the last two days, days for the last thirteen months, one period for all before.
Everything is bounded: when there are more tallies than `TALLIES_MAX` the oldest periods grow together, and past
`ACCOUNTS_MAX` accounts in one period new ones share the account `REST`. A running job is added up when something of
its account changes and when a period ends, never by walking the jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct, field

from muster.core import resources
from muster.core.jobs import Job
from muster.core.lifecycle import SUCCEEDED
from muster.core.lost_work import lost
from muster.core.model import Amounts, JobState

HOUR_MS: Final = 3600 * 1000
DAY_MS: Final = 24 * HOUR_MS
HOURLY_MS: Final = 2 * DAY_MS  # how long hours stay apart
DAILY_MS: Final = 400 * DAY_MS  # how long days do
TALLIES_MAX: Final = 100_000  # in all periods
ACCOUNTS_MAX: Final = 10_000  # in one period

Account = tuple[str, str, str, int]  # queue id, namespace, submitter, priority
REST: Final[Account] = ("", "", "", 0)
Totals = dict[str, int]  # resource -> amount x milliseconds


class Tally(Struct):
    """What an account did in a period."""

    usage: Totals = field(default_factory=dict)
    lost: Totals = field(default_factory=dict)  # work that preemption destroyed, of the victim's account
    submitted: int = 0
    started: int = 0  # placements, repeated ones included
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    preempted: int = 0  # whole jobs
    shrunk_pods: int = 0  # elastic pods taken away for somebody else
    waits: int = 0  # first placements: what the waiting times below are of
    waited_ms: int = 0
    waited_max_ms: int = 0

    def add(self, other: Tally) -> None:
        """Both together."""
        for name in ("submitted", "started", "succeeded", "failed", "cancelled", "preempted", "shrunk_pods"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.waits += other.waits
        self.waited_ms += other.waited_ms
        self.waited_max_ms = max(self.waited_max_ms, other.waited_max_ms)
        resources.count(self.usage, other.usage.items(), 1)
        resources.count(self.lost, other.lost.items(), 1)

    def placed(self, job: Job, now_ms: int) -> None:
        """The job has just been given its nodes."""
        self.started += 1
        if job.epoch == 1:
            waited_ms = now_ms - job.submit_ms
            self.waits += 1
            self.waited_ms += waited_ms
            self.waited_max_ms = max(self.waited_max_ms, waited_ms)

    def ended(self, state: JobState) -> None:
        """A job has just become terminal."""
        if state is SUCCEEDED:
            self.succeeded += 1
        elif state is JobState.FAILED:
            self.failed += 1
        else:
            self.cancelled += 1


class Period:
    """Tallies of a time, by account. Their order means nothing."""

    __slots__ = ("end_ms", "start_ms", "tallies")

    def __init__(self, start_ms: int, end_ms: int) -> None:
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.tallies: dict[Account, Tally] = {}

    def tally(self, account: Account) -> Tally:
        """The account's, made at first use."""
        found = self.tallies.get(account)
        if found is None:
            if len(self.tallies) >= ACCOUNTS_MAX:
                account = REST
            found = self.tallies.setdefault(account, Tally())
        return found

    def take_in(self, later: Period) -> None:
        """The two become one."""
        self.end_ms = later.end_ms
        for account, tally in sorted(later.tallies.items(), key=lambda item: item[0]):
            self.tally(account).add(tally)


class Rate:
    """What an account holds now, counted up to `since_ms`."""

    __slots__ = ("amounts", "since_ms")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.amounts: dict[str, int] = {}

    def count(self, tally: Tally, now_ms: int) -> None:
        """Add what it holds since then to the tally; the rate itself stays as it is."""
        elapsed_ms = now_ms - self.since_ms
        if elapsed_ms > 0:
            usage = tally.usage
            for resource, amount in self.amounts.items():
                usage[resource] = usage.get(resource, 0) + amount * elapsed_ms


class Report(Struct, frozen=True):
    """Tallies of all periods that reach into the time asked for. `from_ms`: where the first of them begins."""

    from_ms: int
    to_ms: int
    tallies: dict[Account, Tally]


class Accounts:
    """All accounts of a cell. Changed by `apply` only."""

    def __init__(self) -> None:
        self.periods = [Period(0, HOUR_MS)]  # oldest first; the last one is open
        self.rates: dict[Account, Rate] = {}
        self.gone: dict[str, str] = {}  # queue id -> last path, of removed queues that have tallies

    # --- time -------------------------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """Time has moved on; before anything happens at `now_ms`."""
        if now_ms >= self.periods[-1].end_ms:
            self._turn(now_ms)

    def _turn(self, now_ms: int) -> None:
        """Close periods that are over and open the one that `now_ms` is in."""
        while now_ms >= self.periods[-1].end_ms:
            start_ms = now_ms - now_ms % HOUR_MS
            if self.rates:
                start_ms = self.periods[-1].end_ms
                for account, rate in self.rates.items():
                    self._count(account, rate, start_ms)
            span_ms = HOUR_MS if now_ms - start_ms < HOURLY_MS else DAY_MS - start_ms % DAY_MS
            if not self.periods[-1].tallies:
                self.periods.pop()
            self.periods.append(Period(start_ms, start_ms + span_ms))
            for account in sorted(self.rates):  # so that who gets an own tally never depends on when one is added up
                self.periods[-1].tally(account)
        self._compact(now_ms)

    def _compact(self, now_ms: int) -> None:
        """Old hours become days, very old days become one period; and never more tallies than the limit."""
        kept: list[Period] = []
        for period in self.periods:
            same_day = kept and kept[-1].start_ms // DAY_MS == period.start_ms // DAY_MS
            very_old = len(kept) == 1 and period.end_ms <= now_ms - DAILY_MS
            if (same_day and period.end_ms <= now_ms - HOURLY_MS) or very_old:
                kept[-1].take_in(period)
            else:
                kept.append(period)
        tallies = sum(len(period.tallies) for period in kept)
        while tallies > TALLIES_MAX and len(kept) > 2:
            tallies -= len(kept[0].tallies) + len(kept[1].tallies)
            kept[0].take_in(kept.pop(1))
            tallies += len(kept[0].tallies)
        self.periods = kept
        if self.gone:
            used = {account[0] for period in kept for account in period.tallies}
            self.gone = {queue: path for queue, path in self.gone.items() if queue in used}

    # --- what happens -----------------------------------------------------------------------------------------------

    def tally(self, account: Account) -> Tally:
        """Of the open period."""
        return self.periods[-1].tally(account)

    def charge(self, account: Account, amounts: Amounts, times: int, now_ms: int) -> None:
        """The account's jobs hold so many times the amounts more (or, below zero, less) from now on."""
        rate = self.rates.get(account)
        if rate is None:
            rate = self.rates[account] = Rate(now_ms)
            self.periods[-1].tally(account)
        else:
            self._count(account, rate, now_ms)
        resources.count(rate.amounts, amounts, times)
        if not rate.amounts:
            del self.rates[account]

    def preempted(self, job: Job, now_ms: int) -> None:
        """The whole job is about to leave for somebody else."""
        self._of(job).preempted += 1
        self._lose(job, range(len(job.phases)), now_ms)

    def shrunk(self, job: Job, pods: Sequence[int], now_ms: int) -> None:
        """These elastic pods are about to leave for somebody else."""
        self._of(job).shrunk_pods += len(pods)
        self._lose(job, pods, now_ms)

    def _lose(self, job: Job, pods: Iterable[int], now_ms: int) -> None:
        """What these pods have done and not saved is lost (rule P3)."""
        resources.count(self._of(job).lost, lost(job, pods, now_ms), 1)

    def _of(self, job: Job) -> Tally:
        return self.tally(account_of(job))

    def removed(self, queue: str, path: str) -> None:
        """The queue is gone; its tallies keep its name."""
        if any(account[0] == queue for period in self.periods for account in period.tallies):
            self.gone[queue] = path

    def _count(self, account: Account, rate: Rate, now_ms: int) -> None:
        if now_ms != rate.since_ms:
            rate.count(self.periods[-1].tally(account), now_ms)
            rate.since_ms = now_ms

    # --- reading ----------------------------------------------------------------------------------------------------

    def removed_below(self, path: str) -> set[str]:
        """Ids of removed queues that have tallies and had this path, or one below it, when they were removed."""
        return {queue for queue, had in self.gone.items() if had == path or had.startswith(f"{path}/")}

    def report(self, since_ms: int, now_ms: int) -> Report:
        """Everything of the periods that end after `since_ms`, what runs now counted up to `now_ms`."""
        tallies: dict[Account, Tally] = {}
        chosen = [period for period in self.periods if period.end_ms > since_ms]
        for period in chosen:
            for account, tally in period.tallies.items():
                tallies.setdefault(account, Tally()).add(tally)
        if chosen:
            for account, rate in self.rates.items():
                rate.count(tallies.setdefault(account, Tally()), now_ms)
        return Report(chosen[0].start_ms if chosen else since_ms, now_ms, tallies)


def account_of(job: Job) -> Account:
    """Fixed for the life of a job: whoever makes a part of it changeable has to move what is charged."""
    spec = job.spec
    return (job.queue, spec.namespace, spec.submitter, spec.priority)
