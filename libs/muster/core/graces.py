"""How long victims may take to stop, as their pod templates say, and so how long what they free is held (rule P5).

The template is opaque to the core otherwise; this is the one thing of it that a decision follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from muster.core.gangs import Gang
from muster.core.jobs import Job
from muster.core.limits import GRACE_MAX_MS, HOLD_MARGIN_MS, HOLD_TTL_MS


class _PodSpec(msgspec.Struct):
    grace_s: int | None = msgspec.field(default=None, name="terminationGracePeriodSeconds")


class _Template(msgspec.Struct):
    spec: _PodSpec | None = None


_DECODE: Final = msgspec.json.Decoder(_Template).decode


def grace_ms(template: bytes) -> int:
    """How long pods of a template may take to stop, as far as it says so."""
    try:
        spec = _DECODE(template).spec if template else None
    except msgspec.DecodeError:
        return 0
    seconds = spec.grace_s if spec is not None and spec.grace_s is not None else 0
    return min(max(seconds, 0) * 1000, GRACE_MAX_MS)


def first_end_ms(made_ms: int, victims: Iterable[Job]) -> int:
    """How long a hold waits if nothing is known of its victims but what they were given to stop."""
    gangs: dict[Gang, None] = dict.fromkeys(victim.gang for victim in victims)
    grace = max((grace_ms(task.template) for gang in gangs for task in gang.tasks), default=0)
    return made_ms + max(HOLD_TTL_MS, grace + HOLD_MARGIN_MS)
