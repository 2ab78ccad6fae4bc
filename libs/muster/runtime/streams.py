"""The streams of a cell: their names, subjects and limits, in one place.

Every process binds the streams it needs through these specs, so whichever process starts first creates them and all
others find them. `replicas` is the one thing a deployment chooses (3 on a real cluster).
"""

from __future__ import annotations

from typing import Final

from muster.runtime.ports import StreamSpec

MESSAGE_BYTES_MAX: Final = 1024 * 1024  # NATS's own default max_payload; everything is sized below it
INBOX_BYTES_MAX: Final = 8 * 1024**3  # retained history (LOG-6) plus what waits
LEASES: Final = "LEASES"
EVENTS: Final = "EVENTS"
EVENTS_BYTES_MAX: Final = 8 * 1024**3


def inbox_subject(cell: str) -> str:
    return f"muster.inbox.{cell}"


def ledger_subject(cell: str) -> str:
    return f"muster.ledger.{cell}"


def snapshot_subject(cell: str, name: str) -> str:
    """`name` is one token: the unique name of a snapshot, or "index"."""
    return f"muster.snapshots.{cell}.{name}"


def lease_subject(name: str) -> str:
    """`name` may have several tokens, e.g. `main.leader`."""
    return f"muster.leases.{name}"


def inbox_spec(cell: str, replicas: int = 1, max_bytes: int = INBOX_BYTES_MAX) -> StreamSpec:
    return StreamSpec(
        name=f"INBOX_{cell}",
        subjects=(inbox_subject(cell),),
        max_bytes=max_bytes,
        max_message_bytes=MESSAGE_BYTES_MAX,
        replicas=replicas,
    )


def ledger_spec(cell: str, replicas: int = 1) -> StreamSpec:
    """One subject and no limit by size: a full ledger would stop the cell; it is trimmed instead (LOG-6)."""
    return StreamSpec(
        name=f"LEDGER_{cell}",
        subjects=(ledger_subject(cell),),
        max_message_bytes=MESSAGE_BYTES_MAX,
        replicas=replicas,
    )


def snapshots_spec(cell: str, replicas: int = 1) -> StreamSpec:
    return StreamSpec(
        name=f"SNAPSHOTS_{cell}",
        subjects=(snapshot_subject(cell, ">"),),
        max_message_bytes=MESSAGE_BYTES_MAX,
        replicas=replicas,
    )


def leases_spec(replicas: int = 1) -> StreamSpec:
    return StreamSpec(
        name=LEASES,
        subjects=(lease_subject(">"),),
        max_message_bytes=64 * 1024,
        max_messages_per_subject=1,
        replicas=replicas,
    )


def events_spec(replicas: int = 1) -> StreamSpec:
    return StreamSpec(
        name=EVENTS,
        subjects=("muster.events.>",),
        max_bytes=EVENTS_BYTES_MAX,
        max_message_bytes=MESSAGE_BYTES_MAX,
        replicas=replicas,
        batches=True,
    )
