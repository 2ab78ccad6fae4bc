"""Operators' calls: priority classes. The others are in the API and refused by name until their rules are built."""

from __future__ import annotations

from muster.api.v1 import admin_pb2
from muster.core.commands import DeletePriorityClass
from muster.core.errors import Rejected
from muster.wire import priority_classes as wire
from muster.wire.status import position as to_position
from muster_admission.calls import Context, unary, unbuilt_call
from muster_admission.cell import Cell
from muster_admission.identity import Identity

OF_CLASS = "priority_class."


class AdminServicer:
    """muster.api.v1.AdminService."""

    def __init__(self, cell: Cell, identity: Identity) -> None:
        self._cell = cell
        self._identity = identity

    @unary
    async def UpsertPriorityClass(  # noqa: N802  # the names of the proto
        self, request: admin_pb2.UpsertPriorityClassRequest, context: Context
    ) -> admin_pb2.UpsertPriorityClassResponse:
        self._identity.user(context)
        try:
            command = wire.to_command(request.priority_class, request.request_id)
            position = await self._cell.command(command, dry_run=request.dry_run)
        except Rejected as why:
            raise Rejected(why.code, OF_CLASS + why.field, why.message, why.rule) from None
        return admin_pb2.UpsertPriorityClassResponse(inbox_position=to_position(position) if position else None)

    @unary
    async def DeletePriorityClass(  # noqa: N802
        self, request: admin_pb2.DeletePriorityClassRequest, context: Context
    ) -> admin_pb2.DeletePriorityClassResponse:
        self._identity.user(context)
        command = DeletePriorityClass(name=request.name, request_id=request.request_id)
        position = await self._cell.command(command, dry_run=request.dry_run)
        return admin_pb2.DeletePriorityClassResponse(inbox_position=to_position(position) if position else None)

    @unary
    async def ListPriorityClasses(  # noqa: N802
        self, request: admin_pb2.ListPriorityClassesRequest, context: Context
    ) -> admin_pb2.ListPriorityClassesResponse:
        self._identity.user(context)
        await self._cell.reach(request.min_position)
        state = self._cell.state
        return admin_pb2.ListPriorityClassesResponse(
            priority_classes=wire.in_order(state.classes.values()), ledger_sequence=state.ledger_seq
        )

    UpsertReservation = unbuilt_call("UpsertReservation")
    DeleteReservation = unbuilt_call("DeleteReservation")
    ListReservations = unbuilt_call("ListReservations")
    CordonNode = unbuilt_call("CordonNode")
