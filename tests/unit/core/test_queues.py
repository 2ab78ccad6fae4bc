"""The tree of queues: rules Q1, Q3, Q4."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from muster.core import commands as c
from muster.core import promises
from muster.core import transitions as tr
from muster.core.limits import QUEUE_DEPTH_MAX
from muster.core.model import Allowance, JobState, QueueSpec


def paths(world):
    return [queue.path for queue in world.state.queues.subtree()]


def test_ids_come_from_a_counter_and_paths_from_the_parents(world):
    world.queue("research/vision")
    tree = world.state.queues
    assert paths(world) == ["research", "research/vision"]
    assert (tree.find("research").id, tree.find("research/vision").id) == ("q1", "q2")
    world.cell.send(c.DeleteQueue("research/vision"))
    world.queue("batch")
    assert world.state.queues.find("batch").id == "q3"  # never given twice


def test_a_change_counts_a_revision_and_the_same_again_writes_nothing(world):
    assert world.queue("research", weight=3)[0].spec.revision == 2
    assert world.queue("research", weight=3) == []


@pytest.mark.parametrize(
    ("expect", "code"), [(0, "ALREADY_EXISTS"), (2, "ABORTED")], ids=["must not exist", "another revision"]
)
def test_the_revision_the_caller_has_seen_is_compared(world, expect, code):
    assert world.reject(world.queue("research", expect=expect, weight=2)).code == code
    assert world.queue("research", expect=1, weight=2)
    assert world.reject(world.queue("other", expect=1)).code == "NOT_FOUND"
    assert world.reject(world.cell.send(c.DeleteQueue("research", expected_revision=1))).code == "ABORTED"


@pytest.mark.parametrize("path", ["", "Research", "research//vision", "a_b", "x" * 64, "research/"])
def test_names_are_checked(world, path):
    assert world.reject(world.queue(path)).code in ("INVALID_ARGUMENT", "NOT_FOUND")


def test_an_unknown_parent_is_refused_with_the_nearest(world):
    refusal = world.reject(world.queue("reserch/vision"))
    assert refusal.message == 'queue "reserch" does not exist (did you mean "research"?)'


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("guaranteed", (("memory", 1), ("cpu", 1)), "INVALID_ARGUMENT"),
        ("guaranteed", (("cpu", -1),), "INVALID_ARGUMENT"),
        ("lending_limit", (("cpu", 1 << 60),), "INVALID_ARGUMENT"),
        ("per_namespace", Allowance(pending_jobs=-2), "INVALID_ARGUMENT"),
        ("per_user", Allowance(running_jobs=1 << 40), "INVALID_ARGUMENT"),
        ("per_user", Allowance(resources=(("cpu", -1),)), "INVALID_ARGUMENT"),
        ("fair_by", "TEAM", "INVALID_ARGUMENT"),
        ("min_runtime_ms", -1, "INVALID_ARGUMENT"),
        ("half_life_ms", 999, "INVALID_ARGUMENT"),
        ("half_life_ms", 1 << 40, "INVALID_ARGUMENT"),
        ("ordering", "LIFO", "INVALID_ARGUMENT"),
        ("preemption", "", "INVALID_ARGUMENT"),
        ("state", "SHUT", "INVALID_ARGUMENT"),
        ("weight", -1, "INVALID_ARGUMENT"),
        ("priority", 1 << 40, "INVALID_ARGUMENT"),
        ("limit", (("memory", 1), ("cpu", 1)), "INVALID_ARGUMENT"),
        ("limit", (("cpu", -1),), "INVALID_ARGUMENT"),
    ],
)
def test_settings_are_refused_by_field(world, field, value, code):
    refusal = world.reject(world.queue("batch", **{field: value}))
    assert (refusal.code, refusal.field.split(".")[0]) == (code, field.removesuffix("_ms"))


def cpu(amount):
    return (("cpu", amount),)


def test_what_is_guaranteed_further_down_counts_against_a_limit(world):
    world.queue("p", limit=cpu(4))
    world.queue("p/m")
    refusal = world.reject(world.queue("p/m/l", guaranteed=cpu(9)))
    assert (refusal.field, refusal.rule) == ("guaranteed.cpu", "Q1")
    assert refusal.message == 'queue "p" may use 0.004, its children are guaranteed 0.009 cpu'
    assert world.queue("p/m/l", guaranteed=cpu(4))
    assert world.reject(world.queue("p/n", guaranteed=cpu(1))).field == "guaranteed.cpu"
    assert world.reject(world.queue("p", limit=cpu(3))).field == "limit.cpu"
    assert world.queue("p/m", guaranteed=cpu(4))  # its own, of which the leaf has all: nothing more than before
    assert world.reject(world.queue("p/m", guaranteed=cpu(5))).field == "guaranteed.cpu"


def test_a_guarantee_moves_within_a_limit_but_not_below_a_smaller_one(world):
    world.queue("p", limit=cpu(4))
    for path in ("p/a", "p/b", "p/b/small"):
        world.queue(path, limit=cpu(1) if path.endswith("small") else ())
    world.queue("p/a/x", guaranteed=cpu(4))
    assert world.queue("p/a/x", to="p/b/x", guaranteed=cpu(4))
    assert world.queue("p/b/x", to="p/x", guaranteed=cpu(4))
    refusal = world.reject(world.queue("p/x", to="p/b/small/x", guaranteed=cpu(4)))
    assert (refusal.field, refusal.rule) == ("new_path", "Q1")


def promised(tree, queue):
    below = sum(promised(tree, tree.by_id[child]) for child in queue.children.values())
    return max(dict(queue.spec.guaranteed).get("cpu", 0), below)


def fits(tree):
    return all(
        sum(promised(tree, tree.by_id[child]) for child in queue.children.values()) <= most
        for queue in tree.subtree()
        for _, most in queue.spec.limit
    )


@pytest.mark.parametrize("seed", range(20))
def test_exactly_the_changes_that_break_a_limit_are_refused(world, seed):
    random = Random(seed)
    paths = ["research"] + [f"q{n}" for n in range(3)]
    refused = 0
    for path in paths[1:]:
        world.queue(path)
    for step in range(120):
        tree, path = world.state.queues, random.choice(paths)
        above = random.choice(paths)
        if random.random() < 0.4:
            to, path = f"{above}/n{step}", path if random.random() < 0.5 else f"{above}/n{step}"
        else:
            to = path
        amounts = {"guaranteed": cpu(random.choice([0, 1, 2, 3]))}
        amounts["limit"] = cpu(random.choice([3, 3, 4, 6])) if random.random() < 0.6 else ()
        done = world.queue(path, to="" if to == path else to, **amounts)
        refusals = [t for t in done if isinstance(t, tr.CommandRefused)]
        assert fits(tree)
        assert all(dict(promises.promised(tree, q.id)).get("cpu", 0) == promised(tree, q) for q in tree.subtree())
        if not refusals:
            paths = [q.path for q in world.state.queues.subtree()]
            continue
        if "children are guaranteed" not in refusals[0].message:
            continue
        refused += 1
        trial = tree.copy()
        old, (parent, _, name) = trial.find(path), to.rpartition("/")
        fields = {"parent": trial.find(parent).id if parent else "", "name": name, **amounts}
        if old is None:
            trial.put(QueueSpec(id=f"q{trial.next_number}", **fields))
        else:
            trial.put(msgspec.structs.replace(old.spec, **fields))
        assert not fits(trial)
    assert refused


def test_depth_is_limited(world):
    path = "research"
    for n in range(QUEUE_DEPTH_MAX - 1):
        path = f"{path}/q{n}"
        world.queue(path)
    assert world.state.queues.find(path) is not None
    assert "deep" in world.reject(world.queue(f"{path}/more")).message
    world.queue("other")
    world.queue("other/child")
    assert "deep" in world.reject(world.queue("other", to=f"{path}/other")).message


def test_a_move_takes_the_subtree_its_jobs_and_its_usage_along(world):
    world.nodes()
    for path in ("research/vision", "research/vision/gan", "batch"):
        world.queue(path)
    world.submit("a", queue="research/vision/gan")
    world.queue("research/vision", to="batch/images")
    assert paths(world) == ["batch", "batch/images", "batch/images/gan", "research"]
    tree = world.state.queues
    assert tree.find("batch").usage == {"cpu": 1000, "pods": 1}
    assert tree.find("research").usage == {}
    assert tree.path(world.job("a").queue) == "batch/images/gan"
    world.pods("a", 3)
    assert tree.find("batch").usage == {}


def test_a_queue_moves_only_where_what_runs_in_it_is_within_the_limits(world):
    world.nodes(4)
    world.queue("small", limit=(("cpu", 2000),))
    for n in range(3):
        world.submit(f"a{n}")
    refusal = world.reject(world.queue("research", to="small/research"))
    assert (refusal.code, refusal.field, refusal.rule) == ("FAILED_PRECONDITION", "new_path", "Q4")
    assert refusal.message.startswith('queue "small" may use 2 cpu; with what runs in "research" it would use 3 cpu')
    world.pods("a0", 3)
    world.queue("research", to="small/research")
    assert dict(world.state.queues.find("small").usage)["cpu"] == 2000
    world.submit("z", queue="small/research")
    assert world.job("z").state is JobState.QUEUED
    world.queue("small", limit=(("cpu", 500),))  # a limit may be lowered: nothing new starts
    world.queue("small/research", to="small/renamed")  # and what stays below it may move there
    assert world.job("a1").state is JobState.PLACED


def test_a_cycle_is_refused(world):
    world.queue("research/vision")
    refusal = world.reject(world.queue("research", to="research/vision/research"))
    assert (refusal.code, refusal.rule) == ("INVALID_ARGUMENT", "Q1")
    assert "cycle" in refusal.message
    assert "cycle" in world.reject(world.queue("research", to="research/research")).message


def test_a_move_onto_another_queue_is_refused(world):
    world.queue("batch")
    assert world.reject(world.queue("batch", to="research")).code == "ALREADY_EXISTS"
    assert world.reject(world.queue("nowhere", to="somewhere")).code == "NOT_FOUND"


def test_a_rename_is_a_move(world):
    world.queue("research", to="science")
    assert paths(world) == ["science"]
    assert world.state.queues.find("science").id == "q1"


def test_a_queue_with_jobs_gets_no_children_and_is_not_deleted(world):
    world.submit("a")
    assert world.reject(world.queue("research/vision")).code == "FAILED_PRECONDITION"
    refusal = world.reject(world.cell.send(c.DeleteQueue("research")))
    assert "has 1 job that has not ended" in refusal.message
    world.cell.send(c.CancelJob(world.id("a")))
    world.queue("research/vision")
    assert world.reject(world.cell.send(c.DeleteQueue("research"))).code == "FAILED_PRECONDITION"
    world.cell.send(c.DeleteQueue("research/vision"))
    world.cell.send(c.DeleteQueue("research"))
    assert paths(world) == []


def test_queue_commands_in_one_message_see_each_other(world):
    done = world.cell.send(
        c.UpsertQueue("a", world.state.queues.find("research").spec),
        c.UpsertQueue("a/b", world.state.queues.find("research").spec),
        c.SubmitJob(world.spec("x", queue="a/b")),
        c.DeleteQueue("a/b"),
        c.DeleteQueue("research"),
    )
    assert [type(t).__name__ for t in done][:5] == [
        "QueueUpserted",
        "QueueUpserted",
        "JobQueued",
        "CommandRefused",
        "QueueRemoved",
    ]


def test_limits_hold_along_the_path_and_are_charged_from_the_placement(world):
    world.nodes(4)
    world.queue("research", limit=(("cpu", 3000),))
    world.queue("research/a")
    world.queue("research/b", limit=(("cpu", 1000),))
    for n in range(3):
        world.submit(f"a{n}", queue="research/a")
        world.submit(f"b{n}", queue="research/b")
    placed = sorted(name for name in ("a0", "a1", "a2", "b0", "b1", "b2") if world.job(name).state is JobState.PLACED)
    assert placed == ["a0", "a1", "b0"]
    world.pods("a0", 3)
    assert world.job("a2").state is JobState.PLACED
    assert world.job("b1").state is JobState.QUEUED


def test_a_lower_limit_stops_new_jobs_and_a_higher_one_lets_them_go(world):
    world.nodes(4)
    world.queue("research", limit=(("cpu", 500),))
    assert world.reject(world.submit("a")).rule == "Q2"
    world.queue("research", limit=(("cpu", 1000),))
    world.submit("b")
    world.submit("c")
    assert (world.job("b").state, world.job("c").state) == (JobState.PLACED, JobState.QUEUED)
    world.queue("research", limit=())
    assert world.job("c").state is JobState.PLACED


def test_a_stopped_queue_starts_nothing_and_a_draining_one_lets_its_jobs_go(world):
    world.nodes()
    world.submit("a")
    world.queue("research", state="STOPPED")
    world.submit("b")
    assert (world.job("a").state, world.job("b").state) == (JobState.PLACED, JobState.QUEUED)
    world.queue("research", state="DRAINING")
    assert (world.job("a").state, world.job("a").reason) == (JobState.STOPPING, "QueueDrained")
    world.pods("a", 5)
    world.queue("research")
    assert world.job("b").state is JobState.PLACED
    world.cell.wait(1000)
    assert world.job("a").state is JobState.PLACED


def test_a_change_sorts_in_again_only_what_it_concerns(world):
    """The classes of other queues are the same objects, and those who share a queue are counted right all the time."""
    for path in ("top", "top/a", "top/b", "side"):
        world.queue(path)
    for n in range(6):
        for queue in ("top/a", "top/b", "side"):
            world.cell.now_ms += 1
            world.submit(f"{queue.replace('/', '-')}-{n}", queue=queue, priority=n % 3, submitter=f"user-{n % 2}")
    pending = world.state.pending
    ids = {path: world.state.queues.find(path).id for path in ("top/a", "top/b", "side")}

    def classes(path):
        return set(map(id, pending.of_queue[ids[path]].values()))

    def orders(path):
        return [key[2] for found in pending.of_queue[ids[path]].values() for key in found.keys]

    before = {path: classes(path) for path in ids}
    by_priority = orders("top/a")
    world.queue("top/a", ordering="FIFO")  # every transaction is checked against the naive index and members
    assert orders("top/a") == [world.id(f"top-a-{n}") for n in range(6)] != by_priority
    assert (classes("top/b"), classes("side")) == (before["top/b"], before["side"])
    world.queue("top/a", ordering="PRIORITY")
    assert orders("top/a") == by_priority
    world.queue("top", per_user=Allowance(running_jobs=4))
    assert len(pending.of_queue[ids["top/b"]]) == 2  # a class for each user
    assert classes("side") == before["side"]
    world.queue("top/b", to="side-b")
    assert len(pending.of_queue[ids["top/b"]]) == 1
    assert classes("side") == before["side"]
    members = world.state.queues.find("top").members
    assert {who: member.pending for who, member in members.items() if who[0] == "USER"} == {
        ("USER", "user-0"): 3,
        ("USER", "user-1"): 3,
    }
    world.queue("side-b", to="top/b", per_user=Allowance(running_jobs=1))
    assert [member.pending for member in world.state.queues.find("top").members.values()] == [12, 6, 6]
    assert [member.pending for member in world.state.queues.find("top/b").members.values()] == [6, 3, 3]


def test_a_limit_on_parts_of_devices_holds(world):
    gpu = "nvidia.com/gpu"
    world.nodes(1, gpus=4)
    world.queue("shared", limit=((gpu, 500),))
    for name in "abc":
        world.submit(name, queue="shared", requests=(("cpu", 100), (gpu, 250)))
    assert [world.job(name).state for name in "abc"] == [JobState.PLACED, JobState.PLACED, JobState.QUEUED]
    refusal = world.reject(world.queue("shared", limit=(("muster.io/gpu-milli", 500),)))
    assert (refusal.field, refusal.rule) == ("limit.muster.io/gpu-milli", "Q1")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"limit": (("foo bar", 1),)}, "limit.foo bar"),
        ({"guaranteed": (("", 1),)}, "guaranteed."),
        ({"lending_limit": (("gpu", 1),)}, "lending_limit.gpu"),
        ({"per_user": Allowance(resources=(("runing_jobs", 3),))}, "per_user.resources.runing_jobs"),
    ],
)
def test_a_resource_no_cluster_has_is_refused_by_field(world, settings, field):
    refusal = world.reject(world.queue("shared", **settings))
    assert (refusal.field, refusal.rule) == (field, "Q1")
    assert "is not the name of a resource" in refusal.message


def test_the_first_pause_is_not_longer_than_the_longest(world):
    refusal = world.reject(world.queue("a", preemption_backoff_ms=600_000, preemption_backoff_max_ms=60_000))
    assert (refusal.field, refusal.rule) == ("preemption_backoff_max", "Q1")
    assert "60 s at most are less than the 600 s" in refusal.message
    world.queue("a", preemption_backoff_ms=60_000, preemption_backoff_max_ms=60_000)
    world.queue("a/b", preemption_backoff_ms=600_000)  # the queue above bounds it
    assert world.state.queues.find("a/b") is not None
