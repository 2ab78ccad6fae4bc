"""How values are printed."""

import json
import time

import pytest
import yaml

from muster.cli import show
from muster.cli.options import Format


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0314, "31 ms"),
        (4.24, "4.2 s"),
        (42, "42 s"),
        (725, "12 m"),
        (12_000, "3 h 20 m"),
        (7200, "2 h"),
        (4e5, "4 d"),
    ],
)
def test_durations(seconds, text):
    assert show.duration(seconds) == text


def test_amounts_as_people_say_them():
    wanted = {"memory": "17179869184", "cpu": "4000m", "nvidia.com/gpu": "1", "pods": "1"}
    assert show.amounts(wanted) == "4 cpu, 16Gi, 1 gpu"
    assert show.amounts({"muster.io/gpu-milli": "460", "cpu": "500m"}) == "0.5 cpu, 0.46 gpu"
    assert show.amounts({}) == "nothing"


def test_parts_of_devices_are_read_where_usage_has_them():
    assert show.amount_of("nvidia.com/gpu", "239.75") == 239_750
    assert show.amount_of("nvidia.com/gpu", "nonsense") == 0


def test_tables_align():
    text = show.table(("NAME", "N"), [("a", "1"), ("longer", "100")], right=frozenset({1}))
    assert text.splitlines() == ["NAME      N", "a         1", "longer  100"]


def test_countdown_and_clock():
    assert show.countdown(41.4) == "0:41"
    assert show.countdown(-3) == "0:00"
    assert show.clock(0) == show.NOTHING
    assert len(show.clock(time.time())) == 8


def test_machine_formats(capsys):
    show.emit(Format.JSON, {"a": [1, "ä"]})
    assert json.loads(capsys.readouterr().out) == {"a": [1, "ä"]}
    show.emit(Format.YAML, {"b": 1, "a": "ä"})
    text = capsys.readouterr().out
    assert yaml.safe_load(text) == {"b": 1, "a": "ä"}
    assert text.startswith("b")


def test_enum_names():
    assert show.enum_name("REASON_MAX_RUNTIME_EXCEEDED", "REASON_") == "MaxRuntimeExceeded"
    assert show.enum_name("REASON_UNSPECIFIED", "REASON_") == ""
