"""What a bus can answer that is the caller's bug or the deployment's, besides the outcomes named in `ports`.

`Conflict`, `OutcomeUnknown`, `StreamFull` and `MessagesLost` are part of the protocol and every caller handles them.
`BusRefused` is not handled: a message above the stream's size limit, a stream with other subjects, missing rights.
"""

from __future__ import annotations


class BusRefused(Exception):
    """JetStream said no for a reason that trying again does not change."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"JetStream error {code}: {description}")
        self.code = code
        self.description = description


class ConnectionClosed(Exception):
    """The connection is closed for good: the process ends (see `Bus.wait_closed`)."""
