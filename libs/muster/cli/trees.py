"""`muster queue apply`, `export` and `move`: the queues of a file as one change, and back."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from muster.api.v1 import queue_pb2
from muster.cli import show
from muster.cli.errors import CliError, Exit
from muster.cli.options import Format
from muster.cli.session import run
from muster.client import Client, ClientError, JobFileError, queuefile
from muster.client.errors import Violation
from muster.client.requests import new_request_id
from muster.core import resources

NAMED_MAX = 5  # reclaimable jobs that are named, of each queue


T = TypeVar("T")


def read(file: str) -> queuefile.TreeFile:
    """The queues of a file, or of stdin. Raises CliError."""
    try:
        if file == "-":
            return queuefile.read(sys.stdin.read(), source="stdin")
        return queuefile.read(Path(file).read_text(encoding="utf-8"), source=file)
    except JobFileError as error:
        raise CliError(str(error), Exit.USAGE) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}", Exit.USAGE) from None


async def placed(tree: queuefile.TreeFile, call: Awaitable[T]) -> T:
    """The answer of a call with the request of the file; what the server says of it names places in the file."""
    try:
        return await call
    except ClientError as error:
        wrong = [Violation(tree.placed(each.field), each.description) for each in error.violations]
        said = tree.placed(error.message)
        raise type(error)(error.code, said, wrong, error.retry_after_s, error.rule) from None


def apply(
    file: str, *, prune: bool, root: str, dry_run: bool, revision: int | None, address: str, output: Format
) -> None:
    """Make the queues what the file says, or say what that would do. `revision` goes before the one in the file."""
    tree = read(file)
    request = tree.request
    if revision is not None:
        request.expected_revision = revision
    request.prune, request.prune_root, request.dry_run = prune, root, dry_run
    request.request_id = new_request_id()

    async def work(client: Client) -> queue_pb2.ApplyQueuesResponse:
        return await placed(tree, client.apply_queues(request))

    answer = run(address, work)
    if show.is_machine(output):
        show.emit(output, show.plain(answer))
        return
    print("\n".join(changes(answer)))
    if request.dry_run:
        print("\n".join(forecast(answer.forecast)))
        print(f"the tree has revision {answer.tree_revision}")
        print("nothing was changed (dry run)")
    elif answer.changes and answer.tree_revision:
        print(f"the tree has revision {answer.tree_revision} now")


def export(root: str, *, address: str) -> None:
    """Print the queues as a file."""

    async def work(client: Client) -> queue_pb2.ListQueuesResponse:
        return await client.queue_tree(root)

    found = run(address, work)
    sys.stdout.write(queuefile.dump(found.queues, found.tree_revision))


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
    return [*(lines or ["no entitlement changes"]), *(f"warning  {told}" for told in found.warnings)]


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
