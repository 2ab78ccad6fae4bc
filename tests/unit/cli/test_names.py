"""What somebody may have meant by a name that is not there."""

from __future__ import annotations

import pytest

from muster.api.v1 import job_pb2, queue_pb2
from muster.cli.session import nearest_job, unknown_queue
from muster.client import ClientError, Job, Queue

JOBS = [
    Job(job_pb2.Job(spec=job_pb2.JobSpec(namespace=namespace, name=name)))
    for namespace, name in (("ann", "n-2"), ("default", "train"), ("default", "something-else"))
]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("n-2", "ann/n-2"), ("n-22", "ann/n-2"), ("bnn/n-2", "ann/n-2"), ("trian", "train"), ("zzz", "")],
)
def test_a_job_of_another_namespace_is_told_with_it(typed, meant):
    assert nearest_job(typed, JOBS) == (f' (did you mean "{meant}"?)' if meant else "")


def test_what_was_typed_is_not_what_was_meant():
    assert nearest_job("train", JOBS) == ""
    assert nearest_job("ann/n-2", JOBS) == ""


class Cell:
    """Some command could not find a queue here."""

    async def list_queues(self):
        return [Queue(queue_pb2.Queue(path=path)) for path in ("q3", "research")]


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ('queue "a/b" does not exist', ""),  # not the queue that is moved: its new parent
        ('queue "reserch" does not exist', ' (did you mean "research"?)'),
        ('queue "q4" does not exist (did you mean "q5"?)', ""),
    ],
)
async def test_the_queue_that_is_missing_is_not_always_the_one_the_command_is_about(message, hint):
    error = await unknown_queue(Cell(), "q3", ClientError("NOT_FOUND", message))
    assert error.message == message + hint
