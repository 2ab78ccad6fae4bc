"""`muster doctor`: looks at every part a cell needs, says which one is wrong and what to do about it.

Each check is a function that yields findings; a check that cannot even look is a finding too. It only reads: nothing is
created, changed or restarted. What `muster up` started on this machine is known from its state file and looked at as
well; a cell elsewhere is judged by NATS and by what admission says.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from muster.cli import rundir, show
from muster.cli.errors import CliError, Exit, from_client
from muster.cli.natsio import api, connected, round_trip_ms, stream_info
from muster.cli.options import Format
from muster.cli.session import probe
from muster.client import ClientError, connect
from muster.runtime import streams

CLOCK_SKEW_MAX_S: Final = 2.0  # LOG-2: a leader further off does not lead
INBOX_FULL_SHARE: Final = 0.8
BACKLOG_MAX: Final = 1_000
LAG_MAX: Final = 1_000
LEASE_AGE_MAX_S: Final = 10.0  # most leases are renewed about once a second
LEASE_TTLS_MAX: Final = 2  # of its own time to live, where that is longer
CALL_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True)
class Finding:
    """What was looked at, whether it is well, what was seen, and what to do when it is not, or when it is odd."""

    part: str
    ok: bool
    seen: str
    advice: str = ""
    odd: bool = False  # nothing is wrong, and somebody should know


def doctor(*, address: str, nats: str, cell: str, output: Format) -> None:
    """Print all findings. Raises SystemExit(UNHEALTHY) when something is wrong."""
    found = asyncio.run(_examine(rundir.address_of(address), rundir.nats_url_of(nats), cell))
    if show.is_machine(output):
        show.emit(output, {"findings": [plain(finding) for finding in found]})
    else:
        print("\n".join(report(found)))
    if not all(finding.ok for finding in found):
        raise SystemExit(Exit.UNHEALTHY)


def plain(finding: Finding) -> dict[str, Any]:
    """As data; there is nothing to do about what is well."""
    return asdict(finding) | ({"advice": ""} if finding.ok and not finding.odd else {})


def report(found: list[Finding]) -> list[str]:
    """One line a finding, the advice below those that are wrong or odd, and a verdict."""
    lines = []
    for finding in found:
        mark = "WRONG" if not finding.ok else "odd" if finding.odd else "ok"
        lines.append(f" {mark:<5}  {finding.part:<12} {finding.seen}")
        if finding.advice and (finding.odd or not finding.ok):
            lines.append(f"{'':21}-> {finding.advice}")
    wrong = [finding.part for finding in found if not finding.ok]
    lines.append(f" wrong: {', '.join(dict.fromkeys(wrong))}" if wrong else " everything is well")
    return lines


async def _examine(address: str, nats_url: str, cell: str) -> list[Finding]:
    found: list[Finding] = []
    for check in (_nats(nats_url, cell), _admission(address), _started_here()):
        found += [finding async for finding in check]
    return found


# --- NATS: connection, clock, streams, leases -----------------------------------------------------------------------


async def _nats(url: str, cell: str) -> AsyncIterator[Finding]:
    try:
        async with connected(url) as client:
            version = str(client.connected_server_version).strip("<>").rpartition(" v")[2]
            yield Finding("nats", True, f"{url}, version {version}, round trip {await round_trip_ms(client):.1f} ms")
            for finding in await _streams(client, cell):
                yield finding
            async for finding in _leases(client):
                yield finding
    except CliError as error:
        yield Finding("nats", False, error.message, error.hint)


async def _streams(client: Any, cell: str) -> list[Finding]:
    found: list[Finding] = []
    specs = (
        streams.inbox_spec(cell),
        streams.ledger_spec(cell),
        streams.snapshots_spec(cell),
        streams.leases_spec(),
        streams.events_spec(),
    )
    for spec in specs:
        info = await stream_info(client, spec.name)
        if info is None:
            advice = f"start the services of cell {cell} against this NATS, or name the right cell with --cell"
            found.append(Finding("stream", False, f"{spec.name} does not exist", advice))
            continue
        if spec.name == streams.LEASES:
            found.append(_clock(info))
        state, limit = info["state"], int(info["config"].get("max_bytes", -1))
        size = int(state["bytes"])
        seen = f"{spec.name}: {state['messages']:,} messages, {show.mebibytes(size)}"
        full = limit > 0 and size > limit * INBOX_FULL_SHARE
        advice = "it will soon refuse writes: is a queue-manager leading, and is the log trimmed behind snapshots?"
        found.append(Finding("stream", not full, seen + (f", {size / limit:.0%} full" if full else ""), advice))
    return found


def _clock(info: dict[str, Any]) -> Finding:
    """This machine's clock against the server's (LOG-2)."""
    try:
        server_s = datetime.fromisoformat(str(info["ts"]).replace("Z", "+00:00")).timestamp()
    except (KeyError, ValueError):
        return Finding("clock", True, "the server does not tell its time")
    skew_s = time.time() - server_s
    seen = f"{abs(skew_s) * 1000:.0f} ms {'ahead of' if skew_s >= 0 else 'behind'} NATS"
    return Finding("clock", abs(skew_s) <= CLOCK_SKEW_MAX_S, seen, "synchronise the clocks (NTP): no leader leads")


async def _leases(client: Any) -> AsyncIterator[Finding]:
    found = await api(client, f"STREAM.INFO.{streams.LEASES}", {"subjects_filter": ">"})
    subjects = sorted((found.get("state") or {}).get("subjects") or {})
    if "error" not in found and not subjects:
        yield Finding("lease", False, "nobody holds any lease", "start queue-managers and binders")
    families: dict[str, list[tuple[str, float, bool]]] = {}  # lease without its partition -> (owner, age, stale)
    for subject in subjects:
        answer = await api(client, f"STREAM.MSG.GET.{streams.LEASES}", {"last_by_subj": subject})
        message = answer.get("message") or {}
        record = _lease_record(message)
        owner = str(record.get("owner", ""))
        try:
            at = datetime.fromisoformat(str(message["time"])[:26].rstrip("Z") + "+00:00")
        except (KeyError, ValueError):
            continue
        if owner:  # other notes are kept in the stream as well
            family = subject.removeprefix("muster.leases.").rstrip("0123456789").rstrip(".")
            age_s = max(0.0, time.time() - at.timestamp())
            # A released lease is taken by the next replica within a moment; one that stays so has nobody to take it.
            stale = age_s > max(LEASE_AGE_MAX_S, LEASE_TTLS_MAX * int(record.get("ttl_ms", 0)) / 1000)
            families.setdefault(family, []).append((owner, age_s, stale))
    for family, leases in families.items():
        owners = ", ".join(sorted({owner for owner, _, _ in leases}))
        gone = [owner for owner, _, stale in leases if stale]
        oldest = max(age_s for _, age_s, _ in leases)
        count = f" ({len(leases)} partitions)" if len(leases) > 1 else ""
        seen = f"{family}{count} held by {owners}, renewed at most {show.duration(oldest)} ago"
        advice = f"{len(gone)} of {len(leases)} are not renewed: see the log of {', '.join(sorted(set(gone)))}"
        yield Finding("lease", not gone, seen, advice)


def _lease_record(message: dict[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(base64.b64decode(str(message.get("data", ""))))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# --- admission and what it knows of the cell ------------------------------------------------------------------------


async def _admission(address: str) -> AsyncIterator[Finding]:
    try:
        probe(address)
        async with connect(address, timeout_s=CALL_TIMEOUT_S) as client:
            cell = await client.cell()
    except CliError as error:
        yield Finding("admission", False, error.message, error.hint)
        return
    except ClientError as error:
        failed = from_client(error, address)
        yield Finding("admission", False, failed.message, failed.hint)
        return
    lag = max(0, cell.ledger_end - cell.ledger_sequence)
    seen = f"{address} ({cell.replica}) shows ledger {cell.ledger_sequence:,}, {lag:,} behind"
    yield Finding(
        "admission", lag <= LAG_MAX, seen, "it cannot keep up with the ledger: give it CPU or another replica"
    )
    seen = f"{cell.leader or 'none'}, epoch {cell.epoch}"
    yield Finding("leader", bool(cell.leader), seen, "no queue-manager leads: start one, or see its log")
    backlog = max(0, cell.inbox_end - cell.inbox_committed.sequence)
    seen = f"{backlog:,} messages wait for the leader"
    yield Finding("inbox", backlog <= BACKLOG_MAX, seen, "the leader is down or too slow: see `muster top` and its log")
    if not cell.clusters:
        yield Finding(
            "cluster", False, "the cell knows no cluster", "is a topology-updater running with MUSTER_CLUSTERS?"
        )
    for cluster in cell.clusters:
        well = cluster.synced and cluster.ready_nodes > 0
        seen = f"{cluster.name}: {cluster.ready_nodes:,} of {cluster.nodes:,} nodes ready"
        seen += "" if cluster.synced else ", not completely listed yet"
        yield Finding("cluster", well, seen, "topology-updater cannot list its nodes: is the API server reachable?")
    for told in cell.warnings:
        yield Finding("queues", True, told, "guarantee less, or is a part of the nodes missing?", odd=True)


# --- what `muster up` started on this machine -----------------------------------------------------------------------


async def _started_here() -> AsyncIterator[Finding]:
    facts = rundir.last_up()
    for name, address in (facts.get("metrics") or {}).items():
        ok, seen = await asyncio.to_thread(_http, f"http://{address}/readyz")
        log = f"{facts.get('run_dir')}/logs/{name}.log"
        yield Finding("service", ok, f"{name}: {seen}", f"see {log}; `muster up` restarts it when it exits")
    for name, url in (facts.get("clusters") or {}).items():
        ok, seen = await asyncio.to_thread(_http, f"{url}/version")
        yield Finding("kube", ok, f"{name} at {url}: {'answers' if ok else seen}", "its API server is down")


def _http(url: str) -> tuple[bool, str]:
    """Whether a GET succeeded, and its first line or what went wrong."""
    try:
        with urllib.request.urlopen(url, timeout=CALL_TIMEOUT_S) as answer:
            text = answer.read(2048).decode(errors="replace").strip()
            return True, _first_line(text)
    except urllib.error.HTTPError as error:
        return False, _first_line(error.read(2048).decode(errors="replace").strip()) or str(error)
    except OSError as error:
        return False, f"does not answer ({getattr(error, 'reason', error)})"


def _first_line(text: str) -> str:
    if text.startswith("{"):
        try:
            return str(json.loads(text).get("message") or "answers")
        except ValueError:
            return "answers"
    return text.splitlines()[0] if text else ""
