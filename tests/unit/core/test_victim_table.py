"""The table of victims: kept up with what changes, in parts or at once, it is what a fresh one would be."""

from __future__ import annotations

import random

import pytest
from tests.unit.core.conftest import World

from muster.core import victim_table
from muster.core.potential import staying
from muster.core.prepare import prepare, rehearse
from muster.core.victim_table import ALIVE, IDENT, LEAF, PRIORITY, SUBMIT, VictimTable, read_some, table_of


def content(table):
    """By job: its facts, its leaf, what it uses, and by node what it has there. Nothing about lines."""
    found = {}
    for line, job in enumerate(table.jobs):
        if not table.facts[line, ALIVE]:
            continue
        assert table.line(job) == line
        facts = table.facts[line].tolist()
        pieces = table.pieces[: table.piece_count]
        at = [n for n in range(len(pieces)) if pieces[n, 0] == line]
        found[job] = (
            table.leaves[facts[LEAF]],
            facts[1:],
            table.total[line].tolist(),
            table.spare[line].tolist(),
            sorted((int(pieces[n, 1]), table.piece_amounts[n].tolist()) for n in at),
        )
    return found


def in_order(table):
    facts = table.facts
    lines = table.order().tolist()
    keys = [(facts[n, LEAF], -facts[n, PRIORITY], facts[n, SUBMIT], facts[n, IDENT]) for n in lines]
    assert keys == sorted(keys)
    return [table.jobs[line] for line in lines]


def check(state, kept):
    fresh = VictimTable().synced(state)
    assert content(kept) == content(fresh)
    assert sorted(content(kept)) == sorted(job.id for job in state.jobs.values() if staying(job))
    assert sorted(in_order(kept)) == sorted(content(kept))
    in_order(fresh)


def mixed(world, draw, count=6):
    """Jobs of all kinds come, and some that run end."""
    for _ in range(count):
        world.number = getattr(world, "number", 0) + 1
        replicas = draw.choice((1, 1, 2, 3))
        least = draw.randint(1, replicas)
        queue = draw.choice(("research", "top/a", "top/b"))
        world.cell.now_ms += draw.choice((0, 10))
        world.submit(
            f"job-{world.number}",
            cpu=500,
            replicas=replicas,
            least=least,
            queue=queue,
            priority=draw.choice((-3, 0, 7)),
        )
    for job in [job for job in world.state.jobs.values() if job.charged and draw.random() < 0.4]:
        world.pods(job.spec.name, 3)


@pytest.mark.parametrize("inserts", [0, 4096])
@pytest.mark.parametrize("seed", range(4))
def test_kept_up_it_is_what_a_fresh_one_would_be(monkeypatch, seed, inserts):
    monkeypatch.setattr(victim_table, "LINES_MIN", 4)
    monkeypatch.setattr(victim_table, "INSERTS_MAX", inserts)
    draw, world = random.Random(seed), World()
    for path in ("top", "top/a", "top/b"):
        world.queue(path)
    world.nodes(6, cpu=8000)
    for turn in range(8):
        mixed(world, draw)
        if turn == 4:
            world.nodes(7, cpu=8000, gpus=2)  # a resource that nobody had before
        while turn % 2 and read_some(world.state, 3):
            mixed(world, draw, 1)
        kept = table_of(world.state)
        check(world.state, kept)
        assert len(kept.jobs) <= max(2 * len(content(kept)), 4) + 12  # the dead are cut out


def test_who_is_too_far_behind_reads_all_again(monkeypatch):
    monkeypatch.setattr("muster.core.potential.TOUCHED_MAX", 8)
    world = World()
    world.nodes(4)
    world.submit("first")
    table_of(world.state)
    for n in range(12):
        world.submit(f"job-{n}")
    check(world.state, table_of(world.state))


def test_getting_ready_goes_on_while_the_cell_does():
    world, draw = World(), random.Random(1)
    for path in ("top", "top/a", "top/b"):
        world.queue(path)
    for _ in prepare(world.state):
        raise AssertionError("there is nothing yet")
    rehearse(world.state)
    world.nodes(3, cpu=2000)
    mixed(world, draw, 20)
    steps = 0
    for _ in prepare(world.state):
        steps += 1
        mixed(world, draw, 2)
    assert steps >= 2
    rehearse(world.state)
    check(world.state, table_of(world.state))
