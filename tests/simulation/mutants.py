"""Do the tests notice? Known bugs are planted one by one into a copy of the code, and the simulation has to object.

    python -m tests.simulation.mutants [NAME ...]

Each mutant breaks one rule. It is caught when the simulation fails on one of a few seeds, those first that are known to
show it; a mutant that survives is a hole in the tests, and the run ends with exit code 1. A mutant whose text is no
longer found is an error too. WORKERS mutants (2) are tried at the same time.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEEDS = "0-59"
CPU_MAX_S = 300  # of one mutant: several times what all seeds take
WORKERS = int(os.environ.get("WORKERS") or 2)


@dataclass(frozen=True)
class Mutant:
    name: str
    rule: str
    file: str
    before: str
    after: str
    also: tuple[tuple[str, str, str], ...] = ()  # (file, before, after)
    seeds: tuple[int, ...] = ()  # known to show it; the others follow


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
        seeds=(43,),
    ),
    Mutant(
        "acknowledged-before-durable",
        "I9",
        "libs/muster/runtime/inbox.py",
        "            except OutcomeUnknown:\n                if self",
        "            except OutcomeUnknown:\n                return 1\n                if self",
        seeds=(9,),
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
        "if pod.epoch != epoch or not 0 <=",
        "if not 0 <=",
        seeds=(11,),
    ),
    Mutant(
        "quota-leaks",
        "I3",
        "libs/muster/core/apply.py",
        "        counted.charged -= 1  # rule L5: pod by pod\n",
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
        seeds=(11,),
    ),
    Mutant(
        "unanswered-create-taken-for-failed",
        "LOG-15",
        "services/binder/muster_binder/review.py",
        "wait_s = self._settings.settle_s if tried else",
        "wait_s = 0.0 if tried else",
        seeds=(8,),
    ),
    Mutant(
        "relay-without-compare-and-set",
        "LOG-13",
        "libs/muster/runtime/relay.py",
        "        expected_last_seq = self._stream_seq\n",
        "        expected_last_seq = (await self._events.info()).last_seq\n",
        seeds=(13,),
    ),
    Mutant(
        "repeated-request-queued-again",
        "LOG-11",
        "libs/muster/core/submission.py",
        "    if _is_repeated(draft, spec):\n        return\n",
        "",
    ),
    Mutant(
        "plans-are-not-looked-at-again",
        "P6",
        "libs/muster/core/plans.py",
        "        reason = _why_not(draft, fact, takings)\n",
        "        reason = None\n",
        seeds=(5,),
    ),
    Mutant(
        "what-is-freed-is-free-for-all",
        "P5",
        "libs/muster/core/holds.py",
        "            overlay.charge(*kept)\n",
        "",
        also=(
            ("libs/muster/core/holds.py", "            self._overlay.release(*self._on_nodes[job_id])\n", ""),
            ("libs/muster/core/holds.py", "            self._overlay.charge(*self._on_nodes[job_id])\n", ""),
        ),
        seeds=(1,),
    ),
    Mutant(
        "victims-do-not-pause",
        "P5",
        "libs/muster/core/plans.py",
        "draft.now_ms + backoff_ms(Reason.PREEMPTED, victim.preemptions, draft.tree.by_id[victim.queue])",
        "draft.now_ms",
    ),
    Mutant(
        "the-potential-forbids-nothing",
        "P1",
        "libs/muster/core/preemption_rules.py",
        "    if not weighed.rises:\n",
        "    if False:\n",
    ),
    Mutant(
        "a-job-that-shrank-is-charged-on",
        "L5",
        "libs/muster/core/pods.py",
        "            if left and not (phase == SUCCEEDED and job.spec.completion):\n                phase = GONE\n",
        "",
    ),
    Mutant(
        "an-index-that-succeeded-runs-again",
        "G1",
        "libs/muster/core/arrays.py",
        "    if not phases.count(SUCCEEDED):\n        return bytearray()\n",
        "    return bytearray()\n",
    ),
    Mutant(
        "more-indices-run-than-may",
        "G1",
        "libs/muster/core/growth.py",
        "if most and job.live_pods() +",
        "if False and job.live_pods() +",
    ),
    Mutant(
        "a-drain-forgets-jobs-that-run",
        "Q1",
        "libs/muster/core/housekeeping.py",
        "if job is not None and job.state in RUNNING_STATES:\n                    requeue",
        "if job is not None and job.state is JobState.PLACED:\n                    requeue",
    ),
    Mutant(
        "room-is-held-for-a-queue-that-is-stopped",
        "Q1",
        "libs/muster/core/housekeeping.py",
        "    release_closed(draft)\n",
        "",
        seeds=(84,),
    ),
    Mutant(
        "a-change-of-the-tree-restarts-jobs",
        "Q4",
        "libs/muster/core/housekeeping.py",
        "    for drained in sorted(draft.tree.draining):\n",
        "    for drained in sorted(draft.tree.by_id if draft.structural else draft.tree.draining):\n",
    ),
    Mutant(
        "a-queue-moves-without-what-it-uses",
        "I3",
        "libs/muster/core/queues.py",
        "            _count(old.chain[1:], of, amounts.items(), 1)\n",
        "            pass\n",
    ),
    Mutant(
        "jobs-start-on-cordoned-nodes",
        "G4",
        "libs/muster/core/rows.py",
        "open=spec.ready and not spec.cordoned and not removed,",
        "open=spec.ready and not removed,",
    ),
    Mutant(
        "work-is-saved-in-the-future",
        "P3",
        "libs/muster/core/checkpoints.py",
        "min(command.at_ms or draft.now_ms, draft.now_ms)",
        "command.at_ms or draft.now_ms",
    ),
    Mutant(
        "protected-jobs-sit-on-guarantees",  # each of the two alone only asks for plans that come to nothing
        "P4",
        "libs/muster/core/room.py",
        "(self.above_entitlement(job, need) or any(self.over_claims(queue, need)))",
        "self.above_entitlement(job, need)",
        also=(
            (
                "libs/muster/core/quota.py",
                "if protected(job) and any(ahead.claims_without(takings).exceeded",
                "if False and any(ahead.claims_without(takings).exceeded",
            ),
        ),
        seeds=(0,),
    ),
    Mutant(
        "protected-jobs-borrow",
        "P4",
        "libs/muster/core/room.py",
        "(self.above_entitlement(job, need) or any(self.over_claims(queue, need)))",
        "any(self.over_claims(queue, need))",
    ),
    Mutant(
        "what-is-held-for-a-protected-job-is-not-claimed",
        "P4",
        "libs/muster/core/apply_preemption.py",
        "    if protected(job):\n        state.queues.protect(job.queue, held, sign)\n",
        "",
        seeds=(14,),
    ),
    Mutant(
        "users-get-more-than-they-are-allowed",
        "Q1",
        "libs/muster/core/room.py",
        "if queue.tracked and any(self.over_allowance(job, need, starts=starts)):",
        "if False:",
        seeds=(5,),
    ),
    Mutant(
        "borrowers-take-what-lenders-keep",
        "F6",
        "libs/muster/core/room.py",
        "return entitled or not self._draft.tree.lending or not any(self.kept_by_lenders(need))",
        "return True",
        seeds=(10,),
    ),
    Mutant(
        "protected-jobs-are-preempted",
        "P4",
        "libs/muster/core/preemption_rules.py",
        "if not victim.spec.preemptible or protected_until_ms",
        "if protected_until_ms",
        also=(("libs/muster/core/victim_table.py", "int(not job.spec.preemptible), int(", "0, int("),),
        seeds=(12,),
    ),
    Mutant(
        "jobs-are-preempted-before-they-have-run-long-enough",
        "P4",
        "libs/muster/core/preemption_rules.py",
        "return next((above.spec.min_runtime_ms for above in queue.chain if above.spec.min_runtime_ms), 0)",
        "return 0",
        seeds=(9,),
    ),
)


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    if not chosen:
        print(f"no such mutant; there are {', '.join(m.name for m in MUTANTS)}", file=sys.stderr)
        return 64
    with ThreadPoolExecutor(WORKERS) as pool:
        caught = list(pool.map(_caught, chosen))
    survivors = [mutant.name for mutant, found in zip(chosen, caught, strict=True) if not found]
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
        for file, before, after in ((mutant.file, mutant.before, mutant.after), *mutant.also):
            text = (copy / file).read_text()
            if text.count(before) != 1:
                print(f"STALE    {mutant.name}: its text is {text.count(before)} times in {file}", flush=True)
                return False
            (copy / file).write_text(text.replace(before, after))
        told = _fails(copy, [*map(str, mutant.seeds), SEEDS])
    took = f"{mutant.name} ({mutant.rule}) in {time.monotonic() - began_s:.0f} s"
    print(f"caught   {took}: {told}" if told else f"SURVIVED {took}: seeds {SEEDS}", flush=True)
    return bool(told)


def _fails(copy: Path, seeds: list[str]) -> str:
    """What the first failing seed says; "" when all pass."""
    sources = [copy, copy / "libs", *sorted((copy / "services").iterdir())]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sources))}
    limited = ["sh", "-c", f'ulimit -t {CPU_MAX_S} && exec "$@"', "sh"]
    command = [*limited, sys.executable, "-m", "tests.simulation.seeds", *seeds]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return "it does not end"
    if not done.stdout.startswith("seed "):  # it did not even run: that is no proof
        raise SystemExit(f"the seeds ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    seed, problem = done.stdout.splitlines()[:2]
    return f"{seed}, {problem}"[:150]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
