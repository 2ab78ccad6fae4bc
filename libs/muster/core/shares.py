"""Comparing what queues have with what they deserve (rules F5, F6, P2).

A dominant share is a fraction; which of two is smaller is decided by multiplying crosswise, never by dividing. It may
be a share of the capacity or of an entitlement: `dominant_share(usage, job, entitled)` is the number by which rule F5
puts queues in order, and there an entitlement of 0 counts as infinite.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import total_ordering

from muster.core.model import Amounts


@total_ordering
class Share:
    """A fraction that may be infinite (a denominator of 0). Usable as a part of a sort key."""

    __slots__ = ("denominator", "numerator")

    def __init__(self, numerator: int, denominator: int) -> None:
        """Neither is negative; 0/0 is 0."""
        self.numerator = numerator
        self.denominator = denominator if numerator or denominator else 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Share):
            return NotImplemented
        if not self.denominator or not other.denominator:
            return self.denominator == other.denominator
        return self.numerator * other.denominator == other.numerator * self.denominator

    def __lt__(self, other: Share) -> bool:
        if not self.denominator or not other.denominator:
            return self.denominator > 0
        return self.numerator * other.denominator < other.numerator * self.denominator

    __hash__ = None  # type: ignore[assignment]  # equal shares may be written differently

    def __repr__(self) -> str:
        return f"Share({self.numerator}, {self.denominator})"


def dominant_share(usage: Mapping[str, int], amounts: Amounts, of: Mapping[str, int]) -> Share:
    """The largest share, over all resources, that usage and the amounts of a job are together of something."""
    largest = Share(0, 1)
    added = dict(amounts)
    for resource, used in usage.items():
        largest = max(largest, Share(used + added.pop(resource, 0), of.get(resource, 0)))
    for resource, amount in added.items():
        largest = max(largest, Share(amount, of.get(resource, 0)))
    return largest


def below_entitlement(usage: Mapping[str, int], entitled: Mapping[str, int], amounts: Amounts) -> tuple[str, ...]:
    """The resources a job asks for in which its queue, before the job, has less than its entitlement (rule P2a)."""
    return tuple(
        resource for resource, amount in amounts if amount and usage.get(resource, 0) < entitled.get(resource, 0)
    )


def above_entitlement(usage: Mapping[str, int], entitled: Mapping[str, int]) -> tuple[str, ...]:
    """The resources in which a queue has more than its entitlement: what it has borrowed (rule P2a)."""
    return tuple(sorted(resource for resource, used in usage.items() if used > entitled.get(resource, 0)))
