"""Who calls: the user behind a bearer token, or nobody in particular.

With `MUSTER_TOKENS_FILE` every call needs `authorization: Bearer <token>`; the file has a token and a user on each line
and is read again when it changes, so tokens come and go without a restart. Without the file the user is
`anonymous@<peer>`, which tells machines apart and proves nothing.
"""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any, Final

import grpc.aio

from muster.runtime.exit_codes import ExitCode, ProcessMustEnd
from muster.runtime.ports import Clock
from muster.wire import errors
from muster_admission.calls import Refused

RELOAD_S: Final = 2.0
BEARER: Final = "bearer "

Context = grpc.aio.ServicerContext[Any, Any]


class Identity:
    """Tells the user of a call."""

    def __init__(self, tokens_file: str, clock: Clock) -> None:
        self._path = Path(tokens_file) if tokens_file else None
        self._clock = clock
        self._users: dict[str, str] = {}
        self._changed_ns = 0
        self._looked_s = 0.0
        if self._path is not None:
            try:
                self._load(self._path)
            except (OSError, ValueError) as error:
                raise ProcessMustEnd(ExitCode.CONFIG, f"MUSTER_TOKENS_FILE: {error}") from error

    def user(self, context: Context) -> str:
        """Raises Refused (UNAUTHENTICATED)."""
        if self._path is None:
            return f"anonymous@{_peer_host(context.peer())}"
        self._look(self._path)
        for key, value in context.invocation_metadata() or ():
            if key == "authorization" and isinstance(value, str) and value[: len(BEARER)].lower() == BEARER:
                user = self._find(value[len(BEARER) :].strip())
                if user is not None:
                    return user
                raise Refused(errors.status("UNAUTHENTICATED", "the token is not known (any more)"))
        raise Refused(errors.status("UNAUTHENTICATED", "send a token: authorization: Bearer <token>"))

    def _find(self, token: str) -> str | None:
        found = None
        for known, user in self._users.items():  # all of them: the time taken tells nothing about the tokens
            if hmac.compare_digest(known.encode(), token.encode()):
                found = user
        return found

    def _look(self, path: Path) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._looked_s < RELOAD_S:
            return
        self._looked_s = now_s
        try:
            if path.stat().st_mtime_ns != self._changed_ns:
                self._load(path)
        except (OSError, ValueError):
            pass  # half-written or gone for a moment: the known tokens stay

    def _load(self, path: Path) -> None:
        changed_ns = path.stat().st_mtime_ns
        users: dict[str, str] = {}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 2:
                raise ValueError(f"{path}:{number}: a line is a token and a user")
            users[words[0]] = words[1]
        self._users, self._changed_ns = users, changed_ns


def _peer_host(peer: str) -> str:
    """`ipv4:10.0.0.1:4711` as `10.0.0.1`."""
    kind, _, rest = peer.partition(":")
    host = rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else kind
    return host.replace("%5B", "").replace("%5D", "").strip("[]") or "local"
