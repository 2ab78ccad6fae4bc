"""What every kind of test shares."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for unix sockets, whose paths may have 107 bytes: pytest's own grow with the name of the test."""
    with tempfile.TemporaryDirectory(prefix="muster-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        yield Path(directory)
