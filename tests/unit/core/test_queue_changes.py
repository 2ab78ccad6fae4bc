"""Many queues changed as one: rule Q4."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from muster.core import commands as c
from muster.core import snapshot
from muster.core import transitions as tr
from muster.core.errors import Rejected
from muster.core.model import Allowance, InboxPosition, QueueSpec
from muster.core.queue_changes import differences, plan
from muster.core.tree_log import CHANGES_KEPT


def spec(**more):
    return QueueSpec("", "", "", **more)


def cpu(amount):
    return (("cpu", amount),)


def change(world, wanted, **more):
    before = world.state.queues.copy()
    commands = plan(world.state.queues, wanted, **more)
    done = world.cell.send(c.ChangeQueues(commands, "r1"))
    return done, differences(before, world.state.queues)


def test_a_whole_tree_in_any_order_at_one_ledger_position(world):
    before = world.state.ledger_seq
    done, found = change(world, {"b/x/y": spec(), "b": spec(weight=2), "b/x": spec(), "research": spec()})
    assert [(d.path, d.kind) for d in found] == [("b", "created"), ("b/x", "created"), ("b/x/y", "created")]
    assert found[0].fields == (("weight", 1, 2),)
    assert sum(isinstance(t, tr.QueueUpserted) for t in done) == 3
    assert world.state.ledger_seq == before + 1


def test_what_is_already_so_changes_nothing(world):
    assert plan(world.state.queues, {"research": spec()}) == ()


def test_a_move_comes_first_and_is_told(world):
    world.queue("team")
    _, found = change(world, {"research/vision": spec(priority=3)}, moves=[("team", "research/vision")])
    assert [(d.path, d.kind) for d in found] == [("research/vision", "moved")]
    assert found[0].fields == (("path", "team", "research/vision"), ("priority", 0, 3))


def test_pruning_deletes_children_first_and_keeps_ancestors(world):
    for path in ("old", "old/a", "old/a/b", "research/keep"):
        world.queue(path)
    _, found = change(world, {"research/keep": spec()}, prune_root="")
    assert [(d.path, d.kind) for d in found] == [("old", "deleted"), ("old/a", "deleted"), ("old/a/b", "deleted")]
    assert world.state.queues.find("research") is not None
    _, found = change(world, {}, prune_root="research")
    assert [d.path for d in found] == ["research/keep"]
    with pytest.raises(Rejected):
        plan(world.state.queues, {}, prune_root="nowhere")


def test_all_or_nothing(world):
    world.submit("a")
    ledger = world.state.queues.copy()
    wanted = {"other": spec(), "research/below": spec()}  # research has a job: it cannot have children
    done, found = change(world, wanted)
    assert world.reject(done).subject == "other"
    assert "research" in world.reject(done).message
    assert found == ()
    assert [q.spec for q in world.state.queues.subtree()] == [q.spec for q in ledger.subtree()]


def test_what_is_guaranteed_further_down_counts(world):
    wanted = {"p": spec(limit=cpu(4)), "p/m": spec(), "p/m/l": spec(guaranteed=cpu(9))}
    done, found = change(world, wanted)
    refusal = world.reject(done)
    assert (refusal.field, refusal.rule) == ('queues["p"].limit.cpu', "Q1")
    assert found == ()


def test_a_refusal_names_the_queue_among_many(world):
    done, _ = change(world, {"a": spec(), "b": spec(weight=-1)})
    assert world.reject(done).field == 'queues["b"].weight'


def test_a_refusal_of_a_move_names_the_moves(world):
    world.queue("team")
    commands = plan(world.state.queues, {}, moves=[("team", "batch")])
    world.queue("batch")
    assert world.reject(world.cell.send(c.ChangeQueues(commands))).field == "moves[0].new_path"


def test_a_stale_revision_refuses_all(world):
    commands = plan(world.state.queues, {"research": spec(weight=3), "x": spec()})
    world.queue("research", weight=2)
    done = world.cell.send(c.ChangeQueues(commands))
    assert world.reject(done).code == "ABORTED"
    assert world.state.queues.find("x") is None


def test_limits_are_compared_with_guarantees_only_in_the_tree_that_comes_out(world):
    change(
        world,
        {
            "org": spec(limit=cpu(10)),
            "org/a": spec(guaranteed=cpu(8)),
            "org/b": spec(guaranteed=cpu(2)),
        },
    )
    _, found = change(world, {"org/a": spec(guaranteed=cpu(2)), "org/b": spec(guaranteed=cpu(8))})
    assert [d.path for d in found] == ["org/a", "org/b"]
    done, found = change(world, {"org/a": spec(guaranteed=cpu(3))})
    assert world.reject(done).field == 'queues["org"].limit.cpu'
    assert found == ()


def test_a_move_is_decided_on_what_queues_use_when_it_comes(world):
    """I3: what ended earlier in the same message is counted, and so is what the first of two moves brings."""
    world.nodes(3)
    for path, more in (("top", {"limit": cpu(3000)}), ("top/own", {}), ("side-a", {}), ("side-b", {})):
        world.queue(path, **more)
    for name, queue, amount in (("own", "top/own", 1000), ("a", "side-a", 2000), ("b", "side-b", 2000)):
        world.submit(name, cpu=amount, queue=queue)
    ended = c.PodsObserved("sim-a", (c.PodFact(world.id("own"), 1, 0, 3),))

    def moves(*names):
        return c.ChangeQueues(tuple(c.UpsertQueue(name, spec(), -1, new_path=f"top/{name}") for name in names))

    done = world.cell.send(ended, moves("side-a", "side-b"))
    assert world.reject(done).field.endswith("new_path")
    world.cell.send(moves("side-a"))
    assert world.state.queues.find("top").usage == {"cpu": 2000, "pods": 1}


def test_a_limit_of_waiting_jobs_counts_those_who_wait_when_it_is_made(world):
    """Q1: also for a job that is submitted in the same message."""
    for name in ("one", "two", "three"):
        world.submit(name)
    limited = c.UpsertQueue("research", spec(per_user=Allowance(pending_jobs=2)))
    done = world.cell.send(limited, c.SubmitJob(world.spec("late")))
    assert world.reject(done).subject == world.id("late")


def large(count, width=3, **settings):
    """So many queues; every one has three below it, until there are enough."""
    paths = ["team"]
    for number in range(1, count):
        paths.append(f"{paths[(number - 1) // width]}/t{number}")
    return {path: spec(**settings) for path in paths}


def test_a_tree_of_more_than_a_thousand_queues_comes_and_goes_at_one_ledger_position(world):
    """Rule Q4: whole trees are loaded from files."""
    tree = large(1200, weight=2, limit=cpu(1 << 40), labels=(("cost-centre", "a-17"),))
    before = world.state.ledger_seq
    _, found = change(world, tree)
    assert len(found) == 1200
    _, found = change(world, dict(list(tree.items())[:100]), prune_root="team")
    assert [d.kind for d in found] == ["deleted"] * 1100
    assert world.state.ledger_seq == before + 2


def test_what_does_not_fit_a_transaction_is_refused_with_what_does(world, monkeypatch):
    """LOG-8"""
    monkeypatch.setattr("muster.core.queue_changes.TRANSACTION_BYTES_MAX", 10_000)
    tree = world.state.queues.copy()
    done, found = change(world, large(400))
    refusal = world.reject(done)
    assert (refusal.field, refusal.rule, found) == ("queues", "LOG-8", ())
    assert refusal.message.startswith("400 queues would change at once, about ")
    fit = int(refusal.message.split("about ")[1].split()[0])
    _, found = change(world, large(fit))
    assert len(found) == fit
    assert len(world.state.queues) == len(tree) + fit


def test_a_tree_has_a_transaction_for_itself(world):
    """LOG-8: what was decided before it has filled its own already."""
    commands = plan(world.state.queues, large(10))
    world.cell.write(c.UpsertQueue("other", spec()), c.ChangeQueues(commands), c.ChangeQueues(commands))
    sizes = []
    while done := world.cell.step():
        sizes.append(len(done))
    assert sizes == [1, 10, 1]


# --- the revision of the tree ---------------------------------------------------------------------------------------


def apply_at(world, wanted, revision):
    return world.cell.send(c.ChangeQueues(plan(world.state.queues, wanted), "r1", revision))


def test_a_change_of_a_tree_that_was_read_before_others_changed_it_is_refused(world):
    """Rule Q4: each of two files says the whole of some queues, so the later one would undo the earlier one."""
    read = world.state.tree_log.revision
    assert read == world.state.ledger_seq
    apply_at(world, {"a": spec(weight=2)}, read)
    refusal = world.reject(apply_at(world, {"b": spec(weight=3)}, read))
    assert (refusal.code, refusal.field, refusal.rule) == ("ABORTED", "expected_revision", "Q4")
    now = world.state.tree_log.revision
    assert refusal.message == (
        f"the tree of queues has changed since revision {read}: a (it has revision {now} now); read it again"
    )
    assert world.state.queues.find("b") is None
    apply_at(world, {"b": spec(weight=3)}, now)
    assert world.state.queues.find("b") is not None


def test_every_change_of_a_queue_makes_another_revision_and_nothing_else_does(world):
    seen = {world.state.tree_log.revision}
    for change_it in (
        lambda: world.queue("research", weight=2),
        lambda: world.queue("other"),
        lambda: world.queue("other", to="research/other"),
        lambda: world.cell.send(c.DeleteQueue("research/other")),
    ):
        change_it()
        assert world.state.tree_log.revision not in seen
        seen.add(world.state.tree_log.revision)
    before = world.state.tree_log.revision
    world.nodes(1)
    world.submit("a")
    world.queue("research", weight=2)  # as it is
    assert world.state.tree_log.revision == before


def test_what_changes_nothing_is_not_refused_and_a_revision_to_come_is(world):
    assert apply_at(world, {"research": spec()}, 0) == []
    refusal = world.reject(apply_at(world, {"x": spec()}, 1 << 40))
    assert "there is no 1099511627776 yet" in refusal.message


def test_a_long_list_of_what_has_changed_is_cut(world):
    read = world.state.tree_log.revision
    apply_at(world, large(20), read)
    told = world.reject(apply_at(world, {"x": spec()}, read)).message
    assert "team, team/t1, team/t2, team/t3, team/t1/t4 and others (" in told


def test_a_whole_tree_has_a_revision_of_its_own(world):
    """What comes right behind it is not what its author has seen."""
    commands = plan(world.state.queues, {"a": spec()})
    sequence = world.cell.write(c.ChangeQueues(commands), c.UpsertQueue("b", spec()))
    while world.cell.step():
        pass
    log = world.state.tree_log
    made = log.made_by(InboxPosition(sequence, 0))
    assert made < log.made_by(InboxPosition(sequence, 1)) == log.revision
    refusal = world.reject(apply_at(world, {"c": spec()}, made))
    assert f"since revision {made}: b (" in refusal.message


def test_what_is_not_remembered_is_not_made_up(world):
    sequence = world.cell.write(c.UpsertQueue("first", spec()))
    world.cell.step()
    position = InboxPosition(sequence, 0)
    made = world.state.tree_log.revision
    for number in range(CHANGES_KEPT - 1):
        assert world.state.tree_log.made_by(position) == made
        world.queue("research", weight=number + 2)
    assert world.state.tree_log.made_by(position) == 0


def test_the_revision_is_in_snapshots(world):
    world.queue("other")
    world.nodes(1)
    again = snapshot.load(snapshot.dump(world.state))
    assert again.tree_log.revision == world.state.tree_log.revision < world.state.ledger_seq
    assert again.tree_log.changes == world.state.tree_log.changes
    head, *rest = snapshot.dump(world.state)
    older = snapshot.load([replace(head, tree_revision=0, tree_changes=()), *rest])
    assert older.tree_log.revision == world.state.ledger_seq  # none before it is taken for the last
