"""What a transaction adds to the totals of queues, accounts and the potential, folded in together at its end.

    charge, release, demand of single jobs  ->  one `Sum` an account and size  ->  `settle`: times how many, once

A transaction places, ends and releases hundreds of jobs that are alike. Their totals go up the whole path of a queue,
into what members of a queue share, into the account and into the potential; those are plain sums, and nothing reads
them while a transaction is being folded. So jobs of one account and one size are counted, and what that comes to is
added when the transaction has been folded. `apply` is the only caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.core.accounting import Account, Accounts, Tally, account_of
from muster.core.jobs import Job
from muster.core.model import Amounts, JobSpec

if TYPE_CHECKING:
    from muster.core.state import CellState


class Sum:
    """How many more (or, below zero, fewer) times the amounts count for an account."""

    __slots__ = ("_tally", "account", "amounts", "charged", "committed", "demanded", "spec")

    def __init__(self, account: Account, amounts: Amounts, spec: JobSpec) -> None:
        self.account = account
        self.amounts = amounts
        self.spec = spec  # of any job of the account
        self._tally: Tally | None = None
        self.charged = 0  # held by pods (rule Q3): queues, members, accounts
        self.committed = 0  # placed in the sense of rule P1
        self.demanded = 0  # asked for by live jobs at their maximum

    def tally(self, accounts: Accounts) -> Tally:
        """The account's, of the open period."""
        if self._tally is None:
            self._tally = accounts.tally(self.account)
        return self._tally


class Sums:
    """What is not in the totals yet. Empty between transactions."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str, int, Amounts], Sum] = {}  # the account's parts, amounts

    def of(self, job: Job, amounts: Amounts) -> Sum:
        """Where so much of the job is counted."""
        spec = job.spec
        key = (job.queue, spec.namespace, spec.submitter, spec.priority, amounts)
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = Sum(account_of(job), amounts, spec)
        return found

    def settle(self, state: CellState) -> None:
        """Add everything counted to the totals."""
        queues, potential = state.queues, state.potential
        for found in self._sums.values():
            queue, amounts = found.account[0], found.amounts
            if found.charged:
                if queues.fading:
                    queues.remember(queue, state.now_ms)
                queues.charge(queue, amounts, found.charged)
                queues.charge_members(found.spec, queue, amounts, found.charged)
                state.accounts.charge(found.account, amounts, found.charged, state.now_ms)
            if found.committed:
                potential.count(queue, found.spec.priority, amounts, found.committed)
            if found.demanded:
                queues.by_id[queue].demands(amounts, found.demanded)
        self._sums.clear()
