"""Leases: who of several replicas does a job that one should do (LOG-5).

A lease is one subject of the stream LEASES with one message. Taking and renewing it is a compare-and-set on that
subject's last sequence, so two replicas never both succeed. Nobody compares clocks: a contender watches the sequence,
and when it has not changed for `ttl_s` by the contender's own monotonic clock, the holder is taken for gone.

A lease avoids duels and nothing more. A holder that was paused may believe in its lease for a moment too long; whoever
acts under one needs a fence of its own (the ledger's compare-and-set, names and preconditions in the cluster). So a
holder that cannot reach NATS does not give up: it has lost the lease only when it sees somebody else's name in it.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from muster.runtime.bus_errors import ConnectionClosed
from muster.runtime.ports import Clock, Conflict, OutcomeUnknown, StoredMessage, Stream, StreamFull
from muster.runtime.streams import lease_subject

TTL_S: Final = 3.0
RENEWALS_PER_TTL: Final = 3
LOOKS_PER_TTL: Final = 10
RELEASE_TIMEOUT_S: Final = 1.0


class LeaseLost(Exception):
    """Somebody else holds it now."""


class LeaseRecord(msgspec.Struct, frozen=True):
    """The message of a lease, as JSON."""

    owner: str
    life: str  # of the process: a restarted replica is not its former self
    renewal: int = 0
    released: bool = False
    ttl_ms: int = 0


class Lease:
    """One replica's view of one lease. `owner` names the replica for people; `life` is unique to this process."""

    def __init__(self, stream: Stream, name: str, owner: str, *, clock: Clock, ttl_s: float = TTL_S) -> None:
        self.name = name
        self.held = False
        self.holder = ""  # who was seen in it last
        self._stream = stream
        self._subject = lease_subject(name)
        self._owner = owner
        self._life = f"{owner}@{clock.now_ms()}"
        self._clock = clock
        self._ttl_s = ttl_s
        self._renewal = 0
        self._seq = 0  # last sequence of the subject, as seen
        self._seen_s: float | None = None  # when `_seq` was first seen
        self._valid_until_s = 0.0

    def valid(self) -> bool:
        """Held, and by this machine's clock no contender can take it yet."""
        return self.held and self._clock.monotonic() < self._valid_until_s

    async def acquire(self) -> None:
        """Wait until it is held."""
        while not await self.try_acquire():
            await self._clock.sleep(self._ttl_s / LOOKS_PER_TTL)

    async def try_acquire(self) -> bool:
        """Look once and take it if it is free. True when held."""
        if self.held:
            return True
        last = await self._stream.last(self._subject)
        record = _decode(last)
        self.holder = record.owner if record is not None and not record.released else ""
        if last is not None and record is not None and record.life == self._life and not record.released:
            self._took(last.seq, self._clock.monotonic())  # an earlier try whose answer was lost
            return True
        seq = last.seq if last is not None else 0
        now_s = self._clock.monotonic()
        if self._seen_s is None or seq != self._seq:
            self._seq, self._seen_s = seq, now_s
        free = last is None or (record is not None and record.released)
        if not free and now_s - self._seen_s < self._ttl_s:
            return False
        return await self._write(seq)

    async def hold(self) -> None:
        """Renew until it is lost. Raises LeaseLost; cancel to stop renewing."""
        while True:
            await self._clock.sleep(self._ttl_s / RENEWALS_PER_TTL)
            await self.renew()

    async def renew(self) -> None:
        """Renew once, for as long as it takes to know the outcome (LOG-5). Raises LeaseLost."""
        while not await self._write(self._seq):
            last = await self._stream.last(self._subject)
            record = _decode(last)
            if last is None or record is None or record.life != self._life or record.released:
                self.held = False
                self.holder = record.owner if record is not None else ""
                raise LeaseLost(f"lease {self.name} is held by {self.holder or 'nobody'}, no longer by {self._owner}")
            renewed = record.renewal == self._renewal
            self._seq = last.seq
            if renewed:
                return
            await self._clock.sleep(self._ttl_s / LOOKS_PER_TTL)

    async def release(self) -> None:
        """Let somebody else have it at once. Best effort: it runs out by itself."""
        if not self.held:
            return
        self.held = False
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self._release()
        except (TimeoutError, OutcomeUnknown, StreamFull, ConnectionClosed):
            pass

    async def _release(self) -> None:
        while True:
            try:
                await self._publish(self._seq, released=True)
                return
            except Conflict:  # a renewal cancelled on its way may have been stored after all
                last = await self._stream.last(self._subject)
                record = _decode(last)
                if last is None or record is None or record.life != self._life or record.released:
                    return
                self._seq = last.seq

    async def _write(self, expected_seq: int) -> bool:
        """False: refused or unknown, look who holds it."""
        began_s = self._clock.monotonic()
        self._renewal += 1
        try:
            seq = await self._publish(expected_seq, released=False)
        except (Conflict, OutcomeUnknown, StreamFull):
            return False
        self._took(seq, began_s)
        return True

    async def _publish(self, expected_seq: int, *, released: bool) -> int:
        record = LeaseRecord(self._owner, self._life, self._renewal, released, int(self._ttl_s * 1000))
        return await self._stream.publish(
            msgspec.json.encode(record),
            subject=self._subject,
            expected_last_subject_seq=expected_seq,
            timeout_s=self._ttl_s / RENEWALS_PER_TTL,
        )

    def _took(self, seq: int, began_s: float) -> None:
        self.held = True
        self.holder = self._owner
        self._seq = seq
        self._seen_s = None
        self._valid_until_s = began_s + self._ttl_s


def _decode(message: StoredMessage | None) -> LeaseRecord | None:
    """None for no message and for one that is no lease: such a one is taken over once it has not changed for a ttl."""
    if message is None:
        return None
    try:
        return msgspec.json.decode(message.data, type=LeaseRecord)
    except msgspec.MsgspecError:
        return None
