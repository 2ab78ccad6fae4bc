"""LOG-12: watches miss nothing, repeat nothing, and are cut when they fall behind."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import msgspec
import pytest
from tests.unit.runtime.cells import CELL, SimCell, cancel, job, nodes, queue

from muster.api.v1 import query_pb2
from muster.core import commands
from muster.runtime.ports import MessagesLost
from muster.sim.loop import run
from muster.wire.event_data import CommandData
from muster.wire.events import PublicEvent
from muster_admission.calls import Refused, status_of
from muster_admission.filters import JobFilter
from muster_admission.watching import WatchHub

ABORTED, UNAVAILABLE = 10, 14


async def started(buffer_events: int = 1000) -> tuple[SimCell, WatchHub, asyncio.Task[None]]:
    cell = SimCell()
    leader = asyncio.create_task((await cell.candidate("leader")).run())
    hub = WatchHub(await cell.follower(), CELL, buffer_events=buffer_events)
    await (await cell.writer()).write([nodes(2), queue(), queue("stopped", state="STOPPED")])
    await asyncio.sleep(1)
    return cell, hub, leader


async def collect(hub: WatchHub, wanted: JobFilter, from_seq: int, until: str, into: list[tuple[str, str]]) -> None:
    async for answer in hub.watch(wanted, from_seq):
        if answer.HasField("event"):
            into.append((answer.event.name, answer.event.type))
            if answer.event.name == until and answer.event.type == "job.queued":
                return


def everything(**fields: object) -> JobFilter:
    return JobFilter(query_pb2.JobFilter(**fields))  # type: ignore[arg-type]


def test_past_and_present_join_without_a_seam() -> None:
    async def main() -> None:
        cell, hub, leader = await started()
        writer = await cell.writer("jobs")
        seen: list[tuple[str, str]] = []
        watching: asyncio.Task[None] | None = None
        for n in range(40):  # the watch begins in the past while the present goes on
            await writer.write([job(n, path="stopped")])
            if n == 10:
                watching = asyncio.create_task(collect(hub, everything(), 1, "job-39", seen))
        assert watching is not None
        await watching
        assert seen == [(f"job-{n}", "job.queued") for n in range(40)]
        await cancel(leader)

    run(main())


def test_a_watch_of_a_queue_hears_of_jobs_that_were_not_taken() -> None:
    async def main() -> None:
        cell, hub, leader = await started()
        seen: list[tuple[str, str]] = []
        wanted = everything(queue="stopped", namespace=job(1).spec.namespace, name_prefix="job-")
        watching = asyncio.create_task(collect(hub, wanted, 1, "job-3", seen))
        jobs = [job(1, path="stopped"), job(1, path="stopped"), job(2, path="nowhere"), job(3, path="stopped")]
        other = msgspec.structs.replace(jobs[1].spec, id="f" * 32, request_id="other")  # the name is taken
        await (await cell.writer("jobs")).write([jobs[0], commands.SubmitJob(other), *jobs[2:]])
        await watching
        assert seen == [("job-1", "job.queued"), ("job-1", "command.refused"), ("job-3", "job.queued")]
        assert not everything(queue="stopped", states=[1]).matches_event(refusal("stopped"))
        assert not everything(queue="stop").matches_event(refusal("stopped"))
        assert everything().matches_event(refusal("stopped"))
        await cancel(leader)

    run(main())


def refusal(path: str) -> PublicEvent:
    data = CommandData(type="command.refused", command="SubmitJob", subject="j", queue=path)
    return PublicEvent("command.refused", "_", "j", 1, 0, "", data)


def test_a_watch_of_one_job_hears_of_that_job_and_of_refusals_about_it() -> None:
    async def main() -> None:
        cell, hub, leader = await started()
        wanted, seen = everything(job_ids=[job(2).spec.id]), []

        async def watch() -> None:
            async with aclosing(hub.watch(wanted, 0)) as answers:
                async for answer in answers:
                    if answer.HasField("event"):
                        seen.append(answer.event.type)
                    if answer.event.type == "job.cancelled":
                        return

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.1)
        cancels = [commands.CancelJob(job=job(n).spec.id) for n in (2, 1, 2)]
        await (await cell.writer("jobs")).write([cancels[0], job(1, "stopped"), job(2, "stopped"), *cancels[1:]])
        await watching
        assert seen == ["command.refused", "job.queued", "job.cancelled"]
        assert hub.watchers == 0
        await cancel(leader)

    run(main())


def test_filters_on_events() -> None:
    async def main() -> None:
        cell, hub, leader = await started()
        await (await cell.writer("jobs")).write([job(n, path) for n, path in enumerate(["team", "stopped"] * 3)])
        await asyncio.sleep(1)
        for filters, names in (
            ({"queue": "stopped"}, {"job-1", "job-3", "job-5"}),
            ({"queue": "stop"}, set()),
            ({"name_prefix": "job-4"}, {"job-4"}),
            ({"namespace": "other"}, set()),
            ({"states": [3]}, {"job-0", "job-2", "job-4"}),
        ):
            seen: set[str] = set()
            try:
                async with asyncio.timeout(1):
                    async for answer in hub.watch(everything(**filters), 1):
                        if answer.HasField("event"):
                            seen.add(answer.event.name)
            except TimeoutError:
                pass
            assert seen == names
        await cancel(leader)

    run(main())


def test_a_slow_watcher_is_cut_with_the_sequence_to_resume_from() -> None:
    async def main() -> None:
        cell, hub, leader = await started(buffer_events=5)
        watch = hub.watch(everything(), 0)
        first = await anext(watch)
        writer = await cell.writer("jobs")
        reading = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.1)
        await writer.write([job(0, "stopped")])
        assert (await reading).event.name == "job-0"
        await writer.write([job(n, "stopped") for n in range(1, 20)])
        await asyncio.sleep(1)
        with pytest.raises(Refused) as caught:
            await anext(watch)
        assert caught.value.status.code == ABORTED
        resumed: list[tuple[str, str]] = []
        await collect(hub, everything(), first.ledger_sequence, "job-19", resumed)
        assert [name for name, _ in resumed] == [f"job-{n}" for n in range(20)]
        await cancel(leader)

    run(main())


def test_an_idle_watch_says_how_far_it_is() -> None:
    async def main() -> None:
        cell, hub, leader = await started()
        watch = hub.watch(everything(name_prefix="nothing"), 0)
        first = await anext(watch)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.1)
        await (await cell.writer("jobs")).write([job(n) for n in range(5)])
        bookmark = await waiting
        assert not bookmark.HasField("event")
        assert bookmark.ledger_sequence > first.ledger_sequence
        await watch.aclose()
        await cancel(leader)

    run(main())


def test_a_watch_older_than_the_ledger_is_out_of_range() -> None:
    async def main() -> None:
        cell, hub, leader = await started()
        cell.nats.streams["LEDGER_main"].purge_below(3)
        with pytest.raises(MessagesLost) as caught:
            async for _ in hub.watch(everything(), 1):
                pass
        status = status_of(caught.value)
        assert status is not None
        assert status.code == 11  # OUT_OF_RANGE
        await cancel(leader)

    run(main())


def test_watches_end_when_the_process_stops() -> None:
    async def main() -> None:
        _, hub, leader = await started()
        watch = hub.watch(everything(), 0)
        await anext(watch)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.1)
        hub.stop()
        with pytest.raises(Refused) as caught:
            await waiting
        assert caught.value.status.code == UNAVAILABLE
        await cancel(leader)

    run(main())
