"""Trees of queues larger than any one request used to be, from a file to a real cell and back (rule Q4)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.integration.admission_cell import Muster, Processes, commands, running_cell

from muster.cli.errors import Exit

LEVELS = 10
COLUMNS = 140
BELOW = COLUMNS * (LEVELS - 1)  # the root: 1,260


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with running_cell(tmp_path_factory.mktemp("cell")) as processes:
        yield processes


@pytest.fixture
def muster(cell: Processes, capsys: pytest.CaptureFixture[str]) -> Muster:
    return commands(cell, capsys)


def large_tree() -> str:
    """Columns of ten levels below one root."""
    columns = {}
    for column in range(COLUMNS):
        below: dict[str, object] = {}
        for level in reversed(range(1, LEVELS)):
            settings = {
                "weight": 1 + level,
                "guaranteed": {"cpu": 1},
                "limit": {"cpu": 500, "memory": "4Ti", "gpu": 64},
            }
            below = {f"team-{column}-{level}": settings | ({"queues": below} if below else {})}
        columns |= below
    return yaml.safe_dump({"queues": {"org": {"queues": columns}}}, sort_keys=False)


def test_a_large_tree_is_applied_exported_and_pruned_as_a_whole(muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "tree.yaml"
    file.write_text(large_tree())
    code, out, err = muster("queue", "apply", "-f", str(file), "--dry-run")
    assert (code, out.count("  created\n")) == (0, 1 + BELOW), err
    code, out, err = muster("queue", "apply", "-f", str(file))
    assert (code, out.count("  created\n")) == (0, 1 + BELOW), err
    exported = tmp_path / "exported.yaml"
    exported.write_text(muster("queue", "export")[1])
    assert exported.read_text().startswith("revision: ")
    assert muster("queue", "apply", "-f", str(exported), "--prune")[1] == "nothing to change\n"
    file.write_text("queues: {org: {}}\n")
    code, out, err = muster("queue", "apply", "-f", str(file), "--prune")
    assert (code, out.count("  deleted\n")) == (0, BELOW), err
    code, out, err = muster("queue", "apply", "-f", str(exported))
    assert (code, out) == (Exit.REFUSED, "")
    assert "[Q4]" in err
    exported.write_text(exported.read_text().partition("\n")[2])  # without the revision
    code, out, err = muster("queue", "apply", "-f", str(exported))
    assert (code, out.count("  created\n")) == (0, BELOW), err


def test_of_two_people_who_apply_what_they_have_read_the_later_is_told(muster: Muster, tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("queues: {q1: {}, q2: {limit: {gpu: 5}}}\n")
    code, out, err = muster("queue", "apply", "-f", str(first))
    assert code == 0, err
    made = int(out.splitlines()[-1].removeprefix("the tree has revision ").removesuffix(" now"))
    exported = muster("queue", "export", "q2")[1]
    assert exported.startswith(f"revision: {made}\n")
    first.write_text(exported.replace("'5'", "10"))
    second.write_text(exported + "  q1: {weight: 3}\n")
    assert muster("queue", "apply", "-f", str(first))[0] == 0
    assert muster("queue", "apply", "-f", str(first))[1] == "nothing to change\n"  # as it is now: nothing is lost
    for option in ((), ("--dry-run",), ("--expect-revision", str(made))):
        code, out, err = muster("queue", "apply", "-f", str(second), *option)
        assert (code, out) == (Exit.REFUSED, "")
        assert f"the tree of queues has changed since revision {made}: q2 (it has revision " in err
        assert "[Q4]" in err
    told = err.split("it has revision ")[1].split()[0]
    code, out, _ = muster("queue", "apply", "-f", str(second), "--dry-run", "--expect-revision", told)
    assert code == 0
    now = next(line for line in out.splitlines() if line.startswith("the tree has revision ")).split()[-1]
    assert muster("queue", "apply", "-f", str(second), "--expect-revision", now)[0] == 0


def test_what_the_cell_refuses_is_told_by_its_place_in_the_file(muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    refused = (
        ("queues:\n  a: {}\n  b:\n    limit:\n      cpu: 1O\n", f'{file}:5: b.limit.cpu: "1O" has the unknown suffix'),
        ("queues:\n  a:\n    queues:\n      Foo Bar: {}\n", f'{file}:4: queue "a/Foo Bar": is not a name'),
        ("queues:\n  a: {priority: 2000000001}\n", f"{file}:2: a.priority"),
        ("queues:\n  p:\n    limit: {cpu: 1}\n    queues: {m: {guaranteed: {cpu: 2}}}\n", f"{file}:3: p.limit.cpu"),
        ("moves:\n  - {path: nowhere, new_path: b}\n", f"{file}:2: moves[0].path"),
    )
    for text, told in refused:
        file.write_text(text)
        for command in (("queue", "apply"), ("queue", "apply", "--dry-run"), ("what-if", "apply")):
            code, out, err = muster(*command, "-f", str(file))
            assert code in (Exit.REFUSED, Exit.NOT_FOUND), err
            assert told in err
            assert "queues[" not in err
            assert out == ""
