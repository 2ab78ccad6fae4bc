"""One cell as admission sees it: a follower to read from, an inbox to write to.

What the API's services share is here: waiting for a position before a read (LOG-12), finding the job somebody means,
writing commands and fetching the core's refusals, and trying a command without writing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from google.rpc import status_pb2

from muster.api.v1 import job_pb2
from muster.core import checkpoints, priority_classes, queue_rules, submission
from muster.core import transitions as tr
from muster.core.commands import (
    AnyItem,
    CancelJob,
    DeletePriorityClass,
    DeleteQueue,
    ReportCheckpoint,
    SubmitJob,
    UpsertPriorityClass,
    UpsertQueue,
)
from muster.core.draft import Draft
from muster.core.errors import Code, Rejected
from muster.core.model import InboxPosition
from muster.core.state import CellState, Job
from muster.runtime.follower import Follower
from muster.runtime.inbox import InboxWriter
from muster.runtime.ports import Clock, Stream
from muster.runtime.tracing import Tracing
from muster.wire import errors
from muster.wire.ids import DEFAULT_NAMESPACE, ID_HEX_DIGITS
from muster_admission.calls import RETRY_AFTER_S, Refused
from muster_admission.settings import AdmissionSettings
from muster_admission.spelling import meant

PREFIX_DIGITS_MIN: Final = 4
HEX_DIGITS: Final = frozenset("0123456789abcdef")
NAMESPACES_SEARCHED_MAX: Final = 10_000  # for a name that is not in the one that was meant
DRY_RUN_WORK: Final = 1 << 30  # deciding a command is never cut short


class Cell:
    """The state and the inbox of the cell this replica serves."""

    def __init__(
        self,
        settings: AdmissionSettings,
        follower: Follower,
        writer: InboxWriter,
        *,
        inbox: Stream,
        clock: Clock,
        tracing: Tracing,
    ) -> None:
        self.settings = settings
        self.name = settings.cell
        self.follower = follower
        self.inbox = inbox
        self.clock = clock
        self.tracing = tracing
        self._writer = writer

    @property
    def state(self) -> CellState:
        return self.follower.state

    # --- reads ------------------------------------------------------------------------------------------------------

    async def reach(self, position: job_pb2.InboxPosition) -> None:
        """Returns when this replica shows the effect of `position`. Raises Refused (UNAVAILABLE)."""
        if not self.follower.ready:
            raise Refused(errors.retry("UNAVAILABLE", "this replica is still loading the cell", RETRY_AFTER_S))
        if not position.sequence:
            return
        try:
            await self.follower.wait_applied(
                InboxPosition(position.sequence, position.item), self.settings.read_timeout_ms / 1000
            )
        except TimeoutError:
            message = f"inbox position {position.sequence}.{position.item} has not reached this replica yet"
            raise Refused(errors.retry("UNAVAILABLE", message, RETRY_AFTER_S)) from None

    async def job(self, reference: str, field: str = "job") -> Job:
        """The job by id, unique prefix of an id, "namespace/name" or name. Raises Refused (NOT_FOUND).

        `field` is where the reference stands in the request.
        """
        found = self._find(reference, field)
        if found is None:
            await self.follower.catch_up()  # it may have been accepted by another replica a moment ago
            found = self._find(reference, field)
        if found is None:
            raise Refused(errors.refusal("NOT_FOUND", self._no_job(reference), [(field, "does not exist")]))
        return found

    def _find(self, reference: str, field: str) -> Job | None:
        jobs = self.state.jobs
        if reference in jobs:
            return jobs[reference]
        namespace, _, name = reference.rpartition("/")
        live = self.state.find_by_name(namespace or DEFAULT_NAMESPACE, name)
        if live is not None:
            return jobs[live]
        if is_id_prefix(reference):
            matches = [job for job_id, job in jobs.items() if job_id.startswith(reference)]
            if len(matches) == 1:
                return matches[0]
            if matches:
                message = f"{len(matches)} jobs have ids that start with {reference}: give more digits"
                raise Refused(errors.refusal("INVALID_ARGUMENT", message, [(field, "is ambiguous")]))
        wanted = (namespace or DEFAULT_NAMESPACE, name)
        ended = (jobs[job_id] for job_id in reversed(self.state.timers.finished))  # the newest first
        return next((job for job in ended if (job.spec.namespace, job.spec.name) == wanted), None)

    def _no_job(self, reference: str) -> str:
        namespace, slash, name = reference.rpartition("/")
        of = self.state.by_name
        near = meant(name, of.get(namespace or DEFAULT_NAMESPACE, {}))
        hint = f' (did you mean "{namespace}{slash}{near}"?)' if near else ""
        if not near:  # the right name, in another namespace?
            elsewhere = [other for other in islice(of, NAMESPACES_SEARCHED_MAX) if name in of[other]]
            hint = f' (did you mean "{min(elsewhere)}/{name}"?)' if elsewhere else ""
        return f'job "{reference}" does not exist, or ended long ago{hint}'

    # --- writes -----------------------------------------------------------------------------------------------------

    async def write(self, items: Sequence[AnyItem]) -> list[InboxPosition]:
        """Store commands durably. Raises InboxFull, OutcomeUnknown, ItemTooLarge."""
        return await self._writer.write(items) if items else []

    async def decided(self, positions: Sequence[InboxPosition]) -> list[tr.CommandRefused | None]:
        """Wait until all are decided; the refusal of each, or None. Raises Refused (UNAVAILABLE) when it takes long."""
        try:
            await self.follower.wait_applied(max(positions), self.settings.decide_timeout_ms / 1000)
        except TimeoutError:
            message = "the command is durable, but the cell has not decided it yet; repeating the call is safe"
            raise Refused(errors.retry("UNAVAILABLE", message, RETRY_AFTER_S)) from None
        return [self.state.refusals.get(position) for position in positions]

    async def command(self, item: AnyItem, *, dry_run: bool = False) -> InboxPosition | None:
        """Write one command and wait for its decision; the position, None on a dry run.

        Raises Rejected when the cell refuses it, Refused (UNAVAILABLE) when it takes long.
        """
        if dry_run:
            (rejected,) = self.try_out([item])
            if rejected is not None:
                raise rejected
            return None
        (position,) = await self.write([item])
        (refusal,) = await self.decided([position])
        if refusal is not None:
            raise Rejected(Code(refusal.code), refusal.field, refusal.message, refusal.rule)
        return position

    def try_out(self, items: Sequence[AnyItem]) -> list[Rejected | None]:
        """What the core says to `items` now, each after the ones before it. Nothing is written."""
        draft = Draft(self.state, max(self.clock.now_ms(), self.state.now_ms), DRY_RUN_WORK)
        return [_tried(draft, InboxPosition(self.state.position.seq + 1, at), item) for at, item in enumerate(items)]


def _tried(draft: Draft, position: InboxPosition, item: AnyItem) -> Rejected | None:
    try:
        match item:
            case SubmitJob():
                submission.submit(draft, position, item)
            case CancelJob():
                submission.cancel(draft, item)
            case ReportCheckpoint():
                checkpoints.report_checkpoint(draft, item)
            case UpsertQueue():
                queue_rules.upsert(draft, item)
            case DeleteQueue():
                queue_rules.delete(draft, item)
            case UpsertPriorityClass():
                priority_classes.upsert(draft, item)
            case DeletePriorityClass():
                priority_classes.delete(draft, item)
    except Rejected as error:
        return error
    return None


def refused(refusal: tr.CommandRefused | Rejected, prefix: str = "", *, whole: bool = False) -> status_pb2.Status:
    """The status of a refusal by the core. `whole`: `prefix` is all of the field in the request."""
    field = "" if whole else refusal.field
    return errors.broken_rule(refusal.code, field, refusal.message, refusal.rule, prefix)


def is_id_prefix(reference: str) -> bool:
    return PREFIX_DIGITS_MIN <= len(reference) <= ID_HEX_DIGITS and HEX_DIGITS.issuperset(reference)
