"""List + watch, as an informer does it, always ends at what the server has: the property everything else stands on."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.sim.cluster.cluster import SimCluster
from muster.sim.cluster.kinds import PODS
from muster.sim.cluster.nodes import parse_nodes
from muster.sim.cluster.routes import Request
from muster.sim.cluster.settings import ClusterSettings
from muster.sim.cluster.status import StatusError
from muster.sim.cluster.store import Watch

PATH = "/api/v1/namespaces/default/pods"
SELECTOR = "team=a"


class Informer:
    """Keeps a copy of the selected pods: list in pages, then watch; when the watch ends or expires, again."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.seen: dict[str, str] = {}  # name -> resourceVersion
        self.rv = ""
        self.relists = 0
        self._watch: Watch | None = None

    def call(self, **query: str) -> Any:
        return self.cluster.handle(Request("GET", PATH, {"labelSelector": SELECTOR, **query}))

    def step(self) -> None:
        if self._watch is None:
            if not self.rv:
                self._list()
            self._watch = self.call(watch="true", resourceVersion=self.rv).watch
        for line in self._watch.take().splitlines():
            event = json.loads(line)
            if event["type"] == "ERROR":
                self.rv = ""
                break
            metadata = event["object"]["metadata"]
            assert int(metadata["resourceVersion"]) > int(self.rv)
            self.rv = metadata["resourceVersion"]
            if event["type"] == "DELETED":
                del self.seen[metadata["name"]]  # it must have been there
            else:
                assert (event["type"] == "ADDED") == (metadata["name"] not in self.seen)
                self.seen[metadata["name"]] = self.rv
        if self._watch.closed:
            self.cluster.store.unwatch(self._watch)
            self._watch = None

    def _list(self) -> None:
        self.relists += 1
        self.seen.clear()
        token = ""
        while True:
            page = json.loads(self.call(limit="2", **({"continue": token} if token else {})).body)
            for item in page["items"]:
                self.seen[item["metadata"]["name"]] = item["metadata"]["resourceVersion"]
            token = page["metadata"].get("continue", "")
            if not token:
                self.rv = page["metadata"]["resourceVersion"]
                return


class Churn:
    """A cluster on which random things happen."""

    def __init__(self, seed: int) -> None:
        self.time_ms = 1_800_000_000_000
        self.rng = random.Random(seed)
        self.cluster = SimCluster(ClusterSettings(history_events=20), now_ms=lambda: self.time_ms)
        self.cluster.add_nodes(parse_nodes("uniform:2x8cpu32Gi"))
        self.choices: list[Callable[[], None]] = [
            self.create,
            self.create,
            self.label,
            self.delete,
            self.wait,
            self.wait,
            self.cluster.cut_watches,
            self.cluster.store.truncate_history,
        ]

    def request(self, method: str, name: str = "", body: Any = None, content_type: str = "") -> None:
        path = f"{PATH}/{name}" if name else PATH
        raw = b"" if body is None else json.dumps(body).encode()
        try:
            self.cluster.handle(Request(method, path, {}, raw, content_type))
        except StatusError as error:
            assert error.code in (404, 409)  # noqa: PT017 - both outcomes are expected of a random request

    def name(self) -> str:
        return f"p{self.rng.randrange(8)}"

    def create(self) -> None:
        container = {"name": "main", "image": "x", "resources": {"limits": {"cpu": "1"}}}
        metadata = {
            "name": self.name(),
            "labels": {"team": self.rng.choice("ab")},
            "annotations": {"sim.muster.io/run-seconds": str(self.rng.randrange(5))},
        }
        spec = {"containers": [container], "restartPolicy": "Never", "nodeName": f"node-000{self.rng.randrange(3)}"}
        self.request("POST", body={"metadata": metadata, "spec": spec})

    def label(self) -> None:
        body = {"metadata": {"labels": {"team": self.rng.choice("ab")}}}
        self.request("PATCH", self.name(), body, "application/merge-patch+json")

    def delete(self) -> None:
        self.request("DELETE", self.name(), {"gracePeriodSeconds": self.rng.choice((0, 30))})

    def wait(self) -> None:
        self.time_ms += self.rng.randrange(3_000)
        self.cluster.timers.run_due()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(1, 120))
def test_an_informer_ends_at_what_the_server_has(seed: int, steps: int) -> None:
    churn = Churn(seed)
    informer = Informer(churn.cluster)
    for _ in range(steps):
        churn.rng.choice(churn.choices)()
        if churn.rng.random() < 0.5:
            informer.step()
    for _ in range(4):  # an ended watch, an expired one, the list, the last events
        informer.step()
    truth = {
        version.obj["metadata"]["name"]: version.obj["metadata"]["resourceVersion"]
        for version in churn.cluster.store.table(PODS).values()
        if version.obj["metadata"]["labels"]["team"] == "a"
    }
    assert informer.seen == truth
    assert len(churn.cluster.store.watches()) <= 1
