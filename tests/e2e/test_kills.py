"""Kill everything, many times, while users work: nothing acknowledged is lost and nothing runs twice.

30 kills (each of ten processes three times, in an order and at moments drawn from a seed) and a leader paused until it
is deposed. SEED=n chooses the seed. `make e2e` runs it; `make test` has a short form (`test_some_kills.py`).
"""

import os

import pytest
from tests.e2e import kill_run, kill_witness
from tests.e2e.kill_run import Scale

from muster.runtime.exit_codes import ExitCode

ROUNDS = 3
TAKEOVER_MAX_S = 5.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


async def test_thirty_kills_lose_nothing_and_repeat_nothing(short_path, monkeypatch):
    targets = [kill_run.TARGETS] * ROUNDS
    scale = Scale(jobs=800, span_s=200, urgent_until_s=100, targets=targets, between_s=(2.0, 8.0))
    run = await kill_run.play(scale, int(os.environ.get("SEED", "1")), short_path, monkeypatch)
    print(kill_witness.report(run), flush=True)

    assert len(run.kills) == ROUNDS * len(kill_run.TARGETS) == 30
    assert {kill.child for kill in run.kills} >= {"qm-1", "qm-2"}, "each replica was killed"
    assert len(run.acknowledged) == run.submitted >= scale.jobs
    assert kill_witness.lost_or_wrong(run) == []
    assert kill_witness.queued_otherwise_than_once(run) == []
    assert kill_witness.duplicates(run) == []
    assert kill_witness.ran_more_often_than_placed(run) == []
    assert kill_witness.died_by_themselves(run) == []
    assert kill_witness.broken_ledger(run) == []
    assert kill_witness.wrong_events(run) == []
    assert kill_witness.not_replayed(run) == []
    late = [takeover for takeover in kill_witness.takeovers(run) if takeover.after_s > TAKEOVER_MAX_S]
    assert late == []
    assert {pause.code for pause in run.pauses} == {ExitCode.DEPOSED}
    assert any(pause.refused_commit for pause in run.pauses)
