"""Random cells with all that a tree of queues and its clusters can be, whose owners change their minds.

Beyond `Chance`: leaves that are fair between users or namespaces, lending limits, allowances of users, several task
groups, two clusters, nodes that are cordoned, not ready or gone, queues that are stopped, drained, moved and limited
while victims leave, and clusters that take their time. It watches what no single plan shows: how far one eviction leads
to the next, and whether anybody left for a job that then did not start although nothing had changed.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace
from tests.property.test_preemption_calm import Chance

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.model import EVERY_INDEX, Allowance, JobSpec, NodeSpec, TaskGroup

CLUSTERS: Final = ("sim-a", "sim-b")
MEMBERS: Final = ("ann", "bob", "eve")
SLOW: Final = 0.25  # of the times that clusters are asked to let victims go: they do not do so yet
LATE_MAX_MS: Final = 25 * 60_000  # but never later than that
CHANGES_MAX: Final = 3  # of queues and nodes after each batch of jobs


class Wild(Chance):
    """See the module's text."""

    def __init__(self, seed: int) -> None:
        self.nodes: dict[tuple[str, str], NodeSpec] = {}
        self.settings: dict[str, dict[str, Any]] = {}  # by path, as `World.queue` takes them
        self.slow = False
        self.links: dict[str, int] = {}  # job -> how many evictions led to its own since the last event
        self.longest = 0
        self.event_ms = 0
        super().__init__(seed)
        self._nodes()

    def _nodes(self) -> None:
        """In place of the equal nodes of one cluster."""
        draw = self.draw
        for cluster in CLUSTERS[: draw.choice((1, 1, 2))]:
            for n in range(draw.randint(1, 3)):
                cpu, gpus = draw.choice((2000, 4000, 6000, 8000)), draw.choice((0, 0, 0, 2, 4))
                self.nodes[cluster, f"{cluster}-{n}"] = self.world.node(
                    f"{cluster}-{n}", cpu=cpu, gpus=gpus, cluster=cluster
                )
        for cluster in CLUSTERS:
            specs = tuple(spec for (of, _), spec in self.nodes.items() if of == cluster)
            if specs or cluster == "sim-a":
                self.cell.send(c.NodesReported(cluster, specs, first=True, complete=True))

    def _grow(self, path: str, depth: int) -> None:
        draw = self.draw
        children = draw.choice((0, 0, 2, 3)) if depth < 3 else 0
        guaranteed = draw.choice((0, 0, 1000, 2000, 3000))
        lending = draw.choice((None, None, 0, 1000)) if guaranteed else None
        settings: dict[str, Any] = {
            "weight": draw.choice((0, 1, 1, 2, 3)),
            "preemption": draw.choice(("ANY", "ANY", "ANY", "ANY", "LOWER_PRIORITY", "NEVER")),
            "ordering": draw.choice(("PRIORITY", "PRIORITY", "FAIR", "FAIR", "FIFO")),
            "fair_by": draw.choice(("USER", "NAMESPACE")),
            "guaranteed": (("cpu", guaranteed),) if guaranteed else (),
            "limit": draw.choice(((), (), (), (("cpu", 8000),))),
            "lending_limit": () if lending is None else (("cpu", lending),),
            "per_user": self._allowance(),
            "min_runtime_ms": draw.choice((0, 0, 0, 0, 300_000)),
        }
        self.settings[path] = settings
        self.world.queue(path, **settings)
        if not children:
            self.leaves.append(path)
        for child in range(children):
            self._grow(f"{path}/c{child}", depth + 1)

    def _allowance(self) -> Allowance:
        draw = self.draw
        if draw.random() < 0.85:
            return Allowance()
        return Allowance(
            running_jobs=draw.choice((-1, 1, 2, 3)), resources=draw.choice(((), (("cpu", 3000),), (("cpu", 5000),)))
        )

    def spec(self, leaves: list[str]) -> JobSpec:
        """A job for one of the leaves, of one or two groups, of somebody, perhaps for one of the clusters."""
        draw = self.draw
        self.number += 1
        groups = []
        for name in ("main", "side")[: draw.choice((1, 1, 1, 2))]:
            replicas, gpu = draw.choice((1, 1, 1, 2, 3, 4)), draw.choice((0, 0, 0, 500, 1000, 2000))
            requests = (("cpu", draw.choice((500, 1000, 1000, 2000, 3000))),)
            requests += (("nvidia.com/gpu", gpu),) if gpu else ()
            groups.append(TaskGroup(name, replicas, draw.randint(1, replicas), requests))
        array = len(groups) == 1 and draw.random() < 0.2
        least = groups[0].min_replicas
        return self.world.spec(
            f"job-{self.number}",
            queue=draw.choice(leaves),
            tasks=tuple(groups),
            priority=draw.choice((0, 0, 0, 1, 2)),
            preemptible=draw.random() < 0.9,
            max_preemptions=draw.choice((0, 1, 1, 2, 5, 5, 5, 5)),
            submitter=draw.choice(MEMBERS),
            namespace=draw.choice(MEMBERS),
            completion=EVERY_INDEX if array else "",
            max_parallel=draw.choice((0, least, least + 1)) if array else 0,
            checkpoint_ms=draw.choice((0, 0, 60_000)),
            cluster_selector=draw.choice(((), (), (), (("cluster", "sim-a"),))),
        )

    def submit(self) -> None:
        self.happens()
        leaves = self.draw.choices(self.leaves, k=self.draw.choice((1, 1, 2, 4)))
        specs = [self.spec(leaves) for _ in range(self.draw.choice((1, 2, 4, 8, 12)))]
        if self.draw.random() < 0.4:  # a batch of equal ones
            specs = [replace(specs[0], id=self.world.id(s.name), name=s.name, request_id=s.request_id) for s in specs]
        self.cell.now_ms += self.draw.choice((0, 1, 1000))
        self.note(self.cell.send(*[c.SubmitJob(spec) for spec in specs]))
        self.entitle_all()

    def flood(self) -> None:
        """One leaf takes all it gets with one batch of small equal jobs; then somebody comes who wants some of it."""
        self.happens()
        leaf, cpu = self.draw.choice(self.leaves), self.draw.choice((500, 1000))
        more = {"submitter": "ann", "namespace": "ann", "queue": leaf, "cpu": cpu}
        first, self.number = self.number + 1, self.number + self.draw.choice((8, 16, 24))
        specs = [self.world.spec(f"job-{n}", **more) for n in range(first, self.number + 1)]
        self.note(self.cell.send(*[c.SubmitJob(spec) for spec in specs]))
        self.entitle_all()
        self.calm()
        self.note(self.cell.wait(self.draw.choice((1000, 600_000))))
        self.number += 1
        more |= {"queue": self.draw.choice(self.leaves), "priority": self.draw.choice((0, 2, 2))}
        self.note(self.cell.send(c.SubmitJob(self.world.spec(f"job-{self.number}", **more))))
        self.entitle_all()

    def finish_some(self) -> None:
        self.happens()
        super().finish_some()

    # --- owners change their minds ------------------------------------------------------------------------------------

    def change_some(self) -> None:
        for _ in range(self.draw.randint(0, CHANGES_MAX)):
            self.happens()
            self.draw.choice((self.change_queue, self.change_queue, self.change_node))()
            self.entitle_all()

    def change_queue(self) -> None:
        """Some may be refused, like a limit below what the queues below are guaranteed."""
        draw = self.draw
        path = draw.choice(sorted(self.settings))
        change = draw.choice(
            (
                {"state": draw.choice(("OPEN", "OPEN", "STOPPED", "DRAINING", "CLOSED"))},
                {"limit": draw.choice(((), (("cpu", 2000),), (("cpu", 4000),)))},
                {"per_user": self._allowance()},
                {"ordering": draw.choice(("PRIORITY", "FAIR", "FIFO")), "fair_by": draw.choice(("USER", "NAMESPACE"))},
                {"preemption": draw.choice(("ANY", "LOWER_PRIORITY", "NEVER"))},
                {"weight": draw.choice((0, 1, 4)), "lending_limit": draw.choice(((), (("cpu", 0),)))},
            )
        )
        self.settings[path] = {**self.settings[path], **change}
        self.note(self.world.queue(path, **self.settings[path]))

    def open_all(self) -> None:
        """Every queue starts jobs again."""
        self.happens()
        for path, settings in self.settings.items():
            self.settings[path] = {**settings, "state": "OPEN"}
            self.note(self.world.queue(path, **self.settings[path]))
        self.entitle_all()

    def change_node(self) -> None:
        draw = self.draw
        if not self.nodes:
            return
        key = draw.choice(sorted(self.nodes))
        spec = self.nodes[key]
        if draw.random() < 0.15:
            self.note(self.cell.send(c.NodesReported(key[0], removed=(key[1],))))
            return
        self.nodes[key] = spec = replace(spec, ready=draw.random() < 0.8, cordoned=draw.random() < 0.15)
        self.note(self.cell.send(c.NodesReported(key[0], (spec,))))

    # --- what is watched ----------------------------------------------------------------------------------------------

    def happens(self) -> None:
        """Something that preemption did not do; what it does from now on begins a new chain."""
        self.links = {}
        self.event_ms = self.cell.now_ms

    def note(self, transitions: list[tr.Transition]) -> list[tr.Transition]:
        before = {job: hold.made_ms for job, hold in getattr(self, "_holds", {}).items()}
        for t in transitions:
            if isinstance(t, tr.JobPreempted):
                self.links[t.job] = max(self.links.get(t.job, 0), self.links.get(t.by, 0) + 1)
                self.longest = max(self.longest, self.links[t.job])
            elif isinstance(t, tr.HoldReleased):
                assert t.reason.startswith("the job may not start now") or before.get(t.job, 0) <= self.event_ms, (
                    f"jobs left for {t.job}, which did not start: {t.reason}"
                )
        self._holds = dict(self.state.holds)
        return super().note(transitions)

    def obey(self) -> bool:
        """Clusters may take their time, as long as it is not the last time that anybody asks."""
        late = [self.state.holds[job].made_ms for job in self.state.holds]
        in_time = all(self.cell.now_ms - made_ms < LATE_MAX_MS for made_ms in late)
        if self.slow and in_time and self.draw.random() < SLOW:
            return False
        return super().obey()
