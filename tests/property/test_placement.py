"""Placement against a naive reading of its rules, on random tables (rules G1, G2, G4; invariants I1, I2).

`Naive` knows nothing of orders, shapes or overlays: for every pod it looks at every node and takes the least key as the
text of `placement` and `overlay` states it.
"""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from muster.core import layout, shapes
from muster.core.affinity import Exclusion, exclusion
from muster.core.model import GroupPlacement, NodeSpec, Requirement, Taint, TaskGroup, Toleration, Zone
from muster.core.nodes import NodeTable
from muster.core.overlay import Overlay
from muster.core.shortfall import never_fits, shortfall

GPU = "nvidia.com/gpu"
AMD = "amd.com/gpu"

# --- random worlds --------------------------------------------------------------------------------------------------

pools = st.sampled_from([(), (("pool", "a"),), (("pool", "b"), ("tier", "3"))])


@st.composite
def node_specs(draw, cluster: str, name: str) -> NodeSpec:
    devices = draw(st.sampled_from([0, 0, 1, 2, 4, 8]))
    vendor = draw(st.sampled_from([GPU, GPU, GPU, AMD])) if devices else ""
    allocatable = {"cpu": draw(st.integers(0, 8)) * 1000, "memory": draw(st.integers(1, 8))}
    if draw(st.booleans()):
        allocatable["pods"] = draw(st.integers(1, 6))
    if draw(st.integers(0, 3)) == 0:
        allocatable["example.com/fpga"] = draw(st.integers(1, 3))
    if devices:
        allocatable[vendor] = devices * 1000
    others = {"cpu": draw(st.sampled_from([0, 0, 0, 500, 9000]))}
    if devices:
        others[vendor] = draw(st.sampled_from([0, 0, 0, 1000, 2000]))
    return NodeSpec(
        cluster,
        name,
        tuple(sorted(allocatable.items())),
        labels=draw(pools),
        taints=draw(st.sampled_from([(), (), (), (Taint("x"),), (Taint("soft", "", "PreferNoSchedule"),)])),
        ready=draw(st.integers(0, 9)) > 0,
        cordoned=draw(st.integers(0, 9)) == 0,
        device_resource=vendor,
        devices=devices,
        used_by_others=tuple(sorted((k, v) for k, v in others.items() if v)),
    )


@st.composite
def groups(draw, replicas_max: int = 6, name: str = "g") -> TaskGroup:
    requests = {}
    if draw(st.booleans()):
        requests["cpu"] = draw(st.sampled_from([250, 500, 1000, 3000]))
    if draw(st.booleans()):
        requests["memory"] = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["none", "none", "whole", "share"]))
    if kind == "whole":
        requests[draw(st.sampled_from([GPU, GPU, AMD]))] = 1000 * draw(st.integers(1, 3))
    if kind == "share":
        requests[GPU] = draw(st.sampled_from([100, 250, 460, 700, 999]))
    if draw(st.integers(0, 7)) == 0:
        requests[draw(st.sampled_from(["example.com/fpga", "example.com/none"]))] = 1
    replicas = draw(st.integers(1, replicas_max))
    return TaskGroup(
        name,
        replicas,
        draw(st.sampled_from([replicas, replicas, draw(st.integers(0, replicas))])),
        tuple(sorted(requests.items())),
        node_selector=draw(st.sampled_from([(), (), (), (("pool", "a"),)])),
        affinity=draw(
            st.sampled_from([(), (), ((Requirement("tier", "Gt", ("2",)),), (Requirement("pool", "In", ("a",)),))])
        ),
        tolerations=draw(st.sampled_from([(), (Toleration("", "Exists"),)])),
        policy=draw(st.sampled_from(["", "PACK", "SPREAD"])),
    )


