"""What every kind of test shares."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("muster", deadline=None)  # a machine that is busy is no failure
hypothesis.settings.load_profile("muster")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for unix sockets, whose paths may have 107 bytes: pytest's own grow with the name of the test."""
    with tempfile.TemporaryDirectory(prefix="muster-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        yield Path(directory)
