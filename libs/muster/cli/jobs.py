"""What submit, list, get, cancel and checkpoint do: files become submissions, answers become tables and time lines."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from muster.api.v1 import job_pb2
from muster.cli import show, waiting
from muster.cli.errors import CliError, Exit, details, exit_code_of, sentence
from muster.cli.options import Format
from muster.cli.session import run, unknown_job, unknown_queue
from muster.client import Client, ClientError, Job, JobFileError, NotFound, Submitted, parse
from muster.client.durations import parse_duration_ms
from muster.client.requests import job_filter
from muster.client.views import phase_text, reason_text
from muster.core.limits import PREEMPTIONS_MAX
from muster.core.words import several

Result = Submitted | ClientError
NO_TEMPLATE: Final = "no pod template: on a real cluster it holds what it asks for and does nothing, until cancelled"


# --- submit ---------------------------------------------------------------------------------------------------------


def submit(
    files: Sequence[str], *, request_id: str, queue: str, wait: bool, dry_run: bool, address: str, output: Format
) -> None:
    """Submit every job of the files. Raises CliError when any of them was refused, after printing all results."""
    specs = read_files(files, queue)
    endless = [spec.name for spec in specs if not spec.template and not all(task.template for task in spec.tasks)]
    if endless:
        more = f" and {len(endless) - 1:,} more" if len(endless) > 1 else ""
        print(f"muster: warning: {endless[0]}{more}: {NO_TEMPLATE}", file=sys.stderr)

    async def work(client: Client) -> int:
        results = await client.submit_many(specs, request_id=request_id, wait="decided", dry_run=dry_run)
        _print_results(specs, results, dry_run, output)
        code = await _first_refusal(client, specs, results)
        accepted = [result for result in results if isinstance(result, Submitted)]
        if wait and not dry_run:
            code = code or await waiting.until_ended(client, accepted, quiet=show.is_machine(output))
        return code

    if code := run(address, work):
        raise SystemExit(code)


def read_files(files: Sequence[str], queue: str) -> list[job_pb2.JobSpec]:
    """The jobs of all files; `queue` is for those that name none. Raises CliError, also when there are none."""
    specs = [spec for file in files for spec in read_jobs(file)]
    for spec in specs:
        spec.queue = spec.queue or queue
    if not specs:
        raise CliError(f"no job in {', '.join(files)}", Exit.USAGE)
    return specs


def read_jobs(file: str) -> list[job_pb2.JobSpec]:
    """The jobs of one file, `-` for stdin. Raises CliError with the place of what is wrong."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}", Exit.USAGE) from None
    try:
        return parse(text, source="stdin" if file == "-" else file)
    except JobFileError as error:
        raise CliError(str(error), Exit.USAGE) from None


def _print_results(specs: Sequence[job_pb2.JobSpec], results: Sequence[Result], dry_run: bool, output: Format) -> None:
    if show.is_machine(output):
        show.emit(output, [_result_data(spec, result) for spec, result in zip(specs, results, strict=True)])
        return
    for spec, result in zip(specs, results, strict=True):
        if isinstance(result, Submitted):
            word = "was submitted before" if result.known else "acceptable" if dry_run else "submitted"
            print(f"{result.name}  {spec.queue}  {word}" + ("" if dry_run else f" as {result.id}"))


def _result_data(spec: job_pb2.JobSpec, result: Result) -> dict[str, Any]:
    if isinstance(result, Submitted):
        return {"name": result.name, "namespace": result.namespace, "queue": spec.queue, "id": result.id}
    wrong = [{"field": v.field, "description": v.description} for v in result.violations]
    return {"name": spec.name, "queue": spec.queue, "code": result.code, "error": result.message,
            "rule": result.rule, "violations": wrong}  # fmt: skip