@st.composite
def tables(draw) -> NodeTable:
    table = NodeTable()
    clusters = draw(st.sampled_from([("one",), ("zeta", "eta")]))
    for n in range(draw(st.integers(1, 10))):
        spec = draw(node_specs(clusters[n % len(clusters)], f"n{n}"))
        table.upsert(n, spec)
        if spec.devices >= 4 and draw(st.booleans()):
            half = spec.devices // 2
            table.set_zones(n, (Zone(0, devices=tuple(range(half))), Zone(1, devices=tuple(range(half, spec.devices)))))
        if draw(st.integers(0, 11)) == 0:
            table.remove(n)
    return table


# --- the naive reading ----------------------------------------------------------------------------------------------


class NaiveNode:
    def __init__(self, table: NodeTable, n: int, overlay: Overlay) -> None:
        self.spec, self.zones, self.index = table.spec(n), table.zones(n), n
        row = overlay.row(n)
        self.free = {name: row.free[column] for name, column in table.columns.items()}
        self.devices = list(row.devices)
        self.up = self.spec.ready and not self.spec.cordoned and not table.is_removed(n)

    def takes(self, group: TaskGroup) -> bool:
        spec = self.spec
        if not self.up or min(self.free.values()) < 0 or min(self.devices, default=0) < 0:
            return False
        verdict = exclusion(
            dict(spec.labels),
            spec.taints,
            node_selector=group.node_selector,
            affinity=group.affinity,
            tolerations=group.tolerations,
        )
        if verdict is not Exclusion.NONE or self.free["pods"] < 1:
            return False
        if any(self.free.get(name, 0) < amount for name, amount in group.requests):
            return False
        vendor, millis = device_request(group)
        if millis and vendor != spec.device_resource:
            return False
        if millis >= 1000:
            return self.devices.count(1000) >= millis // 1000
        return not millis or max(self.devices) >= millis

    def key(self, group: TaskGroup, dominant: str) -> tuple[int, ...]:
        spread = group.policy == "SPREAD"
        vendor, millis = device_request(group)
        if not millis:
            other = "memory" if dominant == "cpu" else "cpu"
            tier, primary, secondary = int(self.spec.devices > 0), self.free[dominant], self.free[other]
        elif millis >= 1000:
            tier, primary, secondary = 0, self.devices.count(1000), self.free["cpu"]
        elif spread:
            tier, primary, secondary = 0, self.free[vendor], self.free["cpu"]
        else:
            tier, primary, secondary = 0, min(d for d in self.devices if d >= millis), self.free[vendor]
        sign = -1 if spread else 1
        return tier, sign * primary, sign * secondary, self.index

    def charge(self, group: TaskGroup) -> bytes:
        self.free["pods"] -= 1
        for name, amount in group.requests:
            self.free[name] -= amount
        _, millis = device_request(group)
        if not millis:
            return b""
        if millis < 1000:
            chosen = [self.devices.index(min(d for d in self.devices if d >= millis))]
        else:
            whole = [d for d, free in enumerate(self.devices) if free == 1000]
            wanted = millis // 1000
            zones = [[d for d in whole if d in zone.devices] for zone in sorted(self.zones, key=lambda z: z.id)]
            enough = [zone for zone in zones if len(zone) >= wanted]
            chosen = (min(enough, key=len) if enough else whole)[:wanted]
        for device in chosen:
            self.devices[device] -= min(millis, 1000)
        return bytes(chosen)


def device_request(group: TaskGroup) -> tuple[str, int]:
    return next(((name, amount) for name, amount in group.requests if name in (GPU, AMD)), ("", 0))


def dominant_resource(table: NodeTable, group: TaskGroup) -> str:
    whole = [sum(column) for column in zip(*table.cluster_totals, strict=True)]  # also of nodes that are out
    capacity = {name: whole[column] for name, column in table.columns.items()} if whole else {}
    shares = [
        (Fraction(-amount, capacity[name]) if capacity.get(name) else Fraction(-(10**30)), name)
        for name, amount in group.requests
    ]
    return min(shares, default=(0, "pods"))[1]


