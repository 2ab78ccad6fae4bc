"""Definitions of other systems, and what is made of them, for the tests of `muster import`."""

from __future__ import annotations

import pytest
import yaml

from muster.cli.errors import CliError
from muster.cli.imports import SYSTEMS
from muster.client import queuefile

KUEUE_VERSION = "kueue.x-k8s.io/v1beta2"
VOLCANO_VERSION = "scheduling.volcano.sh/v1beta1"


def of(kind, name, spec, version=KUEUE_VERSION, **more):
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec, **more}


def queue(name, spec, **more):
    return of("Queue", name, spec, VOLCANO_VERSION, **more)


def quota(**stated):
    return [{"flavors": [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": 1} | stated]}]}]


def cluster_queue(name="a", **spec):
    return of("ClusterQueue", name, {"namespaceSelector": {}, "resourceGroups": quota()} | spec)


def partition(*queues, **more):
    return {"partitions": [{"name": "default", "queues": [{"name": "root", "queues": list(queues)} | more]}]}


def imported(system, *documents):
    """Queues by path, as they are read from the file that is written, and notes."""
    found = SYSTEMS[system](yaml.safe_dump_all(documents, sort_keys=False), "file.yaml")
    request = queuefile.parse(queuefile.dump(found.queues))
    return {each.path: queuefile.plain(each) for each in request.queues}, found.notes


def refused(system, *documents):
    with pytest.raises(CliError) as caught:
        imported(system, *documents)
    return caught.value.message
