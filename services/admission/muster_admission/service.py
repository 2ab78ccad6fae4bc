"""What admission is made of: a follower, an inbox writer, the API's services, and the leased event relay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from prometheus_client import Gauge

from muster.api.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    query_pb2,
    query_pb2_grpc,
    queue_pb2,
    queue_pb2_grpc,
    submission_pb2,
    submission_pb2_grpc,
)
from muster.runtime.backpressure import InboxGauge
from muster.runtime.following import inbox_of, start_follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.lease import Lease
from muster.runtime.leased import work_while_held
from muster.runtime.relay import EventRelay
from muster.runtime.rpc import RpcServer
from muster.runtime.service import ServiceContext
from muster.runtime.streams import events_spec, leases_spec
from muster.runtime.warmth import Warmth
from muster.wire.events import StateNames
from muster_admission.admin import AdminServicer
from muster_admission.cell import Cell
from muster_admission.forecasts import Forecaster
from muster_admission.identity import Identity
from muster_admission.overview import Overview
from muster_admission.query import QueryServicer
from muster_admission.queue_metrics import QueueCollector
from muster_admission.queues import QueueServicer
from muster_admission.settings import AdmissionSettings
from muster_admission.submission import SubmissionServicer
from muster_admission.usage_metrics import UsageCollector
from muster_admission.watching import WatchHub

NAME: Final = "admission"


@asynccontextmanager
async def build(context: ServiceContext[AdmissionSettings]) -> AsyncIterator[None]:
    """Start, serve inside the block, stop."""
    settings, bus = context.settings, context.bus
    identity = Identity(settings.tokens_file, context.clock)
    inbox = await inbox_of(context)
    follower = await start_follower(context)
    warmth = Warmth(follower, context.clock)
    await warmth.get_ready()
    gauge = InboxGauge(
        inbox,
        lambda: follower.state.position,
        clock=context.clock,
        backlog_max=settings.inbox_backlog_max,
    )
    writer = InboxWriter(inbox, clock=context.clock, gauge=gauge, trace_headers=context.tracing.headers)
    cell = Cell(settings, follower, writer, inbox=inbox, clock=context.clock, tracing=context.tracing)
    hub = WatchHub(follower, settings.cell, buffer_events=settings.watch_buffer_events)
    _serve(context.rpc, cell, identity, hub)
    relay = EventRelay(
        cell=settings.cell,
        ledger=follower.ledger,
        stream=await bus.stream(events_spec(settings.nats_replicas)),
        names=StateNames(lambda: follower.state),
        clock=context.clock,
    )
    leases = await bus.stream(leases_spec(settings.nats_replicas))
    lease = Lease(leases, f"{settings.cell}.relay", settings.replica, clock=context.clock)
    context.spawn("keep warm", warmth.keep())
    context.spawn("event relay", work_while_held(lease, relay.run))
    context.spawn("end watches", _end_watches(context, hub))
    _measure(context, cell, gauge, hub, relay)
    try:
        yield
    finally:
        hub.stop()
        await writer.close()
        await follower.stop()


async def _end_watches(context: ServiceContext[AdmissionSettings], hub: WatchHub) -> None:
    """Watches never end by themselves, and the stop drains calls: tell their readers to go elsewhere."""
    await context.stop.wait()
    hub.stop()


def _serve(rpc: RpcServer, cell: Cell, identity: Identity, hub: WatchHub) -> None:
    overview, forecaster = Overview(cell), Forecaster(cell)
    for register, servicer, proto, name in (
        (
            submission_pb2_grpc.add_SubmissionServiceServicer_to_server,
            SubmissionServicer(cell, identity),
            submission_pb2,
            "SubmissionService",
        ),
        (
            query_pb2_grpc.add_QueryServiceServicer_to_server,
            QueryServicer(cell, identity, hub=hub, overview=overview, forecaster=forecaster),
            query_pb2,
            "QueryService",
        ),
        (
            queue_pb2_grpc.add_QueueServiceServicer_to_server,
            QueueServicer(cell, identity, forecaster),
            queue_pb2,
            "QueueService",
        ),
        (admin_pb2_grpc.add_AdminServiceServicer_to_server, AdminServicer(cell, identity), admin_pb2, "AdminService"),
    ):
        rpc.add(register, servicer, proto.DESCRIPTOR.services_by_name[name].full_name)


def _measure(
    context: ServiceContext[AdmissionSettings], cell: Cell, gauge: InboxGauge, hub: WatchHub, relay: EventRelay
) -> None:
    registry = context.registry
    registry.register(UsageCollector(cell))
    registry.register(QueueCollector(cell))
    for metric, value in (
        (
            Gauge("muster_inbox_backlog_messages", "Inbox messages not decided yet.", registry=registry),
            lambda: gauge.backlog_messages,
        ),
        (Gauge("muster_inbox_bytes", "What the inbox stream holds.", registry=registry), lambda: gauge.stored_bytes),
        (
            Gauge(
                "muster_inbox_commands_bytes_max",
                "From here on commands are refused (LOG-14); -1: no limit.",
                registry=registry,
            ),
            lambda: gauge.commands_bytes_max,
        ),
        (Gauge("muster_watchers", "Open watches.", registry=registry), lambda: hub.watchers),
        (
            Gauge("muster_ledger_applied_seq", "Last ledger sequence applied here.", registry=registry),
            lambda: cell.state.ledger_seq,
        ),
        (
            Gauge(
                "muster_events_relayed_seq",
                "Last ledger sequence whose events this replica relayed.",
                registry=registry,
            ),
            lambda: relay.relayed_seq,
        ),
        (
            Gauge("muster_events_published", "Public events this replica has published.", registry=registry),
            lambda: relay.published,
        ),
    ):
        metric.set_function(value)
