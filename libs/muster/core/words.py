"""Numbers in sentences for people: one thing, several things."""

from __future__ import annotations


def several(count: int, noun: str) -> str:
    """`1 job`, `2 jobs`, `1,200 jobs`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
