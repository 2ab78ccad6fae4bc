import pytest

from muster.sim.cluster.kinds import EVENTS, NODES, PODS
from muster.sim.cluster.quantities import amount, parse
from muster.sim.cluster.selectors import combine, fields_predicate, labels_predicate
from muster.sim.cluster.status import StatusError

OBJECT = {
    "metadata": {"name": "a", "namespace": "ns", "labels": {"app": "web", "tier": "front", "x.io/empty": ""}},
    "spec": {"nodeName": "n1"},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("app=web", True),
        ("app==web", True),
        ("app = web , tier=front", True),
        ("app=db", False),
        ("app!=db", True),
        ("app!=web", False),
        ("missing!=x", True),
        ("app in (web, db)", True),
        ("app in (db),tier=front", False),
        ("app notin (db,cache),tier", True),
        ("missing notin (a)", True),
        ("app notin (web)", False),
        ("x.io/empty", True),
        ("x.io/empty=", True),
        ("!missing", True),
        ("!app", False),
        ("missing", False),
        ("", True),
    ],
)
def test_label_selectors(selector: str, expected: bool) -> None:
    assert labels_predicate(selector)(OBJECT) is expected


@pytest.mark.parametrize("selector", ["=x", "a=b=c", "a in", "a in (b", "(a)", "a b"])
def test_a_label_selector_that_cannot_be_read_is_a_bad_request(selector: str) -> None:
    with pytest.raises(StatusError) as caught:
        labels_predicate(selector)
    assert caught.value.code == 400


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("metadata.name=a", True),
        ("metadata.namespace=other", False),
        ("spec.nodeName=n1,status.phase!=Failed,status.phase!=Succeeded", True),
        ("spec.nodeName=", False),
        ("status.phase=Pending", False),
    ],
)
def test_field_selectors(selector: str, expected: bool) -> None:
    assert fields_predicate(PODS, selector)(OBJECT) is expected


def test_an_absent_field_reads_as_its_default() -> None:
    assert fields_predicate(PODS, "spec.nodeName=")({"metadata": {}, "spec": {}})
    assert fields_predicate(NODES, "spec.unschedulable=false")({"metadata": {}, "spec": {}})
    assert fields_predicate(NODES, "spec.unschedulable=true")({"metadata": {}, "spec": {"unschedulable": True}})
    assert fields_predicate(EVENTS, "involvedObject.name=p")({"metadata": {}, "involvedObject": {"name": "p"}})


@pytest.mark.parametrize("selector", ["spec.image=x", "status.phase", "status.phase>x"])
def test_an_unsupported_field_selector_is_a_bad_request(selector: str) -> None:
    with pytest.raises(StatusError) as caught:
        combine(PODS, "", selector)
    assert caught.value.code == 400


@pytest.mark.parametrize(
    ("resource", "text", "expected"),
    [
        ("cpu", "2", 2000),
        ("cpu", "250m", 250),
        ("cpu", "0.1", 100),
        ("cpu", "1u", 1),
        ("memory", "1Gi", 1 << 30),
        ("memory", "1.5Mi", 3 << 19),
        ("memory", "1e3", 1000),
        ("memory", "129M", 129_000_000),
        ("memory", "1500m", 2),
        ("nvidia.com/gpu", "8", 8),
        ("cpu", "-1", -1000),
    ],
)
def test_quantities(resource: str, text: str, expected: int) -> None:
    assert amount(resource, text) == expected


@pytest.mark.parametrize("text", ["", "1 Gi", "Gi", "1Gib", "1e", "--1", "nan", "0x10"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse(text)
