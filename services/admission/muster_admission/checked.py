"""The declared rules of a submission, checked once for jobs that differ in nothing but their name.

Checking a job against the rules of its proto costs as much as everything else that admission does with it, and a batch
is mostly the same job many times. So what was found good is remembered by its bytes without the name. A name that the
core takes breaks no declared rule (tests hold both against each other); anything not known is checked in full.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from muster.api.v1 import submission_pb2
from muster.core.limits import NAME_CHARS_MAX
from muster.core.submission import NAME
from muster_admission.calls import Broken, violations

JOBS_MAX: Final = 1000  # in a request, by its declared rule
REMEMBERED_MAX: Final = 4096
REMEMBERED_BYTES_MAX: Final = 4096  # of one job

Violations = list[Broken]


class CheckedJobs:
    """One per process."""

    def __init__(self) -> None:
        self._good: OrderedDict[bytes, None] = OrderedDict()

    def violations(self, request: submission_pb2.SubmitJobsRequest, bodies: Sequence[bytes]) -> Violations:
        """What breaks the declared rules. `bodies`: of each job `wire.jobs.without_name`."""
        if 0 < len(request.jobs) <= JOBS_MAX and self._knows(request, bodies):
            rest = submission_pb2.SubmitJobsRequest(
                request_id=request.request_id, jobs=request.jobs[:1], dry_run=request.dry_run, wait=request.wait
            )
            return violations(rest)
        found = violations(request)
        if not found:
            self._remember(bodies)
        return found

    def _knows(self, request: submission_pb2.SubmitJobsRequest, bodies: Sequence[bytes]) -> bool:
        for job, body in zip(request.jobs, bodies, strict=True):
            name = job.name
            if len(name) > NAME_CHARS_MAX or NAME.fullmatch(name) is None or body not in self._good:
                return False
        return True

    def _remember(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            if len(body) <= REMEMBERED_BYTES_MAX:
                self._good[body] = None
        while len(self._good) > REMEMBERED_MAX:
            self._good.popitem(last=False)
