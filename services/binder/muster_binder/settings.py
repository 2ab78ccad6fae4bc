"""Settings of the binder: the common ones, its clusters, and how hard it may work them."""

from __future__ import annotations

from dataclasses import dataclass

from muster.runtime.settings import CommonSettings, setting
from muster_binder.binder import BinderOptions
from muster_binder.review import ReviewSettings


@dataclass(frozen=True, kw_only=True)
class BinderSettings(CommonSettings):
    """Read from the environment by `muster_binder`."""

    clusters: str = setting(
        "clusters to write to: name=address by commas; an address is a URL, a kubeconfig[#context] or in-cluster; "
        "unset: the current context of KUBECONFIG",
        "",
    )
    in_flight_max: int = setting("writes at once to one cluster", 32, minimum=1, variable="MUSTER_BINDER_IN_FLIGHT")
    per_second_max: int = setting(
        "writes a second to one cluster; 0: no limit", 0, minimum=0, variable="MUSTER_BINDER_PER_SECOND"
    )
    resync_ms: int = setting(
        "how often everything is looked at again", 60_000, minimum=1000, variable="MUSTER_BINDER_RESYNC_MS"
    )
    finished_pod_ttl_ms: int = setting("how long pods of finished jobs are kept", 600_000, minimum=0)
    orphan_grace_ms: int = setting("how long running pods of unknown jobs are left alone", 60_000, minimum=0)
    default_image: str = setting("image of jobs whose template names none", "pause:3.10")

    def options(self) -> BinderOptions:
        return BinderOptions(
            in_flight_max=self.in_flight_max,
            per_second_max=self.per_second_max,
            resync_s=self.resync_ms / 1000,
            review=ReviewSettings(
                finished_pod_ttl_ms=self.finished_pod_ttl_ms,
                orphan_grace_ms=self.orphan_grace_ms,
                default_image=self.default_image,
            ),
        )
