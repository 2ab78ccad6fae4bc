"""`muster queue apply`, `export` and `move`: the queues of a file as one change, and back."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.api.v1 import queue_pb2
from muster.cli import show
from muster.cli.errors import CliError, Exit
from muster.cli.options import Format
from muster.cli.session import run
from muster.client import Client, JobFileError, queuefile
from muster.client.requests import new_request_id
from muster.core import resources

NAMED_MAX = 5  # reclaimable jobs that are named, of each queue


def read(file: str) -> queue_pb2.ApplyQueuesRequest:
    """The queues of a file, or of stdin. Raises CliError."""
    try:
        if file == "-":
            return queuefile.parse(sys.stdin.read(), source="stdin")
        return queuefile.load(Path(file))
    except JobFileError as error:
        raise CliError(str(error), Exit.USAGE) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}", Exit.USAGE) from None


def apply(file: str, *, prune: bool, root: str, dry_run: bool, address: str, output: Format) -> None:
    """Make the queues what the file says, or say what that would do."""
    request = read(file)
    request.prune, request.prune_root, request.dry_run = prune, root, dry_run
    _apply(request, address, output)


def _apply(request: queue_pb2.ApplyQueuesRequest, address: str, output: Format) -> None:
    request.request_id = new_request_id()

    async def work(client: Client) -> queue_pb2.ApplyQueuesResponse:
        return await client.apply_queues(request)

    answer = run(address, work)
    if show.is_machine(output):
        show.emit(output, show.plain(answer))
        return
    print("\n".join(changes(answer)))
    if request.dry_run:
        print("\n".join(forecast(answer.forecast)))
        print("nothing was changed (dry run)")


def export(root: str, *, address: str) -> None:
    """Print the queues as a file."""

    async def work(client: Client) -> list[queue_pb2.Queue]:
        return [queue.proto for queue in await client.list_queues(root)]

    sys.stdout.write(queuefile.dump(run(address, work)))


def changes(answer: queue_pb2.ApplyQueuesResponse) -> list[str]:
    """One line a queue, one more a field."""
    lines = []
    for change in answer.changes:
        lines.append(f"{change.path}  {change.kind}")
        lines += [f"  {field.field}: {field.before or 'none'} -> {field.after or 'none'}" for field in change.fields]
    return lines or ["nothing to change"]


def forecast(found: queue_pb2.TreeForecast) -> list[str]:
    """What the change would do to entitlements and to running jobs."""
    lines = []
    for change in found.entitlements:
        moved = sorted(r for r in {*change.before, *change.after} if change.before.get(r) != change.after.get(r))
        told = ", ".join(
            f"{_one(r, change.before)} -> {_one(r, change.after)} {resources.short_name(r)}" for r in moved
        )
        lines.append(f"entitled  {change.queue} {told}")
    lines += [f"reclaimable  {_jobs(taken)}" for taken in found.reclaimable]
    lines += [f"leaving  {_jobs(taken)}: the queue drains" for taken in found.leaving]
    return lines or ["no entitlement changes"]


def _jobs(taken: queue_pb2.Reclaimable) -> str:
    told = []
    if taken.jobs:
        told.append(f"{_count(taken.jobs, 'running job')} of {taken.queue} ({_named(taken.job_ids, taken.jobs)})")
    if taken.replicas:
        of = f"{_count(taken.replicas, 'replica')} of {_count(taken.shrunk_jobs, 'elastic job')}"
        where = "" if told else f" of {taken.queue}"
        told.append(f"{of}{where} ({_named(taken.shrunk_job_ids, taken.shrunk_jobs)})")
    work = work_text(taken.work_hours)
    return f"{' and '.join(told)} with {show.amounts(taken.usage)}{f', {work} of work' if work else ''}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _named(ids: Sequence[str], of: int) -> str:
    more = ", ..." if of > min(NAMED_MAX, len(ids)) else ""
    return ", ".join(job[:8] for job in ids[:NAMED_MAX]) + more


def _one(resource: str, quantities: Mapping[str, str]) -> str:
    return show.one_amount(resource, quantities, unit=False) if resource in quantities else "0"


def work_text(hours: Mapping[str, float]) -> str:
    """The work of the resource that tells most: `412 gpu-minutes`."""
    resource = show.main_resource({name: "" for name, amount in hours.items() if amount})
    if not resource:
        return ""
    amount = hours[resource]
    name = resources.short_name(resource)
    return f"{amount:,.1f} {name}-hours" if amount >= 10 else f"{amount * 60:,.0f} {name}-minutes"
