"""fair-share and the preemptor as real processes on a real nats-server: start, readiness, figures, stop."""

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager

import aiohttp
import grpc.aio
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.patience import lasting_port, until

from muster.runtime.clock import SystemClock
from muster.runtime.exit_codes import ExitCode
from muster.runtime.lease import Lease, LeaseRecord
from muster.runtime.nats_bus import connect
from muster.runtime.nats_server import NatsServer
from muster.runtime.streams import lease_subject, leases_spec


@pytest.fixture(scope="module")
def nats(tmp_path_factory):
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def service(module, replica, nats, folder):
    """The process and what it announced once it served; killed at the end if it still runs."""
    ready = folder / f"{replica}.json"
    environ = os.environ | {
        "MUSTER_NATS_URL": nats.url,
        "MUSTER_CELL": folder.name,  # of its own, so that tests do not meet
        "MUSTER_REPLICA": replica,
        "MUSTER_READY_FILE": str(ready),
    }
    with (folder / f"{replica}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, env=environ, stdout=log, stderr=log
        )
    try:

        def serves():
            assert process.returncode is None, (folder / f"{replica}.log").read_text()
            return ready.exists()

        await until(serves)
        yield process, json.loads(ready.read_text())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def metric(facts, name):
    async with aiohttp.ClientSession() as http, http.get(f"http://{facts['metrics']}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@pytest.mark.parametrize(
    ("module", "sign"),
    [("muster_fair_share", "muster_fair_share_leading"), ("muster_preemptor", "muster_preemptor_replicas")],
)
async def test_it_serves_and_stops_when_asked(module, sign, nats, tmp_path):
    async with service(module, "one", nats, tmp_path) as (process, facts):
        assert facts["pid"] == process.pid
        assert facts["replica"] == "one"
        async with grpc.aio.insecure_channel(facts["grpc"]) as channel:
            stub = health_pb2_grpc.HealthStub(channel)

            async def serving():
                answer = await stub.Check(health_pb2.HealthCheckRequest())
                return answer.status == health_pb2.HealthCheckResponse.SERVING

            await until(serving)

        async def at_work():
            return await metric(facts, sign) == 1

        await until(at_work)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == ExitCode.OK, (tmp_path / "one.log").read_text()
        log = [json.loads(line) for line in (tmp_path / "one.log").read_text().splitlines()]
        assert [line["event"] for line in log if line["level"] in ("warning", "error")] == []
        assert log[-1]["event"] == "ended"


async def test_a_graceful_stop_hands_the_lease_over_at_once(nats, tmp_path):
    async with service("muster_fair_share", "one", nats, tmp_path) as (process, facts):

        async def at_work():
            return await metric(facts, "muster_fair_share_leading") == 1

        await until(at_work)
        bus = await connect(nats.url)
        stream = await bus.stream(leases_spec())
        name = f"{tmp_path.name}.fair-share"
        lease = Lease(stream, name, "two", clock=SystemClock())
        assert not await lease.try_acquire()
        assert lease.holder == "one"
        process.send_signal(signal.SIGTERM)
        await process.wait()

        async def released():
            return msgspec.json.decode((await stream.last(lease_subject(name))).data, type=LeaseRecord).released

        await until(released)  # it was sent; a process that ends does not wait for the answer for long
        assert await lease.try_acquire()
        await bus.close()


async def test_it_rides_through_a_restart_of_nats(tmp_path):
    server = NatsServer(tmp_path / "nats", port=lasting_port())
    server.start()
    try:
        async with service("muster_preemptor", "one", server, tmp_path) as (process, facts):
            server.kill()
            server.start()

            async def heard_again():
                return await metric(facts, "muster_preemptor_replicas") == 1

            await until(heard_again)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == ExitCode.OK
    finally:
        server.stop()


async def test_a_wrong_setting_is_named(tmp_path):
    environ = os.environ | {"MUSTER_PUBLISH_INTERVAL_MS": "often"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "muster_fair_share", env=environ, stderr=asyncio.subprocess.PIPE
    )
    _, text = await process.communicate()
    assert process.returncode == ExitCode.CONFIG
    assert text.decode() == "muster fair-share: MUSTER_PUBLISH_INTERVAL_MS='often': must be a whole number\n"
