"""The API over real processes: submissions, refusals, reads, watches, queues, events, and a replica that is killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import pytest
from google.protobuf import json_format
from tests.integration.admission_cell import Processes, running_cell
from tests.patience import PATIENCE_S, lasting_port

from muster import client as mc
from muster.api.v1 import admin_pb2, admin_pb2_grpc, events_pb2, job_pb2, query_pb2, submission_pb2
from muster.client.requests import job_filter
from muster.core.commands import NodesReported
from muster.core.model import NodeSpec
from muster.runtime.clock import SystemClock
from muster.runtime.inbox import InboxWriter
from muster.runtime.nats_bus import connect as connect_nats
from muster.runtime.streams import events_spec, inbox_spec

GIB = 1 << 30
RESERVED_CALLS = (
    *("UpdateJob", "SuspendJobs", "ResumeJobs", "RequeueJobs"),
    *("UpsertReservation", "DeleteReservation", "ListReservations", "CordonNode"),
)


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with running_cell(tmp_path_factory.mktemp("cell")) as processes:
        asyncio.run(_prepare(processes))
        yield processes


async def _prepare(processes: Processes) -> None:
    """A cluster of two nodes of 8 CPUs, and some queues."""
    bus = await connect_nats(processes.nats.url)
    writer = InboxWriter(await bus.stream(inbox_spec("main")), clock=SystemClock())
    allocatable = (("cpu", 8000), ("memory", 32 * GIB), ("pods", 110))
    nodes = tuple(NodeSpec(cluster="sim-a", name=f"n{i}", allocatable=allocatable) for i in range(2))
    await writer.write([NodesReported("sim-a", nodes, first=True, complete=True)])
    await bus.close()
    async with mc.connect(processes.ready("adm-1")) as m:
        await m.create_queue("research")
        await m.create_queue("research/vision", limit={"cpu": "12"})
        await m.create_queue("stopped", state="stopped")


@pytest.fixture
async def muster(cell: Processes) -> AsyncIterator[mc.Client]:
    async with mc.connect(cell.ready("adm-1")) as client:
        yield client


def job(name: str, queue: str = "stopped", **fields: object) -> job_pb2.JobSpec:
    tasks = [job_pb2.TaskGroup(name="main", replicas=1, resources={"cpu": "1", "memory": "1Gi"})]
    return job_pb2.JobSpec(**({"name": name, "queue": queue, "tasks": tasks} | fields))  # type: ignore[arg-type]


async def refusal(work: object) -> mc.ClientError:
    with pytest.raises(mc.ClientError) as caught:
        await work  # type: ignore[misc]
    return caught.value


# --- submissions ----------------------------------------------------------------------------------------------------


async def test_a_submission_is_durable_known_and_safe_to_repeat(muster: mc.Client) -> None:
    first = await muster.submit(job("repeat"), request_id="repeat-1")
    assert first.inbox_position is not None
    found = await muster.get(first.id)  # LOG-12: sees its own write
    assert (found.state, found.queue, found.submitter) == ("Queued", "stopped", "anonymous@127.0.0.1")
    again = await muster.submit(job("repeat"), request_id="repeat-1")
    assert (again.id, again.inbox_position) == (first.id, first.inbox_position)


async def test_the_same_request_id_with_another_body_is_refused(muster: mc.Client) -> None:
    await muster.submit(job("body"), request_id="body-1", wait="decided")
    error = await refusal(muster.submit(job("body", priority=9), request_id="body-1", wait="decided"))
    assert (error.code, error.violations[0].field) == ("ALREADY_EXISTS", "jobs[0].request_id")
    assert "choose a new one" in error.message


async def test_the_good_jobs_of_a_batch_are_taken_and_each_bad_one_says_why(muster: mc.Client) -> None:
    batch = [
        job("batch-0"),
        job("Bad Name"),
        job("batch-2", queue="stoped"),
        job("batch-3", tasks=[{"name": "w", "replicas": 1, "resources": {"cpu": "-1"}}]),
        job("batch-4", suspend=True),
        job("batch-5", tasks=[{"name": "w", "replicas": 0}]),
        job("batch-6", template='{"spec": {"x": "' + "y" * (2 << 20) + '"}}'),
        job("batch-7"),
    ]
    results = await muster.submit_many(batch, request_id="batch-1", wait="decided")
    errors = {i: r for i, r in enumerate(results) if isinstance(r, mc.ClientError)}
    assert sorted(errors) == [1, 2, 3, 4, 5, 6]
    assert {i: (e.code, e.violations[0].field) for i, e in errors.items()} == {
        1: ("INVALID_ARGUMENT", "jobs[1].name"),
        2: ("NOT_FOUND", "jobs[2].queue"),
        3: ("INVALID_ARGUMENT", "jobs[3].tasks[0].resources.cpu"),
        4: ("UNIMPLEMENTED", "jobs[4].suspend"),
        5: ("INVALID_ARGUMENT", "jobs[5].tasks[0].replicas"),
        6: ("INVALID_ARGUMENT", "jobs[6].template"),
    }
    assert 'did you mean "stopped"?' in errors[2].message
    assert (await muster.get("batch-0")).state == (await muster.get("batch-7")).state == "Queued"


async def test_what_the_core_refuses_comes_back_to_those_who_wait(muster: mc.Client) -> None:
    huge = [{"name": "w", "replicas": 1, "resources": {"cpu": "9"}}]
    for spec, code, words in (
        (job("never", tasks=huge), "FAILED_PRECONDITION", "can never run"),
        (job("inner", queue="research"), "FAILED_PRECONDITION", "name a leaf"),
        (job("over", queue="research/vision", tasks=[{**huge[0], "replicas": 2}]), "FAILED_PRECONDITION", "limit"),
    ):
        waited = await refusal(muster.submit(spec, wait="decided"))
        tried = await refusal(muster.submit(spec, dry_run=True))
        assert (waited.code, tried.code) == (code, code)
        assert words in waited.message
        assert waited.violations[0].field.startswith("jobs[0].")


async def test_a_dry_run_writes_nothing(muster: mc.Client) -> None:
    tried = await muster.submit(job("dry"), dry_run=True)
    assert tried.inbox_position is None
    assert (await refusal(muster.get(tried.id))).code == "NOT_FOUND"


async def test_a_stream_answers_batch_by_batch(muster: mc.Client) -> None:
    async def batches() -> AsyncIterator[tuple[str, list[job_pb2.JobSpec]]]:
        yield "stream-1", [job("stream-a"), job("stream-b", queue="nowhere")]
        yield "", [job("stream-c")]
        yield "stream-3", [job("stream-d")]

    answers = [answer async for answer in muster.submit_stream(batches())]
    assert [request_id for request_id, _ in answers] == ["stream-1", "", "stream-3"]
    (good, bad), (whole,), (last,) = (results for _, results in answers)
    assert isinstance(good, mc.Submitted)
    assert isinstance(bad, mc.NotFound)
    assert isinstance(whole, mc.Refused)
    assert whole.violations[0].field == "request_id"
    assert isinstance(last, mc.Submitted)


# --- reads ----------------------------------------------------------------------------------------------------------


async def test_a_job_runs_as_far_as_placed_and_shows_where(muster: mc.Client) -> None:
    accepted = await muster.submit(job("placed", queue="research/vision"), wait="decided")
    async for event in muster.watch(accepted.id):
        if event.state == "Placed":
            break
    found = await muster.get("placed")
    (attempt,) = found.proto.status.attempts
    assert attempt.replicas[0].node in ("n0", "n1")
    (replica,) = await muster.replicas("placed")
    assert (replica.task, replica.index, replica.cluster, replica.pod) == ("main", 0, "sim-a", "main-0")
    why = await muster.explain("placed")
    assert "1 pod on 1 node" in why.summary
    await muster.cancel("placed")


async def test_a_waiting_job_says_why(muster: mc.Client) -> None:
    await muster.submit(job("waits"), wait="decided")
    why = await muster.explain("waits")
    (blocker,) = [b for b in why.proto.explanation.blockers if b.kind == "queue-state"]
    assert blocker.rule == "Q1"
    assert why.proto.explanation.position >= 1
    assert why.proto.explanation.needs[0].resources["memory"] == "1Gi"


async def test_pages_are_stable_while_jobs_come_and_go(muster: mc.Client) -> None:
    names = [f"page-{n}" for n in range(7)]
    await muster.submit_many([job(name) for name in names], wait="decided")
    wanted = job_filter(queue="stopped", name_prefix="page-", states=["Queued"])
    first = await muster.list_page(wanted, size=3)
    await muster.cancel("page-1")
    await muster.submit(job("page-7"), wait="decided")
    second = await muster.list_page(wanted, size=3, token=first.next_page_token)
    third = await muster.list_page(wanted, size=3, token=second.next_page_token)
    assert [j.name for page in (first, second, third) for j in page.jobs] == [*names, "page-7"]
    assert third.next_page_token == ""
    newest = [j.name async for j in muster.list(wanted, limit=2, newest_first=True)]
    assert newest == ["page-7", "page-6"]
    error = await refusal(muster.list_page(job_filter(queue="research"), token=first.next_page_token))
    assert error.violations[0].field == "page_token"


async def test_filters_by_label_namespace_and_submitter(muster: mc.Client) -> None:
    await muster.submit(job("labelled", labels={"team": "v"}, namespace="other"), wait="decided")
    for filters in (
        job_filter(labels={"team": "v"}),
        job_filter(namespace="other"),
        job_filter(submitter="anonymous@127.0.0.1", name_prefix="label"),
    ):
        assert [j.name async for j in muster.list(filters)] == ["labelled"]
    assert [j async for j in muster.list(job_filter(submitter="ann"))] == []
    assert (await muster.get("other/labelled")).namespace == "other"


async def test_a_job_is_found_by_a_unique_prefix_and_a_typo_gets_a_hint(muster: mc.Client) -> None:
    accepted = await muster.submit(job("prefixed"), wait="decided")
    assert (await muster.get(accepted.id[:12])).name == "prefixed"
    assert 'did you mean "prefixed"?' in (await refusal(muster.get("prefixd"))).message


async def test_a_read_that_waits_in_vain_is_unavailable(muster: mc.Client) -> None:
    request = query_pb2.GetJobRequest(job="x", min_position=job_pb2.InboxPosition(sequence=1 << 40))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await muster.query.GetJob(request)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_the_cell_at_a_glance(muster: mc.Client) -> None:
    summary = await muster.cell()
    assert (summary.cell, summary.leader, summary.replica) == ("main", "qm-1", "adm-1")
    assert summary.capacity["cpu"] == "16"
    assert [(c.name, c.nodes, c.ready_nodes, c.synced) for c in summary.clusters] == [("sim-a", 2, 2, True)]
    assert summary.ledger_end >= summary.ledger_sequence > 0


# --- commands and queues --------------------------------------------------------------------------------------------


async def test_cancelling(muster: mc.Client) -> None:
    accepted = await muster.submit(job("cancelled"))
    by_id, unknown = await muster.cancel(accepted.id, "no-such-job", reason="enough")
    assert by_id.error is None  # although the state may not have had it yet
    assert isinstance(unknown.error, mc.NotFound)
    found = await muster.get(accepted.id)
    assert (found.state, found.reason) == ("Cancelled", "CancelledByUser")
    assert "enough" in found.message


async def test_queues_are_changed_field_by_field_and_by_revision(muster: mc.Client) -> None:
    created = await muster.create_queue("fields", weight=3, limit={"cpu": "10"}, labels={"a": "b"})
    changed = await muster.update_queue("fields", weight=0, state="closed")
    assert (changed.proto.weight, changed.state, dict(changed.proto.limit)) == (0, "Closed", {"cpu": "10"})
    assert changed.revision == created.revision + 1
    assert (await refusal(muster.update_queue("fields", weight=1, expected_revision=1))).code == "ABORTED"
    assert (await refusal(muster.submit(job("late", queue="fields"), wait="decided"))).code == "FAILED_PRECONDITION"
    await muster.delete_queue("fields")
    assert (await refusal(muster.get_queue("fields"))).code == "NOT_FOUND"


async def test_mistakes_with_queues(muster: mc.Client) -> None:
    assert (await refusal(muster.create_queue("research"))).code == "ALREADY_EXISTS"
    assert (await refusal(muster.create_queue("Bad!"))).violations[0].field == "queue.path"
    assert (await refusal(muster.create_queue("nowhere/x"))).code in ("NOT_FOUND", "FAILED_PRECONDITION")
    assert (await refusal(muster.create_queue("neg", limit={"cpu": "-1"}))).violations[0].field == "queue.limit.cpu"
    assert (await refusal(muster.delete_queue("research"))).code == "FAILED_PRECONDITION"
    assert (await refusal(muster.create_queue("research", dry_run=True))).code == "ALREADY_EXISTS"


async def test_lost_updates_do_not_happen(muster: mc.Client) -> None:
    await muster.create_queue("busy")
    await asyncio.gather(
        muster.update_queue("busy", weight=7),
        muster.update_queue("busy", priority=5),
        muster.update_queue("busy", labels={"a": "b"}),
    )
    queue = (await muster.get_queue("busy")).proto
    assert (queue.weight, queue.priority, dict(queue.labels)) == (7, 5, {"a": "b"})


async def test_the_list_of_queues_has_what_they_wait_for(muster: mc.Client) -> None:
    await muster.create_queue("tally")
    await muster.update_queue("tally", state="stopped")
    await muster.submit_many([job("tally-1", queue="tally"), job("tally-2", queue="tally")], wait="decided")
    (tally,) = await muster.list_queues("tally")
    assert tally.proto.status.pending_jobs == 2
    assert tally.proto.status.pending["cpu"] == "2"
    paths = [queue.path for queue in await muster.list_queues()]
    assert paths.index("research") < paths.index("research/vision")


@pytest.mark.parametrize("call", RESERVED_CALLS)
async def test_calls_that_are_not_built_say_so(muster: mc.Client, call: str) -> None:
    stub = muster.submission if hasattr(muster.submission, call) else admin_pb2_grpc.AdminServiceStub(muster.channel)
    messages = submission_pb2 if hasattr(submission_pb2, f"{call}Request") else admin_pb2
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await getattr(stub, call)(getattr(messages, f"{call}Request")())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert caught.value.details() == f"{call} is part of the API but not built yet"


# --- watches and events ---------------------------------------------------------------------------------------------


async def test_a_watch_tells_the_story_of_a_job_from_its_submission(muster: mc.Client) -> None:
    accepted = await muster.submit(job("story"))
    await muster.cancel(accepted.id)
    assert [event.type async for event in muster.watch(accepted.id)] == ["job.queued", "job.cancelled"]


async def test_a_watch_of_an_ended_job_says_so_and_ends(muster: mc.Client, cell: Processes) -> None:
    accepted = await muster.submit(job("ended"))
    await muster.cancel(accepted.id)
    async with mc.connect(cell.ready("adm-1")) as stranger:
        assert [event.state async for event in stranger.watch("ended")] == ["Cancelled"]


async def test_a_watch_of_a_job_the_core_refuses_ends_with_the_refusal(muster: mc.Client) -> None:
    await muster.submit(job("taken"), wait="decided")
    second = await muster.submit(job("taken"))
    (event,) = [event async for event in muster.watch(second.id)]
    assert (event.type, event.proto.code) == ("command.refused", "ALREADY_EXISTS")


async def test_a_watch_resumes_from_a_sequence_in_the_past_and_goes_on_live(muster: mc.Client) -> None:
    await muster.submit(job("past-1"), wait="decided")
    start = (await muster.list_page(size=1)).watch_from
    await muster.submit_many([job("past-2"), job("past-3")], wait="decided")
    seen: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        async for event in muster.watch(filters=job_filter(name_prefix="past-"), from_sequence=start):
            seen.append(event.name)
            if event.name == "past-3":
                await muster.submit(job("past-4"))
            if event.name == "past-4":
                break
    assert seen == ["past-2", "past-3", "past-4"]


async def test_every_event_is_published_once_and_in_order(muster: mc.Client, cell: Processes) -> None:
    await muster.submit_many([job(f"event-{n}") for n in range(20)], wait="decided")
    await muster.cancel(*(f"event-{n}" for n in range(20)))
    bus = await connect_nats(cell.nats.url)
    stream = await bus.stream(events_spec())
    ids: list[tuple[int, int]] = []
    kinds: dict[str, list[str]] = {}
    async with asyncio.timeout(PATIENCE_S):
        async for batch in stream.read(1):
            for message in batch:
                headers = dict(message.headers or {})
                seq, _, index = headers["ce-id"].partition("-")
                ids.append((int(seq), int(index)))
                if headers["ce-type"].startswith("job."):
                    event = json_format.Parse(message.data, events_pb2.JobEvent())
                    assert message.subject == f"muster.events.main.{event.namespace}.{event.type}"
                    assert json.loads(message.data)["ledgerSequence"] == seq
                    kinds.setdefault(event.name, []).append(event.type)
            if len(kinds.get("event-19", [])) == 2:
                break
    await bus.close()
    assert ids == sorted(set(ids))
    assert all(kinds[f"event-{n}"] == ["job.queued", "job.cancelled"] for n in range(20))


async def test_a_watch_and_a_client_survive_the_death_of_their_replica(muster: mc.Client, cell: Processes) -> None:
    """The port is fixed, so the client finds the replacement where the dead replica was."""
    address = f"127.0.0.1:{lasting_port()}"
    cell.start("muster_admission", "adm-2", MUSTER_GRPC_ADDRESS=address)
    cell.ready("adm-2")
    async with mc.connect(address, timeout_s=PATIENCE_S) as m:
        accepted = await m.submit(job("survivor"))
        watch = m.watch(accepted.id)
        assert (await anext(watch)).type == "job.queued"
        cell.kill("adm-2")
        cell.start("muster_admission", "adm-2", MUSTER_GRPC_ADDRESS=address)
        await m.cancel(accepted.id)  # retried until somebody answers
        assert [event.type async for event in watch] == ["job.cancelled"]
    cell.ready("adm-2")
    assert cell.stop("adm-2") == 0


# --- who calls, and how much ----------------------------------------------------------------------------------------


async def test_tokens_name_the_user_and_strangers_are_turned_away(cell: Processes, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("# who\nsecret-1 ann\n")
    cell.start("muster_admission", "adm-3", MUSTER_TOKENS_FILE=str(tokens))
    address = cell.ready("adm-3")
    async with mc.connect(address) as stranger:
        assert (await refusal(stranger.list_queues())).code == "UNAUTHENTICATED"
    async with mc.connect(address, token="wrong") as liar:
        assert (await refusal(liar.submit(job("x")))).code == "UNAUTHENTICATED"
    async with mc.connect(address, token="secret-1") as ann:
        assert (await ann.list_queues())[0].path
    cell.kill("adm-3")
