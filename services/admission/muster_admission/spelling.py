"""The name somebody meant, found without looking at all names there are.

A cell has a million jobs and one event loop that answers everybody, so a mistyped name must not be compared with each
of them. The other way round it is cheap: everything that is one slip of a finger away from what was typed is looked up.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from muster.core.limits import NAME_CHARS_MAX

CHARACTERS: Final = "-abcdefghijklmnopqrstuvwxyz0123456789"  # of names


def meant(typed: str, names: Container[str]) -> str | None:
    """A name that differs from `typed` by one character too many, too few or wrong, or by two in the wrong order."""
    if len(typed) > NAME_CHARS_MAX + 1:
        return None
    return next((name for name in _slips(typed.lower()) if name in names), None)


def _slips(typed: str) -> Iterator[str]:
    """At most 75 for each character of a name."""
    yield typed
    parts = [(typed[:at], typed[at:]) for at in range(len(typed) + 1)]
    yield from (left + right[1:] for left, right in parts if right)
    yield from (left + right[1] + right[0] + right[2:] for left, right in parts if len(right) > 1)
    yield from (left + character + right[1:] for left, right in parts if right for character in CHARACTERS)
    yield from (left + character + right for left, right in parts for character in CHARACTERS)
