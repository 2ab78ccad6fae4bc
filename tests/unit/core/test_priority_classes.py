"""P4: what a priority class says is settled when a job is queued; classes protect, and `max_preemptions` does."""

from __future__ import annotations

import pytest
from tests.unit.core.preempting import cpu

from muster.core import commands as c
from muster.core import snapshot
from muster.core import transitions as tr
from muster.core.explain import explain
from muster.core.jobs import RUNNING_STATES
from muster.core.limits import LABELS_MAX, PREEMPTIONS_ALLOWED_MAX, PREEMPTIONS_MAX, PRIORITY_CLASSES_MAX
from muster.core.model import JobState, PriorityClass
from muster.core.preemption_rules import shortest_ms
from muster.core.replay import replay
from muster.core.sizes import size_of, spec_bytes
from muster.core.state import CellState
from muster.core.submission import RUNTIME_MAX_MS, check_spec
from muster.core.whatif import forecast_job
from muster.sim.cell import items_from
from muster.wire import codec

MINUTE_MS = 60_000


def define(world, name, value=0, **more):
    return world.cell.send(c.UpsertPriorityClass(name, value, **more))


def refused(world, item):
    refusal = world.reject(world.cell.send(item))
    return refusal.code, refusal.field, refusal.rule


# --- classes --------------------------------------------------------------------------------------------------------


def test_a_class_is_made_changed_and_forgotten(world):
    made = define(world, "high", 5, labels=(("a", "b"),), min_runtime_ms=MINUTE_MS)
    assert made == [tr.PriorityClassUpserted(PriorityClass("high", 5, (("a", "b"),), MINUTE_MS))]
    define(world, "high", 7)
    assert world.state.classes == {"high": PriorityClass("high", 7)}  # what is not given has its default
    assert world.cell.send(c.DeletePriorityClass("high")) == [tr.PriorityClassRemoved("high")]
    assert world.state.classes == {}


def test_what_changes_nothing_writes_nothing(world):
    define(world, "high", 5)
    assert define(world, "high", 5, request_id="again") == []


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (c.UpsertPriorityClass("High"), "name"),
        (c.UpsertPriorityClass(""), "name"),
        (c.UpsertPriorityClass("x" * 64), "name"),
        (c.UpsertPriorityClass("x", 1_000_000_001), "value"),
        (c.UpsertPriorityClass("x", -1_000_000_001), "value"),
        (c.UpsertPriorityClass("x", min_runtime_ms=-1), "min_runtime"),
        (c.UpsertPriorityClass("x", min_runtime_ms=1 << 50), "min_runtime"),
        (c.UpsertPriorityClass("x", labels=tuple((f"l{n}", "") for n in range(LABELS_MAX + 1))), "labels"),
        (c.UpsertPriorityClass("x", labels=(("a", "b" * 400),)), "labels.a"),
    ],
)
def test_a_wrong_class_is_refused_by_field_and_rule(world, item, field):
    assert refused(world, item) == ("INVALID_ARGUMENT", field, "P4")
    assert world.state.classes == {}


def test_an_unknown_class_cannot_be_forgotten_and_the_nearest_is_named(world):
    define(world, "training")
    refusal = world.reject(world.cell.send(c.DeletePriorityClass("trainin")))
    assert (refusal.code, refusal.field) == ("NOT_FOUND", "name")
    assert refusal.message == 'priority class "trainin" does not exist (did you mean "training"?)'
    assert refusal.subject == "trainin"


def test_classes_are_bounded_and_those_there_are_can_be_changed(world):
    world.cell.send(*[c.UpsertPriorityClass(f"c{n}") for n in range(PRIORITY_CLASSES_MAX)])
    assert len(world.state.classes) == PRIORITY_CLASSES_MAX
    assert refused(world, c.UpsertPriorityClass("more")) == ("RESOURCE_EXHAUSTED", "name", "P4")
    define(world, "c7", 7)
    assert world.state.classes["c7"].value == 7
    world.cell.send(c.DeletePriorityClass("c0"), c.UpsertPriorityClass("more"))
    assert "more" in world.state.classes


