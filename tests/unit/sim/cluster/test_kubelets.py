"""The life of pods on nodes, and what a scheduler sees of it."""

from __future__ import annotations

from typing import Any

import pytest

PODS = "/api/v1/namespaces/default/pods"
RUN_2S = {"sim.muster.io/run-seconds": "2"}


def ready(obj: dict[str, Any]) -> str:
    conditions = obj["status"]["conditions"]
    return next(str(condition["status"]) for condition in conditions if condition["type"] == "Ready")


def audit_verbs(world: Any, name: str) -> list[str]:
    return [record.verb for record in world.cluster.audit.records if record.name == name]


def test_a_pod_runs_for_its_time_and_succeeds(world: Any, pod: Any, events: Any) -> None:
    watch = world.watch(PODS).watch
    world.ok("POST", PODS, pod("a", "node-0001", annotations=RUN_2S))
    world.advance(100)
    running = world.pod("a")
    assert running["status"]["phase"] == "Running"
    assert ready(running) == "True"
    assert running["status"]["podIP"]
    assert (
        running["status"]["hostIP"] == world.ok("GET", "/api/v1/nodes/node-0001")["status"]["addresses"][0]["address"]
    )
    world.advance(1_800)
    assert world.phase("a") == "Running"
    world.advance(200)
    done = world.pod("a")
    assert done["status"]["phase"] == "Succeeded"
    assert ready(done) == "False"
    state = done["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["exitCode"], state["reason"]) == (0, "Completed")
    assert state["startedAt"] < state["finishedAt"]
    assert [event for event, _ in events(watch)] == ["ADDED", "MODIFIED", "MODIFIED"]
    assert audit_verbs(world, "a") == ["create", "run", "stop"]


def test_times_are_scaled(make_world: Any, pod: Any) -> None:
    world = make_world(time_scale=10.0)
    slow = {"sim.muster.io/run-seconds": "20", "sim.muster.io/start-seconds": "10"}
    world.ok("POST", PODS, pod("a", "node-0000", annotations=slow))
    world.advance(500)
    assert world.phase("a") == "Pending"
    world.advance(1_000)
    assert world.phase("a") == "Running"
    world.advance(2_000)
    assert world.phase("a") == "Succeeded"


def test_a_pod_fails_with_its_exit_code(world: Any, pod: Any) -> None:
    world.ok("POST", PODS, pod("a", "node-0000", annotations={**RUN_2S, "sim.muster.io/exit-code": "3"}))
    world.advance(3_000)
    status = world.pod("a")["status"]
    assert status["phase"] == "Failed"
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def test_on_failure_restarts_with_growing_backoff(world: Any, pod: Any) -> None:
    annotations = {**RUN_2S, "sim.muster.io/exit-code": "1"}
    world.ok("POST", PODS, pod("a", "node-0000", annotations=annotations, restartPolicy="OnFailure"))
    world.advance(3_000)
    status = world.pod("a")["status"]
    assert status["phase"] == "Running"
    assert status["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    world.advance(10_000)
    assert world.pod("a")["status"]["containerStatuses"][0]["restartCount"] == 1
    assert ready(world.pod("a")) == "True"
    assert audit_verbs(world, "a") == ["create", "run"]  # the pod is one run, however often its container restarts


def test_the_active_deadline_fails_a_pod(world: Any, pod: Any) -> None:
    world.ok("POST", PODS, pod("a", "node-0000", activeDeadlineSeconds=5))
    world.advance(5_100)
    assert world.pod("a")["status"]["reason"] == "DeadlineExceeded"


def test_deleting_a_running_pod_stops_it_then_removes_it(world: Any, pod: Any, events: Any) -> None:
    world.ok("POST", PODS, pod("a", "node-0000", annotations={"sim.muster.io/stop-seconds": "4"}))
    world.advance(100)
    watch = world.watch(PODS, resourceVersion=world.pod("a")["metadata"]["resourceVersion"]).watch
    answer = world.ok("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 10})
    assert answer["metadata"]["deletionGracePeriodSeconds"] == 10
    world.advance(3_900)
    assert world.phase("a") == "Running"
    world.advance(200)
    assert not world.exists("a")
    seen = events(watch)
    assert [event for event, _ in seen] == ["MODIFIED", "MODIFIED", "DELETED"]
    assert seen[1][1]["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    assert audit_verbs(world, "a") == ["create", "run", "delete", "stop", "remove"]


def test_a_stopped_pod_does_not_end_a_second_time_when_its_run_would_have(world: Any, pod: Any) -> None:
    world.ok("POST", PODS, pod("a", "node-0000", annotations={**RUN_2S, "sim.muster.io/stop-seconds": "1"}))
    world.advance(100)
    world.ok("DELETE", f"{PODS}/a")
    world.advance(5_000)
    assert audit_verbs(world, "a").count("stop") == 1
    assert not any(world.cluster.kubelets.agents["node-0000"].allocation.used.values())


def test_a_pod_that_ignores_the_signal_is_killed_at_the_end_of_its_grace(world: Any, pod: Any) -> None:
    world.ok("POST", PODS, pod("a", "node-0000", annotations={"sim.muster.io/stop-seconds": "60"}))
    world.advance(100)
    watch = world.watch(PODS, resourceVersion=world.pod("a")["metadata"]["resourceVersion"]).watch
    world.ok("DELETE", f"{PODS}/a")
    world.advance(29_000)
    assert world.exists("a")
    world.ok("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 300})  # cannot lengthen it
    world.advance(1_100)
    assert not world.exists("a")
    assert b'"exitCode":137' in watch.take()


def test_a_finished_pod_is_deleted_at_once(world: Any, pod: Any) -> None:
    world.ok("POST", PODS, pod("a", "node-0000", annotations=RUN_2S))
    world.advance(3_000)
    world.ok("DELETE", f"{PODS}/a")
    assert not world.exists("a")
    world.ok("POST", PODS, pod("a", "node-0000", annotations=RUN_2S))  # the name is free again
    world.advance(3_000)
    assert world.phase("a") == "Succeeded"


def test_a_force_deleted_pod_runs_on_until_its_kubelet_hears(world: Any, pod: Any) -> None:
    world.ok("POST", PODS, pod("a", "node-0000"))
    world.advance(100)
    world.ok("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0})
    assert not world.exists("a")
    assert audit_verbs(world, "a")[-2:] == ["remove", "delete"]
    world.advance(100)
    assert audit_verbs(world, "a")[-1] == "stop"


def test_finalizers_outlive_the_containers(world: Any, pod: Any) -> None:
    body = pod("a", "node-0000")
    body["metadata"]["finalizers"] = ["x.io/hold"]
    world.ok("POST", PODS, body)
    world.advance(100)
    world.ok("DELETE", f"{PODS}/a")
    world.advance(1_000)
    assert world.phase("a") == "Failed"
    assert audit_verbs(world, "a")[-1] == "stop"
    merge = "application/merge-patch+json"
    world.ok("PATCH", f"{PODS}/a", {"metadata": {"finalizers": []}}, content_type=merge)
    assert not world.exists("a")


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"cpu": "9"}, "OutOfcpu"),
        ({"cpu": "1", "memory": "33Gi"}, "OutOfmemory"),
        ({"nvidia.com/gpu": "5"}, "OutOfnvidia.com/gpu"),
    ],
)
def test_a_pod_that_does_not_fit_is_rejected(world: Any, pod: Any, limits: dict[str, str], reason: str) -> None:
    world.ok("POST", PODS, pod("a", "node-0000", limits=limits))
    world.advance(100)
    status = world.pod("a")["status"]
    assert (status["phase"], status["reason"]) == ("Failed", reason)
    assert "containerStatuses" not in status
    assert audit_verbs(world, "a") == ["create", "reject"]


def test_what_finished_pods_held_is_free_again(world: Any, pod: Any) -> None:
    for round_ in range(3):
        for index in range(2):
            body = pod(f"p{round_}{index}", "node-0000", limits={"cpu": "4", "memory": "1Gi"}, annotations=RUN_2S)
            world.ok("POST", PODS, body)
        world.ok("POST", PODS, pod(f"x{round_}", "node-0000", limits={"cpu": "1"}))
        world.advance(5_000)
        assert [world.phase(f"p{round_}{index}") for index in range(2)] == ["Succeeded"] * 2
        assert world.pod(f"x{round_}")["status"]["reason"] == "OutOfcpu"


def test_a_node_holds_at_most_its_pod_slots(make_world: Any, pod: Any) -> None:
    world = make_world("uniform:1x64cpu128Gi")
    for index in range(111):
        world.ok("POST", PODS, pod(f"p{index}", "node-0000", limits={"cpu": "10m"}))
    world.advance(100)
    reasons = [item["status"].get("reason") for item in world.ok("GET", PODS)["items"]]
    assert reasons.count("OutOfpods") == 1


def test_labels_that_do_not_match_are_rejected(world: Any, pod: Any) -> None:
    world.ok("POST", PODS, pod("a", "node-0000", nodeSelector={"nvidia.com/gpu.product": "OTHER"}))
    terms = [{"matchExpressions": [{"key": "muster.io/rack", "operator": "In", "values": ["rack-000"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    world.ok("POST", PODS, pod("b", "node-0000", affinity=affinity))
    world.advance(100)
    assert world.pod("a")["status"]["reason"] == "NodeAffinity"
    assert world.phase("b") == "Running"


def test_a_bad_annotation_is_said(world: Any, pod: Any) -> None:
    world.ok("POST", PODS, pod("a", "node-0000", annotations={"sim.muster.io/run-seconds": "soon"}))
    world.advance(100)
    assert world.pod("a")["status"]["reason"] == "SimulationAnnotationInvalid"


def test_a_pod_without_a_node_waits(world: Any, pod: Any) -> None:
    world.ok("POST", PODS, pod("a", annotations=RUN_2S))
    world.advance(60_000)
    assert world.phase("a") == "Pending"


class TestNodeDeath:
    def taints(self, world: Any) -> list[tuple[str, str]]:
        spec = world.ok("GET", "/api/v1/nodes/node-0000")["spec"]
        return [(taint["key"].rpartition("/")[2], taint["effect"]) for taint in spec.get("taints", ())]

    def test_a_silent_node_becomes_unreachable_after_its_grace(self, world: Any, pod: Any) -> None:
        world.ok("POST", PODS, pod("a", "node-0000"))
        world.advance(100)
        world.cluster.cut_off_node("node-0000")
        world.advance(39_000)
        assert self.taints(world) == []
        world.advance(10_000)
        assert self.taints(world) == [("unreachable", "NoSchedule"), ("unreachable", "NoExecute")]
        assert ready(world.ok("GET", "/api/v1/nodes/node-0000")) == "Unknown"
        assert world.phase("a") == "Running"
        assert ready(world.pod("a")) == "False"

    def test_a_cut_off_node_runs_on_and_reports_when_it_is_back(self, world: Any, pod: Any) -> None:
        world.ok("POST", PODS, pod("a", "node-0000", annotations={"sim.muster.io/run-seconds": "60"}))
        world.advance(100)
        world.cluster.cut_off_node("node-0000")
        world.advance(100_000)
        assert world.phase("a") == "Running"
        assert audit_verbs(world, "a") == ["create", "run", "stop"]  # what really happened
        world.cluster.revive_node("node-0000")
        assert world.phase("a") == "Succeeded"
        assert ready(world.ok("GET", "/api/v1/nodes/node-0000")) == "True"
        assert self.taints(world) == []

    def test_a_deletion_waits_for_a_cut_off_node(self, world: Any, pod: Any) -> None:
        world.ok("POST", PODS, pod("a", "node-0000"))
        world.advance(100)
        world.cluster.cut_off_node("node-0000")
        world.ok("DELETE", f"{PODS}/a")
        world.advance(120_000)
        assert world.exists("a")
        world.cluster.revive_node("node-0000")
        world.advance(100)
        assert not world.exists("a")

    def test_a_pod_bound_to_a_silent_node_starts_when_it_is_back(self, world: Any, pod: Any) -> None:
        world.cluster.power_off_node("node-0000")
        world.ok("POST", PODS, pod("a", "node-0000"))
        world.advance(1_000)
        assert world.phase("a") == "Pending"
        world.cluster.revive_node("node-0000")
        assert world.phase("a") == "Running"

    def test_a_power_failure_loses_the_containers(self, world: Any, pod: Any) -> None:
        world.ok("POST", PODS, pod("a", "node-0000", annotations={"sim.muster.io/run-seconds": "60"}))
        world.advance(100)
        world.cluster.power_off_node("node-0000")
        assert audit_verbs(world, "a")[-1] == "stop"
        world.advance(1_000)
        assert world.phase("a") == "Running"  # nobody has told the API
        world.cluster.revive_node("node-0000")
        status = world.pod("a")["status"]
        assert status["phase"] == "Failed"
        assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 255

    def test_a_force_deleted_pod_runs_on_a_cut_off_node(self, world: Any, pod: Any) -> None:
        world.ok("POST", PODS, pod("a", "node-0000"))
        world.advance(100)
        world.cluster.cut_off_node("node-0000")
        world.ok("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0})
        world.advance(60_000)
        assert not world.exists("a")
        assert audit_verbs(world, "a")[-1] == "delete"  # gone from the API, still running
        world.cluster.revive_node("node-0000")
        assert audit_verbs(world, "a")[-1] == "stop"

    def test_pods_are_evicted_when_they_no_longer_tolerate_the_taint(self, world: Any, pod: Any) -> None:
        forever = [{"operator": "Exists"}]
        world.ok("POST", PODS, pod("a", "node-0000"))
        world.ok("POST", PODS, pod("b", "node-0000", tolerations=forever))
        world.advance(100)
        world.cluster.cut_off_node("node-0000")
        world.advance(330_000)
        assert "deletionTimestamp" not in world.pod("a")["metadata"]
        world.advance(30_000)
        assert "deletionTimestamp" in world.pod("a")["metadata"]
        assert "deletionTimestamp" not in world.pod("b")["metadata"]

    def test_out_of_service_frees_terminating_pods(self, world: Any, pod: Any) -> None:
        world.ok("POST", PODS, pod("a", "node-0000"))
        world.advance(100)
        world.cluster.power_off_node("node-0000")
        world.ok("DELETE", f"{PODS}/a")
        world.advance(60_000)
        assert world.exists("a")
        taint = {"key": "node.kubernetes.io/out-of-service", "value": "shutdown", "effect": "NoExecute"}
        path, strategic = "/api/v1/nodes/node-0000", "application/strategic-merge-patch+json"
        world.ok("PATCH", path, {"spec": {"taints": [taint]}}, content_type=strategic)
        world.advance(20_000)
        assert not world.exists("a")

    def test_a_deleted_node_takes_its_containers_and_later_its_pods(self, world: Any, pod: Any) -> None:
        world.ok("POST", PODS, pod("a", "node-0000"))
        world.advance(100)
        world.ok("DELETE", "/api/v1/nodes/node-0000")
        assert audit_verbs(world, "a")[-1] == "stop"
        world.advance(30_000)
        assert world.exists("a")
        world.advance(40_000)
        assert not world.exists("a")


def test_a_pod_of_a_node_that_never_existed_is_collected(world: Any, pod: Any) -> None:
    world.ok("POST", PODS, pod("a", "node-9999"))
    world.advance(30_000)
    assert world.phase("a") == "Pending"
    world.advance(40_000)
    assert not world.exists("a")


def test_a_node_that_appears_later_runs_what_is_bound_to_it(world: Any, pod: Any) -> None:
    world.ok("POST", PODS, pod("a", "late"))
    world.advance(1_000)
    node = {"metadata": {"name": "late"}, "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}}
    world.ok("POST", "/api/v1/nodes", node)
    world.advance(1_000)
    assert world.phase("a") == "Running"


def test_nodes_renew_their_status(world: Any) -> None:
    before = world.ok("GET", "/api/v1/nodes/node-0000")
    world.advance(400_000)
    after = world.ok("GET", "/api/v1/nodes/node-0000")
    assert after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
    transition = [c["lastTransitionTime"] for n in (before, after) for c in n["status"]["conditions"]]
    assert len(set(transition)) == 1
    assert ready(after) == "True"


def test_the_same_seed_gives_the_same_cluster(make_world: Any, pod: Any) -> None:
    def story(seed: int) -> list[Any]:
        world = make_world(seed=seed)
        for index in range(6):
            body = pod(f"p{index}", f"node-000{index % 3}", limits={"nvidia.com/gpu": "1"}, annotations=RUN_2S)
            world.ok("POST", PODS, body)
            world.advance(300)
        world.advance(5_000)
        return [(record.verb, record.uid, record.time_ms) for record in world.cluster.audit.records]

    assert story(1) == story(1)
    assert story(1) != story(2)
