"""Amounts as Kubernetes quantity strings, exactly: what is written here parses back to the same integer.

`resources.format_amount` is for people and rounds; programs that read the API get the whole value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from muster.core import resources
from muster.core.model import Amounts

BINARY_SUFFIXES: Final = (("Pi", 1 << 50), ("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))


def quantity(resource: str, amount: int) -> str:
    """`16Gi`, `1.5`, `460m`: the shortest form that loses nothing."""
    if resources.unit_scale(resource) == 1000:
        return resources.format_amount(resource, amount)  # thousandths are exact as decimals
    if amount and resources.is_bytes(resource):
        for suffix, unit in BINARY_SUFFIXES:
            if amount % unit == 0:
                return f"{amount // unit}{suffix}"
    return str(amount)


def quantities(amounts: Iterable[tuple[str, int]]) -> dict[str, str]:
    return {resource: quantity(resource, amount) for resource, amount in amounts}


def requests(amounts: Amounts) -> dict[str, str]:
    """What a pod asks for, as it would be written in a job: a part of a device is a share."""
    stated = quantities(amounts)
    for resource, amount in amounts:
        if resource == resources.SHARED_DEVICE and amount < resources.DEVICE_MILLIS:
            del stated[resource]
            stated[resources.GPU_MILLI] = str(amount)
    return stated
