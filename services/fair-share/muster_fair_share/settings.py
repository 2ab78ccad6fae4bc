"""Settings of fair-share: the common ones, and how often it may publish."""

from __future__ import annotations

from dataclasses import dataclass

from muster.runtime.log_keeping import LogKeepingSettings
from muster.runtime.settings import setting


@dataclass(frozen=True, kw_only=True)
class FairShareSettings(LogKeepingSettings):
    """Read from the environment by `muster_fair_share`."""

    publish_interval_ms: int = setting("least time between two messages with changed entitlements", 250, minimum=10)
