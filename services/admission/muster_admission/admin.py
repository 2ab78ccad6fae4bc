"""Operators' calls: in the API, refused by name until their rules are built."""

from __future__ import annotations

from muster_admission.calls import unbuilt_call


class AdminServicer:
    """muster.api.v1.AdminService."""

    UpsertPriorityClass = unbuilt_call("UpsertPriorityClass")
    DeletePriorityClass = unbuilt_call("DeletePriorityClass")
    ListPriorityClasses = unbuilt_call("ListPriorityClasses")
    UpsertReservation = unbuilt_call("UpsertReservation")
    DeleteReservation = unbuilt_call("DeleteReservation")
    ListReservations = unbuilt_call("ListReservations")
    CordonNode = unbuilt_call("CordonNode")
