"""Weights as whole numbers: only their proportion among siblings counts, and that is kept.

Where one is not whole (Kueue's may be 0.5), or is greater than a weight can be here, all siblings are written in the
smallest whole numbers of the same proportion. Only where even those are too great are they rounded; then it is said
which, and to what.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from muster.api.v1 import queue_pb2
from muster.cli.imports.tree import Imported
from muster.core.queue_rules import WEIGHT_MAX

Sibling = tuple[str, queue_pb2.Queue, Fraction | None]  # subject, what is made of it, its weight if it states one


def settle(imported: Imported, siblings: Sequence[Sibling]) -> None:
    """Write the weights of all that stand below one queue."""
    stated = [Fraction(1) if weight is None else weight for _, _, weight in siblings]
    found = proportional(stated)
    for (_, queue, weight), number in zip(siblings, found, strict=True):
        if weight is not None or number != 1:
            queue.weight = number
    if found == stated:
        return
    exact = Fraction(max(found)) / max(stated)
    told = []
    for (subject, _, _), weight, number in zip(siblings, stated, found, strict=True):
        rounded = "" if weight * exact == number else f" (rounded from {float(weight * exact):.6g})"
        told.append(f"{subject} {float(weight):g} -> {number}{rounded}")
    above = siblings[0][1].path.rpartition("/")[0]
    imported.note(
        f'weights below "{above}"' if above else "weights at the top",
        f"are whole numbers here, in the same proportion: {', '.join(told)}",
    )


def proportional(weights: Sequence[Fraction]) -> list[int]:
    """Whole numbers up to WEIGHT_MAX in the same proportion, rounded if need be; what is not 0 stays so."""
    if all(weight.denominator == 1 and weight <= WEIGHT_MAX for weight in weights):
        return [int(weight) for weight in weights]
    common = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * common) for weight in weights]
    shared = math.gcd(*whole)
    whole = [number // shared for number in whole]
    most = max(whole)
    if most <= WEIGHT_MAX:
        return whole
    return [max((2 * number * WEIGHT_MAX + most) // (2 * most), 1) if number else 0 for number in whole]
