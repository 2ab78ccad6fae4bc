"""The fields that are part of the API but not of this build: each is refused by name until its rule exists.

The names are those of the proto. Whoever builds one takes it out of here, reads it in `jobs`, and gives the core's
JobSpec a field for it.
"""

from __future__ import annotations

from typing import Final

from muster.core.errors import Code, Rejected
from muster.wire.errors import RESERVED

JOB_FIELDS: Final = frozenset(
    {
        "on_behalf_of",
        "account",
        "suspend",
        "holds",
        "not_before",
        "deadline",
        "depends_on",
        "job_set",
        "success_policies",
        "failure_policy",
        "lifecycle_policies",
        "environment",
        "resource_claims",
        "may_span_clusters",
        "exclusive_node",
        "topology",
        "reservation",
        "licences",
        "max_retries",
        "ttl_after_finished",
        "objects",
        "expected_runtime",
        "node_lost_timeout",
    }
)
CHECKPOINT_FIELDS: Final = frozenset({"signal"})
TASK_FIELDS: Final = frozenset({"near", "topology", "alternatives", "gpu_models", "resource_claims"})


def refusal(field: str) -> Rejected:
    """What a caller who sets a reserved field is told. `field` is its path in the job."""
    return Rejected(Code.UNIMPLEMENTED, field, "is part of the API but not built yet: leave it out", RESERVED)
