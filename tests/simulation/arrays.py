"""What clusters really did with the indices of array jobs, held against what the ledger said of them (rule G1).

Judged at the end of a run, from the audit log of the clusters: an index of which the ledger said that it succeeded has
succeeded on some node, its pod was never created afterwards, and no more of a job ran at once than may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from muster.core.model import EVERY_INDEX, JobSpec
from muster.sim.cluster import audit

Succeeded = Mapping[str, Mapping[int, int]]  # job -> index -> when the ledger said so


def judge(records: Sequence[audit.Record], specs: Sequence[JobSpec], succeeded: Succeeded) -> list[str]:
    """What is wrong, in words. `records` are in the order of time."""
    arrays = {spec.id: spec for spec in specs if spec.completion == EVERY_INDEX}
    found = []
    real: dict[tuple[str, int], None] = {}
    running: Counter[str] = Counter()
    for record in records:
        spec = arrays.get(record.job)
        if spec is None or record.resource != "pods":
            continue
        said_ms = succeeded.get(spec.id, {}).get(int(record.pod))
        if record.verb == "create" and record.code == 201 and said_ms is not None and said_ms < record.time_ms:
            found.append(f"{record.name} was created at {record.time_ms}, its index succeeded at {said_ms}")
        running[spec.id] += (record.verb == audit.RUN) - (record.verb == audit.STOP)
        if spec.max_parallel and running[spec.id] > spec.max_parallel:
            found.append(f"{running[spec.id]} of job {spec.id} run at {record.time_ms}, {spec.max_parallel} may")
        if record.verb == audit.STOP and record.phase == "Succeeded":
            real[spec.id, int(record.pod)] = None
    for job, indices in succeeded.items():
        found += [f"index {index} of job {job} never ran to its end" for index in indices if (job, index) not in real]
    return found
