"""Every limit of the core has a name here (style rule 10). Units last."""

from __future__ import annotations

from typing import Final

TRANSACTION_BYTES_MAX: Final = 768 * 1024  # LOG-8; the estimate of sizes.size_of is compared with it
JOB_BYTES_MAX: Final = 256 * 1024  # LOG-8, encoded SubmitJob
GANG_PODS_MAX: Final = 40_000  # LOG-8: one gang fits one transaction with room to spare
TASK_GROUPS_MAX: Final = 64
DEVICES_PER_NODE_MAX: Final = 16
NODES_MAX: Final = 1 << 20  # indices ever given in a cell; placement keys keep 20 bits for them
REQUEST_IDS_MAX: Final = 2_000_000  # LOG-11
REQUEST_ID_TTL_MS: Final = 7 * 24 * 3600 * 1000  # LOG-11
FINISHED_TTL_MS: Final = 3600 * 1000  # LOG-16
FINISHED_JOBS_MAX: Final = 200_000  # LOG-16
ATTEMPTS_KEPT_MAX: Final = 8  # per job; older attempts are in the event stream
ATTEMPT_PODS_KEPT_MAX: Final = 64  # per attempt, how many pods it says how they ended, and exit codes of failed ones
RESIZES_KEPT_MAX: Final = 16  # per job: growths and shrinks; older ones are in the event stream
RESIZE_PODS_KEPT_MAX: Final = 64  # per shrink, of how many pods it is known why they left
QUEUES_MAX: Final = 10_000
QUEUE_DEPTH_MAX: Final = 16
QUEUE_CHANGES_MAX: Final = QUEUES_MAX  # in one command; what fits one transaction is bounded by its bytes (LOG-8)
NAME_CHARS_MAX: Final = 63
LABELS_MAX: Final = 64
START_TIMEOUT_MS: Final = 10 * 60 * 1000  # rule L3
BACKOFF_FIRST_MS: Final = 60 * 1000  # rule P5
BACKOFF_MAX_MS: Final = 3600 * 1000  # rule P5
HOLD_TTL_MS: Final = 5 * 60 * 1000  # rule P5: at least so long, and by so much a hold is extended
HOLD_MARGIN_MS: Final = 2 * 60 * 1000  # rule P5: beyond the longest grace period of the victims
HOLD_LATE_MAX_MS: Final = 30 * 60 * 1000  # rule P5: so long after that a hold still waits for victims that do not go
GRACE_MAX_MS: Final = 24 * 3600 * 1000  # a grace period that is longer is waited for as if it were this
PREEMPTIONS_REQUESTED_MAX: Final = 64  # outstanding PreemptionRequested per cell
REFUSALS_REMEMBERED_MAX: Final = 10_000  # for wait=DECIDED
MEMORY_BYTES_MAX: Final = 1 << 50
AMOUNT_MAX: Final = 1 << 50  # keeps every sum of GANG_PODS_MAX amounts below 2**63 in int64 arithmetic after clamping
RETRY_FIRST_MS: Final = 1000  # backoff after a rejected placement or a lost pod; doubles up to BACKOFF_MAX_MS
SUSPECTS_MAX: Final = 64  # nodes a job avoids; the oldest are given another chance
SUSPECTS_FEW: Final = 8  # so many nodes may refuse a job before that is taken for the fault of the job
PREEMPTIONS_MAX: Final = 5  # rule P4: after so many a job is preempted only by higher priority, if it says no other
PREEMPTIONS_ALLOWED_MAX: Final = 1000  # rule P4: what a job may say at most
PRIORITY_CLASSES_MAX: Final = 1000  # of a cell; snapshots have them all in one part
ENTITLEMENT_LATE_MS: Final = 1000  # after its submission a job may not be counted in entitlements yet (rule P3)
PREEMPTION_RETRY_FIRST_MS: Final = 1000  # before a preemption is asked for again; doubles
PREEMPTION_RETRY_MAX_MS: Final = 60 * 1000
PLAN_VICTIMS_MAX: Final = 512  # victims of one preemption plan (LOG-8)
MESSAGE_CHARS_MAX: Final = 1000  # of what people or clusters say about a job; the rest is cut off
SUBJECT_CHARS_MAX: Final = 1100  # of what a refusal is about: a queue path of full depth
