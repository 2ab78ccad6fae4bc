"""What must hold after every transaction, worked out naively from the jobs (I1 to I4, and every index).

`check` recomputes everything that the state keeps incrementally and compares. It is slow on purpose and shares no code
with `apply`; tests and the simulation call it at every step. Anything it finds is a bug: InvariantBroken.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from muster.core import layout, resources
from muster.core.errors import InvariantBroken
from muster.core.invariants_claims import Kept, check_claims
from muster.core.invariants_potential import check_usage
from muster.core.invariants_queues import check_counts
from muster.core.jobs import GONE, SUCCEEDED, Job, may_grow
from muster.core.lifecycle import CHARGED, TERMINAL
from muster.core.limits import PRIORITY_CLASSES_MAX
from muster.core.model import EVERY_INDEX, JobState
from muster.core.queues import Queue
from muster.core.resources import DEVICE_MILLIS, PODS
from muster.core.state import CellState, Hold
from muster.core.timers import Due

OVER = (3, 4, 5)  # SUCCEEDED, FAILED, GONE


def check(state: CellState) -> None:
    """Raises InvariantBroken naming the invariant."""
    for job in state.jobs.values():
        _check_job(job)
    _check_nodes(state)
    _check_queues(state)
    check_counts(state)
    check_claims(state)
    _check_pending(state)
    _check_names(state)
    _check_classes(state)
    _check_finished(state)
    _check_gangs(state)
    _check_holds(state)
    _check_accounts(state)
    check_usage(state)


class Before:
    """What a transaction may make worse, taken before it is applied."""

    def __init__(self, state: CellState) -> None:
        self.usage = {queue.id: dict(queue.usage) for queue in state.queues.subtree()}
        self.specs = {queue.id: queue.spec for queue in state.queues.subtree()}
        self.free = [dict(state.nodes.free_amounts(n)) for n in range(len(state.nodes))]
        self.kept = Kept(state)
        self.nodes = [(state.nodes.spec(n), state.nodes.is_removed(n)) for n in range(len(state.nodes))]

    def check(self, state: CellState) -> None:
        """I1, I3: nothing was placed over a limit of a queue or on a node that has no room for it; P4: nor on what is
        guaranteed to others, if nobody can take it back.

        Usage that was over a limit already (the limit or the node shrank) may stay, but not grow.
        """
        self.kept.check(state)
        for queue in state.queues.subtree():
            moved = self.specs.get(queue.id) != queue.spec or len(self.specs) != len(state.queues)
            for resource, most in queue.spec.limit:
                used, used_before = queue.usage.get(resource, 0), self.usage.get(queue.id, {}).get(resource, 0)
                if not moved and used > most and used > used_before:
                    _fail(f"I3: queue {queue.path} went from {used_before} to {used} {resource}, its limit is {most}")
        for node, (spec, removed) in enumerate(self.nodes):
            if spec is not state.nodes.spec(node) or removed != state.nodes.is_removed(node):
                continue
            for resource, free in state.nodes.free_amounts(node):
                if free < 0 and free < self.free[node].get(resource, 0):
                    _fail(f"I1: node {spec.name} went to {free} {resource} free")


def _fail(what: str) -> None:
    raise InvariantBroken(what)


def _check_job(job: Job) -> None:
    """I2: placed with the minimum of every group, or not at all."""
    charged = job.state in CHARGED
    if charged != bool(job.placement):
        _fail(f"I2: job {job.id} is {job.state} with placement {job.placement}")
    if not charged:
        if job.exits:
            _fail(f"I2: job {job.id} has exit codes without a placement")
        if job.phases and job.state not in TERMINAL and set(job.phases) != {SUCCEEDED, GONE}:
            _fail(f"G1: job {job.id} is {job.state} with phases {bytes(job.phases)!r}")
        return
    placed = {group.group: sum(count for _, count in group.runs) for group in job.placement}
    done = {group.group: sum(count for _, count in group.skipped) for group in job.placement}
    if any(done.values()) and job.spec.completion != EVERY_INDEX:
        _fail(f"G1: job {job.id} passes over {done} and is no array job")
    for number, task in enumerate(job.spec.tasks):
        if not task.min_replicas <= placed.get(number, 0) + done.get(number, 0) <= task.replicas:
            _fail(f"I2: job {job.id} has {placed.get(number, 0)} pods of {task.name}")
    if len(job.phases) != sum(task.replicas for task in job.spec.tasks):
        _fail(f"I2: job {job.id} has {len(job.phases)} phases")
    out = sum(task.replicas for task in job.spec.tasks) - sum(placed.values()) - sum(done.values())
    if out > job.unplaced or list(job.phases).count(GONE) < job.unplaced:
        _fail(f"I2: job {job.id} leaves out {out}, not {job.unplaced}")
    if list(job.leaving) != sorted({*job.leaving}) or any(job.phases[position] in OVER for position in job.leaving):
        _fail(f"G1: job {job.id} has pods leaving that are over: {job.leaving}")
    if job.state is not JobState.STOPPING:
        _check_members(job)
    if any(job.phases[position] != 4 for position, _ in job.exits):
        _fail(f"I2: job {job.id} has exit codes of pods that have not failed: {job.exits}")
    if job.spec.completion == EVERY_INDEX:
        _check_array(job)
    idle = job.spec.completion and job.state is not JobState.STOPPING and job.unplaced
    if all(phase in OVER for phase in _placed_phases(job)) and not idle:
        _fail(f"I4: job {job.id} is {job.state} although nothing of it runs")


def _check_members(job: Job) -> None:
    """I2, G1: what is gone was left out or has left, nothing has failed, and every group keeps its minimum."""
    phases = list(job.phases)
    if 4 in phases or phases.count(GONE) != job.unplaced:
        _fail(f"I2: job {job.id} is {job.state} although it lost pods")
    first = 0
    for task in job.spec.tasks:
        there = [p for p in range(first, first + task.replicas) if phases[p] != GONE and p not in job.leaving]
        if len(there) < task.min_replicas:
            _fail(f"I2: job {job.id} is {job.state} with {len(there)} of {task.name}")
        first += task.replicas


def _check_array(job: Job) -> None:
    """G1: what had succeeded before has no pod, and not more run than may at once."""
    there = {pod.position for pod in layout.each_pod(job.spec.tasks, job.placement)}
    first = 0
    for number, task in enumerate(job.spec.tasks):
        skipped = next((group.skipped for group in job.placement if group.group == number), ())
        for replica in (r for start, count in skipped for r in range(start, start + count)):
            if first + replica in there or job.phases[first + replica] != SUCCEEDED:
                _fail(f"G1: index {replica} of {task.name} of job {job.id} is run again")
        first += task.replicas
    live = sum(phase not in OVER for phase in job.phases)
    if job.spec.max_parallel and live > job.spec.max_parallel:
        _fail(f"G1: {live} indices of job {job.id} run at once, at most {job.spec.max_parallel} may")


def _placed_phases(job: Job) -> list[int]:
    return [job.phases[pod.position] for pod in layout.each_pod(job.spec.tasks, job.placement)]


def _live_pods(job: Job) -> list[layout.Pod]:
    if job.state not in CHARGED:
        return []
    return [p for p in layout.each_pod(job.spec.tasks, job.placement) if job.phases[p.position] not in OVER]


def _check_nodes(state: CellState) -> None:
    """I1: charges are those of the live pods; no node has less than nothing because of Muster."""
    used: dict[int, Counter[str]] = defaultdict(Counter)
    devices: dict[int, Counter[int]] = defaultdict(Counter)
    there: dict[int, dict[str, None]] = defaultdict(dict)
    for job in state.jobs.values():
        for group in job.placement:
            for node, _ in group.runs:
                there[node][job.id] = None
        for pod in _live_pods(job):
            used[pod.node][PODS] += 1
            for resource, amount in job.spec.tasks[pod.group].requests:
                used[pod.node][resource] += amount
                for device in pod.devices:
                    devices[pod.node][device] += min(amount, DEVICE_MILLIS) if resources.is_device(resource) else 0
    if {node: sorted(jobs) for node, jobs in state.node_jobs.items()} != {n: sorted(j) for n, j in there.items()}:
        _fail("I1: node_jobs differs from the placements")
    table = state.nodes
    for node in range(len(table)):
        spec, removed = table.spec(node), table.is_removed(node)
        has = {} if removed else {PODS: 110, **dict(spec.allocatable)}
        others = {} if removed else dict(spec.used_by_others)
        free = dict(table.free_amounts(node))
        for resource in sorted({*has, *others, *free, *used[node]}):
            if resources.is_device(resource):
                continue
            want = has.get(resource, 0) - others.get(resource, 0) - used[node][resource]
            if free.get(resource, 0) != want:
                _fail(f"I1: node {spec.name} has {free.get(resource, 0)} {resource} free, not {want}")
        for device, millis in devices[node].items():
            if millis > DEVICE_MILLIS:
                _fail(f"I1: device {device} of node {spec.name} is used {millis} thousandths")
    for node, jobs in state.vanished.items():
        live = [j for j in sorted(there[node]) if any(pod.node == node for pod in _live_pods(state.jobs[j]))]
        if not table.is_removed(node) or sorted(jobs) != live or not live:
            _fail(f"I1: vanished node {node} waits for {sorted(jobs)}, not {live}")


def _check_queues(state: CellState) -> None:
    """I3: usage is the sum of what is placed; the tree is a tree."""
    tree = state.queues
    usage: dict[str, Counter[str]] = defaultdict(Counter)
    leaving: dict[str, Counter[str]] = defaultdict(Counter)
    live: dict[str, list[str]] = defaultdict(list)
    running: dict[str, list[str]] = defaultdict(list)
    placed: dict[str, Counter[int]] = defaultdict(Counter)
    for job in state.jobs.values():
        if job.state not in TERMINAL:
            live[job.queue].append(job.id)
        if job.state in (JobState.PLACED, JobState.STARTING, JobState.RUNNING):
            running[job.queue].append(job.id)
            if job.spec.preemptible:
                placed[job.queue][job.spec.priority] += 1
        for pod in _live_pods(job):
            for above in _path(state, job.queue):
                usage[above][PODS] += 1
                for resource, amount in job.spec.tasks[pod.group].requests:
                    usage[above][resource] += amount
                if job.victim or pod.position in job.leaving:
                    leaving[above] += Counter({**dict(job.spec.tasks[pod.group].requests), PODS: 1})
    held = _held(state)
    for queue_id, queue in tree.by_id.items():
        if queue.usage != {resource: amount for resource, amount in usage[queue_id].items() if amount}:
            _fail(f"I3: queue {queue.path} has usage {queue.usage}, not {dict(usage[queue_id])}")
        if queue.leaving != leaving[queue_id] or queue.held != held[queue_id]:
            _fail(f"Q3: queue {queue.path} has {queue.leaving} leaving, {queue.held} held")
        if sorted(queue.live) != sorted(live[queue_id]) or sorted(queue.running) != sorted(running[queue_id]):
            _fail(f"I3: queue {queue.path} counts {len(queue.live)} jobs, {len(queue.running)} running")
        if queue.placed != dict(placed[queue_id]):
            _fail(f"I3: queue {queue.path} has preemptible {queue.placed}, not {dict(placed[queue_id])}")
        if queue.children and live[queue_id]:
            _fail(f"Q1: queue {queue.path} has jobs and children")
        if [q.id for q in queue.chain] != _path(state, queue_id) or tree.by_path.get(queue.path) != queue_id:
            _fail(f"Q1: queue {queue.path} has lost its place")
    if set(live) | set(running) > set(tree.by_id) or len(tree.by_path) != len(tree.by_id):
        _fail("Q1: a job's queue is gone")


def _held(state: CellState) -> dict[str, Counter[str]]:
    held: dict[str, Counter[str]] = defaultdict(Counter)
    for hold in state.holds.values():
        job = state.jobs[hold.job]
        for group in hold.placement:
            pods = sum(count for _, count in group.runs)
            for above in _path(state, job.queue) if pods else ():
                held[above][PODS] += pods
                for resource, amount in job.spec.tasks[group.group].requests:
                    held[above][resource] += amount * pods
    return held


def _path(state: CellState, queue: str) -> list[str]:
    path = [queue]
    while state.queues.by_id[path[-1]].spec.parent:
        path.append(state.queues.by_id[path[-1]].spec.parent)
    return path


def _check_pending(state: CellState) -> None:
    """Every queued job is pending once, or waits for its backoff with a timer; classes are in order."""
    pending = state.pending
    want = {}
    timers = {(entry[2], entry[3]) for entry in state.timers.others if entry[1] == Due.BACKOFF_OVER}
    again = {(entry[2], entry[3], entry[0]) for entry in state.timers.others if entry[1] == Due.SUSPECTS_AGAIN}
    for job in state.jobs.values():
        if job.state is not JobState.QUEUED:
            continue
        if job.not_before_ms <= state.now_ms:
            want[state.order_key(job)] = state.class_key(job)
            if job.suspects_until_ms > state.now_ms and (job.id, job.epoch, job.suspects_until_ms) not in again:
                _fail(f"I7: job {job.id} keeps off its suspects without a timer")
        elif (job.id, job.epoch) not in timers:
            _fail(f"I7: job {job.id} is in backoff without a timer")
    for job_id in pending.growing:
        job = state.jobs[job_id]
        if job.suspects_until_ms > state.now_ms and (job.id, job.epoch, job.suspects_until_ms) not in again:
            _fail(f"I7: job {job.id} keeps off its suspects without a timer")
    have = {key: class_key for class_key, found in pending.classes.items() for key in found.keys[found.head :]}
    if have != want:
        _fail("I7: the pending index differs from the queued jobs")
    for class_key, found in pending.classes.items():
        keys = found.keys[found.head :]
        if keys != sorted(keys) or not keys or pending.of_queue[class_key[0]][class_key] is not found:
            _fail("I7: a pending class is out of order")
    grows = {j.id for j in state.jobs.values() if j.gang.minimum_tasks is not None and may_grow(j, state.now_ms)}
    if set(pending.growing) != grows or not set(pending.growing_opened) <= grows:
        _fail("G1: the elastic jobs that could grow differ from those that are looked at")
    if pending.protected != Counter(key[0] for key in pending.classes if key[6]):
        _fail("P4: protected classes are counted wrongly")
    for marks in (pending.opened, pending.reopened):
        if any(pending.classes.get(key) is not found for key, found in marks.items()):
            _fail("I7: a mark points to a class that is gone")


def _check_classes(state: CellState) -> None:
    """P4: classes have the names they go by; who has not named one has no min_runtime of its own."""
    if len(state.classes) > PRIORITY_CLASSES_MAX or any(of.name != name for name, of in state.classes.items()):
        _fail(f"P4: priority classes {sorted(state.classes)}")
    for job in state.jobs.values():
        if job.spec.min_runtime_ms and not job.spec.priority_class:
            _fail(f"P4: job {job.id} has a min_runtime of no class")


def _check_names(state: CellState) -> None:
    want: dict[str, dict[str, str]] = defaultdict(dict)
    for job in state.jobs.values():
        if job.state not in TERMINAL:
            if job.spec.name in want[job.spec.namespace]:
                _fail(f"LOG-11: two live jobs {job.spec.namespace}/{job.spec.name}")
            want[job.spec.namespace][job.spec.name] = job.id
    if state.by_name != {namespace: names for namespace, names in want.items() if names}:
        _fail("LOG-11: names differ from the live jobs")


def _check_finished(state: CellState) -> None:
    finished = [job.id for job in state.jobs.values() if job.state in TERMINAL]
    if sorted(state.timers.finished) != sorted(finished):
        _fail("LOG-16: finished jobs differ from the order in which they are forgotten")
    if list(state.forgotten) != list(state.forgotten_order) or set(state.forgotten) & set(state.jobs):
        _fail("LOG-11: remembered request ids are out of order")
    starting = {(job_id, epoch) for _, job_id, epoch in state.timers.starts}
    for job in state.jobs.values():
        if job.state in (JobState.PLACED, JobState.STARTING) and (job.id, job.epoch) not in starting:
            _fail(f"L3: job {job.id} has no start timeout")


def _check_gangs(state: CellState) -> None:
    references, shapes = state.gangs.counts()
    want = Counter(job.spec.tasks for job in state.jobs.values())
    want += Counter(job.asks.tasks for job in state.jobs.values() if job.asks is not job.gang)
    if references != dict(want) or any(job.gang.tasks is not job.spec.tasks for job in state.jobs.values()):
        _fail("gangs are counted wrongly")
    if shapes != len({id(gang.shape) for job in state.jobs.values() for gang in (job.gang, job.asks)}):
        _fail("shapes are counted wrongly")


def _check_holds(state: CellState) -> None:
    """P5: only a queued job holds or asks, or a placed one that could grow, and that within what it may have."""
    for job_id in (*state.holds, *state.asks):
        job = state.jobs.get(job_id)
        if job is None or (job.state is not JobState.QUEUED and job_id not in state.pending.growing):
            _fail(f"P5: {job_id} holds or asks although it neither is queued nor could grow")
    for job_id, hold in state.holds.items():
        _check_quota_of_hold(state, state.jobs[job_id], hold)
        _check_growth_of_hold(state.jobs[job_id], hold)


def _check_quota_of_hold(state: CellState, job: Job, hold: Hold) -> None:
    asked = {r for group in hold.placement for r, _ in job.spec.tasks[group.group].requests}
    for queue in state.queues.get(job.queue).chain:
        if queue.spec.state in ("STOPPED", "DRAINING"):
            _fail(f"P5: {job.id} holds something although queue {queue.path} starts nothing")
        for resource, most in queue.spec.limit:
            if resource in asked and _stays(state, queue, resource) > most:
                _fail(f"P5: {job.id} holds {resource} although queue {queue.path} may not use so much")


def _stays(state: CellState, queue: Queue, resource: str) -> int:
    """What is placed below the queue and not on its way out, for whatever reason, and what is held there."""
    leaves = [state.potential.usage.get(below.id, {}) for below in state.queues.subtree(queue.id)]
    return sum(usage.get(resource, 0) for by_priority in leaves for usage in by_priority.values())


def _check_growth_of_hold(job: Job, hold: Hold) -> None:
    """Of a placed job: what it holds is what it may still grow by."""
    if job.state is JobState.QUEUED:
        return
    more = {group.group: sum(count for _, count in group.runs) for group in hold.placement}
    live = sum(phase not in OVER for phase in job.phases)
    if len(more) != 1 or any(not 0 < count <= job.vacant_in(group) for group, count in more.items()):
        _fail(f"P5: job {job.id} holds room for {more} more replicas")
    if job.spec.max_parallel and live + sum(more.values()) > job.spec.max_parallel:
        _fail(f"P5: job {job.id} holds room for {more} beyond what may run at once")


def _check_accounts(state: CellState) -> None:
    """I3: what accounts are charged for is what runs; periods are in order and touch the present."""
    want: dict[tuple[str, str, str, int], Counter[str]] = defaultdict(Counter)
    for job in state.jobs.values():
        for pod in _live_pods(job):
            account = (job.queue, job.spec.namespace, job.spec.submitter, job.spec.priority)
            want[account][PODS] += 1
            for resource, amount in job.spec.tasks[pod.group].requests:
                want[account][resource] += amount
    have = {account: rate.amounts for account, rate in state.accounts.rates.items()}
    if have != {account: {r: n for r, n in amounts.items() if n} for account, amounts in want.items()}:
        _fail(f"I3: accounts are charged {have}, not {dict(want)}")
    periods = state.accounts.periods
    for earlier, later in pairwise(periods):
        if earlier.end_ms > later.start_ms or not earlier.tallies:
            _fail(f"I3: periods {earlier.start_ms} and {later.start_ms} overlap, or the first is empty")
    if periods and not periods[-1].start_ms <= state.now_ms < periods[-1].end_ms:
        _fail("I3: the open period is not the present")
