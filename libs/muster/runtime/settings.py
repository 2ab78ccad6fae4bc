"""Settings: one typed, frozen dataclass a service, read once from the environment.

A field is declared with `setting(help, default)`; its variable is `MUSTER_` and the field's name in capitals unless
`variable` says otherwise. `load` reads them all and reports every wrong one at once, each with its variable's name.
`describe` prints the same table for `--help` and for the services' READMEs, so that neither can go stale.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from muster.runtime.exit_codes import ExitCode, ProcessMustEnd
from muster.runtime.streams import INBOX_BYTES_MAX

PREFIX: Final = "MUSTER_"
TRUE: Final = frozenset({"1", "true", "yes", "on"})
FALSE: Final = frozenset({"0", "false", "no", "off", ""})

S = TypeVar("S")


class ConfigError(ProcessMustEnd):
    """An environment variable is missing or cannot be read."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(ExitCode.CONFIG, "; ".join(problems))
        self.problems = problems


def setting(
    help_text: str, default: Any = dataclasses.MISSING, *, variable: str = "", minimum: int | None = None
) -> Any:
    """A field of a settings class. Without a default the variable must be set. `minimum` bounds numbers."""
    metadata = {"help": help_text, "variable": variable, "minimum": minimum}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonSettings:
    """What every service reads."""

    nats_url: str = setting("NATS servers, comma-separated", "nats://127.0.0.1:4222")
    nats_replicas: int = setting("replicas of each stream: 1 on one server, 3 on a cluster", 1, minimum=1)
    nats_connect_timeout_ms: int = setting("how long to wait for NATS at the start", 30_000, minimum=1)
    inbox_max_bytes: int = setting(
        "size of the inbox stream, if this process is the one that creates it", INBOX_BYTES_MAX, minimum=1 << 20
    )
    cell: str = setting("the cell this process serves", "main")
    replica: str = setting("name of this replica, unique among those of the service", f"{socket.gethostname()}-1")
    grpc_address: str = setting("host:port of the gRPC server; port 0 takes a free one", "127.0.0.1:0")
    metrics_address: str = setting(
        "host:port of /metrics, /healthz and /readyz; port 0 takes a free one", "127.0.0.1:0"
    )
    ready_file: str = setting("file that gets the bound addresses as JSON once the service is ready", "")
    stop_grace_ms: int = setting("how long a graceful stop may take before the process ends anyway", 10_000, minimum=1)
    log_level: Literal["debug", "info", "warning", "error"] = setting("least severe level that is logged", "info")
    log_format: Literal["json", "console"] = setting("json for machines, console for people", "json")
    otlp_endpoint: str = setting(
        "OTLP gRPC endpoint for traces, such as http://127.0.0.1:4317; unset: no traces",
        "",
        variable="OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    trace_per_million: int = setting("traces started here that are recorded, of a million", 1_000_000, minimum=0)


def variable_of(field: dataclasses.Field[Any]) -> str:
    return field.metadata.get("variable") or PREFIX + field.name.upper()


def load(cls: type[S], environ: Mapping[str, str]) -> S:
    """Build `cls` from `environ`. Raises ConfigError that names every wrong variable."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for field, hint in _fields(cls):
        name = variable_of(field)
        if name not in environ:
            if field.default is dataclasses.MISSING:
                problems.append(f"{name} must be set ({field.metadata['help']})")
            continue
        try:
            values[field.name] = _convert(environ[name].strip(), hint, field.metadata.get("minimum"))
        except ValueError as error:
            problems.append(f"{name}={environ[name]!r}: {error}")
    if problems:
        raise ConfigError(problems)
    return cls(**values)


def describe(cls: type[Any]) -> str:
    """The settings as a table for people: variable, default, help."""
    rows = [(variable_of(f), _shown(f), str(f.metadata["help"])) for f, _ in _fields(cls)]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    return "\n".join(f"  {name:<{widths[0]}}  {default:<{widths[1]}}  {text}" for name, default, text in rows)


def split_address(address: str) -> tuple[str, int]:
    """`host:port` in two; IPv6 hosts stand in brackets. Raises ConfigError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not host or int(port) > 65535:
        raise ConfigError([f"{address!r} is not host:port"])
    return host.strip("[]"), int(port)


def _fields(cls: type[Any]) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if "help" in field.metadata:
            yield field, hints[field.name]


def _shown(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "(required)"
    if field.name == "replica":
        return "<host name>-1"
    if isinstance(field.default, tuple):
        return ",".join(field.default) or '""'
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default) or '""'


def _convert(text: str, hint: Any, minimum: int | None) -> Any:
    if get_origin(hint) is Literal:
        if text not in get_args(hint):
            raise ValueError(f"must be one of {', '.join(get_args(hint))}")
        return text
    if get_origin(hint) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if hint is bool:
        if text.lower() not in TRUE | FALSE:
            raise ValueError("must be true or false")
        return text.lower() in TRUE
    if hint is int:
        return _bounded(text, minimum)
    if hint is str:
        return text
    raise TypeError(f"settings cannot hold a {hint}")


def _bounded(text: str, minimum: int | None) -> int:
    try:
        number = int(text.replace("_", ""))
    except ValueError:
        raise ValueError("must be a whole number") from None
    if minimum is not None and number < minimum:
        raise ValueError(f"must be at least {minimum}")
    return number
