"""What the API and the core reserved on day one is there, so that requests need no change when a rule is built."""

from __future__ import annotations

import re

import pytest

from muster.api.v1 import admin_pb2, job_pb2, query_pb2, submission_pb2
from muster.client import parse
from muster.core import commands
from muster.core.decide import decide
from muster.core.model import InboxPosition
from muster.core.transitions import CommandRefused
from muster.sim.cell import Cell

JOB = """
    namespace submitter on_behalf_of account labels annotations priority_class suspend holds not_before deadline
    depends_on.job depends_on.condition depends_on.index_wise job_set array.size array.max_parallel completion
    success_policies failure_policy lifecycle_policies checkpoint.interval checkpoint.signal preemptible
    environment.rank environment.world_size environment.master_address resource_claims cluster_selector
    may_span_clusters exclusive_node topology.require topology.prefer topology.spread topology.slice_pods reservation
    licences max_retries ttl_after_finished objects trace_context
    tasks.near tasks.alternatives tasks.gpu_models tasks.resource_claims tasks.topology
"""
CALLS = """
    UpdateJob SuspendJobs ResumeJobs RequeueJobs ReportCheckpoint ListReplicas UpsertPriorityClass DeletePriorityClass
    ListPriorityClasses UpsertReservation DeleteReservation ListReservations CordonNode
"""
COMMANDS = (
    commands.UpdateJob("x"),
    commands.SuspendJob("x"),
    commands.ResumeJob("x"),
    commands.RequeueJob("x"),
    commands.UpsertReservation("x"),
    commands.DeleteReservation("x"),
    commands.CordonNode("c", "n"),
)


@pytest.mark.parametrize("path", JOB.split())
def test_a_field_of_a_job_is_there(path: str) -> None:
    message = job_pb2.JobSpec.DESCRIPTOR
    for name in path.split("."):
        field = message.fields_by_name[name]
        message = field.message_type


def test_calls_are_there() -> None:
    services = [file.DESCRIPTOR.services_by_name.values() for file in (submission_pb2, query_pb2, admin_pb2)]
    assert {method.name for some in services for service in some for method in service.methods} >= set(CALLS.split())


def test_an_update_has_a_mask_and_a_revision() -> None:
    assert {"update_mask", "expected_revision"} <= set(submission_pb2.UpdateJobRequest.DESCRIPTOR.fields_by_name)
    assert "revision" in job_pb2.Job.DESCRIPTOR.fields_by_name  # what is expected can be read


def test_a_status_has_a_reason_and_attempts_with_node_devices_and_exit_code() -> None:
    assert job_pb2.JobStatus.DESCRIPTOR.fields_by_name["reason"].enum_type.name == "Reason"
    assert {"node", "devices", "exit_code"} <= set(job_pb2.Replica.DESCRIPTOR.fields_by_name)
    assert {"replicas", "exit_code", "reason"} <= set(job_pb2.Attempt.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_the_core_knows_the_command_and_refuses_it_by_name(command: commands.AnyItem) -> None:
    cell = Cell()
    cell.start_term()
    decided = decide(cell.state, [(InboxPosition(1, 0), command)], cell.state.now_ms, 1000)
    (refused,) = [t for t in decided.transitions if isinstance(t, CommandRefused)]
    assert (refused.code, refused.command) == ("UNIMPLEMENTED", type(command).__name__)
    assert type(command).__name__ in refused.message


def test_a_job_file_may_name_them() -> None:
    (spec,) = parse("name: a\nqueue: q\nholds: [h]\ndepends_on: [{job: b, condition: SUCCEEDED}]\ntasks: []\n")
    assert spec.holds == ["h"]
    assert re.fullmatch(r"CONDITION_\w+", job_pb2.Dependency.Condition.Name(spec.depends_on[0].condition))
