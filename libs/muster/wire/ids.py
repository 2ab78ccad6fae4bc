"""Identities of a submission: the job's id and the digest of what was asked (LOG-11).

Both follow from the request alone, so a client that repeats a request after a lost answer names the same job, and
another body under the same request id is told apart. They are computed here and compared in the core.
"""

from __future__ import annotations

import hashlib
from typing import Final

from muster.api.v1 import job_pb2

ID_HEX_DIGITS: Final = 32  # 128 bits
DEFAULT_NAMESPACE: Final = "default"


def job_id(cell: str, namespace: str, request_id: str, index: int) -> str:
    """32 hex digits: SHA-256 of the four, cut to 128 bits. None of them holds a NUL."""
    text = f"{cell}\0{namespace}\0{request_id}\0{index}"
    return hashlib.sha256(text.encode()).hexdigest()[:ID_HEX_DIGITS]


def body_digest(spec: job_pb2.JobSpec, *, traced: bool = True) -> str:
    """32 hex digits over the item's fields. The trace is not part of it: each retry has its own; `traced` False tells
    that there is none."""
    if traced and spec.trace_context:
        copy = job_pb2.JobSpec()
        copy.CopyFrom(spec)
        copy.ClearField("trace_context")
        spec = copy
    return hashlib.sha256(spec.SerializeToString(deterministic=True)).hexdigest()[:ID_HEX_DIGITS]
