"""The manifests, dashboards and alert rules name what exists: commands, settings, ports, metrics."""

import json
import re
import tomllib

import pytest
import yaml
from tests.architecture.repository import ROOT, SERVICES, metrics, name
from tests.architecture.test_documents import settings_of, variables_of

BASE = ROOT / "deploy/kustomize/base"
OVERLAYS = sorted((ROOT / "deploy/kustomize/overlays").glob("*/kustomization.yaml"))
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
RULES = sorted((ROOT / "deploy/prometheus").glob("*.yaml"))
SERIES = re.compile(r"\b(?:muster|process|python)_[a-z0-9_]+")
# What prometheus_client's own collectors give every process.
CLIENT_SERIES = {
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_open_fds",
    "process_start_time_seconds",
}


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def workloads():
    for path in sorted((ROOT / "deploy/kustomize").rglob("*.yaml")):
        for document in documents(path):
            if document["kind"] in ("Deployment", "DaemonSet"):
                yield path, document


def literals(path):
    for document in documents(path):
        for generator in document.get("configMapGenerator", ()):
            yield from (literal.partition("=")[0] for literal in generator.get("literals", ()))


def test_every_service_has_a_workload_that_starts_its_command():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    started = {}
    for _, document in workloads():
        for container in document["spec"]["template"]["spec"]["containers"]:
            assert container["command"][0] in scripts
            started[container["command"][0].removeprefix("muster-")] = document["metadata"]["name"]
    assert set(started) == set(SERVICES)


def test_workloads_set_only_settings_of_their_service():
    for path, document in workloads():
        for container in document["spec"]["template"]["spec"]["containers"]:
            known = variables_of(settings_of(container["command"][0].removeprefix("muster-")))
            given = {entry["name"] for entry in container.get("env", ())}
            assert given - known == set(), name(path)
            assert "MUSTER_REPLICA" in given, "two replicas of one name would take each other's leases"


def test_the_shared_settings_exist_somewhere():
    known = set().union(*(variables_of(settings_of(service)) for service in SERVICES))
    for path in (BASE / "kustomization.yaml", *OVERLAYS):
        assert set(literals(path)) - known == set(), name(path)


def test_the_process_may_finish_its_graceful_stop():
    text = (BASE / "kustomization.yaml").read_text()
    grace_s = int(re.search(r"MUSTER_STOP_GRACE_MS=(\d+)", text)[1]) / 1000
    for path, document in workloads():
        assert document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > grace_s, name(path)


def test_base_lists_every_manifest():
    listed = set(documents(BASE / "kustomization.yaml")[0]["resources"])
    assert listed == {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}


def test_probes_and_ports_fit_the_shared_settings():
    text = (BASE / "kustomization.yaml").read_text()
    ports = {kind: int(port) for kind, port in re.findall(r"MUSTER_(GRPC|METRICS)_ADDRESS=[^:]+:(\d+)", text)}
    for path, document in workloads():
        for container in document["spec"]["template"]["spec"]["containers"]:
            given = {port["name"]: port["containerPort"] for port in container["ports"]}
            assert given == {"grpc": ports["GRPC"], "metrics": ports["METRICS"]}, name(path)
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert container[probe]["httpGet"]["port"] == "metrics"


def expressions(path):
    """PromQL of a dashboard's panels or of a file of rules."""
    if path.suffix == ".json":
        panels = json.loads(path.read_text())["panels"]
        return [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [rule["expr"] for document in documents(path) for group in document["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("path", [*DASHBOARDS, *RULES], ids=name)
def test_every_metric_named_exists_in_the_code(path):
    known = set(metrics()) | CLIENT_SERIES
    recorded = {
        r["record"] for p in RULES for d in documents(p) for g in d["groups"] for r in g["rules"] if "record" in r
    }
    found = expressions(path)
    assert found
    for expression in found:
        named = set(SERIES.findall(re.sub(r'"[^"]*"', "", expression)))
        assert named, expression
        assert named - known - recorded == set(), expression
        assert expression.count("(") == expression.count(")")


def test_dashboards_are_complete_and_distinct():
    boards = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert len({board["uid"] for board in boards}) == len(boards) > 0
    for board in boards:
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
        assert all(panel["title"] for panel in board["panels"])
        shown = [panel for panel in board["panels"] if panel["type"] != "row"]
        assert all(panel["datasource"]["uid"] == "${datasource}" and panel["description"] for panel in shown)


def test_alerts_say_what_to_do():
    rules = [rule for path in RULES for d in documents(path) for group in d["groups"] for rule in group["rules"]]
    alerts = [rule for rule in rules if "alert" in rule]
    assert alerts
    for alert in alerts:
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert {"summary", "description"} <= set(alert["annotations"]), alert["alert"]


def test_committed_dashboards_are_what_the_generator_makes():
    from deploy.grafana import generate  # the folder is no package: it is found from the repository's root

    for file, board in generate.boards().items():
        assert json.loads((ROOT / "deploy/grafana" / file).read_text()) == board
