"""Runs a queue-manager: `python -m muster_queue_manager` (`--help` lists its settings)."""

from __future__ import annotations

import sys

from muster.runtime.service import run_service
from muster_queue_manager.service import build
from muster_queue_manager.settings import QueueManagerSettings


def main() -> int:
    return run_service("queue-manager", QueueManagerSettings, build)


if __name__ == "__main__":
    sys.exit(main())
