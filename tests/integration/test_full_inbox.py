"""LOG-14, LOG-6: a full inbox refuses commands, not facts, and a cell with one queue-manager makes room again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.admission_cell import Processes
from tests.patience import until

import muster.client as mc
from muster.core.commands import PodFact, PodsObserved
from muster.core.model import PodPhase
from muster.runtime.clock import SystemClock
from muster.runtime.inbox import InboxWriter
from muster.runtime.nats_bus import connect as connect_nats
from muster.runtime.streams import inbox_spec, snapshots_spec

SIZE = 1 << 20
JOB = "{name: late, queue: research, tasks: [{name: w, replicas: 1, resources: {cpu: 1}}]}"


def facts() -> PodsObserved:
    """About 50 KiB of what a binder might report of jobs that nobody remembers."""
    return PodsObserved("sim-a", tuple(PodFact(f"{n:032x}", 1, 0, PodPhase.RUNNING) for n in range(1000)))


async def is_taken(m: mc.Client) -> bool:
    """The client does not ask again by itself when it is told to come back later than its own patience lasts."""
    try:
        return bool((await m.submit(mc.parse(JOB)[0])).id)
    except mc.Unavailable:
        return False


async def test_a_full_inbox(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    bus = await connect_nats(processes.nats.url)
    try:
        stream = await bus.stream(inbox_spec("main", max_bytes=SIZE))  # made by whoever comes first
        processes.start("muster_queue_manager", "qm-1", MUSTER_SNAPSHOT_EVERY_TRANSACTIONS="1")
        processes.start("muster_admission", "adm-1")
        async with mc.connect(processes.ready("adm-1")) as m:
            await m.create_queue("research")
            writer = InboxWriter(stream, clock=SystemClock())
            while (await stream.info()).bytes < SIZE * 82 // 100:
                await writer.write([facts()])

            async def is_refused() -> bool:
                return not await is_taken(m)

            await until(is_refused)  # a replica answers from its last measurement, a moment old
            with pytest.raises(mc.Unavailable) as caught:
                await m.submit(mc.parse(JOB)[0])
            assert (caught.value.code, caught.value.retry_after_s) == ("RESOURCE_EXHAUSTED", 60.0)
            assert "the inbox is full (" in caught.value.message
            assert "retry in about 60 s" in caught.value.message
            assert [queue.path for queue in await m.list_queues("research")]
            await writer.write([facts()])
            assert not (await (await bus.stream(snapshots_spec("main"))).info()).messages, "a leader takes none"
            processes.start("muster_fair_share", "fs-1", MUSTER_SNAPSHOT_EVERY_TRANSACTIONS="1")

            async def is_trimmed() -> bool:
                await writer.write([PodsObserved("sim-a", facts().pods[:1])])  # little, so that there is room for many
                await asyncio.sleep(0.5)
                return (await stream.info()).bytes <= SIZE // 2

            await until(is_trimmed)

            async def is_taken_again() -> bool:
                return await is_taken(m)

            await until(is_taken_again)
        await writer.close()
    finally:
        await bus.close()
        processes.close()
