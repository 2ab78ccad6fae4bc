"""Options that many commands share, and how a command's coroutine is run. Imports nothing slow: `--help` stays fast."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Format(StrEnum):
    """How a command prints its answer."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


Address = Annotated[
    str,
    typer.Option(
        "--address",
        "-a",
        envvar="MUSTER_ADDRESS",
        metavar="HOST:PORT",
        help="Admission's gRPC address. Default: the last `muster up` on this machine, else 127.0.0.1:7070.",
        show_default=False,
    ),
]
NatsUrl = Annotated[
    str,
    typer.Option(
        "--nats",
        envvar="MUSTER_NATS_URL",
        metavar="URL",
        help="NATS server. Default: that of the last `muster up`, else nats://127.0.0.1:4222.",
        show_default=False,
    ),
]
Output = Annotated[
    Format, typer.Option("--output", "-o", help="table, wide, json or yaml.", show_default=False, metavar="FORMAT")
]
Cell = Annotated[str, typer.Option("--cell", envvar="MUSTER_CELL", help="The cell.")]
