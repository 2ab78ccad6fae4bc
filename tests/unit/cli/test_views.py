"""What explain, queue list, get, events and top print, from messages as admission sends them."""

import datetime

import pytest
from google.protobuf import text_format

from muster.api.v1 import job_pb2, query_pb2, queue_pb2
from muster.cli import events, explain, jobs, queues, top
from muster.cli.errors import CliError
from muster.client import Explained, Job, Queue

EXPLAINED = """
job {
  id: "0123456789abcdef0123456789abcdef"
  spec { name: "bert-large" queue: "research/vision" }
  status { state: JOB_STATE_QUEUED queue: "research/vision" submit_time { seconds: 1000 } }
}
explanation {
  position: 3 pending: 41
  expected_start_unknown: "no reservation"
  needs {
    task: "ps" replicas: 2 min_replicas: 2
    resources { key: "cpu" value: "4" } resources { key: "memory" value: "16Gi" }
  }
  needs { task: "w" replicas: 8 min_replicas: 4 resources { key: "nvidia.com/gpu" value: "1" } }
  shares {
    queue: "research"
    usage { key: "nvidia.com/gpu" value: "96" }
    limit { key: "nvidia.com/gpu" value: "128" }
    entitled { key: "nvidia.com/gpu" value: "100" }
    with_job { key: "nvidia.com/gpu" value: "104" }
  }
  blockers {
    rule: "G4" kind: "capacity" resource: "nvidia.com/gpu" missing: "1" nodes: 12 message: "fits no block now"
  }
  unblocked_by: "1 more gpu" unblocked_by: "min_replicas 3"
  ahead: "aaaaaaaabbbbbbbbccccccccdddddddd"
  preemption: "not preempting because nobody runs at a priority below 0"
}
"""


def test_an_explanation_line_by_line():
    found = Explained(text_format.Parse(EXPLAINED, query_pb2.ExplainJobResponse()))
    assert explain.lines(found, now_s=1000 + 720) == [
        "bert-large  research/vision  Queued 12 m   position 3 of 41   expected start unknown: no reservation",
        " needs      2 x (4 cpu, 16Gi) + 4..8 x (1 gpu)",
        " share      research uses 96 gpu of 100 gpu entitled, limit 128 gpu; with this job 104",
        " in the way fits no block now (short by 1 gpu, on 12 nodes)  [G4]",
        " ahead      aaaaaaaa",
        " would run at once if   1 more gpu | min_replicas 3",
        " not preempting because nobody runs at a priority below 0",
    ]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("state: JOB_STATE_QUEUED submit_time { seconds: 1000 }", "Queued 2 m"),
        ("state: JOB_STATE_QUEUED submit_time { seconds: 1000 } epoch: 1", "Queued"),  # it has run since
        ("state: JOB_STATE_RUNNING submit_time { seconds: 1000 } start_time { seconds: 1060 } epoch: 1", "Running 1 m"),
    ],
)
def test_for_how_long_it_is_in_its_state(status, said):
    text = f'job {{ spec {{ name: "j" queue: "q" }} status {{ queue: "q" {status} }} }}'
    found = Explained(text_format.Parse(text, query_pb2.ExplainJobResponse()))
    assert explain.lines(found, now_s=1120)[0] == f"j  q  {said}"


def test_the_queue_tree_is_indented():
    found = [
        Queue(
            queue_pb2.Queue(path="research", weight=2, state=queue_pb2.QUEUE_STATE_OPEN, limit={"nvidia.com/gpu": "64"})
        ),
        Queue(queue_pb2.Queue(path="research/nlp", weight=0, state=queue_pb2.QUEUE_STATE_CLOSED)),
    ]
    found[0].proto.status.usage["nvidia.com/gpu"] = "39.5"
    found[0].proto.status.pending_jobs = 7
    header, first, second = queues.tree(found).splitlines()
    assert header.split()[:5] == ["QUEUE", "WEIGHT", "GUARANTEED", "ENTITLED", "USED"]
    assert first.split() == ["research", "2", "-", "-", "39.5", "-", "64", "gpu", "-", "7", "0", "OPEN"]
    assert second.startswith("  nlp")
    assert second.split()[1] == "0"  # weight 0 is said, not taken for absent
    assert second.endswith("CLOSED")


def test_queue_fields_by_short_names():
    fields = queues.Fields(weight=0, limit=["gpu=64,cpu=500", "memory=2Ti"])
    assert fields.given() == {"weight": 0, "limit": {"nvidia.com/gpu": "64", "cpu": "500", "memory": "2Ti"}}
    assert queues.Fields().given() == {}