class Naive:
    """Places gangs by the letter."""

    def __init__(self, overlay: Overlay) -> None:
        self.table = overlay.table
        self.nodes = [NaiveNode(self.table, n, overlay) for n in range(len(self.table))]

    def place(self, gang: list[TaskGroup], mask=None, suspects=frozenset()):
        best = None
        for cluster in sorted(self.table.cluster_names):
            if mask is not None and cluster not in mask:
                continue
            nodes = [n for n in self.nodes if n.spec.cluster == cluster and n.index not in suspects]
            found = self._place_in(deepcopy(nodes), gang)
            if found is not None and (best is None or (*found[0], cluster) < best[0]):
                best = ((*found[0], cluster), *found[1:])
        if best is None:
            return None
        for node in best[2]:
            self.nodes[node.index] = node
        return best[1]

    def _place_in(self, nodes: list[NaiveNode], gang: list[TaskGroup]):
        turns = sorted(
            range(len(gang)),
            key=lambda g: (-device_request(gang[g])[1], not (gang[g].node_selector or gang[g].affinity), g),
        )
        result: list[dict[int, list]] = [{} for _ in gang]
        first = []
        for wanted in ("min_replicas", "replicas"):
            for g in turns:
                group = gang[g]
                dominant = dominant_resource(self.table, group)
                placed = sum(pods for pods, _ in result[g].values())
                while placed < getattr(group, wanted):
                    fitting = [node for node in nodes if node.takes(group)]
                    if not fitting:
                        break

                    def rank(node, group=group, g=g, dominant=dominant):
                        key = node.key(group, dominant)
                        mine = result[g].get(node.index, [0])[0] if group.policy == "SPREAD" else 0
                        return (key[0], mine, *key[1:])

                    node = min(fitting, key=rank)
                    first = first or [node.key(group, dominant)[:3]]
                    devices = node.charge(group)
                    entry = result[g].setdefault(node.index, [0, b""])
                    entry[0] += 1
                    entry[1] += devices
                    placed += 1
                if wanted == "min_replicas" and placed < group.min_replicas:
                    return None
        placed = sum(pods for group in result for pods, _ in group.values())
        if not placed:
            return None
        used = len({n: 0 for group in result for n in group})
        nodes_used = -used if gang[turns[0]].policy == "SPREAD" else used
        placement = tuple(
            GroupPlacement(g, tuple((n, pods) for n, (pods, _) in r.items()), b"".join(d for _, d in r.values()))
            for g, r in enumerate(result)
        )
        return (-placed, nodes_used, *(first or [(0, 0, 0)])), placement, nodes


def same_rows(table: NodeTable) -> tuple:
    return tuple((tuple(row.free), tuple(row.devices), tuple(row.taken)) for row in table.rows)


# --- properties -----------------------------------------------------------------------------------------------------

gangs = st.lists(groups(), min_size=1, max_size=3).map(
    lambda found: [TaskGroup(f"g{i}", *[getattr(g, f) for f in g.__struct_fields__[1:]]) for i, g in enumerate(found)]
)
masks = st.sampled_from([None, None, None, ("one",), ("eta",)])
suspect_sets = st.sampled_from([frozenset(), frozenset(), frozenset({0}), frozenset({1, 2})])


@settings(max_examples=300, deadline=None)
@given(tables(), st.lists(st.tuples(gangs, masks, suspect_sets), min_size=1, max_size=12))
def test_gangs_are_placed_by_the_letter_of_the_rule(table, wanted):
    before = same_rows(table)
    overlay = Overlay(table)
    naive = Naive(overlay)
    for gang, mask, suspects in wanted:
        expected = naive.place(gang, mask, suspects)
        assert overlay.place_gang(gang, cluster_mask=mask, suspects=suspects) == expected
        for n in range(len(table)):  # I1, and a None left nothing behind
            row, node = overlay.row(n), naive.nodes[n]
            assert list(row.devices) == node.devices
            assert [row.free[table.columns[name]] for name in node.free] == list(node.free.values())
        if expected is not None:  # rule I2
            assert all(layout.pods_placed(p) >= g.min_replicas for p, g in zip(expected, gang, strict=True))
    assert same_rows(table) == before


