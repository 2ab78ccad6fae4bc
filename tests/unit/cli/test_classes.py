"""Priority classes on the command line: what leads to a file's classes, what options say, how they are shown."""

from __future__ import annotations

import pytest
from google.protobuf import duration_pb2

from muster.api.v1 import admin_pb2
from muster.cli import classes
from muster.cli.errors import CliError, Exit


def one(name, value=0, least_s=0, **labels):
    least = duration_pb2.Duration(seconds=least_s) if least_s else None
    return admin_pb2.PriorityClass(name=name, value=value, min_runtime=least, labels=labels)


def test_the_difference_to_a_file():
    now = [one("same", 1, 60), one("other", 2), one("gone", 3)]
    wanted = [one("same", 1, 60), one("other", 5), one("new", 4)]
    kept = classes.difference(now, wanted, prune=False)
    assert [(change.what, change.of) for change in kept] == [("changed", wanted[1]), ("created", wanted[2])]
    pruned = classes.difference(now, wanted, prune=True)
    assert [(change.what, change.of.name) for change in pruned] == [
        ("deleted", "gone"),  # first: there may be as many as there can be
        ("changed", "other"),
        ("created", "new"),
    ]


def test_options_say_what_a_class_is():
    assert classes.message("high", 5, "10m", ["a=b,c=d", "e=f"]) == one("high", 5, 600, a="b", c="d", e="f")
    assert not classes.message("plain", 0, "", []).HasField("min_runtime")
    assert not classes.message("plain", 0, "0s", []).HasField("min_runtime")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("a", 1 << 40, "", []), "--value: 1099511627776 is not between -1000000000 and 1000000000"),
        (("a", 1, "5", []), "--min-runtime: '5' is not a duration"),
        (("a", 1, "", ["x"]), '--label "x" is not key=value'),
    ],
)
def test_a_wrong_option_is_named(given, said):
    with pytest.raises(CliError) as caught:
        classes.message(*given)
    assert caught.value.message.startswith(said)
    assert caught.value.code == Exit.USAGE


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(CliError, match=r"nowhere\.yaml cannot be read"):
        classes.read(str(tmp_path / "nowhere.yaml"))
    path = tmp_path / "classes.yaml"
    path.write_text("priority_classes: {a: {vlaue: 1}}")
    with pytest.raises(CliError, match='did you mean "value"'):
        classes.read(str(path))


def test_classes_as_a_table():
    found = [one("urgent", 1000, 0, team="ops"), one("patient", -10, 5400)]
    assert [line.split() for line in classes.table(found, wide=True).splitlines()] == [
        ["NAME", "VALUE", "MIN", "RUNTIME", "LABELS"],
        ["urgent", "1000", "-", "team=ops"],
        ["patient", "-10", "1", "h", "30", "m", "-"],
    ]
    assert "LABELS" not in classes.table(found, wide=False)
