"""Priority class files: read, written, and mistakes that name their line."""

from __future__ import annotations

import pytest

from muster.api.v1 import admin_pb2
from muster.client import JobFileError, classfile, queuefile

TEXT = """\
priority_classes:
  urgent: {value: 1000, labels: {team: ops}}
  patient:
    value: -10
    min_runtime: 1h30m
  plain:
queues:
  research: {weight: 2}
"""


def test_a_file_says_what_the_classes_are():
    urgent, patient, plain = classfile.parse(TEXT)
    assert urgent == admin_pb2.PriorityClass(name="urgent", value=1000, labels={"team": "ops"})
    assert (patient.value, patient.min_runtime.ToSeconds()) == (-10, 5400)
    assert plain == admin_pb2.PriorityClass(name="plain")


def test_the_same_file_holds_queues():
    assert [queue.path for queue in queuefile.parse(TEXT).queues] == ["research"]


def test_what_is_written_reads_back(tmp_path):
    found = classfile.parse(TEXT)
    path = tmp_path / "classes.yaml"
    path.write_text(classfile.dump(found))
    assert classfile.load(path) == found
    assert "min_runtime: 1h30m" in path.read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("priority_classes:\n  a: {vlaue: 2}", ':2: unknown key "vlaue" in a (did you mean "value"?)'),
        ("priority_class: {}", ':1: unknown key "priority_class" in the file (did you mean "priority_classes"?)'),
        ("priority_classes:\n  a: {value: high}", ":2: a.value must be a whole number"),
        ("priority_classes:\n  a: {value: 1}\n  a: {value: 2}", 'key "a" of priority_classes is there twice'),
        ("priority_classes:\n  a: {min_runtime: 10}", ":2: a.min_runtime: '10' is not a duration"),
        ("priority_classes: [a]", ":1: priority_classes must be a mapping"),
        ("queues: {a: {}}", "names no priority class"),
        ("- a", "a file of priority classes is a mapping"),
    ],
)
def test_a_mistake_names_its_line(text, says):
    with pytest.raises(JobFileError) as caught:
        classfile.parse(text, source="classes.yaml")
    assert says in str(caught.value)
