"""What goes wrong on the command line, as one sentence and one exit code; nobody sees a stack trace for a mistake.

`CliError` is raised anywhere below a command and printed by `main`. `from_client` turns a failed call into one: the
message of the server is kept (it names the field and the rule), what to do next is added where the client knows it.
The exit codes are part of the interface: scripts may depend on them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Final


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    BUG = 1  # an error nobody expected; the only case with a stack trace (MUSTER_DEBUG=1 shows it always)
    USAGE = 2  # wrong command line, or a file that is wrong
    REFUSED = 3  # the cell refused it: a rule, a field, an unknown queue
    NOT_FOUND = 4
    UNAVAILABLE = 5  # nothing answers at the address, or it did not answer in time
    BUSY = 6  # back-pressure or a quota of the API: the same command works later
    JOB_FAILED = 7  # submit --wait: a job ended Failed or Cancelled
    BROKEN = 8  # replay, up --oneshot: a job was lost, ran twice or did not end
    UNHEALTHY = 9  # doctor found something wrong
    INTERRUPTED = 130


EXIT_CODES_HELP: Final = (
    "Exit codes: 0 ok; 1 a bug; 2 wrong command line or file; 3 refused by the cell; 4 not found; 5 nothing answers; "
    "6 busy, try later; 7 a job failed (submit --wait); 8 a job was lost, ran twice or did not end (replay, up); "
    "9 unhealthy (doctor); 130 interrupted."
)

_OWNER: Final = re.compile(r"^(?:jobs\[\d+\]|queues\[\d+\]|queue|job)\.")  # of a field, within a request
_BY_STATUS: Final = {
    "NOT_FOUND": Exit.NOT_FOUND,
    "UNAVAILABLE": Exit.UNAVAILABLE,
    "DEADLINE_EXCEEDED": Exit.UNAVAILABLE,
    "RESOURCE_EXHAUSTED": Exit.BUSY,
    "INTERNAL": Exit.BUG,
    "UNKNOWN": Exit.BUG,
    "DATA_LOSS": Exit.BUG,
}


class CliError(Exception):
    """A sentence for the user, what to do about it, and the exit code."""

    def __init__(self, message: str, code: Exit = Exit.USAGE, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint


def exit_code_of(status: str) -> Exit:
    """The exit code for a gRPC status by name; anything that is not listed is a refusal."""
    return _BY_STATUS.get(status, Exit.REFUSED)


def closest(name: str, known: Iterable[str]) -> str:
    """The known name that is nearest; empty when none is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), "")


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean "x"?)`, or nothing when no known name is near."""
    found = closest(name, known)
    return f' (did you mean "{found}"?)' if found else ""


def from_client(error: Any, address: str) -> CliError:
    """A failed call (muster.client.ClientError) as a CliError, with each wrong field on a line of its own."""
    if error.code == "DEADLINE_EXCEEDED":
        return CliError(f"{address} did not answer in time", Exit.UNAVAILABLE, "try again; `muster doctor` looks why")
    if error.code == "UNAVAILABLE":
        hint = "`muster doctor` looks why; start a cell on this machine with `muster up`"
        return CliError(f"{address} is not available: {error.message}", Exit.UNAVAILABLE, hint)
    lines = details(error)
    if error.code == "RESOURCE_EXHAUSTED" and error.retry_after_s:
        lines.append(f"retry in about {error.retry_after_s:.0f} s")
    return CliError(sentence(error), exit_code_of(error.code), "\n  ".join(lines))


def sentence(error: Any, message: str = "") -> str:
    """What is wrong, and the rule that says so: `... exists already [Q1]`."""
    said = message or error.message or error.code
    return f"{said} [{error.rule}]" if error.rule else said


def details(error: Any) -> list[str]:
    """A line for each field that the sentence does not tell: where it is, and what is wrong with it."""
    lines = []
    for violation in error.violations:
        if violation.description not in error.message:
            lines.append(f"{violation.field}: {violation.description}")
        elif _OWNER.sub("", violation.field) not in error.message:
            lines.append(violation.field if ":" in violation.field else f"field {violation.field}")  # a place in a file
    return lines
