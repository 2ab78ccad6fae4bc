"""The judge of duplicates, on logs written by hand and on logs of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.sim.cluster import audit
from muster.sim.cluster.audit import AuditLog, Record, Verdict, judge, read_file

PODS = "/api/v1/namespaces/default/pods"


class Story:
    """Builds a log: each call is one record, at a time in ms."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def _add(self, at: int, verb: str, name: str, **more: Any) -> None:
        job, pod, epoch, attempt = (*name.split("-"), "0")[:4]
        fields = {
            "seq": len(self.records),
            "time_ms": at,
            "cluster": more.pop("cluster", "c"),
            "verb": verb,
            "resource": "pods",
            "namespace": "default",
            "name": name,
            "uid": name,
            "user_agent": "x",
            "code": 0,
            "job": job,
            "pod": pod,
            "epoch": epoch,
            "attempt": attempt,
        }
        self.records.append(Record(**{**fields, **more}))

    def pod(
        self,
        name: str,
        *,
        created: int,
        ran: tuple[int, int | None] | None,
        removed: int | None,
        phase: str = "Succeeded",
    ) -> None:
        """`name` is job-pod-epoch[-attempt]."""
        self._add(created, "create", name, code=201)
        if ran is not None:
            self._add(ran[0], "run", name, phase="Running")
            if ran[1] is not None:
                self._add(ran[1], "stop", name, phase=phase)
        if removed is not None:
            self._add(removed, "remove", name)

    def verdict(self, **options: Any) -> Verdict:
        return judge(self.records, **options)

    def rules(self, **options: Any) -> list[str]:
        return [violation.rule for violation in self.verdict(**options).violations]


def test_a_clean_life() -> None:
    story = Story()
    story.pod("j-0-1", created=0, ran=(10, 100), removed=110)
    story.pod("j-1-1", created=0, ran=(10, 90), removed=110)
    verdict = story.verdict()
    assert verdict.ok
    assert verdict.counts["jobs"] == 1
    assert verdict.counts["succeeded"] == 2
    assert verdict.counts["existing"] == 0


def test_a_clean_restart_in_a_new_epoch() -> None:
    story = Story()
    story.pod("j-0-1", created=0, ran=(10, 100), removed=120, phase="Failed")
    story.pod("j-1-1", created=0, ran=(10, 80), removed=110)  # this one had succeeded
    story.pod("j-0-2", created=120, ran=(130, 200), removed=210)
    story.pod("j-1-2", created=120, ran=(130, 200), removed=210)
    assert story.rules() == []


def test_the_same_pod_running_twice_at_once() -> None:
    story = Story()
    story.pod("j-0-1-0", created=0, ran=(10, 100), removed=110, phase="Failed")
    story.pod("j-0-1-1", created=50, ran=(99, 200), removed=210)
    assert story.rules() == ["ran-twice-at-once"]


def test_a_run_that_never_ended_overlaps_with_what_follows() -> None:
    story = Story()
    story.pod("j-0-1-0", created=0, ran=(10, None), removed=50)  # force-deleted from a node that is cut off
    story.pod("j-0-1-1", created=60, ran=(70, 90), removed=95)
    assert "ran-twice-at-once" in story.rules()


def test_different_positions_may_run_together() -> None:
    story = Story()
    story.pod("j-0-1", created=0, ran=(10, 100), removed=None)
    story.pod("j-1-1", created=0, ran=(10, 100), removed=None)
    story.pod("k-0-1", created=0, ran=(10, 100), removed=None)
    assert story.rules() == []


@pytest.mark.parametrize(("created", "expected"), [(99, ["epochs-overlap"]), (110, [])])
def test_epochs_must_not_coexist_even_as_objects(created: int, expected: list[str]) -> None:
    story = Story()
    story.pod("j-0-1", created=0, ran=(10, 50), removed=110, phase="Failed")
    story.pod("j-1-2", created=created, ran=(120, 150), removed=200)
    story.pod("j-0-2", created=120, ran=(121, 150), removed=200)
    assert story.rules() == expected


def test_an_epoch_lasts_until_its_containers_have_stopped() -> None:
    story = Story()
    story.pod("j-0-1", created=0, ran=(10, 100), removed=50, phase="Failed")  # force-deleted, ran on
    story.pod("j-1-2", created=60, ran=(70, 150), removed=200)
    assert story.rules() == ["epochs-overlap"]


