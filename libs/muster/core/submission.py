"""Jobs come in and are cancelled: what the cell takes and what it refuses.

`check_spec` is everything that can be said about a job without looking at the cell; admission calls it as well, so that
most mistakes are answered before they reach the inbox. `submit` and `cancel` decide against the state: repeated
requests (LOG-11), names, queues, limits and hardware (rule Q2). Each refusal names the field, the rule and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from msgspec.structs import replace

from muster.core import commands, resources
from muster.core import transitions as tr
from muster.core.draft import Draft
from muster.core.errors import Code, Rejected
from muster.core.gangs import Gang
from muster.core.jobs import Job
from muster.core.limits import (
    AMOUNT_MAX,
    GANG_PODS_MAX,
    JOB_BYTES_MAX,
    LABELS_MAX,
    MESSAGE_CHARS_MAX,
    NAME_CHARS_MAX,
    PREEMPTIONS_ALLOWED_MAX,
    SUBJECT_CHARS_MAX,
    TASK_GROUPS_MAX,
)
from muster.core.members import Member, allowances, called, exceeded
from muster.core.model import EVERY_INDEX, InboxPosition, JobSpec, JobState, PriorityClass, Reason, TaskGroup
from muster.core.pods import finish_stopping
from muster.core.queues import Queue, QueueTree
from muster.core.shortfall import asking_most
from muster.core.sizes import spec_bytes
from muster.core.words import several

NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
JOB_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
POLICIES: Final = ("", "PACK", "SPREAD")
CLUSTER_LABEL: Final = "muster.io/cluster"  # the one label a cluster has: its name
PRIORITY_MAX: Final = 1_000_000_000
SIBLINGS_COMPARED_MAX: Final = 200  # with a mistyped name
RUNTIME_MAX_MS: Final = 10 * 366 * 24 * 3600 * 1000

# Fields of the API whose rules are not built yet. A job that sets one is refused; `JobOptions.fields` names them.
UNBUILT: Final = (
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
    "checkpoint.signal",
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
    "near",
    "alternatives",
    "gpu_models",
)


# --- what can be said without the cell ------------------------------------------------------------------------------


def check_spec(spec: JobSpec) -> None:
    """Raises Rejected for a job that no cell would take."""
    _check_job(spec, spec_bytes(spec))
    check_tasks(spec.tasks)


def _check_job(spec: JobSpec, size: int) -> None:
    if not JOB_ID.fullmatch(spec.id):
        raise _invalid("id", "is not a job id of 32 hexadecimal digits")
    check_name("name", spec.name)
    check_name("namespace", spec.namespace)
    if spec.options is not None and spec.options.fields:
        field = spec.options.fields[0]
        raise Rejected(Code.UNIMPLEMENTED, field, "is not available in this version: leave it out")
    if not -PRIORITY_MAX <= spec.priority <= PRIORITY_MAX:
        raise _invalid("priority", f"{spec.priority} is not between -{PRIORITY_MAX} and {PRIORITY_MAX}")
    _check_protection(spec)
    _check_duration("max_runtime", spec.max_runtime_ms)
    _check_duration("max_wait", spec.max_wait_ms)
    _check_duration("checkpoint.interval", spec.checkpoint_ms)
    for field, pairs in (("labels", spec.labels), ("annotations", spec.annotations)):
        if len(pairs) > LABELS_MAX:
            raise _invalid(field, f"has {len(pairs)} entries, at most {LABELS_MAX} are allowed")
    for key, _ in spec.cluster_selector:
        if key != CLUSTER_LABEL:
            raise _invalid("cluster_selector", f'clusters have no label "{key}": the only one is "{CLUSTER_LABEL}"')
    if spec.completion or spec.max_parallel:
        _check_array(spec)
    if size > JOB_BYTES_MAX:
        raise _invalid("", f"the job has about {size} bytes, at most {JOB_BYTES_MAX} are allowed", "LOG-8")


def _check_protection(spec: JobSpec) -> None:
    """Rule P4. `min_runtime` is never submitted: it comes from the class, when the job is queued."""
    if not 0 <= spec.max_preemptions <= PREEMPTIONS_ALLOWED_MAX:
        have = f"{spec.max_preemptions} is not between 0 and {PREEMPTIONS_ALLOWED_MAX}"
        raise _invalid("max_preemptions", have, "P4")
    if spec.priority_class and spec.priority:
        raise two_priorities(spec.priority_class, spec.priority)
    if spec.min_runtime_ms:
        raise _invalid("min_runtime", "is what priority classes and queues have: give the job a priority_class", "P4")


def two_priorities(priority_class: str, priority: int) -> Rejected:
    """The refusal of a job that names a class and a priority."""
    have = f'"{priority_class}" says what the priority is, and priority says {priority}: give one of the two'
    return _invalid("priority_class", have, "P4")


def _check_duration(field: str, duration_ms: int) -> None:
    if not 0 <= duration_ms <= RUNTIME_MAX_MS:
        raise _invalid(field, "is negative or longer than ten years")


def _check_array(spec: JobSpec) -> None:
    if spec.completion not in ("", EVERY_INDEX):
        raise _invalid("completion", f'"{spec.completion}" is neither ALL_PLACED nor EVERY_INDEX', "G1")
    if not spec.max_parallel:
        return
    if not spec.completion:
        raise _invalid("array.max_parallel", "is for jobs with completion EVERY_INDEX", "G1")
    minimum = sum(task.min_replicas for task in spec.tasks)
    if not minimum <= spec.max_parallel <= GANG_PODS_MAX:
        have = f"{spec.max_parallel} is less than the pods that start together ({minimum}), or more than there can be"
        raise _invalid("array.max_parallel", have, "G1")


def check_tasks(tasks: tuple[TaskGroup, ...]) -> None:
    """Raises Rejected unless these task groups can be a job."""
    if not 1 <= len(tasks) <= TASK_GROUPS_MAX:
        raise _invalid("tasks", f"a job has 1 to {TASK_GROUPS_MAX} task groups, not {len(tasks)}", "G1")
    names: set[str] = set()
    pods = 0
    for number, task in enumerate(tasks):
        field = f"tasks[{number}]"
        check_name(f"{field}.name", task.name)
        if task.name in names:
            raise _invalid(f"{field}.name", f'there are two task groups "{task.name}"', "G1")
        names.add(task.name)
        _check_task(field, task)
        pods += task.replicas
    if pods > GANG_PODS_MAX:
        raise _invalid("tasks", f"the job has {pods} pods, at most {GANG_PODS_MAX} are allowed", "LOG-8")


def _check_task(field: str, task: TaskGroup) -> None:
    if task.replicas < 1:
        raise _invalid(f"{field}.replicas", f"{task.replicas} is less than 1", "G1")
    if not 1 <= task.min_replicas <= task.replicas:
        have = f"{task.min_replicas} is not between 1 and replicas ({task.replicas})"
        raise _invalid(f"{field}.min_replicas", have, "G1")
    if list(task.requests) != sorted(dict(task.requests).items()):
        raise _invalid(f"{field}.resources", "are not sorted or name a resource twice")
    for resource, amount in task.requests:
        where = f"{field}.resources.{resource}"
        if amount < 0:
            raise _invalid(where, f"{resources.format_amount(resource, amount)} is negative")
        if amount > AMOUNT_MAX:
            raise _invalid(where, f"{amount} is more than {AMOUNT_MAX}")
    resources.check_devices(task.requests, f"{field}.resources")
    if task.policy not in POLICIES:
        raise _invalid(f"{field}.policy", f'"{task.policy}" is neither PACK nor SPREAD', "G2")
    for term in task.affinity:
        for requirement in term:
            if requirement.operator not in OPERATORS:
                known = ", ".join(OPERATORS)
                raise _invalid(f"{field}.affinity", f'unknown operator "{requirement.operator}" (known: {known})', "G4")


def check_name(field: str, value: str, rule: str = "") -> None:
    if len(value) > NAME_CHARS_MAX or not NAME.fullmatch(value):
        have = f'"{value[:NAME_CHARS_MAX]}" is not a name'
        raise _invalid(
            field, f"{have}: lower-case letters, digits and dashes, at most {NAME_CHARS_MAX} characters", rule
        )


def _invalid(field: str, message: str, rule: str = "") -> Rejected:
    return Rejected(Code.INVALID_ARGUMENT, field, message, rule)


# --- against the cell -----------------------------------------------------------------------------------------------


def submit(draft: Draft, position: InboxPosition, command: commands.SubmitJob) -> None:
    """Queue the job, or raise Rejected. A repeated request changes nothing (LOG-11)."""
    spec = command.spec
    if _is_repeated(draft, spec):
        return
    gang = draft.gang(spec.tasks)
    size = spec_bytes(spec, gang.bytes if gang is not None else None)
    _check_job(spec, size)
    if gang is None:
        check_tasks(spec.tasks)
        gang = draft.new_gang(spec.tasks)
    spec = settled(spec, draft.classes)
    queue = find_queue(draft.tree, spec.queue)
    if queue.children:
        raise Rejected(
            Code.FAILED_PRECONDITION, "queue", f'queue "{spec.queue}" has queues below it: name a leaf', "Q1"
        )
    if not queue.takes_jobs:
        have = f'queue "{spec.queue}" takes no new jobs: {queue.states()}'
        raise Rejected(Code.FAILED_PRECONDITION, "queue", have, "Q1")
    other = draft.holder_of(spec.namespace, spec.name)
    if other is not None:
        have = f'job "{spec.namespace}/{spec.name}" exists already (id {other}): choose another name or wait'
        raise Rejected(Code.ALREADY_EXISTS, "name", have, "LOG-11")
    asks = draft.asks(gang, spec)
    _check_can_ever_run(draft, spec, queue, asks)
    _check_allowances(draft, spec, queue, asks)
    job = Job(spec, queue.spec.id, position, draft.now_ms, gang, asks)
    draft.queued(job, tr.JobQueued(spec, queue.spec.id, position), size)


def _is_repeated(draft: Draft, spec: JobSpec) -> bool:
    """Whether exactly this was submitted before; raises Rejected if something else was under the same request id."""
    known = draft.job(spec.id)
    if known is not None:
        digest = known.spec.digest
    else:
        forgotten = draft.state.forgotten.get(spec.id)
        if forgotten is None:
            return False
        digest = forgotten.digest
    if digest != spec.digest:
        have = f"request id {spec.request_id} was used for another job (id {spec.id}): choose a new one"
        raise Rejected(Code.ALREADY_EXISTS, "request_id", have, "LOG-11")
    return True


def find_queue(tree: QueueTree, path: str, field: str = "queue") -> Queue:
    """Raises Rejected with the nearest known path."""
    queue = tree.find(path)
    if queue is None:
        near = nearest_path(tree, path)
        hint = f' (did you mean "{near}"?)' if near else ""
        raise Rejected(Code.NOT_FOUND, field, f'queue "{path[:SUBJECT_CHARS_MAX]}" does not exist{hint}', "Q1")
    return queue


def settled(spec: JobSpec, classes: Mapping[str, PriorityClass]) -> JobSpec:
    """The job with the priority and the min_runtime of its class (rule P4). Raises Rejected for an unknown one."""
    if not spec.priority_class:
        return spec
    of = find_class(classes, spec.priority_class)
    return replace(spec, priority=of.value, min_runtime_ms=of.min_runtime_ms)


def find_class(classes: Mapping[str, PriorityClass], name: str, field: str = "priority_class") -> PriorityClass:
    """Raises Rejected with the nearest known name."""
    found = classes.get(name)
    if found is None:
        near = get_close_matches(name[:NAME_CHARS_MAX], sorted(classes), n=1)
        hint = f' (did you mean "{near[0]}"?)' if near else ""
        have = f'priority class "{name[:NAME_CHARS_MAX]}" does not exist{hint}'
        raise Rejected(Code.NOT_FOUND, field, have, "P4")
    return found


def nearest_path(tree: QueueTree, path: str) -> str | None:
    """The existing path that is meant, level by level. Bounded: a cell may have ten thousand queues."""
    parent = ""
    for name in path[:SUBJECT_CHARS_MAX].split("/"):
        children = tree.children_of(parent)
        near = [name]
        if name not in children:
            near = get_close_matches(name[:NAME_CHARS_MAX], sorted(children)[:SIBLINGS_COMPARED_MAX], n=1)
        if not near:
            return None
        parent = children[near[0]]
    return tree.path(parent)


def _check_can_ever_run(draft: Draft, spec: JobSpec, queue: Queue, gang: Gang) -> None:
    """Rule Q2: a job that could never run is refused now, not queued for ever."""
    for above, limit in queue.limits:
        for resource, most in limit:
            asked = gang.minimum_map.get(resource, 0)
            if asked > most:
                asked_text = resources.format_pair(resource, asked)
                most_text = resources.format_amount(resource, most)
                have = f'the job needs {asked_text}, the limit of queue "{above.path}" is {most_text}'
                raise Rejected(Code.FAILED_PRECONDITION, asking_most(spec.tasks, resource), have, "Q2")
    state = draft.state
    if not state.clusters_synced:
        return  # nothing is known of the hardware yet
    cluster = spec.cluster_selector[0][1] if spec.cluster_selector else ""
    if cluster and cluster not in state.clusters:
        near = ", ".join(sorted(state.clusters))
        have = f'no cluster "{cluster}" (there are: {near})'
        raise Rejected(Code.FAILED_PRECONDITION, "cluster_selector", have, "Q2")
    why = draft.never_fits(gang, cluster)
    if why is not None:
        raise Rejected(Code.FAILED_PRECONDITION, why.field, f"the job can never run: {why.message}", "Q2")


def _check_allowances(draft: Draft, spec: JobSpec, queue: Queue, gang: Gang) -> None:
    """Rules Q1, Q2: what a namespace or a user may have here at most, waiting now and running ever."""
    for above in queue.tracked:
        for key, allowance in allowances(above.spec, spec):
            who = called(key)
            waiting = draft.usages.member(above, key).pending
            if 0 <= allowance.pending_jobs <= waiting:
                wait = several(waiting, "job")
                have = f'{who} has {wait} waiting in queue "{above.path}", which allows {allowance.pending_jobs}'
                raise Rejected(Code.RESOURCE_EXHAUSTED, "queue", f"{have}: wait until some have started", "Q1")
            never = exceeded(key, allowance, Member(), gang.minimum_map)
            if never is not None:
                field = asking_most(spec.tasks, never.resource) if never.resource else "queue"
                have = f"the job can never run: {never.say(above.path)}"
                raise Rejected(Code.FAILED_PRECONDITION, field, have, "Q2")


def cancel(draft: Draft, command: commands.CancelJob) -> None:
    """Cancel a queued job at once, ask for the end of a placed one. Repeating it changes nothing."""
    job = draft.job(command.job)
    if job is None:
        raise Rejected(Code.NOT_FOUND, "job", f"job {command.job} does not exist, or ended long ago")
    by = f" by {command.actor}" if command.actor else ""
    message = (f"cancelled{by}" + (f": {command.reason}" if command.reason else ""))[:MESSAGE_CHARS_MAX]
    if job.state in (JobState.QUEUED, JobState.RESERVED, JobState.SUSPENDED):
        draft.finished(draft.change(job, tr.JobCancelled(job.id, Reason.CANCELLED_BY_USER, message)))
    elif job.charged:
        if job.next_state in (JobState.CANCELLED, JobState.FAILED):
            return  # it is ending already
        stopping = tr.JobStopping(
            job=job.id,
            epoch=job.epoch,
            next=JobState.CANCELLED,
            reason=Reason.CANCELLED_BY_USER,
            message=message,
        )
        finish_stopping(draft, draft.change(job, stopping))
    elif job.state is not JobState.CANCELLED:
        raise Rejected(Code.FAILED_PRECONDITION, "job", f"job {job.id} has already ended: {job.state}", "L1")


__all__ = ["UNBUILT", "cancel", "check_name", "check_spec", "check_tasks", "find_class", "find_queue", "submit"]
