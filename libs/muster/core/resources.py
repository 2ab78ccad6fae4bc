"""Quantities: what people and Kubernetes write becomes integers in canonical units, and back.

cpu is counted in milli-cores; memory, ephemeral storage and huge pages in bytes; devices (GPUs) in thousandths of one
device, so that a share is an amount like any other; everything else in units. `Amounts` (sorted pairs, all positive) is
the form in which requests, capacities and limits are stored; the helpers here are what the core calculates with. A
quantity that cannot be read is the caller's fault and raises `Rejected` naming the field. No floats anywhere: "0.1" is
read as the fraction it is and rounded up to the unit, as Kubernetes does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from muster.core.errors import Code, Rejected
from muster.core.limits import AMOUNT_MAX
from muster.core.model import Amounts

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"
GPU_MILLI: Final = "muster.io/gpu-milli"  # in a pod template: a share of one device
SHARED_DEVICE: Final = "nvidia.com/gpu"  # what a share is a share of
DEVICE_RESOURCES: Final = ("amd.com/gpu", "nvidia.com/gpu")
DEVICE_MILLIS: Final = 1000  # of one whole device
SHORT_NAMES: Final = {"gpu": SHARED_DEVICE, "gpus": SHARED_DEVICE, "mem": MEMORY}  # as people say it
PLAIN_NAMES: Final = (CPU, MEMORY, "ephemeral-storage", PODS)  # every other resource has a domain
NAME_CHARS_MAX: Final = 317  # of a domain, a slash and a name

_EXTENDED: Final = re.compile(
    r"(?=[^/]{1,253}/)[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII
)
_HUGEPAGES: Final = re.compile(r"hugepages-[1-9][0-9]*[KMGT]i", re.ASCII)
_QUANTITY: Final = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:([eE])([+-]?\d{1,3})|([a-zA-Z]{0,2}))", re.ASCII)
_QUANTITY_CHARS_MAX: Final = 64
_BINARY: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_DECIMAL_EXPONENT: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BYTES_BY_SIZE: Final = tuple(sorted(_BINARY.items(), key=lambda unit: -unit[1]))


def is_device(resource: str) -> bool:
    """Whether units of this resource are devices with an identity (rule G4)."""
    return resource in DEVICE_RESOURCES


def is_bytes(resource: str) -> bool:
    return resource in (MEMORY, "ephemeral-storage") or resource.startswith("hugepages-")


def unit_scale(resource: str) -> int:
    """How many canonical units "1" of the resource is."""
    return 1000 if resource == CPU or is_device(resource) else 1


def parse_quantity(resource: str, text: str, field: str = "", *, of_many: bool = False) -> int:
    """The Kubernetes quantity `text` in canonical units, rounded up to the unit. Raises Rejected naming `field`.

    `of_many`: it is what many pods have together, so parts of devices add up to any number of thousandths.
    """
    where = field or resource
    if resource == GPU_MILLI and not of_many:
        return _parse_share(text, where)
    match = _QUANTITY.fullmatch(text) if len(text) <= _QUANTITY_CHARS_MAX else None
    if match is None or not (match[2] or match[3]):
        raise _bad(where, f'"{text[:_QUANTITY_CHARS_MAX]}" is not a quantity (examples: 500m, 2, 1.5Gi)')
    sign, whole, fraction, _, exponent, suffix = match.groups()
    fraction = fraction or ""
    suffix = suffix or ""
    if suffix not in _BINARY and suffix not in _DECIMAL_EXPONENT:
        known = ", ".join(name for name in (*_DECIMAL_EXPONENT, *_BINARY) if name)
        raise _bad(where, f'"{text}" has the unknown suffix "{suffix}" (known: {known})')
    numerator = int(whole + fraction or "0") * _BINARY.get(suffix, 1) * unit_scale(resource)
    power = int(exponent or 0) + _DECIMAL_EXPONENT.get(suffix, 0) - len(fraction)
    numerator, denominator = (numerator * 10**power, 1) if power >= 0 else (numerator, 10**-power)
    if sign == "-" and numerator:
        raise _bad(where, f'"{text}" is negative')
    if is_device(resource) and not of_many and numerator % (denominator * DEVICE_MILLIS):
        raise _bad(where, f'"{text}" is not a whole number of devices; ask for a share with {GPU_MILLI} (1 to 999)')
    amount = -(-numerator // denominator)
    if amount > AMOUNT_MAX:
        raise _bad(where, f'"{text}" is more than {format_amount(resource, AMOUNT_MAX)}')
    return amount


def _parse_share(text: str, where: str) -> int:
    """Thousandths of one device; also what a share of a GPU in a pod template is (rule G4)."""
    if not re.fullmatch(r"[0-9]{1,3}", text, re.ASCII) or int(text) == 0:
        raise _bad(where, f'"{text[:_QUANTITY_CHARS_MAX]}" is not a share of a device: a whole number from 1 to 999')
    return int(text)


def _bad(field: str, message: str) -> Rejected:
    return Rejected(Code.INVALID_ARGUMENT, field, message, "G4")


def parse_requests(quantities: Mapping[str, str], field: str = "resources") -> Amounts:
    """What a pod asks for, as `Amounts`; `muster.io/gpu-milli` becomes thousandths of a device. Zeros are dropped."""
    parsed: dict[str, int] = {}
    for resource, text in quantities.items():
        where = f"{field}.{resource}"
        amount = parse_quantity(resource, text, where)
        name = SHARED_DEVICE if resource == GPU_MILLI else resource
        if amount and name in parsed:
            raise _bad(where, f"a pod asks for whole devices or for a share ({GPU_MILLI}), not for both")
        if amount:
            parsed[name] = amount
    return amounts(parsed)


def parse_totals(quantities: Mapping[str, str], field: str, *, zeros: bool = False) -> Amounts:
    """What many pods have together, such as a limit: shares (`muster.io/gpu-milli`) are thousandths of the device.

    `zeros`: a limit of nothing is a limit. Raises Rejected naming the field, also for a resource under two names.
    """
    parsed: dict[str, int] = {}
    for resource, text in quantities.items():
        where = f"{field}.{resource}"
        amount = parse_quantity(resource, text, where, of_many=True)
        name = SHARED_DEVICE if resource == GPU_MILLI else resource
        if name in parsed:
            raise _bad(
                where, f'is there twice: "{GPU_MILLI}" are thousandths of "{SHARED_DEVICE}", give one of the two'
            )
        parsed[name] = amount
    return tuple(sorted((resource, amount) for resource, amount in parsed.items() if amount or zeros))


def misnamed(resource: str, others: Iterable[str] = ()) -> str:
    """Why no cluster can have a resource of this name; "" when one can. `others`: what else may have been meant."""
    if resource in PLAIN_NAMES or _HUGEPAGES.fullmatch(resource) or _EXTENDED.fullmatch(resource):
        return ""
    near = [SHORT_NAMES[resource]] if resource in SHORT_NAMES else get_close_matches(
        resource[:NAME_CHARS_MAX], [*others, *PLAIN_NAMES, *DEVICE_RESOURCES], 1
    )  # fmt: skip
    hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(PLAIN_NAMES)}; others: domain/name"
    return f'"{resource[:NAME_CHARS_MAX]}" is not the name of a resource ({hint})'


def full_pair(name: str, text: str) -> tuple[str, str]:
    """A short name and its quantity as the API has them, and a share as the part of a device that it is."""
    if name == GPU_MILLI and text.isdecimal():
        return SHARED_DEVICE, f"{text}m"
    return SHORT_NAMES.get(name, name), text


def check_devices(requests: Amounts, field: str = "resources") -> None:
    """Raises Rejected unless the devices asked for are whole ones, or one share, of one kind (rule G4)."""
    kinds = [(resource, amount) for resource, amount in requests if is_device(resource)]
    if len(kinds) > 1:
        names = " and ".join(resource for resource, _ in kinds)
        raise _bad(field, f"a pod asks for devices of one kind, not for {names}")
    for resource, amount in kinds:
        if amount > DEVICE_MILLIS and amount % DEVICE_MILLIS:
            have = format_amount(resource, amount)
            raise _bad(f"{field}.{resource}", f"{have} devices: ask for whole devices or for a share below one")


# --- for people -----------------------------------------------------------------------------------------------------


def short_name(resource: str) -> str:
    """As people say it: the kind of a device without its vendor."""
    return resource.rsplit("/", 1)[1] if is_device(resource) else resource


def format_amount(resource: str, amount: int) -> str:
    """For people: 1500 milli-cores -> "1.5", 96 * 2**30 bytes -> "96Gi", 460 thousandths of a GPU -> "0.46"."""
    sign, size = ("-", -amount) if amount < 0 else ("", amount)
    if unit_scale(resource) == 1000:
        return sign + _thousandths(size)
    if is_bytes(resource):
        for suffix, unit in _BYTES_BY_SIZE:
            if size >= unit:
                return sign + _tenths(size, unit) + suffix
    return f"{sign}{size}"


def _thousandths(value: int) -> str:
    whole, rest = divmod(value, 1000)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def _tenths(value: int, unit: int) -> str:
    whole, tenth = divmod(value * 10 // unit, 10)
    return f"{whole}.{tenth}" if tenth else str(whole)


def format_pair(resource: str, amount: int) -> str:
    """An amount with its name: "12 cpu", "96Gi memory", "1 gpu"."""
    return f"{format_amount(resource, amount)} {short_name(resource)}"


def format_amounts(values: Amounts) -> str:
    return ", ".join(format_pair(resource, amount) for resource, amount in values) or "nothing"


# --- arithmetic -----------------------------------------------------------------------------------------------------


def amounts(values: Mapping[str, int]) -> Amounts:
    """Sorted by resource; zeros are dropped."""
    return tuple(sorted(pair for pair in values.items() if pair[1]))


def add(a: Amounts, b: Amounts) -> Amounts:
    return total((a, b))


def sub(a: Amounts, b: Amounts) -> Amounts:
    """`a - b`; what goes below zero stays there (the caller asks)."""
    left = dict(a)
    for resource, amount in b:
        left[resource] = left.get(resource, 0) - amount
    return amounts(left)


def scale(a: Amounts, factor: int) -> Amounts:
    return tuple((resource, amount * factor) for resource, amount in a) if factor else ()


def maximum(a: Amounts, b: Amounts) -> Amounts:
    """The greater of the two, resource by resource."""
    most = dict(a)
    for resource, amount in b:
        most[resource] = max(amount, most.get(resource, 0))
    return amounts(most)


def count(totals: dict[str, int], values: Iterable[tuple[str, int]], times: int) -> None:
    """Add so many times `values` to `totals`, which keep no zeros."""
    for resource, amount in values:
        left = totals.get(resource, 0) + times * amount
        if left:
            totals[resource] = left
        else:
            totals.pop(resource, None)


def total(values: Iterable[Amounts]) -> Amounts:
    """The sum of all."""
    sums: dict[str, int] = {}
    for value in values:
        for resource, amount in value:
            sums[resource] = sums.get(resource, 0) + amount
    return amounts(sums)


def larger(a: Amounts, b: Amounts) -> Amounts:
    """The larger amount of each resource."""
    if not a or not b:
        return a or b
    most = dict(a)
    for resource, amount in b:
        most[resource] = max(amount, most.get(resource, 0))
    return amounts(most)


def within(a: Amounts, limit: Amounts) -> bool:
    """Whether `a` is at most `limit` in every resource that `limit` names."""
    ceiling = dict(limit)
    return all(amount <= ceiling.get(resource, amount) for resource, amount in a)
