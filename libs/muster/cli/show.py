"""How things are printed: tables, durations, amounts, and the machine formats (json, yaml).

Tables are plain aligned text, so that they can be piped. Messages are printed in protobuf's JSON mapping with the field
names of the .proto files; nothing is left out or renamed, so what `-o json` prints is the API.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from muster.cli.options import Format
from muster.core import resources
from muster.core.errors import Rejected

NOTHING: Final = "-"
MAIN_RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu", "cpu", "memory")


def is_machine(output: Format) -> bool:
    return output in (Format.JSON, Format.YAML)


def emit(output: Format, data: Any) -> None:
    """Print plain data (dicts, lists, texts, numbers) as json or yaml."""
    if output is Format.YAML:
        import yaml

        yaml.safe_dump(data, sys.stdout, sort_keys=False, allow_unicode=True)
        return
    json.dump(data, sys.stdout, indent=2, ensure_ascii=False)
    print()


def plain(message: Any) -> dict[str, Any]:
    """A protobuf message as plain data."""
    from google.protobuf.json_format import MessageToDict

    return dict(MessageToDict(message, preserving_proto_field_name=True))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> str:
    """Aligned columns; those in `right` are flushed right. Column texts are taken as they are."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = (
            text.rjust(w) if i in right else text.ljust(w) for i, (text, w) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in (header, *rows))


def seconds_of(timestamp: Any) -> float:
    """A protobuf Timestamp as seconds since the epoch; 0 when it is not set."""
    return float(timestamp.seconds) + float(timestamp.nanos) / 1e9


def duration(seconds: float) -> str:
    """Short and readable: 31 ms, 4.2 s, 12 m, 3 h 20 m, 4 d."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} m"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {rest} m" if rest else f"{hours} h"
    return f"{hours // 24} d"


def clock(seconds: float) -> str:
    """A local time of day, with the date when it is not today."""
    if not seconds:
        return NOTHING
    moment = datetime.fromtimestamp(seconds, UTC).astimezone()
    today = datetime.now(UTC).astimezone().date()
    return moment.strftime("%H:%M:%S" if moment.date() == today else "%Y-%m-%d %H:%M:%S")


def countdown(seconds: float) -> str:
    """0:41, as an eta."""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"


def mebibytes(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB" if size else NOTHING


def enum_name(value: str, prefix: str) -> str:
    """JOB_STATE_QUEUED -> Queued; MAX_RUNTIME_EXCEEDED -> MaxRuntimeExceeded."""
    name = value.removeprefix(prefix)
    return "" if name == "UNSPECIFIED" else "".join(part.capitalize() for part in name.split("_"))


def amount_of(resource: str, quantity: str) -> int:
    """A quantity of the API as canonical units; usage may hold parts of devices, which requests may not."""
    try:
        return resources.parse_quantity(resource, quantity)
    except Rejected:
        try:
            return round(float(quantity) * resources.unit_scale(resource))
        except ValueError:
            return 0


def amounts(quantities: Mapping[str, str]) -> str:
    """`4 cpu, 16Gi, 1 gpu`: as people say it, memory without its name, the pod slot left out."""
    parts = []
    for resource in sorted(quantities, key=_rank):
        if resource == resources.PODS:
            continue
        named = resources.SHARED_DEVICE if resource == resources.GPU_MILLI else resource
        text = resources.format_amount(named, amount_of(resource, quantities[resource]))
        parts.append(text if named == resources.MEMORY else f"{text} {resources.short_name(named)}")
    return ", ".join(parts) or "nothing"


def main_resource(*quantities: Mapping[str, str]) -> str:
    """The resource that tells most about a queue: its GPUs if any are named, else cpu, else whatever there is."""
    named = {resource for some in quantities for resource in some}
    return next((r for r in MAIN_RESOURCES if r in named), next(iter(sorted(named)), ""))


def one_amount(resource: str, quantities: Mapping[str, str], *, unit: bool = True) -> str:
    """One resource of a map: `64 gpu`; `-` when the map does not name it."""
    if resource not in quantities:
        return NOTHING
    text = resources.format_amount(resource, amount_of(resource, quantities[resource]))
    return f"{text} {resources.short_name(resource)}" if unit else text


def _rank(resource: str) -> tuple[int, str]:
    order = ("cpu", "memory", "nvidia.com/gpu", "amd.com/gpu")
    return (order.index(resource) if resource in order else len(order), resource)
