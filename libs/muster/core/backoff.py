"""How long to wait before something that went wrong, or was interrupted, is tried again (rules L3, P5)."""

from __future__ import annotations

from typing import Final

from muster.core.limits import BACKOFF_FIRST_MS, BACKOFF_MAX_MS, RETRY_FIRST_MS, SUSPECTS_FEW
from muster.core.model import Reason
from muster.core.queues import Queue

# So many suspects are the fault of their nodes. A try that ends with a start timeout costs ten minutes of a node, and
# an image that cannot be had is as likely: it gets one.
FEW: Final = {Reason.PLACEMENT_REJECTED: SUSPECTS_FEW, Reason.START_TIMEOUT: 1}


def backoff_ms(reason: Reason, times: int, queue: Queue) -> int:
    """How long a job of the queue waits after the `times`-th requeue before it is tried again. What follows on
    preemption can be set, of a queue for itself and all below it."""
    if reason is Reason.NODE_LOST and times == 0:
        return 0  # nothing suggests that it happens again
    first, most = _first_ms(reason), BACKOFF_MAX_MS
    if reason is Reason.PREEMPTED:
        first = next((q.spec.preemption_backoff_ms for q in queue.chain if q.spec.preemption_backoff_ms), first)
        most = next((q.spec.preemption_backoff_max_ms for q in queue.chain if q.spec.preemption_backoff_max_ms), most)
    return int(min(first << min(times, 30), most))


def elsewhere_ms(reason: Reason, before: int, *, another: bool, most_ms: int) -> int:
    """How long a job whose pods a node refused, or did not start, waits before it is tried on other nodes (rule L3).

    `before`: how many suspects it had. `another`: this node was not one of them. A node that is known to refuse says
    nothing new; when more and more others refuse as well it is the job: the pause doubles up to `most_ms`, the one
    before it is tried on its suspects.
    """
    further = before - FEW[reason] + 1
    if not another or further <= 0:
        return min(RETRY_FIRST_MS, most_ms)
    return int(min(_first_ms(reason) << min(further, 30), most_ms))


def _first_ms(reason: Reason) -> int:
    return BACKOFF_FIRST_MS if reason in (Reason.PREEMPTED, Reason.START_TIMEOUT) else RETRY_FIRST_MS
