from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from muster.sim.cluster.cluster import FaultOrder
from muster.sim.cluster.faults import FaultInjector, FaultRule, Faults, Outcome
from muster.sim.cluster.status import StatusError


def outcomes(injector: FaultInjector, count: int, verb: str = "create", resource: str = "pods") -> Counter[Any]:
    draws = [injector.draw(verb, resource) for _ in range(count)]
    return Counter(draw.refusal.code if draw.refusal else draw.outcome for draw in draws)


def test_shares_are_kept_and_the_seed_decides() -> None:
    rule = FaultRule(
        verb="create",
        resource="pods",
        share_429=0.2,
        share_500=0.1,
        share_drop=0.1,
        share_reply_lost=0.1,
        retry_after_s=3,
    )
    first, second = (FaultInjector(random.Random(7)) for _ in range(2))
    first.set(Faults([rule]))
    second.set(Faults([rule]))
    seen = outcomes(first, 2000)
    assert seen == outcomes(second, 2000)
    assert 340 < seen[429] < 460
    assert 140 < seen[500] < 260
    assert 140 < seen[Outcome.DROP] < 260
    assert 140 < seen[Outcome.REPLY_LOST] < 260
    assert outcomes(first, 100, "delete") == {Outcome.NORMAL: 100}
    assert outcomes(first, 100, "create", "pods/binding") == {Outcome.NORMAL: 100}


def test_the_first_rule_that_matches_applies() -> None:
    injector = FaultInjector(random.Random(7))
    injector.set(Faults([FaultRule(verb="get"), FaultRule(share_429=1.0, latency_ms=5, latency_jitter_ms=10)]))
    assert outcomes(injector, 10, "get") == {Outcome.NORMAL: 10}
    draw = injector.draw("list", "nodes")
    assert draw.refusal is not None
    assert draw.refusal.retry_after_s == 1
    assert 5 <= draw.delay_ms <= 15


@pytest.mark.parametrize(
    "rule",
    [
        FaultRule(share_429=1.1),
        FaultRule(share_500=-0.1),
        FaultRule(share_drop=0.6, share_429=0.6),
        FaultRule(latency_ms=-1),
    ],
)
def test_impossible_rules_are_refused(rule: FaultRule) -> None:
    with pytest.raises(StatusError) as caught:
        FaultInjector(random.Random(1)).set(Faults([rule]))
    assert caught.value.code == 400


def test_an_order_is_carried_out_whole_or_not_at_all(world: Any) -> None:
    order = msgspec.convert({"cut_off_nodes": ["node-0000", "nowhere"], "truncate_history": True}, FaultOrder)
    watch = world.watch("/api/v1/nodes").watch
    with pytest.raises(StatusError) as caught:
        world.cluster.order(order)
    assert caught.value.code == 404
    assert world.cluster.kubelets.agents["node-0000"].alive
    world.cluster.order(FaultOrder(power_off_nodes=["node-0000"], cut_watches=True, pause_ms=500, gone_as="http"))
    assert not world.cluster.kubelets.agents["node-0000"].alive
    assert watch.closed
    assert world.cluster.paused_until_ms == world.time_ms + 500
    assert world.cluster.faults.faults == Faults([], "http")
    world.cluster.order(FaultOrder(revive_nodes=["node-0000"], rules=[FaultRule(share_500=1.0)]))
    assert world.cluster.kubelets.agents["node-0000"].alive
    assert world.cluster.faults.faults == Faults([FaultRule(share_500=1.0)], "http")


def test_unknown_fields_of_an_order_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"kill_nodes": []}', type=FaultOrder)
