"""Kubernetes quantities ("250m", "96Gi", "1e3") as integers.

Written for the simulated cluster alone, so that a mistake in the scheduler's parser shows as a rejected pod instead
of being shared. CPU is counted in milli-cores, everything else in whole units, rounded up as Kubernetes does.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

_BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_PATTERN = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,2})|(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E))?")


@lru_cache(maxsize=4096)
def parse(text: str) -> Fraction:
    """The exact value. ValueError when `text` is no quantity."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity")
    number, exponent, suffix = match.groups()
    value = Fraction(number)
    if exponent:
        return value * Fraction(10) ** int(exponent[1:])
    if suffix in _BINARY:
        return value * _BINARY[suffix]
    return value * _DECIMAL[suffix or ""]


@lru_cache(maxsize=4096)
def amount(resource: str, text: str) -> int:
    """Milli-cores for cpu, whole units (bytes, devices, pods) for the rest, rounded up."""
    value = parse(text)
    if resource == "cpu":
        value *= 1000
    return -((-value.numerator) // value.denominator)
