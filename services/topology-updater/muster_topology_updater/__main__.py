"""Runs the topology-updater: `python -m muster_topology_updater` (`--help` lists its settings)."""

from __future__ import annotations

import sys

from muster.runtime.service import run_service
from muster_topology_updater.service import build
from muster_topology_updater.settings import TopologySettings


def main() -> int:
    return run_service("topology-updater", TopologySettings, build)


if __name__ == "__main__":
    sys.exit(main())
