"""The API's rules, by requests as a client sends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

PODS = "/api/v1/namespaces/default/pods"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


def causes(status: dict[str, Any]) -> set[str]:
    return {cause["field"] for cause in status["details"]["causes"]}


def test_create_fills_in_what_the_server_owns(world: Any, pod: Any) -> None:
    created = world.ok("POST", PODS, pod("a"))
    assert created["metadata"]["uid"]
    assert created["metadata"]["namespace"] == "default"
    assert created["metadata"]["creationTimestamp"].endswith("Z")
    assert int(created["metadata"]["resourceVersion"]) > 0
    assert created["status"] == {"phase": "Pending", "qosClass": "Guaranteed"}
    assert created["spec"]["terminationGracePeriodSeconds"] == 30
    assert created["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert world.pod("a") == created


def test_generate_name(world: Any, pod: Any) -> None:
    body = pod("x")
    body["metadata"] = {"generateName": "run-"}
    names = {world.ok("POST", PODS, body)["metadata"]["name"] for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("run-") and len(name) == 9 for name in names)


def test_create_refusals(world: Any, pod: Any) -> None:
    world.ok("POST", PODS, pod("a"))
    code, status = world.call("POST", PODS, pod("a"))
    assert (code, status["reason"]) == (409, "AlreadyExists")
    code, status = world.call("POST", "/api/v1/namespaces/nowhere/pods", pod("a"))
    assert (code, status["reason"]) == (404, "NotFound")
    assert status["message"] == 'namespaces "nowhere" not found'
    other = pod("b")
    other["metadata"]["namespace"] = "other"
    assert world.call("POST", PODS, other)[0] == 400
    assert world.call("POST", PODS, {"kind": "Node", "metadata": {"name": "a"}})[0] == 400
    assert world.call("POST", PODS, pod("c"), content_type="application/vnd.kubernetes.protobuf")[0] == 415
    assert world.call("PUT", PODS, pod("c"))[0] == 405
    assert world.call("GET", "/api/v1/wombats")[0] == 404
    assert world.call("GET", f"{PODS}/missing")[1]["details"] == {"name": "missing", "kind": "pods"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda p: p["metadata"].update(name="Upper"), "metadata.name"),
        (lambda p: p["metadata"].pop("name"), "metadata.name"),
        (lambda p: p["metadata"].update(labels={"a": "x" * 64}), "metadata.labels"),
        (lambda p: p["metadata"].update(labels={"a b": "x"}), "metadata.labels"),
        (lambda p: p["spec"].update(containers=[]), "spec.containers"),
        (lambda p: p.pop("spec"), "spec"),
        (lambda p: p["spec"]["containers"][0].pop("name"), "spec.containers[0].name"),
        (lambda p: p["spec"]["containers"][0].pop("image"), "spec.containers[0].image"),
        (lambda p: p["spec"]["containers"].append(dict(p["spec"]["containers"][0])), "spec.containers[1].name"),
        (lambda p: p["spec"].update(restartPolicy="Sometimes"), "spec.restartPolicy"),
        (
            lambda p: p["spec"]["containers"][0].update(resources={"requests": {"cpu": "much"}}),
            "spec.containers[0].resources.requests[cpu]",
        ),
        (
            lambda p: p["spec"]["containers"][0].update(resources={"requests": {"cpu": "-1"}}),
            "spec.containers[0].resources.requests[cpu]",
        ),
        (
            lambda p: p["spec"]["containers"][0].update(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
            "spec.containers[0].resources.requests",
        ),
        (
            lambda p: p["spec"]["containers"][0].update(resources={"requests": {"nvidia.com/gpu": "1"}}),
            "spec.containers[0].resources.limits[nvidia.com/gpu]",
        ),
    ],
)
def test_an_invalid_pod_is_422_and_names_the_field(
    world: Any, pod: Any, change: Callable[[dict[str, Any]], Any], field: str
) -> None:
    body = pod("a")
    change(body)
    code, status = world.call("POST", PODS, body)
    assert (code, status["reason"]) == (422, "Invalid")
    assert field in causes(status)
    assert world.ok("GET", PODS)["items"] == []


@pytest.mark.parametrize("spec", [{"containers": "many"}, {"containers": [1]}, {"containers": [{"resources": []}]}])
def test_a_pod_of_the_wrong_shape_is_a_bad_request(world: Any, spec: dict[str, Any]) -> None:
    assert world.call("POST", PODS, {"metadata": {"name": "a"}, "spec": spec})[0] == 400


def test_a_write_with_an_old_version_conflicts(world: Any, pod: Any) -> None:
    old = world.ok("POST", PODS, pod("a"))
    world.ok("PATCH", f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}}, content_type=MERGE)
    code, status = world.call("PUT", f"{PODS}/a", old)
    assert (code, status["reason"]) == (409, "Conflict")
    fresh = world.pod("a")
    fresh["metadata"]["labels"]["y"] = "2"
    assert world.ok("PUT", f"{PODS}/a", fresh)["metadata"]["labels"] == {"x": "1", "y": "2"}
    stale = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"], "labels": {"z": "3"}}}
    assert world.call("PATCH", f"{PODS}/a", stale, content_type=MERGE)[0] == 409


def test_a_write_that_changes_nothing_makes_no_event(world: Any, pod: Any, events: Any) -> None:
    world.ok("POST", PODS, pod("a", labels={"x": "1"}))
    watch = world.watch(PODS, resourceVersion=world.pod("a")["metadata"]["resourceVersion"]).watch
    before = world.pod("a")
    after = world.ok("PATCH", f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}}, content_type=STRATEGIC)
    assert after == before
    assert events(watch) == []


def test_status_and_spec_are_written_by_different_doors(world: Any, pod: Any) -> None:
    created = world.ok("POST", PODS, pod("a"))
    changed = {**created, "status": {"phase": "Running"}}
    assert world.ok("PUT", f"{PODS}/a", changed)["status"]["phase"] == "Pending"
    written = world.ok("PATCH", f"{PODS}/a/status", {"status": {"phase": "Running"}}, content_type=STRATEGIC)
    assert written["status"]["phase"] == "Running"
    assert written["spec"] == created["spec"]
    node = world.ok("PATCH", "/api/v1/nodes/node-0000", {"spec": {"unschedulable": True}}, content_type=STRATEGIC)
    assert node["spec"]["unschedulable"] is True
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"


def test_a_pods_spec_is_fixed(world: Any, pod: Any) -> None:
    world.ok("POST", PODS, pod("a"))
    code, status = world.call("PATCH", f"{PODS}/a", {"spec": {"nodeName": "node-0000"}}, content_type=MERGE)
    assert (code, status["reason"]) == (422, "Invalid")
    image = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    assert world.ok("PATCH", f"{PODS}/a", image, content_type=STRATEGIC)["spec"]["containers"][0]["image"] == "other"


def test_json_patch(world: Any, pod: Any) -> None:
    world.ok("POST", PODS, pod("a", labels={"x": "1"}))
    operations = [
        {"op": "test", "path": "/metadata/labels/x", "value": "1"},
        {"op": "add", "path": "/metadata/labels/a~1b", "value": "2"},
        {"op": "remove", "path": "/metadata/labels/x"},
    ]
    patched = world.ok("PATCH", f"{PODS}/a", operations, content_type="application/json-patch+json")
    assert patched["metadata"]["labels"] == {"a/b": "2"}
    assert world.call("PATCH", f"{PODS}/a", operations, content_type="application/json-patch+json")[0] == 422
    assert world.call("PATCH", f"{PODS}/a", {}, content_type="application/apply-patch+yaml")[0] == 415


def test_preconditions_of_a_delete(world: Any, pod: Any) -> None:
    created = world.ok("POST", PODS, pod("a"))
    code, status = world.call("DELETE", f"{PODS}/a", {"preconditions": {"uid": "other"}})
    assert (code, status["reason"]) == (409, "Conflict")
    assert world.call("DELETE", f"{PODS}/a", {"preconditions": {"resourceVersion": "1"}})[0] == 409
    uid = created["metadata"]["uid"]
    assert world.ok("DELETE", f"{PODS}/a", {"preconditions": {"uid": uid}})["metadata"]["uid"] == uid
    assert not world.exists("a")  # never bound: nothing to wait for
    assert world.call("DELETE", f"{PODS}/a")[0] == 404


def test_finalizers_hold_an_object(world: Any, events: Any) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    world.ok("POST", path, {"metadata": {"name": "c", "finalizers": ["x.io/hold"]}})
    watch = world.watch(path, resourceVersion=str(world.cluster.store.rv)).watch
    assert "deletionTimestamp" in world.ok("DELETE", f"{path}/c")["metadata"]
    world.ok("DELETE", f"{path}/c")
    assert world.call("GET", f"{path}/c")[0] == 200
    world.ok("PATCH", f"{path}/c", {"metadata": {"finalizers": None}}, content_type=MERGE)
    assert world.call("GET", f"{path}/c")[0] == 404
    assert [type_ for type_, _ in events(watch)] == ["MODIFIED", "MODIFIED", "DELETED"]


def test_delete_collection_by_selector(world: Any, pod: Any) -> None:
    for name, app in (("a", "x"), ("b", "y"), ("c", "x")):
        world.ok("POST", PODS, pod(name, labels={"app": app}))
    world.ok("DELETE", PODS, labelSelector="app=x")
    assert [item["metadata"]["name"] for item in world.ok("GET", PODS)["items"]] == ["b"]


def test_lists_select_and_page(world: Any, pod: Any) -> None:
    for index in range(5):
        world.ok("POST", PODS, pod(f"p{index}", "node-0000" if index % 2 else "", labels={"i": str(index)}))
    on_node = world.ok("GET", "/api/v1/pods", fieldSelector="spec.nodeName=node-0000")
    assert [item["metadata"]["name"] for item in on_node["items"]] == ["p1", "p3"]
    page = world.ok("GET", PODS, limit="3", labelSelector="i notin (0)")
    assert len(page["items"]) == 3
    assert "remainingItemCount" not in page["metadata"]  # as with any selector
    rest = {"limit": "3", "labelSelector": "i notin (0)", "continue": page["metadata"]["continue"]}
    assert len(world.ok("GET", PODS, **rest)["items"]) == 1
    assert world.call("GET", PODS, resourceVersion="999999")[0] == 504
    assert world.call("GET", PODS, limit="many")[0] == 400


def test_an_expired_watch_is_told_in_the_stream_or_by_http(world: Any, pod: Any, events: Any) -> None:
    world.ok("POST", PODS, pod("a"))
    world.cluster.store.truncate_history()
    gone = world.watch(PODS, resourceVersion="1").watch
    [(type_, status)] = events(gone)
    assert (type_, status["code"], status["reason"], gone.closed) == ("ERROR", 410, "Expired", True)
    world.cluster.faults.faults.gone_as = "http"
    code, status = world.call("GET", PODS, watch="true", resourceVersion="1")
    assert (code, status["reason"]) == (410, "Expired")


def test_bookmarks_carry_the_servers_version(world: Any, pod: Any) -> None:
    reply = world.watch(PODS, allowWatchBookmarks="true")
    world.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "later"}})
    line = world.cluster.dispatcher.bookmark(reply.watch)
    assert reply.bookmarks
    assert b'"BOOKMARK"' in line
    assert f'"resourceVersion":"{world.cluster.store.rv}"'.encode() in line


def test_dry_run_stores_nothing(world: Any, pod: Any) -> None:
    before = len(world.cluster.audit.records)
    world.ok("POST", PODS, pod("a"), dryRun="All")
    assert not world.exists("a")
    world.ok("POST", PODS, pod("b"))
    world.ok("DELETE", f"{PODS}/b", dryRun="All")
    assert world.exists("b")
    assert len(world.cluster.audit.records) == before + 1


def test_deleting_a_namespace_deletes_what_it_holds(world: Any, pod: Any) -> None:
    world.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    path = "/api/v1/namespaces/team"
    world.ok("POST", f"{path}/pods", pod("a", "node-0000"))
    world.ok("POST", f"{path}/configmaps", {"metadata": {"name": "c"}})
    world.advance(100)
    assert world.ok("DELETE", path)["status"]["phase"] == "Terminating"
    code, status = world.call("POST", f"{path}/pods", pod("b"))
    assert (code, status["reason"]) == (403, "Forbidden")
    world.advance(5_000)
    assert world.call("GET", path)[0] == 404
    assert world.cluster.store.table(world.cluster.api.kinds.find("", "v1", "configmaps")) == {}


def test_custom_resources(world: Any) -> None:
    definition = {
        "metadata": {"name": "widgets.example.io"},
        "spec": {
            "group": "example.io",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}],
        },
    }
    path = "/apis/example.io/v1/namespaces/default/widgets"
    assert world.call("GET", path)[0] == 404
    world.ok("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    created = world.ok("POST", path, {"metadata": {"name": "w"}, "spec": {"size": 1}, "status": {"made": "up"}})
    assert created["status"] == {}
    updated = world.ok("PUT", f"{path}/w", {**created, "spec": {"size": 2}})
    assert updated["metadata"]["generation"] == 2
    assert world.ok("PATCH", f"{path}/w/status", {"status": {"ok": 1}}, content_type=MERGE)["status"] == {"ok": 1}
    assert "widgets" in [r["name"] for r in world.ok("GET", "/apis/example.io/v1")["resources"]]
    world.ok("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.io")
    assert world.call("GET", path)[0] == 404


def test_events_expire(world: Any) -> None:
    path = "/api/v1/namespaces/default/events"
    world.ok("POST", path, {"metadata": {"generateName": "e-"}, "involvedObject": {"name": "p"}, "reason": "R"})
    assert len(world.ok("GET", path, fieldSelector="involvedObject.name=p")["items"]) == 1
    world.advance(3_700_000)
    assert world.ok("GET", path)["items"] == []


def test_discovery(world: Any) -> None:
    core = {resource["name"] for resource in world.ok("GET", "/api/v1")["resources"]}
    assert {"pods", "pods/binding", "pods/eviction", "pods/status", "nodes", "namespaces"} <= core
    groups = {group["name"] for group in world.ok("GET", "/apis")["groups"]}
    assert {"apps", "batch", "policy", "coordination.k8s.io"} <= groups
    assert world.ok("GET", "/version")["major"] == "1"
    assert "api/v1" in world.ok("GET", "/openapi/v3")["paths"]