async def _first_refusal(client: Client, specs: Sequence[job_pb2.JobSpec], results: Sequence[Result]) -> int:
    """Print each refusal; returns the exit code of the first, 0 when there was none."""
    code = 0
    for spec, result in zip(specs, results, strict=True):
        if isinstance(result, Submitted):
            continue
        message = sentence(result)
        if result.code == "NOT_FOUND" and 'queue "' in message:
            message = (await unknown_queue(client, spec.queue, result)).message
        print(f"muster: {spec.name or 'job'}: {message}", file=sys.stderr)
        for line in details(result):
            print(f"  {line}", file=sys.stderr)
        code = code or exit_code_of(result.code)
    return code


# --- list -----------------------------------------------------------------------------------------------------------


def list_jobs(
    *,
    queue: str,
    states: Sequence[str],
    namespace: str,
    labels: Sequence[str],
    limit: int,
    address: str,
    output: Format,
) -> None:
    """Print the newest jobs that match."""
    try:
        filters = job_filter(queue=queue, states=states, namespace=namespace, labels=pairs(labels, "--label"))
    except ValueError as error:
        raise CliError(str(error), Exit.USAGE) from None

    async def work(client: Client) -> list[Job]:
        return [job async for job in client.list(filters, limit=limit, newest_first=True)]

    found = run(address, work)
    if show.is_machine(output):
        show.emit(output, {"jobs": [job.to_dict() for job in found]})
        return
    if not found:
        print("no jobs")
        return
    wide = output is Format.WIDE
    header = ["NAME", "QUEUE", "STATE", "REASON", "PODS", "PRIORITY", "AGE", "ID"]
    header += ["CLASS", "NAMESPACE", "SUBMITTER", "EPOCH", "REQUESTS"] if wide else []
    print(show.table(header, [_row(job, wide) for job in found], right=frozenset({5, 6})))
    if limit and len(found) == limit:
        print(f"(the newest {limit}; --limit 0 shows all)")


def _row(job: Job, wide: bool) -> list[str]:
    status, spec = job.proto.status, job.proto.spec
    age = show.duration(time.time() - show.seconds_of(status.submit_time))
    priority = str(spec.priority)
    row = [job.name, job.queue, job.state, job.reason or show.NOTHING, pod_counts(job), priority, age, job.id[:8]]
    if wide:
        requests = " + ".join(f"{task.replicas} x ({show.amounts(task.resources)})" for task in spec.tasks)
        row += [spec.priority_class or show.NOTHING, job.namespace, job.submitter or show.NOTHING]
        row += [str(status.epoch), requests]
    return row


def pod_counts(job: Job) -> str:
    """running/wanted while it runs, else succeeded/wanted; of an array job always how many indices have succeeded."""
    pods = job.proto.status.pods
    wanted = pods.wanted or sum(task.replicas for task in job.proto.spec.tasks)
    if is_array(job):
        return f"{pods.succeeded}/{wanted} done" + (f", {pods.running} run" if pods.running else "")
    return f"{pods.succeeded if job.finished else pods.running}/{wanted}"


def is_array(job: Job) -> bool:
    return job.proto.spec.completion == job_pb2.COMPLETION_EVERY_INDEX


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """`key=value` texts (also several in one, by commas) as a dict. Raises CliError, also for a key twice."""
    found: dict[str, str] = {}
    for text in (part for whole in texts for part in whole.split(",") if part):
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise CliError(f'{option} "{text}" is not key=value', Exit.USAGE)
        if key.strip() in found:
            raise CliError(f'{option} names "{key.strip()}" twice', Exit.USAGE)
        found[key.strip()] = value.strip()
    return found


# --- get ------------------------------------------------------------------------------------------------------------


def get(name: str, *, address: str, output: Format) -> None:
    """Print one job."""

    async def work(client: Client) -> Job:
        try:
            return await client.get(name)
        except NotFound as error:
            raise await unknown_job(client, name, error) from None

    job = run(address, work)
    if show.is_machine(output):
        show.emit(output, job.to_dict())
        return
    print("\n".join(_portrait(job, wide=output is Format.WIDE)))


