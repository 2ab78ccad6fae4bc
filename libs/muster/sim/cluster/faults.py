"""What can be made to go wrong between a client and the API server, drawn from a seeded random source.

Rules say, per verb and resource, how slow and how unreliable the server is; cuts, truncation and the pause act on the
whole server. Faults are drawn once per request before it is carried out, so a seed and an order of requests give the
same outcomes.
"""

from __future__ import annotations

import random
from enum import StrEnum

import msgspec

from .status import StatusError, bad_request, too_many_requests

MAX_RULES = 64


class Outcome(StrEnum):
    NORMAL = "normal"
    DROP = "drop"  # the connection is cut before the request is carried out
    REPLY_LOST = "reply-lost"  # carried out, but the client never hears


class FaultRule(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """For requests of this verb ("create", "delete", "watch", ... or "*") on this resource ("pods", ... or "*")."""

    verb: str = "*"
    resource: str = "*"
    latency_ms: float = 0.0
    latency_jitter_ms: float = 0.0  # uniformly on top
    share_429: float = 0.0
    share_500: float = 0.0
    share_drop: float = 0.0
    share_reply_lost: float = 0.0
    retry_after_s: int = 1


class Faults(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The standing faults of one cluster; the first rule that matches a request applies."""

    rules: list[FaultRule] = []
    gone_as: str = "event"  # how a watch from a forgotten version is refused: an ERROR "event", or "http" 410


class Draw(msgspec.Struct):
    delay_ms: float
    outcome: Outcome
    refusal: StatusError | None


_NOTHING = Draw(0.0, Outcome.NORMAL, None)


class FaultInjector:
    def __init__(self, rng: random.Random) -> None:
        self.faults = Faults()
        self._rng = rng

    def set(self, faults: Faults) -> None:
        if len(faults.rules) > MAX_RULES:
            raise bad_request(f"at most {MAX_RULES} fault rules")
        if faults.gone_as not in ("event", "http"):
            raise bad_request('gone_as must be "event" or "http"')
        for rule in faults.rules:
            shares = (rule.share_429, rule.share_500, rule.share_drop, rule.share_reply_lost)
            if min(shares) < 0 or sum(shares) > 1 or min(rule.latency_ms, rule.latency_jitter_ms) < 0:
                raise bad_request(
                    "the shares of a fault rule are at least 0 and sum up to at most 1; latencies are not negative"
                )
        self.faults = faults

    def draw(self, verb: str, resource: str) -> Draw:
        for rule in self.faults.rules:
            if rule.verb in ("*", verb) and rule.resource in ("*", resource):
                return self._draw(rule)
        return _NOTHING

    def _draw(self, rule: FaultRule) -> Draw:
        delay_ms = rule.latency_ms + self._rng.random() * rule.latency_jitter_ms
        point = self._rng.random()
        if point < rule.share_429:
            return Draw(
                delay_ms,
                Outcome.NORMAL,
                too_many_requests("too many requests, please try again later", rule.retry_after_s),
            )
        point -= rule.share_429
        if point < rule.share_500:
            return Draw(delay_ms, Outcome.NORMAL, StatusError(500, "Internal error occurred: injected fault"))
        point -= rule.share_500
        if point < rule.share_drop:
            return Draw(delay_ms, Outcome.DROP, None)
        point -= rule.share_drop
        if point < rule.share_reply_lost:
            return Draw(delay_ms, Outcome.REPLY_LOST, None)
        return Draw(delay_ms, Outcome.NORMAL, None)
