"""Traces: three formats become the same jobs; what cannot be replayed is counted or refused with its line."""

import gzip

import pytest

from muster.cli import traces
from muster.cli.traces import GIB, TraceError

OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0002,4000,1024,0,0,,BE,Succeeded,300,320,
openb-pod-0000,12000,16384,1,1000,,LS,Running,100,190,110
openb-pod-0001,6000,12288,1,460,V100M16|V100M32,LS,Running,150,250,150
openb-pod-0003,6000,12288,8,1000,,Burstable,Running,400,500,420
openb-pod-0004,6000,12288,1,460,,LS,Failed,500,500,500
"""
PHILLY = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 07:01:25,600.0,24,14400.0,6214e9
2017-10-09 07:03:55,0.0,1,0.0,11cb48
"""
SWF = """\
; Version: 2.2
;
  1   0 30 100  30 100 -1  30 200 -1  1  7 1 1 -1 1 -1 -1
  2  50  5  -1   8 200 -1   8 300 -1 -1  5 1 1 -1 1 -1 -1
  3  90  5  20  16  20 -1  16  30 -1  1 -1 1 1 -1 1 -1 -1
"""


def write(tmp_path, name, text):
    path = tmp_path / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def test_openb(tmp_path):
    trace = traces.read(write(tmp_path, "openb_pods.csv", OPENB))
    assert (trace.name, trace.format) == ("openb-pods", "OpenB")
    assert [(job.name[-4:], job.queue, job.arrival_s, job.runtime_s) for job in trace.jobs] == [
        ("0000", "ls", 0, 80),  # from the scheduled time to the deletion
        ("0001", "ls", 50, 100),
        ("0002", "be", 200, 20),  # never scheduled: from its creation
        ("0003", "burstable", 300, 80),
    ]
    tasks = [job.tasks[0] for job in trace.jobs]
    assert [task.gpu_millis for task in tasks] == [1000, 460, 0, 8000]
    assert tasks[1].gpu_models == ("V100M16", "V100M32")
    assert (tasks[0].cpu_millis, tasks[0].memory_bytes) == (12_000, 16 * GIB)
    assert dict(trace.skipped) == {"end before they start": 1}


def test_philly_sorts_and_makes_gangs_of_more_than_a_node(tmp_path):
    trace = traces.read(write(tmp_path, "philly.csv.gz", PHILLY))
    assert trace.format == "Philly"
    assert [(job.queue, job.arrival_s) for job in trace.jobs] == [("vc-6214e9", 0), ("vc-11cb48", 30)]
    (worker,) = trace.jobs[0].tasks
    assert (worker.replicas, worker.gpu_millis) == (3, 8000)
    assert trace.jobs[0].gpu_millis == 24_000
    assert sum(trace.skipped.values()) == 1
    assert trace.assumed


def test_swf_splits_processors_into_pods(tmp_path):
    trace = traces.read(write(tmp_path, "hpc.swf", SWF))
    assert [(job.name, job.queue) for job in trace.jobs] == [("swf-1", "user-7"), ("swf-3", "nobody")]
    assert [(task.replicas, task.cpu_millis) for task in trace.jobs[0].tasks] == [(1, 16_000), (1, 14_000)]
    assert [(task.replicas, task.cpu_millis) for task in trace.jobs[1].tasks] == [(1, 16_000)]
    assert trace.jobs[0].cpu_millis == 30_000
    assert dict(trace.skipped) == {"that never ran": 1}


def test_limit_takes_the_first_by_arrival(tmp_path):
    assert [job.name[-1] for job in traces.read(write(tmp_path, "a.csv", OPENB), limit=2).jobs] == ["0", "1"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "x,y\n1,2\n", "no known format"),
        ("a.csv", "", "no known format"),
        ("a.csv", OPENB.splitlines()[0] + "\n", "has no job to replay: it has no rows"),
        ("a.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,0,0\n", "no creation_time and deletion_time"),
        ("a.csv", OPENB.replace("12000,16384", "many,16384"), "line 3"),
        ("a.swf", SWF.replace(" 90  5  20", " 90  5  oops"), "line 5"),
        ("a.csv", PHILLY.replace("2017-10-09 07:01:25", "yesterday"), "line 3"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, name, text, said):
    with pytest.raises(TraceError) as caught:
        traces.read(write(tmp_path, name, text))
    assert said in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(TraceError, match="does not exist"):
        traces.read(tmp_path / "none.csv")


def test_a_cut_gzip_is_an_error_and_not_half_a_trace(tmp_path):
    path = write(tmp_path, "philly.csv.gz", PHILLY * 1)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TraceError, match="cannot be read"):
        traces.read(path)


@pytest.mark.parametrize(("text", "label"), [("Best_Effort 2", "best-effort-2"), ("--", "x"), ("a" * 80, "a" * 40)])
def test_names_become_labels(text, label):
    assert traces.dns_label(text) == label
