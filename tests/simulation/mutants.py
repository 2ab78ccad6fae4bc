"""Do the tests notice? Known bugs are planted one by one into a copy of the code, and the simulation has to object.

    python -m tests.simulation.mutants [NAME ...]

Each mutant breaks one rule. It is caught when the simulation fails on one of a few seeds; a mutant that survives is a
hole in the tests, and the run ends with exit code 1. A mutant whose text is no longer found is an error too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEEDS_PER_ROUND = 8
ROUNDS_MAX = 6
TIMEOUT_S = 240


@dataclass(frozen=True)
class Mutant:
    name: str
    rule: str
    file: str
    before: str
    after: str
    also: tuple[tuple[str, str, str], ...] = ()  # (file, before, after)


MUTANTS = (
    Mutant(
        "no-fence-in-front-of-the-ledger",  # each of the two alone is made harmless by the other
        "LOG-4",
        "libs/muster/runtime/committer.py",
        "expected_last_seq=self.tail_seq, timeout_s",
        "timeout_s",
        also=(
            (
                "libs/muster/core/apply.py",
                "if header.prev != state.ledger_seq or header.epoch < state.epoch:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "foreign-conflict-taken-for-stored",
        "LOG-4",
        "libs/muster/runtime/committer.py",
        "if await self._is_stored(expected_seq, data, conflict):",
        "if True:",
    ),
    Mutant(
        "acknowledged-before-durable",
        "I9",
        "libs/muster/runtime/inbox.py",
        "            except OutcomeUnknown:\n                if self",
        "            except OutcomeUnknown:\n                return 1\n                if self",
    ),
    Mutant(
        "new-leader-starts-at-the-end-of-the-inbox",
        "LOG-3",
        "libs/muster/runtime/leader.py",
        "reader = InboxReader(self._inbox, self._follower.state.position, self._wake.set)",
        "reader = InboxReader(\n"
        "            self._inbox, InboxPosition((await self._inbox.info()).last_seq + 1, 0), self._wake.set\n"
        "        )",
    ),
    Mutant(
        "facts-of-an-old-epoch-count",
        "LOG-15",
        "libs/muster/core/pods.py",
        "if pod.epoch != job.epoch or not 0 <=",
        "if not 0 <=",
    ),
    Mutant(
        "quota-leaks",
        "I3",
        "libs/muster/core/apply.py",
        "    state.queues.release(job.queue, amounts)\n",
        "",
    ),
    Mutant(
        "gang-placed-in-part",
        "I2",
        "libs/muster/core/gang_trial.py",
        "            if not self._fill(shapes[g], groups[g].min_replicas, self._groups[g]):\n"
        "                return False",
        "            self._fill(shapes[g], groups[g].min_replicas, self._groups[g])",
    ),
    Mutant(
        "next-epoch-does-not-wait-for-the-last",
        "LOG-15",
        "services/binder/muster_binder/cache.py",
        "return epochs is not None and any(earlier < epoch for earlier in epochs)",
        "return False",
    ),
    Mutant(
        "unanswered-create-taken-for-failed",
        "LOG-15",
        "services/binder/muster_binder/review.py",
        "wait_s = self._settings.settle_s if tried else",
        "wait_s = 0.0 if tried else",
    ),
    Mutant(
        "relay-without-compare-and-set",
        "LOG-13",
        "libs/muster/runtime/relay.py",
        "        expected_last_seq = self._stream_seq\n",
        "        expected_last_seq = (await self._events.info()).last_seq\n",
    ),
    Mutant(
        "repeated-request-queued-again",
        "LOG-11",
        "libs/muster/core/submission.py",
        "    if _is_repeated(draft, spec):\n        return\n",
        "",
    ),
)


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    if not chosen:
        print(f"no such mutant; there are {', '.join(m.name for m in MUTANTS)}", file=sys.stderr)
        return 64
    survivors = [mutant.name for mutant in chosen if not _caught(mutant)]
    print(
        f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught"
        + "".join(f"\n  alive: {n}" for n in survivors)
    )
    return 1 if survivors else 0


def _caught(mutant: Mutant) -> bool:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="muster-mutant-") as folder:
        copy = Path(folder)
        for part in ("libs", "services", "tests/simulation"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        for file, before, after in ((mutant.file, mutant.before, mutant.after), *mutant.also):
            text = (copy / file).read_text()
            if text.count(before) != 1:
                print(f"STALE    {mutant.name}: its text is {text.count(before)} times in {file}")
                return False
            (copy / file).write_text(text.replace(before, after))
        for number in range(ROUNDS_MAX):
            told = _fails(copy, number * SEEDS_PER_ROUND)
            if told:
                print(
                    f"caught   {mutant.name} ({mutant.rule}) in {time.monotonic() - began_s:.0f} s: {told}", flush=True
                )
                return True
    print(f"SURVIVED {mutant.name} ({mutant.rule}) {ROUNDS_MAX * SEEDS_PER_ROUND} seeds", flush=True)
    return False


def _fails(copy: Path, first_seed: int) -> str:
    """What the first failing seed says; "" when all pass."""
    sources = [copy / "libs", *sorted((copy / "services").iterdir())]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, sources)),
        "SEEDS": str(SEEDS_PER_ROUND),
        "FIRST_SEED": str(first_seed),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/simulation/test_world.py"]
    try:
        done = subprocess.run(
            [*command, "-k", "stays_safe"], cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return "it does not end"
    if done.returncode == 0:
        return ""
    if done.returncode != 1:
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    said = [line[1:].strip() for line in done.stdout.splitlines() if line.startswith("E ")]
    return next(
        (line for line in said if not line.startswith(("AssertionError", "seed "))), said[0] if said else "fails"
    )[:110]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