def test_an_old_epoch_created_late_is_found_too() -> None:
    story = Story()
    story.pod("j-0-2", created=0, ran=(10, 100), removed=110)
    story.pod("j-1-1", created=50, ran=None, removed=60)
    assert story.rules() == ["epochs-overlap"]


def test_work_redone_after_success() -> None:
    story = Story()
    story.pod("j-0-1", created=0, ran=(10, 100), removed=110)
    story.pod("j-0-2", created=200, ran=(210, 300), removed=310)
    assert story.rules() == ["ran-after-success"]


def test_a_retry_of_a_pod_that_had_succeeded_in_its_epoch() -> None:
    story = Story()
    story.pod("j-0-1-0", created=0, ran=(10, 100), removed=110)
    story.pod("j-1-1-0", created=0, ran=(10, 100), removed=110, phase="Failed")
    story.pod("j-0-1-1", created=200, ran=(210, 300), removed=310)
    assert story.rules() == ["ran-after-success"]


def test_a_gang_that_was_only_half_created_had_not_succeeded() -> None:
    story = Story()
    story.pod("j-0-1", created=0, ran=(10, 100), removed=110)
    story.pod("j-0-2", created=200, ran=(210, 300), removed=310)
    story.pod("j-1-2", created=200, ran=(210, 300), removed=310)
    assert story.rules() == []
    assert story.rules(job_sizes={"j": 1}) == ["ran-after-success", "ran-after-success"]


def test_clusters_are_judged_together() -> None:
    story = Story()
    story.pod("j-0-1", created=0, ran=(10, 100), removed=110)
    other = Story()
    other.pod("j-0-1-1", created=20, ran=(30, 100), removed=110)
    moved = [Record(**{**_fields(record), "cluster": "d"}) for record in other.records]
    rules = {violation.rule for violation in judge([*story.records, *moved]).violations}
    assert "ran-twice-at-once" in rules


def _fields(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def test_a_log_with_a_hole_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_RECORDS", 4)
    log = AuditLog("c")
    for index in range(9):
        log.add(index, "create", "configmaps", {"metadata": {"name": str(index)}}, user_agent="x", code=201)
    assert log.dropped > 0
    assert log.records[0].seq == log.dropped
    assert [record.seq for record in log.since(7)] == [7, 8]
    assert not judge(log.records).ok


def test_the_file_holds_what_memory_holds(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "audit.jsonl"
    log = AuditLog("c", path)
    log.add(
        5, "create", "pods", {"metadata": {"name": "a", "labels": {"muster.io/job": "j"}}}, user_agent="x", code=201
    )
    log.add(6, "run", "pods", {"metadata": {"name": "a"}, "spec": {"nodeName": "n"}}, user_agent="kubelet/n")
    log.close()
    with path.open("ab") as file:
        file.write(b'{"seq":2,"time_')  # cut short by a kill
    assert read_file(path) == log.records


def test_refused_writes_are_recorded_with_their_code(world: Any, pod: Any) -> None:
    world.ok("POST", PODS, pod("a", "node-0000", labels={"muster.io/job": "j", "muster.io/epoch": "1"}))
    world.call("POST", PODS, pod("a"))
    world.call("DELETE", f"{PODS}/b")
    codes = [(record.verb, record.code, record.user_agent) for record in world.cluster.audit.records]
    assert codes == [("create", 201, "test/1"), ("create", 409, "test/1"), ("delete", 404, "test/1")]
    assert world.cluster.audit.records[0].job == "j"
    assert judge(world.cluster.audit.records).counts["refused_writes"] == 2


def test_a_real_cluster_shows_a_duplicate_that_its_api_hides(world: Any, pod: Any) -> None:
    """A pod force-deleted from a node that is cut off, then run elsewhere: the API shows one, two run."""
    labels = {"muster.io/job": "j", "muster.io/pod": "0", "muster.io/epoch": "1", "muster.io/attempt": "0"}
    world.ok("POST", PODS, pod("a", "node-0000", labels=labels))
    world.advance(100)
    world.cluster.cut_off_node("node-0000")
    world.ok("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0})
    world.ok("POST", PODS, pod("a", "node-0001", labels={**labels, "muster.io/attempt": "1"}))
    world.advance(100)
    assert [item["spec"]["nodeName"] for item in world.ok("GET", PODS)["items"]] == ["node-0001"]
    assert [violation.rule for violation in judge(world.cluster.audit.records).violations] == ["ran-twice-at-once"]