def test_the_largest_class_is_within_its_bound():
    labels = tuple((f"{n:0253d}/{n:063d}", "ü" * 317) for n in range(LABELS_MAX))
    upserted = tr.PriorityClassUpserted(PriorityClass("x" * 63, -1_000_000_000, labels, RUNTIME_MAX_MS))
    header = tr.Header(
        1, "1-1", 1, 1, 0, snapshot.CellState("main").position, snapshot.CellState("main").position, 1, 1
    )
    whole, empty = (len(codec.encode_transaction(tr.Transaction(header, part))) for part in ((upserted,), ()))
    assert whole - empty <= size_of(upserted)


# --- jobs of a class ------------------------------------------------------------------------------------------------


def test_a_job_gets_what_its_class_says_and_keeps_it(world):
    define(world, "high", 5, min_runtime_ms=MINUTE_MS)
    world.submit("early", priority_class="high")
    define(world, "high", 7)
    world.submit("late", priority_class="high")
    world.cell.send(c.DeletePriorityClass("high"))
    specs = [world.job(name).spec for name in ("early", "late")]
    assert [(s.priority, s.min_runtime_ms, s.priority_class) for s in specs] == [(5, MINUTE_MS, "high"), (7, 0, "high")]


def test_class_and_job_may_come_in_one_transaction(world):
    world.cell.send(c.UpsertPriorityClass("high", 5), c.SubmitJob(world.spec("a", priority_class="high")))
    assert world.job("a").spec.priority == 5
    gone = world.cell.send(c.DeletePriorityClass("high"), c.SubmitJob(world.spec("b", priority_class="high")))
    assert world.reject(gone).code == "NOT_FOUND"


def test_jobs_wait_in_the_order_of_their_classes(world):
    define(world, "low", -1)
    define(world, "high", 1)
    for name in ("low", "high"):
        world.submit(name, cpu=4000, priority_class=name)
    world.submit("plain", cpu=4000)
    for name in ("high", "plain", "low"):
        world.nodes(1)
        assert [j.spec.name for j in world.state.jobs.values() if j.state in RUNNING_STATES] == [name]
        world.pods(name, 3)


def test_a_repeated_submission_is_the_same_job_also_when_the_class_has_changed(world):
    define(world, "high", 5)
    world.submit("a", priority_class="high")
    world.cell.send(c.DeletePriorityClass("high"))
    assert world.submit("a", priority_class="high") == []
    assert world.job("a").spec.priority == 5


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"priority_class": "hihg"}, "NOT_FOUND", "priority_class"),
        ({"priority_class": "high", "priority": 3}, "INVALID_ARGUMENT", "priority_class"),
        ({"priority_class": "high", "min_runtime_ms": 1}, "INVALID_ARGUMENT", "min_runtime"),
        ({"min_runtime_ms": 1}, "INVALID_ARGUMENT", "min_runtime"),
        ({"max_preemptions": -1}, "INVALID_ARGUMENT", "max_preemptions"),
        ({"max_preemptions": PREEMPTIONS_ALLOWED_MAX + 1}, "INVALID_ARGUMENT", "max_preemptions"),
    ],
)
def test_a_wrong_job_is_refused(world, fields, code, field):
    define(world, "high", 5)
    assert refused(world, c.SubmitJob(world.spec("a", **fields))) == (code, field, "P4")


def test_a_refusal_names_both_of_class_and_priority(world):
    define(world, "high", 5)
    told = world.reject(world.submit("a", priority_class="high", priority=3)).message
    assert told == '"high" says what the priority is, and priority says 3: give one of the two'