@settings(max_examples=150, deadline=None)
@given(tables(), groups(replicas_max=1), st.integers(1, 40), gangs)
def test_many_equal_jobs_are_placed_as_one_after_the_other(table, group, count, other):
    job = TaskGroup("job", 1, 1, *[getattr(group, f) for f in group.__struct_fields__[3:]])
    one_by_one, at_once = Overlay(table), Overlay(table)
    assert one_by_one.place_gang(other) == at_once.place_gang(other)
    singles = [one_by_one.place_gang([job]) for _ in range(count)]
    runs = at_once.place_many(job, count)
    width = max((len(p[0].devices) for p in singles if p), default=0)
    flat = [(n, devices[i * width : (i + 1) * width]) for n, pods, devices in runs for i in range(pods)]
    assert flat == [(p[0].runs[0][0], p[0].devices) for p in singles if p is not None]
    assert [one_by_one.row(n).free for n in range(len(table))] == [at_once.row(n).free for n in range(len(table))]
    assert [one_by_one.row(n).devices for n in range(len(table))] == [at_once.row(n).devices for n in range(len(table))]


@settings(max_examples=100, deadline=None)
@given(tables(), gangs, gangs)
def test_what_is_released_is_as_if_it_had_never_been(table, first, second):
    overlay = Overlay(table)
    placed = overlay.place_gang(first)
    if placed is None:
        return
    after_first = Overlay(table)
    assert after_first.fits(first, placed)
    after_first.charge(first, placed)
    later = after_first.place_gang(second)
    assert overlay.place_gang(second) == later
    if later is not None:
        overlay.release(second, later)
    overlay.release(first, placed, layout.placed_positions(first, placed))
    for n, row in enumerate(table.rows):
        assert (overlay.row(n).free, overlay.row(n).devices) == (row.free, row.devices)
    assert overlay.place_gang(first) == placed


@settings(max_examples=100, deadline=None)
@given(tables(), gangs)
def test_the_shortfall_agrees_with_what_is_placed(table, gang):
    answer = shortfall(table, gang)
    placed = Overlay(table).place_gang(gang)
    never = never_fits(table, gang)
    if placed is not None:
        assert never is None
        assert all(part.fitting_pods >= part.needed_pods for part in answer.groups)
    for part in answer.groups:
        live = len(table.live(answer.cluster))
        assert part.fitting_nodes + sum(nodes for _, nodes in part.excluded) == live
        if part.fitting_pods < part.needed_pods:
            assert part.unblock
    if len(gang) == 1 and gang[0].min_replicas > 0:
        alone = max((p.fitting_pods for p in answer.groups), default=0) >= gang[0].min_replicas
        assert alone == (placed is not None)


# --- the same on every machine --------------------------------------------------------------------------------------

PROGRAM = """
import hashlib
from muster.core.model import NodeSpec, TaskGroup
from muster.core.nodes import NodeTable
from muster.core.overlay import Overlay

table = NodeTable()
for n in range(60):
    devices = (0, 2, 8)[n % 3]
    have = [("cpu", 8000 + 1000 * (n % 5)), ("memory", 64 + n % 7)] + [("nvidia.com/gpu", devices * 1000)][: devices]
    labels = (("pool", "ab"[n % 2]),)
    spec = NodeSpec("xyz"[n % 3 - 1], f"n{n}", tuple(have), labels, device_resource="nvidia.com/gpu" * bool(devices),
                    devices=devices)
    table.upsert(n, spec)
digest = hashlib.sha256()
overlay = Overlay(table)
for job in range(600):
    gpu = (0, 250, 1000, 460, 2000)[job % 5]
    requests = [("cpu", 100 + job % 9 * 50), ("memory", 1 + job % 3)] + [("nvidia.com/gpu", gpu)] * bool(gpu)
    where, policy = (("pool", "a"),) * (job % 2), "SPREAD" * (job % 7 == 0)
    group = TaskGroup("g", 1 + job % 4, 1, tuple(requests), where, policy=policy)
    digest.update(repr(overlay.place_gang((group,), suspects=frozenset({job % 60, 7}))).encode())
print(digest.hexdigest())
"""