def test_an_update_changes_the_amounts_it_names_and_takes_away_those_that_are_none():
    assert queues.merged({"cpu": "4", "memory": "1Gi"}, {"cpu": "5", "memory": "none", "x": "1"}) == {
        "cpu": "5",
        "x": "1",
    }


def test_pairs_that_are_none():
    for text in ("gpu", "=4", "gpu="):
        with pytest.raises(CliError, match="is not key=value"):
            jobs.pairs([text], "--limit")


LIFE = """
id: "0123456789abcdef0123456789abcdef"
spec { name: "j" queue: "q" tasks { name: "main" replicas: 2 min_replicas: 1 }
  max_runtime { seconds: 14400 }
  trace_context: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" }
status {
  state: JOB_STATE_FAILED reason: REASON_POD_FAILED exit_code: 3
  submit_time { seconds: 100 } finish_time { seconds: 190 }
  pods { wanted: 2 succeeded: 1 failed: 1 }
  attempts {
    epoch: 1 reason: REASON_PREEMPTED
    place_time { seconds: 110 } start_time { seconds: 112 } end_time { seconds: 140 }
    replicas {
      task: "main" cluster: "sim-a" node: "n0" devices: 1 phase: POD_PHASE_FAILED exit_code: 143 pod: "main-0"
    }
  }
  attempts {
    epoch: 2 reason: REASON_POD_FAILED
    place_time { seconds: 150 } start_time { seconds: 151 } end_time { seconds: 190 }
    replicas {
      task: "main" cluster: "sim-a" node: "n1" devices: 3 phase: POD_PHASE_FAILED exit_code: 3 pod: "j-main-0-2-0"
    }
  }
}
"""


@pytest.mark.parametrize(
    ("spec", "status", "said"),
    [
        ("", "", []),
        ("preemptible: true", "", []),
        ("preemptible: false max_preemptions: 1", "preemptions: 1", ["not preemptible"]),
        ("max_preemptions: 2", "", ["preempted 0 of 2 times"]),
        ("", "preemptions: 3", ["preempted 3 of 5 times"]),
        ("", "preemptions: 5", ["preempted 5 of 5 times: from now on only by priority"]),
        ("max_preemptions: 0", "", ["preempted 0 of 0 times: from now on only by priority"]),
        ("", "min_runtime { seconds: 5400 }", ["until it ran 1 h 30 m"]),
        (
            "max_preemptions: 1",
            "preemptions: 1 min_runtime { seconds: 60 }",
            ["preempted 1 of 1 times: from now on only by priority   until it ran 1 m"],
        ),
    ],
)
def test_what_protects_a_job_is_told(spec, status, said):
    job = Job(text_format.Parse(f"spec {{ {spec} }} status {{ {status} }}", job_pb2.Job()))
    assert jobs._protection(job) == said
    assert [line for line in jobs._portrait(job, wide=False) if line.startswith(" protected ")] == [
        f" protected {line}" for line in said
    ]


def test_the_class_of_a_job_is_told():
    job = Job(text_format.Parse('spec { priority: 7 priority_class: "high" } status {}', job_pb2.Job()))
    assert any(line.startswith(" priority  7 (class high)   namespace") for line in jobs._portrait(job, wide=False))
    assert "high" in jobs._row(job, wide=True)
    assert "high" not in jobs._row(job, wide=False)


def test_the_life_of_a_job():
    job = Job(text_format.Parse(LIFE, job_pb2.Job()))
    lines = jobs._portrait(job, wide=False)
    assert lines[0].startswith("j  q  Failed (PodFailed)   1/2 pods")
    assert any("main: 1..2 x" in line for line in lines)
    assert " bounds    max_runtime 4 h" in lines
    steps = [line.split("  ", 3)[-1].split(" ", 2)[-1].strip() for line in lines if line.startswith("   ")]
    assert [step for step in steps if step] == [
        "Queued in q",
        "Placed (epoch 1)",
        "Running",
        "taken down (Preempted)",
        "Placed (epoch 2)",
        "Running",
        "Failed (PodFailed, exit code 3)",
    ]
    assert any("4bf92f3577b34da6a3ce929d0e0e4736" in line for line in lines)
    assert lines[-1].splitlines()[-1].split() == ["j-main-0-2-0", "sim-a", "n1", "3", "Failed", "3"]


