"""Lists of jobs in pages that stay stable while jobs come and go.

The order is that of submission: the inbox position of the job's submission, which is unique and never changes, and in
which the state keeps its jobs. A page token is the position of the last job of the page, so a job that ends, leaves or
arrives between two pages moves none of the others.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from typing import Final

from muster.api.v1 import query_pb2
from muster.core.errors import Code, Rejected
from muster.core.model import InboxPosition
from muster.core.state import CellState, Job
from muster_admission.filters import JobFilter

PAGE_DEFAULT: Final = 100
SLICE_JOBS: Final = 5_000  # looked at before other calls get their turn


async def page_of(state: CellState, request: query_pb2.ListJobsRequest) -> tuple[list[Job], str]:
    """The jobs of one page and the token of the next ("": this was the last). Raises Rejected."""
    wanted = JobFilter(request.filter)
    queues = wanted.queues(state)
    size = request.page_size or PAGE_DEFAULT
    after = _position_of(request)
    jobs = list(state.jobs.values())
    if request.descending:
        jobs.reverse()
    found: list[Job] = []
    for number, job in enumerate(jobs):
        if number % SLICE_JOBS == SLICE_JOBS - 1:
            await asyncio.sleep(0)
        at = job.submit_position
        if after is not None and (at >= after if request.descending else at <= after):
            continue
        if wanted.matches(job, queues):
            if len(found) == size:
                return found, _token(found[-1].submit_position, request)
            found.append(job)
    return found, ""


def _token(position: InboxPosition, request: query_pb2.ListJobsRequest) -> str:
    text = f"{position.seq}.{position.item}.{_fingerprint(request)}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _position_of(request: query_pb2.ListJobsRequest) -> InboxPosition | None:
    token = request.page_token
    if not token:
        return None
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
        seq, item, fingerprint = text.split(".")
        position = InboxPosition(int(seq), int(item))
    except (ValueError, binascii.Error):
        raise Rejected(Code.INVALID_ARGUMENT, "page_token", "is not a token of this API") from None
    if fingerprint != _fingerprint(request):
        raise Rejected(Code.INVALID_ARGUMENT, "page_token", "belongs to a list with another filter or order")
    return position


def _fingerprint(request: query_pb2.ListJobsRequest) -> str:
    text = request.filter.SerializeToString(deterministic=True) + bytes([request.descending])
    return hashlib.sha256(text).hexdigest()[:12]
