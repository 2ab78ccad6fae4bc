"""The examples of docs/fair-sharing.md, run: entitlements by the core, time lines by a cell with all around it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from tests.unit.core.conftest import World
from tests.unit.core.preempting import Around

from muster.client import classfile, queuefile
from muster.client.durations import parse_duration_ms
from muster.core import commands as c
from muster.core import resources
from muster.core.demand import demand, startable
from muster.core.entitlements import entitlements
from muster.core.jobs import is_over
from muster.core.queue_changes import plan
from muster.wire import queues as wire
from muster.wire.priority_classes import to_command

PAGE = Path(__file__).resolve().parents[3] / "docs" / "fair-sharing.md"
BLOCK = re.compile(r"```yaml\n# (example|timeline): ([^\n]+)\n(.*?)```", re.DOTALL)
FOUND = BLOCK.findall(PAGE.read_text())
EXAMPLES = {name: yaml.safe_load(text) for kind, name, text in FOUND if kind == "example"}
TIMELINES = {name: yaml.safe_load(text) for kind, name, text in FOUND if kind == "timeline"}
SUCCEEDED = 3


def amounts(stated):
    return resources.amounts({name: resources.parse_quantity(name, str(text)) for name, text in stated.items()})


def make_queues(world, tree):
    request = queuefile.parse(yaml.safe_dump({"queues": tree}))
    wanted = {queue.path: wire.to_core(queue) for queue in request.queues}
    world.cell.send(c.ChangeQueues(plan(world.state.queues, wanted, prune_root="")))
    assert {queue.path for queue in world.state.queues.subtree()} == set(wanted)


def make_classes(world, given):
    if given:
        for of in classfile.parse(yaml.safe_dump({"priority_classes": given})):
            world.cell.send(to_command(of, ""))


def test_every_example_of_the_page_is_found():
    assert len(EXAMPLES) + len(TIMELINES) == PAGE.read_text().count("# example:") + PAGE.read_text().count(
        "# timeline:"
    )
    assert len(EXAMPLES) >= 8
    assert len(TIMELINES) >= 6


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_entitlement(name):
    example = EXAMPLES[name]
    world = World()
    make_queues(world, example["queues"])
    capacity = amounts(example["capacity"])
    asked = {world.state.queues.find(path).id: (amounts(wants),) for path, wants in example["demand"].items()}
    found = entitlements(world.state.queues, asked, capacity)
    have = {path: dict(found.get(world.state.queues.find(path).id, ())) for path in example["entitled"]}
    assert have == {path: dict(amounts(most)) for path, most in example["entitled"].items()}


class Story:
    """A time line: steps that do something, and steps that say what is so then."""

    def __init__(self, given):
        self.world = World()
        self.world.nodes(given["nodes"]["count"], cpu=1000 * given["nodes"]["cpu"])
        make_queues(self.world, given["queues"])
        make_classes(self.world, given.get("priority_classes"))
        self.around = Around(self.world.cell)

    @property
    def state(self):
        return self.world.state

    def rest(self):
        """Fair-share, preemptor, clusters and cell until nobody has anything to do."""
        for _ in range(20):
            before = self.state.ledger_seq
            asked = startable(self.state, self.state.queues, demand(self.state))
            found = entitlements(self.state.queues, asked, self.state.nodes.capacity())
            changed = {queue: got for queue, got in found.items() if self.state.entitled.get(queue) != got}
            if changed:
                sent = tuple(c.Entitlement(queue, got) for queue, got in changed.items())
                self.around.note(self.world.cell.send(c.EntitlementsComputed(self.state.ledger_seq, sent)))
            self.around.calm()
            if self.state.ledger_seq == before:
                return
        raise AssertionError("the cell does not come to rest")

    def submit(self, given):
        given = dict(given)
        name, least = given.pop("name", f"{given['queue']}-job"), given.pop("min_replicas", None)
        for n in range(given.pop("jobs", 1)):
            self.world.submit(f"{name}-{n}", least=least, **given)
            self.world.cell.now_ms += 1
        self.rest()

    def wait(self, text):
        for _ in range(parse_duration_ms(text) // 30_000):
            self.around.wait(30_000, 10_000)
            self.rest()

    def end(self, name):
        self.around.note(self.world.pods(name, SUCCEEDED))
        self.rest()

    def running(self, wanted):
        assert {path: len(self.around.running(path)) for path in wanted} == wanted

    def replicas(self, wanted):
        jobs = {name: self.world.job(name) for name in wanted}
        assert {name: sum(not is_over(phase) for phase in job.phases) for name, job in jobs.items()} == wanted


@pytest.mark.parametrize("name", TIMELINES)
def test_a_timeline(name):
    story = Story(TIMELINES[name])
    for step in TIMELINES[name]["steps"]:
        ((what, given),) = step.items()
        getattr(story, what)(given)
