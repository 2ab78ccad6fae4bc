"""Pausing a leader in the middle of a decision, until another one leads.

A leader that wakes up deposed finds out in one of two ways: its lease bears another name, or the ledger refuses its
commit. A paused process that was idle always looks at the lease first. So that the fence itself is tried, the leader
is given crowds of jobs and stopped (and let go again, and stopped) until it is stopped while it works on what the
ledger does not show yet: when it wakes up, the next thing it does is to commit.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from random import Random

from tests.e2e.kill_cell import CELL, KillCell, until
from tests.patience import PATIENCE_S, POLL_S

from muster.runtime.ports import Stream
from muster.runtime.streams import inbox_spec

PAUSE_S = 5.0
CATCH_TIMEOUT_S = 6.0
LONG_S = 0.01  # what computes for so long without a pause is a decision
BETWEEN_STOPS_S = (0.002, 0.008)
TAIL_S = 0.03  # what is committed is seen by a reader of the ledger after so long
IN_USER_CODE = ("-1", "running")  # what /proc says of a process that was not stopped in a system call
COMMIT_REFUSED = ("another leader wrote ledger sequence", "this leader built on")


async def stop_deciding(cell: KillCell, pid: int, rng: Random) -> None:
    """SIGSTOP `pid` while it decides; after CATCH_TIMEOUT_S at any moment."""
    bus = await cell.bus()
    try:
        inbox = await bus.stream(inbox_spec(CELL))
        deadline = time.monotonic() + CATCH_TIMEOUT_S
        while time.monotonic() < deadline:
            waits = await _stopped(pid)
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(LONG_S if waits else rng.uniform(*BETWEEN_STOPS_S))
            if not waits:
                continue
            if await _stopped(pid) == waits + 1 and await _has_undecided(cell, inbox):  # the stop counts as a wait
                return
            os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGSTOP)
    finally:
        await bus.close()


async def pause(cell: KillCell, leader: str, stopped: asyncio.Event, rng: Random) -> tuple[float, int, bool]:
    """Stop the leader until another one leads (and for PAUSE_S at least), then let it find out. Returns when it was
    stopped, the code it ended with, and whether a refused commit told it."""
    process = cell.child(leader).process
    assert process is not None
    logged = len(cell.log(leader))
    await stop_deciding(cell, process.pid, rng)
    at_s = time.time()
    stopped.set()
    try:
        await until(lambda: cell.ledger.leader != leader, PATIENCE_S, "another queue-manager leads")
        await asyncio.sleep(max(POLL_S, at_s + PAUSE_S - time.time()))
    finally:
        os.kill(process.pid, signal.SIGCONT)
    code = await asyncio.wait_for(process.wait(), PATIENCE_S)
    said = cell.log(leader)[logged:]
    return at_s, code, any(text in said for text in COMMIT_REFUSED)


async def _has_undecided(cell: KillCell, inbox: Stream) -> bool:
    await asyncio.sleep(TAIL_S)
    return (await inbox.info()).last_seq >= cell.ledger.inbox_to.seq


async def _stopped(pid: int) -> int:
    """Stop the process. Returns how often it has waited for something in its life, and 0 if it does so now."""
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TX":
        await asyncio.sleep(0)
    if Path(f"/proc/{pid}/syscall").read_text().split()[0] not in IN_USER_CODE:
        return 0
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:"))
