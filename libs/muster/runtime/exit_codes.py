"""Why a process ended, as exit codes an operator (or `muster up`) can act on.

Anything in the runtime or in a service that cannot go on raises `ProcessMustEnd` with one of these codes; only
`service.run_service` catches it, stops what can still be stopped and ends the process. Nothing else calls `sys.exit`.
Codes 64, 69, 70 and 78 keep their meaning of sysexits.h where one fits.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The codes of all six services and of `muster up`."""

    OK = 0  # asked to stop, and stopped
    BUG = 1  # an exception nobody expected: look at the log
    USAGE = 64  # wrong command line
    UNAVAILABLE = 69  # something needed at the start (NATS, the API server) did not answer in time
    LOST_CONNECTION = 70  # the connection to NATS is closed for good: start again
    DEPOSED = 71  # another leader writes the ledger: start again as a standby (LOG-4)
    CLOCK_SKEW = 72  # this machine's clock and JetStream's differ by more than 2 s (LOG-2)
    TOO_OLD = 73  # the log holds a newer version than this build can read: upgrade it (LOG-10)
    POISONED = 74  # the term died at an inbox item, which the next term puts aside (LOG-9)
    CONFIG = 78  # an environment variable is missing or wrong
    KILLED = 130  # a second signal asked to end at once


class ProcessMustEnd(Exception):
    """This process cannot go on; `code` says why. Raise it in the service's start or in a background task."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
