"""Leader and standby on a real nats-server: whatever happens to the leader, nothing is lost or doubled (I4).

A leader that the machine lets starve for longer than its lease lives is deposed, and rightly. So that this does not
happen where a test is about something else, the standby begins to look at the lease only when it shall take over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.integration.log_cell import RealCell, Traffic, real_cell
from tests.integration.tcp_proxy import Proxy
from tests.patience import PATIENCE_S, until
from tests.unit.runtime.cells import job, nodes, queue, transitions

from muster.core import transitions as tr
from muster.core.model import InboxPosition
from muster.runtime.bus_errors import ConnectionClosed
from muster.runtime.committer import TRY_TIMEOUT_S, Committer, Deposed
from muster.runtime.observer import Committed, LeaderObserver
from muster.runtime.streams import ledger_spec


def check(ledger: Sequence[tr.Transaction], jobs: int) -> None:
    position = InboxPosition(1, 0)
    for seq, tx in enumerate(ledger, 1):
        assert tx.header.prev == seq - 1
        assert tx.header.inbox_from == position
        position = tx.header.inbox_to
    queued = [t.spec.name for t in transitions(ledger, tr.JobQueued)]  # type: ignore[attr-defined]
    assert sorted(queued) == sorted(f"job-{i}" for i in range(jobs))


class Resends(LeaderObserver):
    def __init__(self) -> None:
        self.count = 0

    def committed(self, committed: Committed) -> None:
        self.count = committed.resends


async def test_a_leader_whose_connection_is_closed_is_replaced(tmp_path: Path) -> None:
    async with real_cell(tmp_path) as cell:
        writer, follower = await cell.writer(), await cell.follower()
        a, bus_a = await cell.candidate("qm-1")
        b, _ = await cell.candidate("qm-2")
        leading_a = cell.spawn(a)
        await until(lambda: a.leading)
        await writer.write([queue(), nodes(20)])
        traffic = Traffic(writer, follower)
        await traffic.flows()
        cell.spawn(b)
        await bus_a.close()
        await until(lambda: b.leading, "another one leads")
        with pytest.raises(ConnectionClosed):
            await leading_a
        await traffic.flows()
        jobs = await traffic.end()
        check(await cell.ledger(), jobs)


async def behind_proxy(cell: RealCell, proxy: Proxy, observer: LeaderObserver) -> asyncio.Task[None]:
    """A leader that reaches the server through the proxy."""
    direct, cell.server_url = cell.server_url, proxy.url
    candidate, _ = await cell.candidate("qm-1", observer)
    cell.server_url = direct
    leading = cell.spawn(candidate)
    await until(lambda: candidate.leading)
    return leading


async def test_commits_without_answer_are_sent_again_and_stored_once(tmp_path: Path) -> None:
    """LOG-4: the answers are held back longer than a try lasts, so every commit of that time is resent."""
    async with real_cell(tmp_path) as cell:
        writer, follower = await cell.writer(), await cell.follower()
        proxy, resends = Proxy(cell.server.port), Resends()
        await proxy.start()
        leading = await behind_proxy(cell, proxy, resends)
        await writer.write([queue(), nodes(20)])
        traffic = Traffic(writer, follower)
        proxy.hold_when_sent(b"PUB muster.ledger.main ")
        await until(lambda: proxy.holds)
        await asyncio.sleep(TRY_TIMEOUT_S + 0.5)
        proxy.release()
        await traffic.flows()
        proxy.hold_when_sent(b"PUB muster.ledger.main ")
        await until(lambda: proxy.holds)
        proxy.cut()
        proxy.release()
        await traffic.flows()
        jobs = await traffic.end()
        assert resends.count >= 2
        assert not leading.done()
        check(await cell.ledger(), jobs)
        leading.cancel()
        await asyncio.wait((leading,))
        await proxy.stop()


async def test_a_leader_that_was_away_too_long_is_deposed_and_its_commit_refused(tmp_path: Path) -> None:
    async with real_cell(tmp_path) as cell:
        writer, follower = await cell.writer(), await cell.follower()
        proxy = Proxy(cell.server.port)
        await proxy.start()
        leading_a = await behind_proxy(cell, proxy, LeaderObserver())
        b, _ = await cell.candidate("qm-2")
        await writer.write([queue(), nodes(20)])
        traffic = Traffic(writer, follower)
        await traffic.flows()
        ledger = await (await cell.bus("late")).stream(ledger_spec("main"))
        proxy.hold()
        tail_seq = (await ledger.info()).last_seq
        cell.spawn(b)
        await until(lambda: b.leading, "another one leads")
        await until(lambda: follower.state.epoch == 2)  # whoever holds the lease, only a committed term fences
        with pytest.raises(Deposed):
            await Committer(ledger, tail_seq, cell.clock).commit(b"what the old leader was about to write")
        proxy.release()
        with pytest.raises(Deposed):
            await leading_a
        jobs = await traffic.end()
        check(await cell.ledger(), jobs)
        await proxy.stop()


async def test_kill_9_of_the_server_in_the_middle_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with real_cell(tmp_path) as cell:
        writer, follower = await cell.writer(), await cell.follower()
        candidates = [(await cell.candidate(name))[0] for name in ("qm-1", "qm-2")]
        tasks = [cell.spawn(candidate) for candidate in candidates]
        await writer.write([queue(), nodes(20)])
        callers = [asyncio.create_task(writer.write([job(i)])) for i in range(50)]
        for _ in range(3):
            await asyncio.sleep(0.3)
            first = len(callers)
            callers += [asyncio.create_task(writer.write([job(i)])) for i in range(first, first + 50)]
            await asyncio.sleep(0.001)
            cell.server.kill()
            await asyncio.sleep(0.3)
            cell.server.start()
        positions = [positions[0] for positions in await asyncio.gather(*callers)]
        await follower.wait_applied(max(positions), PATIENCE_S)
        check(await cell.ledger(), len(callers))
        assert sum(task.done() for task in tasks) <= 1, "at most the old leader was deposed"
