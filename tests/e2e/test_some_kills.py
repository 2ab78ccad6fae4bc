"""A short form of the kill test for every run of the tests: six kills under work, and the same judgement."""

import pytest
from tests.e2e import kill_run, kill_witness
from tests.e2e.kill_cell import NATS
from tests.e2e.kill_run import LEADER, Scale

SEED = 7
TARGETS = ("binder-1", LEADER, NATS, "admission-1", "binder-2", LEADER)

pytestmark = pytest.mark.e2e


async def test_a_few_kills_lose_nothing_and_repeat_nothing(short_path, monkeypatch):
    scale = Scale(jobs=90, span_s=25, targets=[TARGETS], between_s=(1.0, 4.0), pause=False)
    run = await kill_run.play(scale, SEED, short_path, monkeypatch)
    print(kill_witness.report(run), flush=True)

    assert len(run.kills) == len(TARGETS)
    assert len(run.acknowledged) == scale.jobs
    assert kill_witness.lost_or_wrong(run) == []
    assert kill_witness.queued_otherwise_than_once(run) == []
    assert kill_witness.duplicates(run) == []
    assert kill_witness.ran_more_often_than_placed(run) == []
    assert kill_witness.died_by_themselves(run, may_starve=True) == []
    assert kill_witness.broken_ledger(run) == []
    assert kill_witness.wrong_events(run) == []
    assert kill_witness.not_replayed(run) == []
    assert [takeover.leader in ("qm-1", "qm-2") for takeover in kill_witness.takeovers(run)] == [True, True]