def test_placement_does_not_depend_on_the_hash_seed():  # I8
    found = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 65


# --- caches follow the table ----------------------------------------------------------------------------------------


class Following(RuleBasedStateMachine):
    """Fit vectors, orders and arrays that followed the change log equal those made afresh, whatever happened."""

    def __init__(self) -> None:
        super().__init__()
        self.table = NodeTable()
        self.placed: list[tuple[list[TaskGroup], tuple[GroupPlacement, ...]]] = []
        self.asked: list[TaskGroup] = []

    @rule(data=st.data(), n=st.integers(0, 7))
    def upsert(self, data, n):
        name = f"n{n}"
        cluster = "one" if n % 2 else "two"
        index = self.table.index_of(cluster, name)
        spec = data.draw(node_specs(cluster, name))
        self.table.upsert(self.table.next_index if index is None else index, spec)

    @precondition(lambda self: len(self.table))
    @rule(data=st.data())
    def remove(self, data):
        self.table.remove(data.draw(st.integers(0, len(self.table) - 1)))

    @rule(gang=gangs)
    def place(self, gang):
        placed = Overlay(self.table).place_gang(gang)
        if placed is not None:
            self.table.charge_placement(gang, placed)
            self.placed.append((gang, placed))

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def pods_end(self, data):
        at = data.draw(st.integers(0, len(self.placed) - 1))
        gang, placed = self.placed.pop(at)
        positions = layout.placed_positions(gang, placed)
        first = data.draw(st.integers(0, len(positions)))
        self.table.release_pods(gang, placed, positions[:first])
        self.table.release_pods(gang, placed, positions[first:])

    @rule(group=groups())
    def ask(self, group):
        self.asked = [*self.asked[-3:], group]

    @invariant()
    def followers_equal_fresh_ones(self):
        table = self.table
        fresh = self.rebuilt()
        assert {c: i for c, i in table.columns.items() if c in fresh.columns}.keys() == fresh.columns.keys()
        for n in range(len(table)):
            assert table.free_amounts(n) == fresh.free_amounts(n)
            width = min(len(table.rows[n].devices), len(fresh.rows[n].devices))
            assert table.rows[n].devices[:width] == fresh.rows[n].devices[:width]
            assert not any(table.rows[n].devices[width:] + fresh.rows[n].devices[width:])
            assert table.free[n].tolist() == table.rows[n].free
            # The devices add up to the columns, also on a node that came back with devices of another kind.
            columns = [table.columns[kind] for kind in (AMD, GPU) if kind in table.columns]
            in_columns = sum(table.rows[n].free[column] for column in columns)
            assert in_columns == int(table.device_free[n].sum()) == sum(table.rows[n].devices)
        assert table.capacity() == fresh.capacity()
        for group in self.asked:
            mine, theirs = shapes.cache_of(table).shape(group), shapes.cache_of(fresh).shape(group)
            for followed, new in (
                (mine.fit_now(table), theirs.fit_now(fresh)),
                (mine.fit_when_empty(table), theirs.fit_when_empty(fresh)),
            ):
                assert followed.counts.tolist() == new.counts.tolist()
                assert followed.totals == new.totals
            one = [mine.fit(n, row) for n, row in enumerate(table.rows)]
            assert one == mine.fit_now(table).counts.tolist()
            assert Overlay(table).place_gang([group]) == Overlay(fresh).place_gang([group])

    def rebuilt(self) -> NodeTable:
        """As a snapshot would bring it back."""
        table = NodeTable()
        for n in range(len(self.table)):
            table.upsert(n, self.table.spec(n))
        for n in range(len(self.table)):
            if self.table.is_removed(n):
                table.remove(n)
        for gang, placed in self.placed:
            table.charge_placement(gang, placed)
        return table


Following.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestFollowing = Following.TestCase
