"""Durations as people write them: `90s`, `4h`, `1h30m`, `250ms`, `2d`."""

from __future__ import annotations

import re
from typing import Final

UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
PART: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
LONGEST_MS: Final = 315_576_000_000 * 1000  # of a Duration in protobuf: ten thousand years
WHOLE: Final = re.compile(r"(?:\d+(?:ms|s|m|h|d))+")


def parse_duration_ms(text: str) -> int:
    """Milliseconds. Raises ValueError with an example."""
    if not WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration (write 90s, 15m, 4h, 1h30m)")
    milliseconds = sum(int(count) * UNITS_MS[unit] for count, unit in PART.findall(text))
    if milliseconds > LONGEST_MS:
        raise ValueError(f"{text!r} is longer than ten thousand years")
    return milliseconds


def exact_duration(milliseconds: int) -> str:
    """All of it, as `parse_duration_ms` reads it: `1d2h3m4s`."""
    text = ""
    for unit in ("d", "h", "m", "s", "ms"):
        count, milliseconds = divmod(milliseconds, UNITS_MS[unit])
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def format_duration(milliseconds: int) -> str:
    """The two largest units: `1h30m`, `12s`, `250ms`."""
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, milliseconds = divmod(milliseconds, UNITS_MS[unit])
        if count and len(parts) < 2:
            parts.append(f"{count}{unit}")
        elif parts:
            break
    return "".join(parts)