def test_growths_and_shrinks_are_steps_of_its_life():
    text = """
    spec { name: "e" queue: "q" }
    status {
      state: JOB_STATE_RUNNING epoch: 1 submit_time { seconds: 1000 }
      attempts {
        epoch: 1 place_time { seconds: 1001 } start_time { seconds: 1003 }
        resizes { time { seconds: 1002 } replicas: 16 }
        resizes { time { seconds: 1060 } replicas: -1 reason: REASON_SHRUNK message: "they make room for job x" }
        replicas {
          pod: "main-19" cluster: "c" node: "n" phase: POD_PHASE_GONE
          left_reason: REASON_SHRUNK left_message: "they make room for job x"
        }
      }
    }
    """
    lines = jobs._portrait(Job(text_format.Parse(text, job_pb2.Job())), wide=False)
    steps = [line.partition("+")[2].split(maxsplit=2)[2] for line in lines if "  +" in line][:5]
    assert steps[1:] == [
        "Placed (epoch 1)",
        "grown by 16 replicas",
        "Running",
        "shrunk by 1 replica (Shrunk: they make room for job x)",
    ]
    assert any("main-19" in line and line.rstrip().endswith("Gone (Shrunk)") for line in "\n".join(lines).splitlines())


def test_wide_shows_the_pods_of_every_attempt():
    lines = "\n".join(jobs._portrait(Job(text_format.Parse(LIFE, job_pb2.Job())), wide=True)).splitlines()
    at = lines.index(" epoch 1")
    assert lines[at + 2].split() == ["main-0", "sim-a", "n0", "1", "Failed", "143"]
    assert lines[at + 3] == " epoch 2"
    assert lines[-1].split()[-1] == "3"


def test_event_filters():
    assert events.subject_filter("main", "", "") == "muster.events.main.*.*.*"
    assert events.subject_filter("main", "ml", "job.placed") == "muster.events.main.ml.job.placed"
    assert events.subject_filter("main", "", "job") == "muster.events.main.*.job.*"
    assert events.matches("muster.events.main.default.job.placed", "muster.events.main.*.job.*")
    assert not events.matches("muster.events.main.default.queue.updated", "muster.events.main.*.job.*")
    with pytest.raises(CliError, match="not an event type"):
        events.subject_filter("main", "", "a.b.c")


def test_an_event_on_one_line():
    data = {"name": "bert", "queue": "research", "reason": "REASON_PLACED", "time": "2026-01-31T17:00:01Z"}
    text = events.line(12, "muster.events.main.default.job.placed", data)
    assert text.split() == ["12", "17:00:01", "job.placed", "bert", "research", "Placed"]


def test_top_shows_rates_between_two_looks():
    def look(transactions, at_s):
        cell = query_pb2.GetCellResponse(cell="main", leader="qm-1", epoch=2, transactions_total=transactions)
        cell.capacity["nvidia.com/gpu"] = "8"
        cell.usage["nvidia.com/gpu"] = "2"
        cell.jobs_by_state["Queued"] = 3
        return top.Look(cell, [], at_s)

    assert "commits" not in top.render(look(0, 1.0), None)
    text = top.render(look(100, 3.0), look(0, 1.0))
    assert "commits 50/s" in text
    assert "leader qm-1 (epoch 2)" in text
    assert "GPUs 2 / 8 (25%)" in text
    assert "queued 3" in text


ARRAY = """
id: "0123456789abcdef0123456789abcdef"
spec { name: "sweep" queue: "q" tasks { name: "main" replicas: 40 min_replicas: 1 }
  completion: COMPLETION_EVERY_INDEX array { max_parallel: 8 } checkpoint { interval { seconds: 600 } } }
status {
  state: JOB_STATE_RUNNING submit_time { seconds: 100 } checkpoint_time { seconds: 150 }
  pods { wanted: 40 succeeded: 11 running: 7 gone: 22 }
}
"""


def test_an_array_job_shows_how_far_it_is():
    job = Job(text_format.Parse(ARRAY, job_pb2.Job()))
    lines = jobs._portrait(job, wide=False)
    assert lines[0].startswith("sweep  q  Running   11/40 done, 7 run pods")
    assert " bounds    array, 8 at once   checkpoint every 10 m" in lines
    assert any(line.startswith(" saved     ") for line in lines)
    assert jobs._row(job, wide=False)[4] == "11/40 done, 7 run"


def test_times_of_checkpoints():
    now = datetime.datetime(2026, 1, 31, 18, tzinfo=datetime.UTC)
    assert jobs.moment_of("", now) is None
    assert jobs.moment_of("90s ago", now) == now - datetime.timedelta(seconds=90)
    assert jobs.moment_of("2026-01-31T17:00:00+00:00", now) == now - datetime.timedelta(hours=1)
    for text in ("yesterday", "x ago", "2026-01-31T18:00:00"):
        with pytest.raises(CliError, match="--at"):
            jobs.moment_of(text, now)
