"""Settings of the queue-manager: the common ones, and how the log is kept."""

from __future__ import annotations

from dataclasses import dataclass

from muster.runtime.settings import CommonSettings, setting
from muster.runtime.snapshotter import EVERY_TRANSACTIONS
from muster.runtime.streams import INBOX_BYTES_MAX


@dataclass(frozen=True, kw_only=True)
class QueueManagerSettings(CommonSettings):
    """Read from the environment by `muster_queue_manager`."""

    inbox_bytes: int = setting("size of the inbox stream if this process creates it", INBOX_BYTES_MAX, minimum=1 << 20)
    ledger_retention_hours: int = setting("how long ledger and inbox are kept at least", 7 * 24, minimum=0)
    snapshot_every_transactions: int = setting(
        "ledger messages after which a standby takes a snapshot", EVERY_TRANSACTIONS, minimum=1
    )
