"""What operators see of a queue-manager: the term, its decisions and commits."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from muster.core.model import InboxPosition
from muster.core.state import CellState
from muster.runtime.logs import get_logger
from muster.runtime.observer import Committed, LeaderObserver
from muster.runtime.streams import ledger_subject
from muster.runtime.tracing import Tracing
from muster_queue_manager.potential import PotentialMetrics

SECONDS_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
COUNT_BUCKETS: Final = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)
NANOS_PER_MS: Final = 1_000_000
log = get_logger(__name__)


def oldest_age_s(state: CellState) -> float:
    """How long ago the job left the state whose request id is remembered longest; 0 without any."""
    if not state.forgotten_order:
        return 0.0
    return (state.now_ms - state.forgotten[state.forgotten_order[0]].at_ms) / 1000


class Watch(LeaderObserver):
    """Turns what the leader tells into metrics, traces and log lines."""

    def __init__(self, registry: CollectorRegistry, tracing: Tracing, state: CellState) -> None:
        self._tracing = tracing
        self._state = state
        self._subject = ledger_subject(state.cell)
        self.leading = Gauge("muster_queue_manager_leading", "1 while this replica leads its cell.", registry=registry)
        self._epoch = Gauge("muster_queue_manager_epoch", "Epoch of the last term led here.", registry=registry)
        self._decide_seconds = Histogram(
            "muster_queue_manager_decide_duration_seconds",
            "Time to decide and encode one transaction.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self._work = Counter("muster_queue_manager_work_units_total", "Work units spent deciding.", registry=registry)
        self._items = Counter("muster_queue_manager_inbox_items_total", "Inbox items consumed.", registry=registry)
        self._commit_seconds = Histogram(
            "muster_queue_manager_commit_duration_seconds",
            "Time until the ledger acknowledged one transaction.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self._transitions = Histogram(
            "muster_queue_manager_transaction_transitions",
            "Transitions in one transaction.",
            buckets=COUNT_BUCKETS,
            registry=registry,
        )
        self._bytes = Counter("muster_queue_manager_ledger_bytes_total", "Bytes committed.", registry=registry)
        self._resends = Gauge(
            "muster_queue_manager_commit_resends", "Commits sent again in this term (LOG-4).", registry=registry
        )
        self._backlog = Gauge(
            "muster_queue_manager_inbox_backlog_items", "Inbox items read and not decided.", registry=registry
        )
        self._quarantined = Counter(
            "muster_queue_manager_items_quarantined_total", "Inbox items put aside: look at the log.", registry=registry
        )
        self._ledger_seq = Gauge("muster_queue_manager_ledger_seq", "Last applied ledger sequence.", registry=registry)
        self._jobs = Gauge("muster_queue_manager_jobs", "Jobs in the state, finished ones included.", registry=registry)
        self._request_ids = Gauge(
            "muster_queue_manager_request_ids",
            "Request ids remembered of jobs that have left the state (LOG-11).",
            registry=registry,
        )
        self._request_ids_age = Gauge(
            "muster_queue_manager_request_ids_oldest_age_seconds",
            "Since when the oldest of them is remembered; when there are too many, less than seven days.",
            registry=registry,
        )
        self._request_ids.set_function(lambda: len(self._state.forgotten))
        self._request_ids_age.set_function(lambda: oldest_age_s(self._state))
        self._ledger_seq.set_function(lambda: self._state.ledger_seq)
        self._jobs.set_function(lambda: len(self._state.jobs))
        registry.register(PotentialMetrics(lambda: self._state))

    def reloaded(self, state: CellState) -> None:
        """The follower has a new state object."""
        self._state = state

    def elected(self, epoch: int) -> None:
        self.leading.set(1)
        self._epoch.set(epoch)
        log.info("leading", epoch=epoch, ledger_seq=self._state.ledger_seq)

    def decided(self, seconds: float, work_spent: int, items: int) -> None:
        self._decide_seconds.observe(seconds)
        self._work.inc(work_spent)
        self._items.inc(items)

    def committed(self, committed: Committed) -> None:
        self._commit_seconds.observe(committed.commit_s)
        self._transitions.observe(len(committed.tx.transitions))
        self._bytes.inc(committed.bytes)
        self._resends.set(committed.resends)
        if self._tracing.enabled:
            began, sent, answered = committed.began_ms, committed.sent_ms, committed.answered_ms
            self._tracing.transaction(
                committed.tx,
                committed.ledger_seq,
                self._trace_of,
                subject=self._subject,
                times_ns=(began * NANOS_PER_MS, sent * NANOS_PER_MS, answered * NANOS_PER_MS),
            )

    def quarantined(self, position: InboxPosition, reason: str) -> None:
        self._quarantined.inc()
        log.error("inbox item put aside", inbox_seq=position.seq, item=position.item, reason=reason)

    def backlog(self, items: int) -> None:
        self._backlog.set(items)

    def idle(self) -> None:
        self._backlog.set(0)

    def _trace_of(self, job: str) -> str:
        found = self._state.jobs.get(job)
        return found.spec.trace if found is not None else ""
