"""What every kind of test shares.

Hypothesis judges nothing by how long it took: a machine that is busy is no failure. A plain run draws the same examples
every time, so that it says something about the change that is tested; `make properties` draws new ones, and more.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "muster",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="INSTANCES" not in os.environ,
)
hypothesis.settings.load_profile("muster")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for unix sockets, whose paths may have 107 bytes: pytest's own grow with the name of the test."""
    with tempfile.TemporaryDirectory(prefix="muster-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        yield Path(directory)