def test_bounds_of_a_spec_hold_with_a_class(world):
    define(world, "x" * 63, -1_000_000_000, min_runtime_ms=RUNTIME_MAX_MS)
    world.submit("a", priority_class="x" * 63, max_preemptions=PREEMPTIONS_ALLOWED_MAX)
    spec = world.job("a").spec
    item = codec.encode_inbox((c.SubmitJob(spec),))
    assert len(item) <= spec_bytes(spec) + 64
    check_spec(world.spec("b", max_preemptions=PREEMPTIONS_ALLOWED_MAX))


def test_what_if_a_job_of_a_class_were_submitted(world, around):
    world.nodes(1)
    define(world, "high", 5)
    world.submit("low", cpu=4000)
    around.calm()
    forecast = forecast_job(world.state, world.spec("mine", cpu=4000, priority_class="high"), world.cell.now_ms)
    assert [victim.name for victim in forecast.displaces] == ["low"]


def test_classes_survive_snapshot_and_replay(world):
    define(world, "high", 5, min_runtime_ms=MINUTE_MS)
    define(world, "gone")
    world.submit("a", priority_class="high", max_preemptions=2)
    world.cell.send(c.DeletePriorityClass("gone"))
    loaded = snapshot.load(
        [codec.decode_snapshot_part(codec.encode_snapshot_part(part)) for part in snapshot.dump(world.state)]
    )
    assert loaded.classes == world.state.classes == {"high": PriorityClass("high", 5, (), MINUTE_MS)}
    assert loaded.jobs[world.id("a")].spec == world.job("a").spec
    ledger = [(seq, codec.decode_transaction(data)) for seq, data in enumerate(world.cell.log, 1)]
    state = CellState("main")
    for replayed in replay(state, ledger, items_from(world.cell.inbox, state.position)):
        assert replayed.difference() is None
    assert state.classes == world.state.classes


# --- min_runtime of a class -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("of_queue", "of_class", "longest"), [(0, 100, 100), (40, 100, 100), (100, 40, 100)])
def test_the_larger_min_runtime_protects_and_its_end_is_not_missed(world, around, of_queue, of_class, longest):
    """P4: nothing changes when the protection ends, and the request is repeated all the same."""
    world.nodes(1)
    world.queue("research", min_runtime_ms=of_queue * 1000)
    define(world, "patient", min_runtime_ms=of_class * 1000)
    world.submit("low", cpu=4000, priority_class="patient")
    assert shortest_ms(world.job("low"), world.state.queues.find("research")) == longest * 1000
    world.submit("high", cpu=4000, priority=5)
    around.calm()
    around.wait(99_000)
    assert around.evicted == []
    assert world.state.requests == 1
    around.wait(2000)
    assert around.evicted == [world.id("low")]


def test_a_class_protects_its_own_jobs_only(world, around):
    world.nodes(2)
    define(world, "patient", min_runtime_ms=MINUTE_MS)
    world.submit("kept", cpu=4000, priority_class="patient")
    world.submit("taken", cpu=4000)
    world.submit("high", cpu=4000, priority=5)
    around.calm()
    assert around.evicted == [world.id("taken")]


def test_the_leader_drops_a_plan_that_takes_a_job_its_class_protects(world):
    world.nodes(1)
    define(world, "patient", min_runtime_ms=MINUTE_MS)
    world.submit("low", cpu=4000, priority_class="patient")
    world.submit("high", cpu=4000, priority=5)
    plan = ((world.id("low"), 1),), world.job("low").placement
    done = world.cell.send(c.PreemptionPlanned(world.id("high"), 1, *plan))
    assert [t.reason for t in done if isinstance(t, tr.PreemptionAnswered)] == ["a victim is protected"]
    world.cell.wait(2 * MINUTE_MS)
    done = world.cell.send(c.PreemptionPlanned(world.id("high"), world.state.requests, *plan))
    assert [t.job for t in done if isinstance(t, tr.JobPreempted)] == [world.id("low")]


# --- max_preemptions ------------------------------------------------------------------------------------------------


