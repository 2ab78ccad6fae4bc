"""How long to wait before something that went wrong, or was interrupted, is tried again (rules L3, P5)."""

from __future__ import annotations

from muster.core.limits import BACKOFF_FIRST_MS, BACKOFF_MAX_MS, RETRY_FIRST_MS
from muster.core.model import Reason


def backoff_ms(reason: Reason, times: int) -> int:
    """How long a job waits after the `times`-th requeue before it is tried again."""
    if reason is Reason.NODE_LOST and times == 0:
        return 0  # nothing suggests that it happens again
    first = BACKOFF_FIRST_MS if reason in (Reason.PREEMPTED, Reason.START_TIMEOUT) else RETRY_FIRST_MS
    return int(min(first << min(times, 30), BACKOFF_MAX_MS))
