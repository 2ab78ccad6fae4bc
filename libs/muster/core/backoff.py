"""How long to wait before something that went wrong, or was interrupted, is tried again (rules L3, P5)."""

from __future__ import annotations

from muster.core.limits import BACKOFF_FIRST_MS, BACKOFF_MAX_MS, RETRY_FIRST_MS
from muster.core.model import Reason
from muster.core.queues import Queue


def backoff_ms(reason: Reason, times: int, queue: Queue) -> int:
    """How long a job of the queue waits after the `times`-th requeue before it is tried again. What follows on
    preemption can be set, of a queue for itself and all below it."""
    if reason is Reason.NODE_LOST and times == 0:
        return 0  # nothing suggests that it happens again
    first = BACKOFF_FIRST_MS if reason in (Reason.PREEMPTED, Reason.START_TIMEOUT) else RETRY_FIRST_MS
    most = BACKOFF_MAX_MS
    if reason is Reason.PREEMPTED:
        first = next((q.spec.preemption_backoff_ms for q in queue.chain if q.spec.preemption_backoff_ms), first)
        most = next((q.spec.preemption_backoff_max_ms for q in queue.chain if q.spec.preemption_backoff_max_ms), most)
    return int(min(first << min(times, 30), most))
