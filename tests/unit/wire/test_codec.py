"""The bytes of inbox, ledger and snapshots: LOG-9, LOG-10."""

from __future__ import annotations

import msgspec
import pytest

from muster.core import commands as c
from muster.core import transitions as tr
from muster.core.model import InboxPosition
from muster.core.snapshot import dump
from muster.core.state import CellState
from muster.wire import codec
from muster.wire.codec import Malformed, UnknownVersion

HEADER = tr.Header(1, "1-1", 0, 1, 5, InboxPosition(1, 0), InboxPosition(2, 0), 10, 3)


def raw(value):
    return msgspec.msgpack.encode(value)


def test_inbox_messages_keep_their_items_in_order():
    items = (c.SuspendJob("a"), c.CancelJob("b"), c.SuspendJob("a"))
    assert codec.decode_inbox(codec.encode_inbox(items)) == items
    assert codec.decode_inbox(codec.encode_inbox(())) == ()


def test_one_bad_item_does_not_spoil_the_others():
    good = raw(c.CancelJob("a"))
    message = raw([1, [msgspec.Raw(good), ["NoSuchItem", 1], msgspec.Raw(good), 5, ["CancelJob"]]])
    decoded = codec.decode_inbox(message)
    assert [type(item).__name__ for item in decoded] == [
        "CancelJob",
        "Undecodable",
        "CancelJob",
        "Undecodable",
        "Undecodable",
    ]
    assert "NoSuchItem" in decoded[1].reason


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", raw("text"), raw([]), raw([1]), raw([1, 2]), raw(["1", []]), raw([1, []])[:-1]]
)
def test_bytes_that_are_no_message_are_one_bad_item(data):
    (item,) = codec.decode_inbox(data)
    assert isinstance(item, c.Undecodable)


@pytest.mark.parametrize("data", [raw([2, []]), raw([2, {"a": 1}]), raw([3]), raw([2, [["Later", 1]]])])
def test_a_newer_inbox_version_is_not_skipped(data):
    with pytest.raises(UnknownVersion, match="upgrade") as raised:
        codec.decode_inbox(data)
    assert raised.value.known == 1


def test_transactions_round_trip():
    tx = tr.Transaction(HEADER, (tr.JobForgotten("a"), tr.CyclePaused(None)))
    assert codec.decode_transaction(codec.encode_transaction(tx)) == tx


def test_a_newer_ledger_version_is_not_skipped():
    newer = msgspec.structs.replace(HEADER, version=2)
    with pytest.raises(UnknownVersion):
        codec.decode_transaction(codec.encode_transaction(tr.Transaction(newer, ())))
    with pytest.raises(UnknownVersion):
        codec.decode_transaction(raw([[2, "whatever"], "else"]))


@pytest.mark.parametrize("data", [b"", raw([[1, "x"], []]), raw([[1]]), raw(7), raw([[]])])
def test_a_damaged_transaction_is_not_taken_for_a_newer_one(data):
    with pytest.raises(Malformed):
        codec.decode_transaction(data)


def test_a_transition_that_this_build_does_not_know_stops_it():
    tx = raw([msgspec.Raw(raw(HEADER)), [["JobTeleported", 1]]])
    with pytest.raises(Malformed, match="JobTeleported"):
        codec.decode_transaction(tx)


def test_snapshot_parts():
    for part in dump(CellState("main")):
        data = codec.encode_snapshot_part(part)
        assert codec.decode_snapshot_part(data) == part
        values = msgspec.msgpack.decode(data)
        with pytest.raises(UnknownVersion):
            codec.decode_snapshot_part(raw([values[0], 2, *values[2:]]))
        with pytest.raises(UnknownVersion):
            codec.decode_snapshot_part(raw([values[0], 2, "something else"]))
        with pytest.raises(Malformed):
            codec.decode_snapshot_part(raw([values[0], 1, "something else"]))
    with pytest.raises(Malformed):
        codec.decode_snapshot_part(b"")


def test_the_size_of_an_item_is_exact():
    item = c.CancelJob("a", reason="x" * 300)
    one, two = codec.encode_inbox((item,)), codec.encode_inbox((item, item))
    assert len(two) - len(one) == len(codec.encode_item(item))
    assert codec.join_inbox([codec.encode_item(item)] * 2) == two
