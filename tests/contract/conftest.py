"""The servers the bus contract is tried on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.bus_servers import FakeServer, RealServer, Server

from muster.runtime.nats_server import NatsServer


@pytest.fixture(scope="module")
def nats_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    process = NatsServer(Path(tmp_path_factory.mktemp("nats")))
    process.start()
    yield process
    process.stop()


@pytest.fixture(params=["fake", "real"])
def server(request: pytest.FixtureRequest) -> Server:
    if request.param == "fake":
        return FakeServer()
    return RealServer(request.getfixturevalue("nats_process"))
