"""I8: recorded headers over the recorded inbox give the ledger's bytes, on any machine and any hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.model import InboxPosition
from muster.core.replay import redecide, replay
from muster.core.state import CellState
from muster.sim.cell import items_from
from muster.wire import codec

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import hashlib, sys
from tests.property.test_cell_walks import Walk
walk = Walk(int(sys.argv[1]))
walk.cell.checked = False
for _ in range(120):
    walk.step()
print(len(walk.cell.log), hashlib.sha256(b"".join(walk.cell.log)).hexdigest())
"""


@pytest.fixture
def recorded(world):
    world.cell.work_limit = 7
    world.cell.write(*[c.SubmitJob(world.spec(f"job-{n}")) for n in range(20)])
    world.cell.write(c.UpsertQueue("b", world.state.queues.find("research").spec), c.CancelJob(world.id("job-3")))
    world.nodes(2)
    world.cell.start_term("other")
    world.pods("job-1", 4)
    world.cell.wait(10**7)
    return world


def replayed(world):
    ledger = [(seq, codec.decode_transaction(data)) for seq, data in enumerate(world.cell.log, 1)]
    return list(replay(CellState("main"), ledger, items_from(world.cell.inbox, InboxPosition(1, 0))))


def test_a_run_replays_to_its_own_bytes(recorded):
    every = replayed(recorded)
    assert len(every) == len(recorded.cell.log) > 10
    assert [codec.encode_transaction(one.again) for one in every] == recorded.cell.log
    assert any(one.recorded.header.inbox_to.item for one in every)  # a message over several transactions


def test_a_difference_is_found_and_named(recorded):
    at = next(
        index
        for index, data in enumerate(recorded.cell.log)
        if any(isinstance(t, tr.JobPlaced) for t in codec.decode_transaction(data).transitions)
    )
    tx = codec.decode_transaction(recorded.cell.log[at])
    tampered = tuple(msgspec.structs.replace(t, epoch=1) if isinstance(t, tr.JobPlaced) else t for t in tx.transitions)
    tampered = tampered[:-1]
    recorded.cell.log[at] = codec.encode_transaction(tr.Transaction(tx.header, tampered))
    del recorded.cell.log[at + 1 :]
    difference = replayed(recorded)[-1].difference()
    assert difference.ledger_seq == at + 1
    assert difference.index == len(tampered)
    assert difference.recorded is None
    assert difference.replayed == tx.transitions[-1]


def test_another_work_limit_in_the_header_shows(recorded):
    tx = codec.decode_transaction(recorded.cell.log[2])
    header = msgspec.structs.replace(tx.header, work_spent=99)
    recorded.cell.log[2] = codec.encode_transaction(tr.Transaction(header, tx.transitions))
    del recorded.cell.log[3:]
    assert "headers differ" in replayed(recorded)[-1].difference().message


def test_a_quarantined_item_replays(world):
    world.cell.write(c.SubmitJob(world.spec("a")), c.SubmitJob(world.spec("b")))
    from muster.core.decide import decide, transaction

    items = world.cell.waiting()
    decision = decide(world.state, items, world.cell.now_ms, 100, quarantine=items[1][0])
    tx = transaction(world.state, decision, transaction_id="1-9", now_ms=world.cell.now_ms, work_limit=100)
    assert any(isinstance(t, tr.InboxItemQuarantined) for t in tx.transitions)
    again = redecide(world.state, tx, items)
    assert [type(t) for t in again.transitions] == [type(t) for t in tx.transitions]
    assert again.header == tx.header


def test_two_hash_seeds_give_the_same_ledger():
    outcomes = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, "5"], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
        )
        outcomes.add(done.stdout)
    assert len(outcomes) == 1
    assert int(outcomes.pop().split()[0]) > 60


def test_time_never_goes_back_in_the_ledger(world):
    """LOG-2: the next leader's clock may be behind; what is due at a time stays due."""
    world.submit("a")
    before_ms = world.state.now_ms
    world.cell.now_ms -= 1500
    world.submit("b")
    assert world.state.now_ms == before_ms
    assert world.job("b").submit_ms == before_ms
    world.cell.start_term()
    assert world.state.now_ms == before_ms
    told = [codec.decode_transaction(data).header.now_ms for data in world.cell.log]
    assert told == sorted(told)
