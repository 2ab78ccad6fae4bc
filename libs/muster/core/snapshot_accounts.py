"""Accounts and histories in a snapshot: periods as parts, sums of queues as records, and back.

What runs is counted up to the snapshot's time when it is written, so only sums are stored; what each account holds is
rebuilt from the jobs, like every other usage. Histories are stored as they are: a number that was brought up to date
earlier than elsewhere would be the same, but so nobody has to think about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from msgspec.structs import asdict

from muster.core.accounting import Account, Accounts, Period, Rate, Tally, Totals
from muster.core.history import History
from muster.core.queues import QueueTree
from muster.core.snapshot_parts import SNAPSHOT_VERSION, AccountsPart, HistoryRecord, TallyRecord

TALLIES_PER_PART: Final = 2000
LOW_BITS: Final = 62
LOW_MASK: Final = (1 << LOW_BITS) - 1

Wide = tuple[tuple[str, int, int], ...]


def dump_accounts(accounts: Accounts, now_ms: int) -> Iterator[AccountsPart]:
    """The parts, oldest period first."""
    gone = tuple(sorted(accounts.gone.items()))
    for period in accounts.periods:
        tallies = period.tallies
        if period is accounts.periods[-1]:
            tallies = _counted(period, accounts.rates, now_ms)
        records = iter([_record(account, tally) for account, tally in sorted(tallies.items(), key=_account)])
        while True:
            chunk = tuple(islice(records, TALLIES_PER_PART))
            if chunk or not tallies:
                yield AccountsPart(SNAPSHOT_VERSION, period.start_ms, period.end_ms, chunk, gone)
                gone = ()
            if not chunk:
                break


def load_accounts(accounts: Accounts, part: AccountsPart) -> None:
    """Add a part; they come in the order in which they were dumped."""
    accounts.gone.update(part.gone)
    if accounts.periods[-1].start_ms != part.start_ms:
        if not accounts.periods[-1].tallies:
            accounts.periods.pop()
        accounts.periods.append(Period(part.start_ms, part.end_ms))
    tallies = accounts.periods[-1].tallies
    for record in part.tallies:
        fields = asdict(record)
        account = fields.pop("account")
        tallies[account] = Tally(**{**fields, "usage": _narrow(record.usage), "lost": _narrow(record.lost)})


def _counted(period: Period, rates: dict[Account, Rate], now_ms: int) -> dict[Account, Tally]:
    """The tallies of the open period with what runs counted up to now; the period itself is left alone."""
    twin = Period(period.start_ms, period.end_ms)
    for account, tally in period.tallies.items():  # one by one: to take the period in would leave no room for `REST`
        twin.tallies[account] = Tally()
        twin.tallies[account].add(tally)
    for account, rate in rates.items():
        rate.count(twin.tally(account), now_ms)
    return twin.tallies


def _account(item: tuple[Account, Tally]) -> Account:
    return item[0]


def _record(account: Account, tally: Tally) -> TallyRecord:
    fields = asdict(tally)
    return TallyRecord(account, **{**fields, "usage": _wide(tally.usage), "lost": _wide(tally.lost)})


def _wide(totals: Totals) -> Wide:
    return tuple((resource, total >> LOW_BITS, total & LOW_MASK) for resource, total in sorted(totals.items()))


def _narrow(wide: Iterable[tuple[str, int, int]]) -> Totals:
    return {resource: high << LOW_BITS | low for resource, high, low in wide}


# --- histories ------------------------------------------------------------------------------------------------------


def dump_histories(tree: QueueTree) -> tuple[HistoryRecord, ...]:
    """Of the queues that have one (rule F4)."""
    found = []
    for queue in tree.subtree() if tree.fading else ():
        if queue.history is not None:
            sums = sorted(queue.history.sums.items())
            found.append(HistoryRecord(queue.id, queue.history.since_ms, tuple((r, _bytes(n)) for r, n in sums)))
    return tuple(found)


def load_histories(tree: QueueTree, records: Iterable[HistoryRecord]) -> None:
    """Into a tree that has its queues."""
    for record in records:
        queue = tree.get(record.queue)
        sums = {resource: int.from_bytes(total) for resource, total in record.sums}
        queue.history = History(queue.chain[-1].spec.half_life_ms, record.since_ms, sums)


def _bytes(total: int) -> bytes:
    return total.to_bytes((total.bit_length() + 7) // 8)
