"""What a pod of a template asks for, counted as Kubernetes counts it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.core.errors import Code, Rejected
from muster.wire import podtemplate

MIB = 1 << 20


def box(cpu: str = "", *, limits: dict[str, Any] | None = None, always: bool = False, **more: Any) -> dict[str, Any]:
    requests = ({"cpu": cpu} if cpu else {}) | more
    found: dict[str, Any] = {"resources": {"requests": requests, "limits": limits or {}}}
    return found | ({"restartPolicy": "Always"} if always else {})


def share(millis: str) -> dict[str, Any]:
    return {"resources": {"requests": {"muster.io/gpu-milli": millis}}}


def cpu_of(**spec: Any) -> int:
    return dict(podtemplate.pod_requests(spec, "spec")).get("cpu", 0)


def test_containers_add_up() -> None:
    assert cpu_of(containers=[box("1"), box("500m")]) == 1500


def test_an_init_container_counts_only_when_it_needs_more() -> None:
    assert cpu_of(containers=[box("1")], initContainers=[box("500m"), box("3")]) == 3000
    assert cpu_of(containers=[box("4")], initContainers=[box("3")]) == 4000


def test_sidecars_run_beside_the_containers_and_beside_later_init_containers() -> None:
    sidecar = box("1", always=True)
    assert cpu_of(containers=[box("2")], initContainers=[sidecar]) == 3000
    assert cpu_of(containers=[box("2")], initContainers=[sidecar, box("4")]) == 5000
    assert cpu_of(containers=[box("2")], initContainers=[box("4"), sidecar]) == 4000


def test_the_maximum_is_taken_resource_by_resource() -> None:
    requests = podtemplate.pod_requests(
        {"containers": [box("1", memory="10Mi")], "initContainers": [box("2", memory="5Mi")]}, "spec"
    )
    assert requests == (("cpu", 2000), ("memory", 10 * MIB))


def test_overhead_comes_on_top() -> None:
    assert cpu_of(containers=[box("1")], overhead={"cpu": "250m"}) == 1250


def test_a_limit_stands_in_for_a_missing_request() -> None:
    assert cpu_of(containers=[box(limits={"cpu": "2"}), box("1", limits={"cpu": "8"})]) == 3000


def test_pod_level_requests_replace_the_sum() -> None:
    assert cpu_of(containers=[box("1")], resources={"requests": {"cpu": "6"}}) == 6000


def test_plain_numbers_are_quantities() -> None:
    assert cpu_of(containers=[{"resources": {"requests": {"cpu": 2}}}]) == 2000
    assert cpu_of(containers=[{"resources": {"requests": {"cpu": 0.5}}}]) == 500


def test_a_share_of_a_gpu_is_thousandths_of_one() -> None:
    shared = share("460")
    assert podtemplate.pod_requests({"containers": [shared]}, "spec") == (("nvidia.com/gpu", 460),)


def test_shares_of_several_containers_may_not_add_up_to_a_fraction_above_one() -> None:
    shared = share("600")
    with pytest.raises(Rejected):
        podtemplate.pod_requests({"containers": [shared, shared]}, "spec")


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("spec", "field", "code"),
    [
        ({"nodeName": "n1"}, "t.spec.nodeName", Code.INVALID_ARGUMENT),
        ({"resourceClaims": [{"name": "c"}]}, "t.spec.resourceClaims", Code.UNIMPLEMENTED),
        ({"affinity": {"podAntiAffinity": {REQUIRED: [{}]}}}, "t.spec.affinity.podAntiAffinity", Code.UNIMPLEMENTED),
        (
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
            "t.spec.topologySpreadConstraints[0]",
            Code.UNIMPLEMENTED,
        ),
        ({"containers": {}}, "t.spec.containers", Code.INVALID_ARGUMENT),
        ({"tolerations": [{"operator": "Equal"}]}, "t.spec.tolerations[0].key", Code.INVALID_ARGUMENT),
        ({"tolerations": [{"key": "a", "operator": "Is"}]}, "t.spec.tolerations[0].operator", Code.INVALID_ARGUMENT),
        ({"tolerations": [{"key": "a", "effect": "No"}]}, "t.spec.tolerations[0].effect", Code.INVALID_ARGUMENT),
        (
            {"containers": [{"resources": {"requests": {"cpu": True}}}]},
            "t.spec.containers[0].resources.requests.cpu",
            Code.INVALID_ARGUMENT,
        ),
        (
            {"containers": [{"resources": {"requests": {"cpu": "-2"}}}]},
            "t.spec.containers[0].resources.requests.cpu",
            Code.INVALID_ARGUMENT,
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_place(spec: dict[str, Any], field: str, code: Code) -> None:
    with pytest.raises(Rejected) as caught:
        podtemplate.read(json.dumps({"spec": spec}), "t")
    assert (caught.value.field, caught.value.code) == (field, code)


def test_preferences_and_soft_spreading_are_let_through() -> None:
    spec = {
        "containers": [box("1")],
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}},
        "topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}],
    }
    assert podtemplate.read(json.dumps({"spec": spec}), "t").requests == (("cpu", 1000),)


@pytest.mark.parametrize(
    ("operator", "values"), [("In", []), ("Exists", ["x"]), ("Gt", ["a"]), ("Lt", ["1", "2"]), ("Near", ["x"])]
)
def test_expressions_that_mean_nothing_are_refused(operator: str, values: list[str]) -> None:
    with pytest.raises(Rejected):
        podtemplate.requirement("key", operator, values, "f")
