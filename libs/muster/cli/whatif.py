"""`muster what-if`: what a job or another tree would do now; nothing is changed."""

from __future__ import annotations

from typing import Any

from muster.api.v1 import query_pb2, queue_pb2
from muster.cli import explain, show, trees
from muster.cli.errors import CliError, Exit
from muster.cli.jobs import read_files
from muster.cli.options import Format
from muster.cli.queues import Fields, settled
from muster.cli.session import run, unknown_queue
from muster.client import Client, NotFound
from muster.client.requests import queue_message

PLACES_SHOWN = 8
ALONE = "each job was asked about alone: what one of them would take is free for the next in these answers"


def submit(files: list[str], *, queue: str, address: str, output: Format) -> None:
    """What would become of each job of the files, each for itself."""
    specs = read_files(files, queue)

    async def work(client: Client) -> list[query_pb2.JobForecast]:
        return [await client.what_if_job(spec) for spec in specs]

    answers = run(address, work)
    if show.is_machine(output):
        show.emit(output, {"jobs": [show.plain(answer) for answer in answers]})
        return
    for spec, answer in zip(specs, answers, strict=True):
        head = f"{spec.name}: " if len(specs) > 1 else ""
        print("\n".join([head + answer.summary, *lines(answer)]))
    if len(specs) > 1:
        print(ALONE)


def lines(answer: query_pb2.JobForecast) -> list[str]:
    """Where, whom it displaces, and why it waits, for people."""
    shown = answer.placement[:PLACES_SHOWN]
    found = [f"  {place.pods} x {place.task} on {place.node} ({place.cluster})" for place in shown]
    if len(answer.placement) > PLACES_SHOWN:
        found.append(f"  ... on {len(answer.placement) - PLACES_SHOWN:,} more")
    for victim in answer.displaces:
        what = f"{victim.replicas} replicas of {victim.name}" if victim.replicas else victim.name
        lost = trees.work_text(victim.lost_hours)
        found.append(
            f"  displaces {what} ({victim.job_id[:8]}, {victim.queue}, priority {victim.priority}"
            + (f", loses {lost})" if lost else ")")
        )
    if answer.HasField("explanation"):
        found += explain.reasons(answer.explanation)
    return found


def queue(path: str, fields: Fields, *, address: str, output: Format) -> None:
    """What a change of one queue would do; what is not given stays as it is."""
    given = fields.given()
    if not given:
        raise CliError("nothing to ask: give at least one of --weight, --limit, --state, ...", Exit.USAGE)

    async def work(client: Client) -> queue_pb2.ApplyQueuesResponse:
        try:
            current = (await client.get_queue(path)).proto
        except NotFound as error:
            raise await unknown_queue(client, path, error) from None
        return await client.what_if_queues(queue_pb2.ApplyQueuesRequest(queues=[changed(current, given)]))

    _print(run(address, work), output)


def changed(current: queue_pb2.Queue, given: dict[str, Any]) -> queue_pb2.Queue:
    """The queue with these fields; of its amounts, those of resources that are not named stay as they are."""
    wanted = queue_pb2.Queue()
    wanted.CopyFrom(current)
    for name in given:
        wanted.ClearField(name)  # type: ignore[arg-type]  # a field name of the message
    wanted.MergeFrom(queue_message(current.path, settled(current, given)))
    return wanted


def apply(file: str, *, prune: bool, root: str, address: str, output: Format) -> None:
    """What applying the file would do."""
    tree = trees.read(file)
    request = tree.request
    request.prune, request.prune_root = prune, root

    async def work(client: Client) -> queue_pb2.ApplyQueuesResponse:
        return await trees.placed(tree, client.what_if_queues(request))

    _print(run(address, work), output)


def _print(answer: queue_pb2.ApplyQueuesResponse, output: Format) -> None:
    if show.is_machine(output):
        show.emit(output, show.plain(answer))
        return
    print("\n".join([*trees.changes(answer), *trees.forecast(answer.forecast)]))
