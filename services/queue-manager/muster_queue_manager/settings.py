"""Settings of the queue-manager: the common ones, and how the log is kept."""

from __future__ import annotations

from dataclasses import dataclass

from muster.runtime.log_keeping import LogKeepingSettings


@dataclass(frozen=True, kw_only=True)
class QueueManagerSettings(LogKeepingSettings):
    """Read from the environment by `muster_queue_manager`."""
