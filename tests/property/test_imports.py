"""What is made of other systems' definitions is a tree that a cell takes, and promises what they promised."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import protovalidate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cli.test_imports import COHORT, KUEUE, VOLCANO, YUNIKORN

from muster.cli.imports import SYSTEMS, weights
from muster.client import queuefile
from muster.core.commands import ChangeQueues
from muster.core.draft import Draft
from muster.core.queue_changes import change_queues, plan
from muster.core.queue_rules import WEIGHT_MAX
from muster.core.queues import QueueTree
from muster.core.state import CellState
from muster.wire import queues as wire

KUEUE_VERSION = "kueue.x-k8s.io/v1beta1"
NAMES = ("a", "b", "c", "d", "e")
AMOUNTS = st.integers(0, 9)
MAYBE = st.none() | AMOUNTS


def applied(system: str, text: str) -> QueueTree:
    """The tree of a cell after `queue apply` of what comes out. Raises Rejected."""
    request = queuefile.parse(queuefile.dump(SYSTEMS[system](text, "file.yaml").queues))
    protovalidate.validate(request)
    draft = Draft(CellState("main"), 0, 1 << 30)
    change_queues(draft, ChangeQueues(plan(draft.tree, {q.path: wire.to_core(q) for q in request.queues})))
    return draft.tree


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ("kueue", KUEUE),
        ("kueue", COHORT.format(parent="", own=0)),
        ("kueue", COHORT.format(parent="parentName: above", own=3)),
        ("volcano", VOLCANO),
        ("volcano", VOLCANO.replace("{weight: 2}", "{capability: {cpu: 3}, deserved: {cpu: 50}}")),
        ("yunikorn", YUNIKORN),
    ],
)
def test_a_sample_is_taken(system: str, text: str) -> None:
    assert len(applied(system, text)) > 1


@st.composite
def kueue(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Cohorts in any tree, some of them only named, with ClusterQueues below; several flavors."""
    documents = []
    for kind, count in (("Cohort", 3), ("ClusterQueue", 5)):
        for at, name in enumerate(NAMES[:count]):
            above = draw(st.sampled_from([None, *(f"cohort-{other}" for other in NAMES[at + 1 : 4])]))
            resources = {
                flavor: {"name": "cpu", "nominalQuota": draw(AMOUNTS)}
                | {key: amount for key in ("borrowingLimit", "lendingLimit") if (amount := draw(MAYBE)) is not None}
                for flavor in draw(st.sets(st.sampled_from(["x", "y"])))
            }
            spec: dict[str, Any] = {"cohort" if kind == "ClusterQueue" else "parentName": above}
            spec["resourceGroups"] = [{"flavors": [{"name": f, "resources": [r]} for f, r in resources.items()]}]
            prefix = "cohort-" if kind == "Cohort" else "q-"
            documents.append(
                {"apiVersion": KUEUE_VERSION, "kind": kind, "metadata": {"name": prefix + name}, "spec": spec}
            )
    return documents


def nominal(document: dict[str, Any]) -> int:
    flavors = document["spec"]["resourceGroups"][0]["flavors"]
    return sum(flavor["resources"][0]["nominalQuota"] for flavor in flavors) * 1000


@settings(max_examples=60, deadline=None)
@given(kueue())
def test_any_tree_of_cohorts_is_taken_and_guarantees_what_it_did(documents: list[dict[str, Any]]) -> None:
    tree = applied("kueue", yaml.safe_dump_all(documents))
    for queue in tree.subtree():
        below = {each.path.rpartition("/")[2] for each in tree.subtree(queue.id)}
        quota = sum(nominal(document) for document in documents if document["metadata"]["name"] in below)
        assert dict(queue.spec.guaranteed).get("cpu", 0) == quota
        if not queue.spec.parent and "cpu" in dict(queue.spec.limit):
            assert dict(queue.spec.limit)["cpu"] >= quota


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(MAYBE, MAYBE, MAYBE, st.integers(0, 4)), min_size=2, max_size=5))
def test_any_queues_of_volcano_are_taken(given_: list[tuple[int | None, int | None, int | None, int]]) -> None:
    documents = []
    for at, (capability, deserved, guarantee, parent) in enumerate(given_):
        spec: dict[str, Any] = {"parent": NAMES[parent] if parent < at else "root"}
        amounts = (("capability", capability), ("deserved", deserved))
        spec |= {key: {"cpu": amount} for key, amount in amounts if amount is not None}
        if guarantee is not None:
            spec["guarantee"] = {"resource": {"cpu": guarantee}}
        metadata = {"name": NAMES[at]}
        documents.append(
            {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": metadata, "spec": spec}
        )
    assert len(applied("volcano", yaml.safe_dump_all(documents))) == len(given_)


SORTS = {"fifo": "PRIORITY", "fair": "FAIR"}


@st.composite
def yunikorn(draw: st.DrawFn, depth: int = 0) -> list[dict[str, Any]]:
    """Siblings with queues below them, some with properties, guarantees and limits."""
    found = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=depth == 0, max_size=3)):
        values = {
            "application.sort.policy": draw(st.sampled_from([None, *SORTS])),
            "priority.offset": draw(st.none() | st.integers(-3, 3)),
            "preemption.policy": draw(st.sampled_from([None, "default", "fence", "disabled"])),
        }
        stated = {key: draw(MAYBE) for key in ("guaranteed", "max")}
        found.append(
            {
                "name": name,
                "properties": {key: str(value) for key, value in values.items() if value is not None},
                "resources": {key: {"vcore": amount} for key, amount in stated.items() if amount is not None},
                "queues": draw(yunikorn(depth + 1)) if depth < 2 else [],
            }
        )
    return found


@settings(max_examples=60, deadline=None)
@given(yunikorn())
def test_any_queues_of_yunikorn_are_taken_with_what_is_handed_down(queues: list[dict[str, Any]]) -> None:
    text = yaml.safe_dump({"partitions": [{"name": "default", "queues": [{"name": "root", "queues": queues}]}]})
    tree = applied("yunikorn", text)
    notes = SYSTEMS["yunikorn"](text, "file.yaml").notes
    for queue in tree.subtree():
        chain, level = [], queues
        for name in queue.path.split("/"):
            chain.append(next(each for each in level if each["name"] == name))
            level = chain[-1]["queues"]
        stated = [each["properties"] for each in reversed(chain)]  # its own first, then those above
        assert queue.spec.priority == int(stated[0].get("priority.offset", 0))
        if not level:
            key = "application.sort.policy"
            assert queue.spec.ordering == SORTS[next((p[key] for p in stated if key in p), "fifo")]
            said = [p["preemption.policy"] for p in stated if "preemption.policy" in p]
            subject = f"queue root.{queue.path.replace('/', '.')}: preemption.policy disabled"
            assert any(note.startswith(subject) for note in notes) == (said[:1] == ["disabled"])


@given(st.lists(st.fractions(0, 10**7, max_denominator=10**7), min_size=1, max_size=8))
def test_weights_are_whole_and_in_proportion(stated: list[Fraction]) -> None:
    found = weights.proportional(stated)
    most = max(stated)
    for weight, number in zip(stated, found, strict=True):
        assert 0 <= number <= WEIGHT_MAX
        assert (number == 0) == (weight == 0)
        if max(found) < WEIGHT_MAX:
            assert number * most == weight * max(found)
        elif weight:
            assert number == 1 or abs(number - weight / most * WEIGHT_MAX) <= Fraction(1, 2)
