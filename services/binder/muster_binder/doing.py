"""What is being done to pods: one operation a pod at a time, and which epochs of a job may still get a pod."""

from __future__ import annotations

from collections import Counter

from muster_binder.names import PodKey
from muster_binder.work import Kind, Op


class Doing:
    """Operations that have begun and are not over."""

    def __init__(self) -> None:
        self._ops: dict[PodKey, Op] = {}
        self._open: dict[str, Counter[int]] = {}  # job -> epoch -> operations after which there may be a pod
        self._postponed: dict[PodKey, Op] = {}

    def __contains__(self, key: PodKey) -> bool:
        return key in self._ops

    def begin(self, op: Op) -> bool:
        """False: another operation of the pod is not over."""
        if op.key in self._ops:
            return False
        self._ops[op.key] = op
        if op.kind is not Kind.DELETE:
            self._open.setdefault(op.key.job, Counter())[op.key.epoch] += 1
        return True

    def end(self, op: Op) -> bool:
        """The operation is over. False: it was not in here."""
        if self._ops.get(op.key) is not op:
            return False
        del self._ops[op.key]
        if op.kind is not Kind.DELETE:
            epochs = self._open[op.key.job]
            epochs[op.key.epoch] -= 1
            if not epochs[op.key.epoch]:
                del epochs[op.key.epoch]
            if not epochs:
                del self._open[op.key.job]
        return True

    def postpone(self, op: Op) -> None:
        """Something is being done to the pod; this is to begin when that is over. A list that does not show a pod has
        passed over its end: no watch will tell of it, so nobody but we will ask again."""
        self._postponed[op.key] = op

    def postponed(self, key: PodKey) -> Op | None:
        """What was to begin now, if anything; it is forgotten."""
        return self._postponed.pop(key, None)

    def any_before(self, job: str, epoch: int) -> bool:
        """Whether a pod of an earlier epoch may still appear."""
        epochs = self._open.get(job)
        return epochs is not None and any(earlier < epoch for earlier in epochs)
