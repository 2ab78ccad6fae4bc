"""Muster for Python programs.

    async with muster.client.connect("127.0.0.1:7070") as m:
        job = await m.submit(muster.client.load("gang.yaml"), request_id="exp-17")   # safe to repeat
        async for event in m.watch(job.id):
            print(event.state, event.reason)

Every call is safe to repeat: a submission keeps its request id over retries, and a watch resumes after the last event
it delivered. Mistakes of the caller are `Refused`; what may work later is `Unavailable`.
"""

from __future__ import annotations

from muster.client.connection import Client, connect
from muster.client.errors import ClientError, NotFound, Refused, Unavailable, Violation, WatchExpired
from muster.client.jobfile import JobFileError, load, load_all, parse
from muster.client.views import CommandOutcome, Event, Explained, Job, JobPage, Queue, Submitted

__all__ = [
    "Client",
    "ClientError",
    "CommandOutcome",
    "Event",
    "Explained",
    "Job",
    "JobFileError",
    "JobPage",
    "NotFound",
    "Queue",
    "Refused",
    "Submitted",
    "Unavailable",
    "Violation",
    "WatchExpired",
    "connect",
    "load",
    "load_all",
    "parse",
]
