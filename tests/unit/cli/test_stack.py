"""What `muster up` decides before it starts anything."""

from pathlib import Path

import pytest

from muster.cli.errors import CliError, Exit
from muster.cli.stack import SOCKET_PATH_CHARS_MAX, socket_settings


def test_a_run_directory_too_long_for_sockets_is_refused_before_anything_starts():
    with pytest.raises(CliError) as refused:
        socket_settings(Path("/" + "x" * SOCKET_PATH_CHARS_MAX), ["sim-a"], 16)
    assert refused.value.code is Exit.USAGE
    assert "--sockets 0" in refused.value.hint
    assert socket_settings(Path("/" + "x" * SOCKET_PATH_CHARS_MAX), ["sim-a"], 0) == {}


def test_each_cluster_has_its_folder_of_sockets():
    assert socket_settings(Path("/tmp/run"), ["a", "b"], 1) == {
        "MUSTER_SOCKETS": "a=/tmp/run/sockets/a,b=/tmp/run/sockets/b"
    }
