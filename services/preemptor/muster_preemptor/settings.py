"""Settings of the preemptor: the common ones, and how long it waits to see a plan decided."""

from __future__ import annotations

from dataclasses import dataclass

from muster.runtime.settings import CommonSettings, setting


@dataclass(frozen=True, kw_only=True)
class PreemptorSettings(CommonSettings):
    """Read from the environment by `muster_preemptor`."""

    decided_timeout_ms: int = setting("how long the next plan waits to see the last one decided", 2000, minimum=1)
