"""Ports on this machine: the usual one when it is free, else any free one."""

from __future__ import annotations

import socket
from typing import Final

HOST: Final = "127.0.0.1"


class PortPicker:
    """Hands out ports, none of them twice. The sockets are closed again, so another program may still be faster."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def pick(self, preferred: int) -> int:
        """`preferred` or the next free of the dozen after it, else any free port."""
        for port in range(preferred, preferred + 12):
            if port not in self._given and _is_free(port):
                self._given.add(port)
                return port
        while True:
            with socket.socket() as probe:
                probe.bind((HOST, 0))
                port = int(probe.getsockname()[1])
            if port not in self._given:
                self._given.add(port)
                return port


def _is_free(port: int) -> bool:
    """Nothing listens there; connections that are still closing do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def accepts(port: int) -> bool:
    """Whether something accepts connections at the port."""
    try:
        socket.create_connection((HOST, port), timeout=0.2).close()
    except OSError:
        return False
    return True


def answers_nats(port: int) -> bool:
    """Whether a NATS server greets at the port."""
    try:
        with socket.create_connection((HOST, port), timeout=0.2) as probe:
            return probe.recv(4) == b"INFO"
    except OSError:
        return False
