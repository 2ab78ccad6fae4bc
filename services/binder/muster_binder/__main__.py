"""Runs the binder: `python -m muster_binder` (`--help` lists its settings)."""

from __future__ import annotations

import sys

from muster.runtime.service import run_service
from muster_binder.service import build
from muster_binder.settings import BinderSettings


def main() -> int:
    return run_service("binder", BinderSettings, build)


if __name__ == "__main__":
    sys.exit(main())
