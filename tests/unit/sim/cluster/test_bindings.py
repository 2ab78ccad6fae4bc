"""Binding pods to nodes, and evicting them under disruption budgets."""

from __future__ import annotations

from typing import Any

PODS = "/api/v1/namespaces/default/pods"
RUN_2S = {"sim.muster.io/run-seconds": "2"}


class TestBinding:
    def bind(self, world: Any, name: str, node: str, **metadata: Any) -> tuple[int, Any]:
        body = {"metadata": {"name": name, **metadata}, "target": {"kind": "Node", "name": node}}
        return world.call("POST", f"{PODS}/{name}/binding", body)  # type: ignore[no-any-return]

    def test_binding_starts_the_pod(self, world: Any, pod: Any) -> None:
        world.ok("POST", PODS, pod("a", annotations=RUN_2S))
        code, status = self.bind(world, "a", "node-0002", annotations={"muster.io/devices": "1"})
        assert (code, status["status"]) == (201, "Success")
        world.advance(100)
        bound = world.pod("a")
        assert (bound["spec"]["nodeName"], bound["status"]["phase"]) == ("node-0002", "Running")
        assert bound["metadata"]["annotations"]["muster.io/devices"] == "1"

    def test_a_pod_is_bound_once(self, world: Any, pod: Any) -> None:
        world.ok("POST", PODS, pod("a"))
        assert self.bind(world, "a", "node-0002")[0] == 201
        code, status = self.bind(world, "a", "node-0002")
        assert (code, status["reason"]) == (409, "Conflict")
        assert 'already assigned to node "node-0002"' in status["message"]

    def test_refusals(self, world: Any, pod: Any) -> None:
        world.ok("POST", PODS, pod("a"))
        assert self.bind(world, "missing", "node-0000")[0] == 404
        assert self.bind(world, "a", "")[0] == 400
        assert self.bind(world, "a", "node-0000", uid="other")[0] == 409
        assert world.call("GET", f"{PODS}/a/binding")[0] == 405

    def test_the_old_form(self, world: Any, pod: Any) -> None:
        world.ok("POST", PODS, pod("a"))
        body = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "node-0000"}}
        assert world.call("POST", "/api/v1/namespaces/default/bindings", body)[0] == 201


class TestEviction:
    def evict(self, world: Any, name: str) -> tuple[int, Any]:
        return world.call("POST", f"{PODS}/{name}/eviction", {"metadata": {"name": name}})  # type: ignore[no-any-return]

    def test_a_budget_protects_healthy_pods(self, world: Any, pod: Any) -> None:
        budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}}
        world.ok("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
        for name in ("a", "b"):
            world.ok("POST", PODS, pod(name, "node-0000", labels={"app": "x"}))
        world.ok("POST", PODS, pod("c", "node-0000"))
        world.advance(100)
        assert self.evict(world, "a")[0] == 201
        code, status = self.evict(world, "b")
        assert (code, status["reason"]) == (429, "TooManyRequests")
        assert status["details"]["causes"][0]["reason"] == "DisruptionBudget"
        assert self.evict(world, "c")[0] == 201
        world.advance(100)
        assert [world.exists(name) for name in "abc"] == [False, True, False]

    def test_percentages_round_towards_safety(self, world: Any, pod: Any) -> None:
        budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": "50%", "selector": {"matchLabels": {"app": "x"}}}}
        world.ok("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
        for index in range(3):
            world.ok("POST", PODS, pod(f"p{index}", "node-0000", labels={"app": "x"}))
        world.advance(100)
        assert [self.evict(world, f"p{index}")[0] for index in range(3)] == [201, 429, 429]
