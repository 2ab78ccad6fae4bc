"""Which jobs somebody asked for: the API's filter, on jobs of the state and on events."""

from __future__ import annotations

from muster.api.v1 import job_pb2, query_pb2
from muster.core.state import CellState, Job
from muster.wire import enums
from muster.wire.event_data import CommandData, JobData
from muster.wire.events import PublicEvent


class JobFilter:
    """All that is set must match; nothing set lets everything through."""

    def __init__(self, message: query_pb2.JobFilter) -> None:
        self.job_ids = frozenset(message.job_ids)
        self._queue = message.queue.strip("/")
        self._states = frozenset(enums.STATE_NAMES[s] for s in message.states if s in enums.STATE_NAMES)
        self._state_names = frozenset(job_pb2.JobState.Name(s) for s in message.states)
        self._namespace = message.namespace
        self._labels = frozenset(message.labels.items())
        self._submitter = message.submitter
        self._prefix = message.name_prefix

    def queues(self, state: CellState) -> frozenset[str] | None:
        """Ids of the queues it lets through; None for all."""
        if not self._queue:
            return None
        root = state.queues.find(self._queue)
        return frozenset(queue.id for queue in state.queues.subtree(root.id)) if root else frozenset()

    def matches(self, job: Job, queues: frozenset[str] | None) -> bool:
        """`queues` as of `queues(state)`, which is the same for all jobs of one call."""
        spec = job.spec
        return (
            (not self.job_ids or spec.id in self.job_ids)
            and (not self._states or job.state in self._states)
            and (queues is None or job.queue in queues)
            and (not self._namespace or spec.namespace == self._namespace)
            and (not self._submitter or spec.submitter == self._submitter)
            and (not self._prefix or spec.name.startswith(self._prefix))
            and self._labels.issubset(spec.labels)
        )

    def matches_event(self, event: PublicEvent) -> bool:
        """An event of a job, or the refusal of a command about one."""
        data = event.data
        if isinstance(data, CommandData):
            return self._matches_refusal(data)
        if not isinstance(data, JobData):
            return False
        return (
            (not self.job_ids or data.job_id in self.job_ids)
            and (not self._state_names or data.state in self._state_names)
            and (not self._queue or data.queue == self._queue or data.queue.startswith(f"{self._queue}/"))
            and (not self._namespace or data.namespace == self._namespace)
            and (not self._submitter or data.submitter == self._submitter)
            and (not self._prefix or data.name.startswith(self._prefix))
            and self._labels.issubset(data.labels.items())
        )

    def _matches_refusal(self, data: CommandData) -> bool:
        """By id, or by what a job that was not taken was called. It has no state, and its labels are not told."""
        if self.job_ids:
            return data.subject in self.job_ids
        return (
            not (self._states or self._labels or self._submitter)
            and (not self._queue or data.queue == self._queue or data.queue.startswith(f"{self._queue}/"))
            and (not self._namespace or data.namespace == self._namespace)
            and (not self._prefix or data.name.startswith(self._prefix))
        )