def reclaiming(world, around, **fields):
    """`often` runs on loan in a queue of its own; the lender then takes back what it is entitled to."""
    world.nodes(1)
    for name in ("lender", "borrower"):
        world.queue(name, preemption="ANY")
    around.entitle(lender=(), borrower=cpu(4000))
    world.submit("often", cpu=4000, queue="borrower", **fields)
    around.calm()
    assert world.job("often").state in RUNNING_STATES
    around.entitle(borrower=(), lender=cpu(4000))


@pytest.mark.parametrize("most", [0, 1, 2])
def test_after_max_preemptions_only_priority_preempts(world, around, most):
    reclaiming(world, around, max_preemptions=most)
    for n in range(most):
        world.submit(f"own-{n}", cpu=4000, queue="lender")
        around.calm()
        assert len(around.evicted) == n + 1
        world.pods(f"own-{n}", 3)
        around.entitle(lender=(), borrower=cpu(4000))
        pause_ms = (MINUTE_MS << n) + 1000  # rule P5
        around.wait(pause_ms, pause_ms)
        assert world.job("often").state in RUNNING_STATES
        around.entitle(borrower=(), lender=cpu(4000))
    assert world.job("often").preemptions == most < PREEMPTIONS_MAX
    world.submit("same", cpu=4000, queue="lender")
    around.wait(10_000)
    assert len(around.evicted) == most
    world.submit("higher", cpu=4000, queue="lender", priority=1)
    around.calm()
    assert around.evicted == [world.id("often")] * (most + 1)


def test_more_than_the_usual_number_may_be_allowed(world, around):
    reclaiming(world, around, max_preemptions=PREEMPTIONS_MAX + 1)
    for n in range(PREEMPTIONS_MAX + 1):
        world.submit(f"own-{n}", cpu=4000, queue="lender")
        around.calm()
        assert len(around.evicted) == n + 1
        world.pods(f"own-{n}", 3)
        around.entitle(lender=(), borrower=cpu(4000))
        pause_ms = (MINUTE_MS << n) + 1000
        around.wait(pause_ms, pause_ms)
        around.entitle(borrower=(), lender=cpu(4000))
    world.submit("same", cpu=4000, queue="lender")
    around.wait(10_000)
    assert len(around.evicted) == PREEMPTIONS_MAX + 1


def test_who_is_preempted_by_priority_only_does_not_start_on_loan(world, around):
    """P4: else a borrower would be immune and its lender starve."""
    world.nodes(1)
    world.queue("borrower")
    around.entitle(borrower=())
    world.submit("mine", cpu=4000, queue="borrower", max_preemptions=0)
    world.submit("other", cpu=2000, queue="borrower")
    assert world.job("mine").state is JobState.QUEUED
    assert world.job("other").state in RUNNING_STATES
    told = next(b.message for b in explain(world.state, world.id("mine")).blockers if b.rule == "P4")
    assert "it was preempted 0 times, and max_preemptions is 0" in told
    world.pods("other", 3)
    around.entitle(borrower=cpu(4000))
    around.calm()
    assert world.job("mine").state in RUNNING_STATES
    assert world.state.queues.find("borrower").claimed == {"cpu": 4000}


def test_jobs_that_differ_in_it_wait_in_classes_of_their_own(world, around):
    """The first of a class stands for all of them, also when a queue's jobs are sorted again."""
    world.queue("borrower", ordering="FIFO")
    around.entitle(borrower=())
    for name, most in (("a", 0), ("b", 5), ("c", 0), ("d", 3)):
        world.submit(name, queue="borrower", max_preemptions=most)
        world.cell.now_ms += 10
    of_queue = world.state.queues.find("borrower").id
    for ordering in ("FIFO", "PRIORITY", "FAIR", "FIFO"):
        world.queue("borrower", ordering=ordering)
        found = world.state.pending.of_queue[of_queue].values()
        assert sorted(sorted(key[2] for key in of.keys) for of in found) == sorted(
            sorted(world.id(name) for name in names) for names in ("ac", "bd")
        )
    world.nodes(1)
    assert [j.spec.name for j in world.state.jobs.values() if j.state in RUNNING_STATES] == ["b", "d"]