def _portrait(job: Job, wide: bool) -> list[str]:
    status, spec = job.proto.status, job.proto.spec
    now = time.time()
    reason = f" ({job.reason})" if job.reason else ""
    lines = [f"{job.name}  {job.queue}  {job.state}{reason}   {pod_counts(job)} pods   id {job.id}"]
    if job.message:
        lines.append(f" message   {job.message}")
    lines += [f" needs     {task.name}: {_count(task)} x ({show.amounts(task.resources)})" for task in spec.tasks]
    of_class = f" (class {spec.priority_class})" if spec.priority_class else ""
    names = f"namespace {job.namespace}   submitter {job.submitter or show.NOTHING}"
    lines.append(f" priority  {spec.priority}{of_class}   {names}")
    lines += [f" protected {told}" for told in _protection(job)]
    bounds = [
        f"{name} {show.duration(bound.ToMilliseconds() / 1000)}"
        for name, bound in (("max_runtime", spec.max_runtime), ("max_wait", spec.max_wait))
        if bound.ByteSize()
    ]
    if is_array(job):
        at_once = spec.array.max_parallel
        bounds.append(f"array, {f'{at_once} at once' if at_once else 'as many at once as there is room for'}")
    if spec.checkpoint.interval.ByteSize():
        bounds.append(f"checkpoint every {show.duration(spec.checkpoint.interval.ToMilliseconds() / 1000)}")
    if spec.max_wait.ByteSize():
        bounds.append("(max_wait is recorded; nothing acts on it yet)")
    if bounds:
        lines.append(f" bounds    {'   '.join(bounds)}")
    if saved := show.seconds_of(status.checkpoint_time):
        lines.append(f" saved     {show.clock(saved)}, {show.duration(now - saved)} ago")
    if spec.trace_context:
        lines.append(f" trace     {_trace_id(spec.trace_context)}")
    lines.append(" life")
    submitted = show.seconds_of(status.submit_time)
    lines += [f"   {show.clock(at)}  +{show.duration(at - submitted):<8} {what}" for at, what in _life(job)]
    if not job.finished:
        lines.append(f"   now       +{show.duration(now - submitted):<8} {job.state}")
    for attempt in status.attempts[None if wide else -1 :]:
        if wide and len(status.attempts) > 1:
            lines.append(f" epoch {attempt.epoch}")
        rows = [_replica_row(replica) for replica in attempt.replicas[: None if wide else 20]]
        if rows:
            lines.append(show.table((" POD", "CLUSTER", "NODE", "DEVICES", "PHASE", "EXIT"), rows))
        if len(attempt.replicas) > len(rows):
            lines.append(f" ... {len(attempt.replicas) - len(rows):,} more (-o wide)")
    return lines


def _protection(job: Job) -> list[str]:
    """What keeps the job from being preempted, beyond what keeps every job (rule P4)."""
    status, spec = job.proto.status, job.proto.spec
    most = spec.max_preemptions if spec.HasField("max_preemptions") else PREEMPTIONS_MAX
    fixed = spec.HasField("preemptible") and not spec.preemptible
    parts = ["not preemptible"] if fixed else []
    if not fixed and status.preemptions >= most:
        parts.append(f"preempted {status.preemptions} of {most} times: from now on only by priority")
    elif not fixed and (status.preemptions or spec.HasField("max_preemptions")):
        parts.append(f"preempted {status.preemptions} of {most} times")
    if least_ms := status.min_runtime.ToMilliseconds():
        parts.append(f"until it ran {show.duration(least_ms / 1000)}")
    return ["   ".join(parts)] if parts else []


def _count(task: job_pb2.TaskGroup) -> str:
    """`4..8` for an elastic group."""
    elastic = task.HasField("min_replicas") and task.min_replicas < task.replicas
    return f"{task.min_replicas}..{task.replicas}" if elastic else str(task.replicas)


