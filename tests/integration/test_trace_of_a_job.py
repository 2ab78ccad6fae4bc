"""One job through the real processes on a real NATS and a simulated cluster, as an OTLP collector sees it."""

import asyncio
import sys
from contextlib import AsyncExitStack

from tests.integration.admission_cell import Processes
from tests.integration.otlp_receiver import Receiver, belongs_to

from muster.sim.cluster.cluster import SimCluster
from muster.sim.cluster.nodes import parse_nodes
from muster.sim.cluster.server import serve
from muster.sim.cluster.settings import ClusterSettings

# What a user's program does: it has a tracer provider, and Muster's client sends its context along.
PROGRAM = """
import asyncio, sys
import muster.client
from muster.runtime.tracing import Tracing
from opentelemetry import trace

async def main(address, endpoint):
    tracing = Tracing.to_endpoint(endpoint, service="experiment", instance="e-1", cell="main", per_million=1_000_000)
    trace.set_tracer_provider(tracing.provider)
    async with muster.client.connect(address) as m:
        await m.create_queue("research")
        (spec,) = muster.client.parse(JOB)
        with tracing.span("experiment"):
            job = await m.submit(spec, request_id="exp-17")
        async for event in m.watch(job.id):
            if event.state == "Succeeded":
                break
    await tracing.close()

JOB = '''
name: traced
queue: research
tasks: [{name: main, replicas: 2, resources: {cpu: 1, memory: 1Gi}}]
template:
  metadata: {annotations: {sim.muster.io/run-seconds: "0.2"}}
  spec: {containers: [{name: main, image: registry.example/x:1}]}
'''
asyncio.run(main(*sys.argv[1:]))
"""
SERVICES = ("admission", "queue-manager", "topology-updater", "binder")
STEPS = {  # span -> (service, parent)
    "publish inbox": ("admission", None),
    "queue job": ("queue-manager", "publish inbox"),
    "place job": ("queue-manager", "publish inbox"),
    "create pod": ("binder", "publish inbox"),
    "pod running": ("binder", "publish inbox"),
}


async def run_program(folder, address, endpoint):
    program = folder / "program.py"
    program.write_text(PROGRAM)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), address, endpoint, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


async def test_every_step_of_a_job_is_under_or_linked_to_the_client_s_trace(tmp_path):
    async with AsyncExitStack() as stack:
        receiver = Receiver()
        endpoint, collector = await receiver.start()
        stack.push_async_callback(collector.stop, 0)
        cluster = SimCluster(ClusterSettings(name="sim"))
        cluster.add_nodes(parse_nodes("uniform:2x8cpu32Gi"))
        api = await serve(cluster)
        stack.push_async_callback(api.stop)
        processes = Processes(tmp_path)
        stack.callback(processes.close)
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "MUSTER_CLUSTERS": f"sim=http://127.0.0.1:{api.port}",
        }
        for service in SERVICES:
            processes.start(f"muster_{service.replace('-', '_')}", service, **environment)
        address = await asyncio.to_thread(processes.ready, "admission")

        await run_program(tmp_path, address, endpoint)
        for service in SERVICES:  # a graceful stop sends what is left
            assert await asyncio.to_thread(processes.stop, service) == 0
        await receiver.wait_for("experiment", *STEPS, "commit ledger")

    (root,) = receiver.named("experiment")
    mine = [span for span in receiver.spans if belongs_to(span, root.trace_id)]
    by_name = {span.name: span for span in mine}
    assert {span.service for span in mine} == {"experiment", "admission", "queue-manager", "binder"}
    for name, (service, parent) in STEPS.items():
        assert by_name[name].service == service
        if parent is not None:
            assert by_name[name].parent_id == by_name[parent].span_id, name
    called = {span.kind: span for span in mine if span.name.endswith("SubmitJobs")}
    assert called["CLIENT"].parent_id == root.span_id
    assert called["SERVER"].parent_id == called["CLIENT"].span_id
    assert by_name["publish inbox"].parent_id == called["SERVER"].span_id
    assert len([span for span in mine if span.name == "create pod"]) == 2
    commits = {span.span_id: span for span in mine if span.name == "commit ledger"}
    placed = by_name["place job"]
    assert placed.linked_spans[0] in commits
    order = [by_name[name].start_ns for name in ("publish inbox", "place job", "create pod", "pod running")]
    assert order[0] <= order[2], "a pod is created after the job was written"
    assert by_name["pod running"].end_ns >= placed.end_ns
