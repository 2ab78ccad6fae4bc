"""`python -m loadtest [name ...] [--runs 5] [--profile]`: all benches, or those named, and one table.

`--help` lists the names. With `--profile` each runs once, and the functions that cost most are named for every process
of ours. Nothing is written into the tree.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
import traceback
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as services run

from loadtest import harness
from loadtest.processes import Settings
from loadtest.profiling import profiled

BENCHES: Final = (
    "placement",
    "core",
    "log",
    "recovery",
    "admission",
    "pipeline",
    "pods",
    "entitlements",
    "preemption",
    "questions",
    "queues",
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHES))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHES]
    if unknown:
        parser.error(f"no bench {unknown[0]!r}; there are {', '.join(BENCHES)}")
    Settings.profile = arguments.profile
    runs = 1 if arguments.profile else arguments.runs
    print(f"{harness.machine()}; median of {runs}")
    if harness.warning():
        print(f"WARNING: {harness.warning()}")
    results: list[harness.Result] = []
    failed: list[str] = []
    for name in arguments.names or BENCHES:
        print(f"{name} (load {harness.load():.2f}) ...", file=sys.stderr, flush=True)
        with profiled(f"{name}, this process", on=arguments.profile):
            try:
                results += importlib.import_module(f"loadtest.bench_{name}").main(runs)
            except Exception:  # what the others have measured is not lost with it
                traceback.print_exc()
                failed.append(name)
        gc.collect()
    print(harness.table(results))
    missed = [result.name for result in results if not result.met]
    print(f"missed: {', '.join(missed)}" if missed else "every target met")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
