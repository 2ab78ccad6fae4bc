"""Who calls: tokens from a file that may change while the service runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from muster.runtime.exit_codes import ProcessMustEnd
from muster_admission.calls import Refused
from muster_admission.identity import Identity


class Clock:
    """A clock that is set by hand."""

    now_s = 100.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


class Call:
    """What `Identity` looks at in a call."""

    def __init__(self, authorization: str = "", peer: str = "ipv4:10.0.0.7:4711") -> None:
        self._metadata = (("authorization", authorization),) if authorization else ()
        self._peer = peer

    def invocation_metadata(self) -> Any:
        return self._metadata

    def peer(self) -> str:
        return self._peer


def user(identity: Identity, *arguments: str) -> str:
    return identity.user(Call(*arguments))  # type: ignore[arg-type]


def test_without_a_file_everybody_is_anonymous_at_their_machine() -> None:
    identity = Identity("", Clock())
    assert user(identity) == "anonymous@10.0.0.7"
    assert user(identity, "", "ipv6:%5B::1%5D:99") == "anonymous@::1"
    assert user(identity, "", "unix:/tmp/x") == "anonymous@unix"


def test_a_token_names_its_user_and_nothing_else_does(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# comment\n\none ann\ntwo bob\n")
    identity = Identity(str(path), Clock())
    assert user(identity, "Bearer one") == "ann"
    assert user(identity, "bearer two") == "bob"
    for authorization in ("", "Bearer three", "Basic one", "one"):
        with pytest.raises(Refused) as caught:
            user(identity, authorization)
        assert caught.value.status.code == 16  # UNAUTHENTICATED


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    path, clock = tmp_path / "tokens", Clock()
    path.write_text("one ann\n")
    identity = Identity(str(path), clock)
    for number, (text, token) in enumerate((("new ann\n", "new"), ("half a line\n", "new")), 1):
        path.write_text(text)
        os.utime(path, ns=(number, number))
        clock.now_s += 3
        assert user(identity, f"Bearer {token}") == "ann"
    with pytest.raises(Refused):
        user(identity, "Bearer one")


@pytest.mark.parametrize("text", [None, "only-a-token\n"])
def test_a_file_that_cannot_be_read_ends_the_start(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ProcessMustEnd, match="MUSTER_TOKENS_FILE"):
        Identity(str(path), Clock())