def _life(job: Job) -> list[tuple[float, str]]:
    """The steps that the status tells of, in order of time."""
    status = job.proto.status
    steps = [(show.seconds_of(status.submit_time), f"Queued in {job.proto.spec.queue}")]
    for attempt in status.attempts:
        steps.append((show.seconds_of(attempt.place_time), f"Placed (epoch {attempt.epoch})"))
        if at := show.seconds_of(attempt.start_time):
            steps.append((at, "Running"))
        steps += [(show.seconds_of(resize.time), _resized(resize)) for resize in attempt.resizes]
        ended = show.seconds_of(attempt.end_time)
        if ended and attempt.reason and not (job.finished and attempt is status.attempts[-1]):
            said = f": {attempt.message}" if attempt.message else ""
            steps.append((ended, f"taken down ({reason_text(attempt.reason)}{said})"))
    if at := show.seconds_of(status.finish_time):
        exit_code = f", exit code {status.exit_code}" if status.exit_code else ""
        steps.append((at, f"{job.state} ({job.reason or show.NOTHING}{exit_code})"))
    return sorted((step for step in steps if step[0]), key=lambda step: step[0])


def _resized(resize: job_pb2.Resize) -> str:
    pods = several(abs(resize.replicas), "replica")
    if resize.replicas > 0:
        return f"grown by {pods}"
    said = f": {resize.message}" if resize.message else ""
    return f"shrunk by {pods} ({reason_text(resize.reason)}{said})"


def _replica_row(replica: job_pb2.Replica) -> list[str]:
    devices = ",".join(str(device) for device in replica.devices) or show.NOTHING
    pod = f" {replica.pod or f'{replica.task}-{replica.index}'}"
    phase = phase_text(replica.phase)
    if left := reason_text(replica.left_reason):
        phase += f" ({left})"
    return [pod, replica.cluster, replica.node, devices, phase, str(replica.exit_code) if replica.exit_code else ""]


def _trace_id(traceparent: str) -> str:
    parts = traceparent.split("-")
    return parts[1] if len(parts) == 4 else traceparent


# --- cancel ---------------------------------------------------------------------------------------------------------


def cancel(names: Sequence[str], *, reason: str, address: str, output: Format) -> None:
    """Cancel jobs. Raises SystemExit with the code of the first that could not be."""

    async def work(client: Client) -> int:
        outcomes = await client.cancel(*names, reason=reason)
        if show.is_machine(output):
            data = [
                {"job": o.job or name, "error": o.error.message if o.error else None}
                for name, o in zip(names, outcomes, strict=True)
            ]
            show.emit(output, data)
        code = 0
        for name, outcome in zip(names, outcomes, strict=True):
            if outcome.error is None:
                if not show.is_machine(output):
                    print(f"{name}  cancelled")
                continue
            error = outcome.error
            message = (
                (await unknown_job(client, name, error)).message if isinstance(error, NotFound) else sentence(error)
            )
            print(f"muster: {name}: {message}", file=sys.stderr)
            code = code or exit_code_of(error.code)
        return code

    if code := run(address, work):
        raise SystemExit(code)


# --- checkpoint -----------------------------------------------------------------------------------------------------


def checkpoint(name: str, *, at: str, epoch: int, address: str, output: Format) -> None:
    """Report that the job has saved its work."""
    moment = moment_of(at, datetime.datetime.now(datetime.UTC))

    async def work(client: Client) -> str:
        try:
            return await client.checkpoint(name, at=moment, epoch=epoch)
        except NotFound as error:
            raise await unknown_job(client, name, error) from None

    job = run(address, work)
    if show.is_machine(output):
        show.emit(output, {"job": job})
    else:
        print(f"{name}  its work is safe up to {show.clock(moment.timestamp()) if moment else 'now'}")


def moment_of(text: str, now: datetime.datetime) -> datetime.datetime | None:
    """`90s ago` or an ISO time with its zone; None for nothing. Raises CliError."""
    if not text:
        return None
    try:
        if text.endswith(" ago"):
            return now - datetime.timedelta(milliseconds=parse_duration_ms(text.removesuffix(" ago")))
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise CliError(f'--at "{text}" is neither a time (2026-01-31T18:00:00Z) nor "90s ago"', Exit.USAGE) from None
    if moment.tzinfo is None:
        raise CliError(f'--at "{text}" must say its time zone (Z, +01:00)', Exit.USAGE)
    return moment
