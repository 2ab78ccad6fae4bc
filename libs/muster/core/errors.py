"""Errors, split by what the caller has to do (style rule 11).

`Rejected` is the caller's fault and carries the field, the rule and a sentence a person can act on. Anything else that
the core raises is a bug and must crash loudly; the core has no transient errors because it does no IO.
"""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """Why a command was refused; the same names as the gRPC status codes they become."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    ABORTED = "ABORTED"  # a revision was expected that is not the current one
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNIMPLEMENTED = "UNIMPLEMENTED"


class Rejected(Exception):
    """A command that breaks a rule. Nothing has changed."""

    def __init__(self, code: Code, field: str, message: str, rule: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.code = code
        self.field = field
        self.message = message
        self.rule = rule


class InvariantBroken(AssertionError):
    """The state contradicts an invariant (I1 ... I9): a bug, never caught."""
