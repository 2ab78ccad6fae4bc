"""`muster usage` as a table."""

from __future__ import annotations

from muster.api.v1 import query_pb2
from muster.cli import usage


def test_every_job_is_in_a_column():
    row = query_pb2.UsageRow(queue="q1", submitted=9, started=8, succeeded=3, failed=2, cancelled=4)
    header, first, total = usage.table(query_pb2.GetUsageResponse(rows=[row], total=row), ["queue"]).splitlines()
    told = dict(zip(header.split(), first.split(), strict=False))
    assert [told[name] for name in ("JOBS", "DONE", "FAILED", "CANCELLED")] == ["9", "3", "2", "4"]
    assert total.split()[0] == "total"
