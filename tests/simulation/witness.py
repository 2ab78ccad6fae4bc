"""The one who sees everything and is never disturbed: it applies each transaction and checks what must never happen.

After each transaction the invariants of the core hold (I1-I3, usage is the sum of what is placed), PSI rose with every
plan (I6, rule P1), what is freed is held and victims pause (`keeping`), nobody takes what is not theirs (`guarding`),
every pending job can say why (I5), no job goes back to an earlier epoch, arrays, drained queues and changes of the tree
are what they should be (`promises`), and the ledger is not ahead of the clusters (`truth`). It also notes which public
events have to be relayed, and what was to be seen in this run (`sightings`).
"""

from __future__ import annotations

from muster.core import explain, invariants
from muster.core import transitions as tr
from muster.core.invariants_potential import Calm
from muster.core.model import JobState
from muster.core.state import CellState
from muster.runtime.follower import Follower
from muster.sim.loop import SimClock
from muster.wire import events

from .guarding import Guarding
from .keeping import Keeping
from .processes import CELL, Room
from .promises import Promises
from .sightings import Sightings
from .truth import Truth

EXPLAIN_EVERY = 20  # transactions


class Witness:
    """Sees everything: applies each transaction as it is stored and checks what must never happen."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.follower = Follower(room.nats.connect("witness"), CELL, clock=SimClock())
        self.names = events.Remembering(events.StateNames(lambda: self.follower.state))
        self.public: list[tuple[int, int]] = []  # ids of the events that must be relayed, in order
        self.placed: dict[str, list[int]] = {}  # job -> epochs
        self.refused: dict[str, str] = {}  # job -> why it was not taken
        self.transactions = 0
        self.truth = Truth(room.kubes)
        self.keeping = Keeping()
        self.guarding = Guarding()
        self.promises = Promises()
        self.sightings = Sightings()
        self.before: invariants.Before | None = None  # as `calm`
        self.calm: Calm | None = None  # taken after the transaction before
        self.follower.on_transaction(self.applied)

    @property
    def state(self) -> CellState:
        return self.follower.state

    def applied(self, tx: tr.Transaction, ledger_seq: int) -> None:
        self.transactions += 1
        try:
            invariants.check(self.state)
            if self.before is not None:
                self.before.check(self.state)
            self.before = invariants.Before(self.state)
            self.keeping.applied(self.state, tx)
            self.guarding.applied(self.state, tx)
            self.promises.applied(self.state, tx)
            if self.calm is not None:
                self.calm.check(tx.transitions, self.state.now_ms)
            self.calm = Calm(self.state)
            for transition in tx.transitions:
                if isinstance(transition, tr.JobPlaced):
                    self._placed(transition)
                elif isinstance(transition, tr.CommandRefused) and transition.command == "SubmitJob":
                    assert transition.subject not in self.state.jobs, f"LOG-11: {transition} although it was taken"
                    self.refused[transition.subject] = f"{transition.code} {transition.field} {transition.message}"
            self.truth.applied(tx)
            self.sightings.applied(self.state, tx)
            if self.transactions % EXPLAIN_EVERY == 0:
                self._explain_all()
        except AssertionError as error:
            self._room.failed(f"after transaction {ledger_seq}", error)
        self.names.observe(tx)
        self.public += [
            events.id_of({"ce-id": event.id}) for event in events.public_events(tx, ledger_seq, self.names, CELL)
        ]

    def _placed(self, t: tr.JobPlaced) -> None:
        epochs = self.placed.setdefault(t.job, [])
        assert not epochs or t.epoch > epochs[-1], f"job {t.job} was placed in epoch {t.epoch} after {epochs[-1]}"
        epochs.append(t.epoch)

    def _explain_all(self) -> None:
        """I5: every pending job can say why."""
        for job in self.state.jobs.values():
            told = explain.explain(self.state, job.spec.id)
            assert job.state is not JobState.QUEUED or told.reason, f"job {job.spec.id} waits and cannot say why"
            for blocker in told.blockers:
                self.sightings.waits(blocker.rule, blocker.kind)
