"""What jobs ask for as a whole, shared between jobs that ask for the same.

Thousands of jobs come from one template. Their task groups are kept once (`Gang`: the groups, their totals, the size of
the gang), and gangs that differ only in names or templates share one `GangShape`: two jobs of one shape fit or do not
fit together, which is what lets the scheduling cycle skip whole classes of jobs. Counted references let a gang go with
the last job that has it. `decide` looks gangs up without counting; `apply` counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from muster.core import arrays, layout, resources
from muster.core.model import Amounts, GroupPlacement, JobSpec, TaskGroup
from muster.core.sizes import tasks_bytes


class GangShape:
    """Everything about task groups that decides where they fit. Compared by identity: one object a shape."""

    __slots__ = ("key", "refs")

    def __init__(self, key: ShapeKey) -> None:
        self.key = key
        self.refs = 0


ShapeKey = tuple[tuple[object, ...], ...]


class Gang:
    """The task groups of a job and what follows from them. `full` and `minimum` are totals with one "pods" a pod."""

    __slots__ = (
        "bytes",
        "firsts",
        "full",
        "full_map",
        "minimum",
        "minimum_map",
        "minimum_tasks",
        "one_more",
        "per_pod",
        "pods",
        "refs",
        "shape",
        "tasks",
    )

    def __init__(self, tasks: tuple[TaskGroup, ...], shape: GangShape) -> None:
        self.tasks = tasks
        self.shape = shape
        self.refs = 0
        self.bytes = tasks_bytes(tasks)
        self.pods = layout.pods_total(tasks)
        self.firsts = tuple(layout.first_positions(tasks))
        self.per_pod: tuple[Amounts, ...] = tuple(resources.add(t.requests, ((resources.PODS, 1),)) for t in tasks)
        self.full = resources.total(
            resources.scale(one, t.replicas) for one, t in zip(self.per_pod, tasks, strict=True)
        )
        self.full_map = dict(self.full)
        self.minimum_tasks: tuple[TaskGroup, ...] | None = None  # None: nothing is elastic
        self.one_more: tuple[TaskGroup, ...] = ()  # by group: one replica of it
        self.minimum = self.full
        if any(t.min_replicas < t.replicas for t in tasks):
            self.minimum_tasks = tuple(msgspec.structs.replace(t, replicas=t.min_replicas) for t in tasks)
            self.one_more = tuple(msgspec.structs.replace(t, replicas=1, min_replicas=1) for t in tasks)
            self.minimum = resources.total(
                resources.scale(one, t.min_replicas) for one, t in zip(self.per_pod, tasks, strict=True)
            )
        self.minimum_map = dict(self.minimum)

    def group_of(self, position: int) -> int:
        """The group that the pod at `position` belongs to."""
        group = len(self.firsts) - 1
        while self.firsts[group] > position:
            group -= 1
        return group

    def of_counts(self, counts: dict[int, int]) -> Amounts:
        """Totals of so many pods by group."""
        return resources.total(resources.scale(self.per_pod[group], count) for group, count in counts.items())

    def of_groups(self, placement: Sequence[GroupPlacement]) -> Amounts:
        """Totals of the pods of a placement."""
        return self.of_counts({group.group: layout.pods_placed(group) for group in placement})

    def of_positions(self, positions: Sequence[int]) -> Amounts:
        """Totals of the pods at these positions."""
        if len(positions) == self.pods:
            return self.full
        if not positions:
            return ()
        counts: dict[int, int] = {}
        for position in positions:
            group = self.group_of(position)
            counts[group] = counts.get(group, 0) + 1
        return self.of_counts(counts)

    def pod_name(self, position: int) -> str:
        """For people: "worker-3"."""
        group = self.group_of(position)
        return f"{self.tasks[group].name}-{position - self.firsts[group]}"


class GangTable:
    """All gangs and shapes of the jobs in the state."""

    def __init__(self) -> None:
        self._gangs: dict[tuple[TaskGroup, ...], Gang] = {}
        self._shapes: dict[ShapeKey, GangShape] = {}

    def find(self, tasks: tuple[TaskGroup, ...]) -> Gang | None:
        """The gang of equal task groups, if any job has it."""
        return self._gangs.get(tasks)

    def find_shape(self, key: ShapeKey) -> GangShape | None:
        return self._shapes.get(key)

    def take(self, tasks: tuple[TaskGroup, ...]) -> Gang:
        """The shared gang; one more job has it."""
        gang = self._gangs.get(tasks)
        if gang is None:
            gang = self.restore(tasks)
        gang.refs += 1
        return gang

    def restore(self, tasks: tuple[TaskGroup, ...]) -> Gang:
        """A gang that is not in the table yet and that no job has yet."""
        key = shape_key(tasks)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = GangShape(key)
        shape.refs += 1
        gang = self._gangs[tasks] = Gang(tasks, shape)
        return gang

    def take_rest(self, gang: Gang, spec: JobSpec, phases: bytes | bytearray = b"") -> Gang:
        """What a queued job asks for (`Job.asks`): its gang, or what is left of an array job, which it has then."""
        tasks = arrays.rest(spec, phases) if spec.completion else spec.tasks
        return gang if tasks is spec.tasks else self.take(tasks)

    def drop_rest(self, gang: Gang, asks: Gang) -> None:
        """It asks for something else from now on, or for nothing."""
        if asks is not gang:
            self.drop(asks)

    def again(self, gang: Gang) -> None:
        """One more job has a gang that is in the table."""
        gang.refs += 1

    def __iter__(self) -> Iterator[Gang]:
        return iter(self._gangs.values())

    def drop(self, gang: Gang) -> None:
        """One job fewer has it."""
        gang.refs -= 1
        if gang.refs == 0:
            del self._gangs[gang.tasks]
            gang.shape.refs -= 1
            if gang.shape.refs == 0:
                del self._shapes[gang.shape.key]

    def counts(self) -> tuple[dict[tuple[TaskGroup, ...], int], int]:
        """References by task groups, and the number of shapes: for the invariants."""
        return {tasks: gang.refs for tasks, gang in self._gangs.items()}, len(self._shapes)


def shape_key(tasks: tuple[TaskGroup, ...]) -> ShapeKey:
    """Equal for task groups that fit the same places."""
    return tuple(
        (t.replicas, t.min_replicas, t.requests, t.node_selector, t.affinity, t.tolerations, t.policy) for t in tasks
    )
