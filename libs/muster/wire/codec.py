"""The bytes of inbox, ledger and snapshots.

An inbox message becomes the items the core decides, a transaction becomes the transitions followers apply, a snapshot
part becomes a piece of state. All three are MessagePack of the core's own structs, each behind a version number that
is read first: a version this build does not know is `UnknownVersion`, and the process goes unready instead of
skipping (LOG-10). Bytes that claim a known version and still do not decode are `Malformed` in the ledger and in
snapshots (nothing but a bug or a damaged disk writes those), but in the inbox, which anybody with access can write
to, they become `Undecodable` items that the core refuses one by one (LOG-9).

Encoding is deterministic: the same struct gives the same bytes on any machine (I8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from muster.core import commands, snapshot, transitions

INBOX_VERSION: Final = 1
LEDGER_VERSION: Final = transitions.LEDGER_VERSION
SNAPSHOT_VERSION: Final = snapshot.SNAPSHOT_VERSION


class UnknownVersion(Exception):
    """The bytes were written by a newer build: go unready, do not skip (LOG-10)."""

    def __init__(self, what: str, version: object, known: int) -> None:
        super().__init__(f"{what} has version {version}, this build knows up to {known}: upgrade this process")
        self.what = what
        self.version = version
        self.known = known


class Malformed(Exception):
    """Bytes of a known version that do not decode: damaged storage or a bug; stop."""


class _InboxParts(msgspec.Struct, array_like=True, frozen=True):
    """An inbox message with its items encoded: to find out which of them is bad, and to put them together."""

    version: int
    items: tuple[msgspec.Raw, ...]


_encoder = msgspec.msgpack.Encoder()
_inbox = msgspec.msgpack.Decoder(commands.InboxMessage)
_inbox_parts = msgspec.msgpack.Decoder(_InboxParts)
_item: msgspec.msgpack.Decoder[commands.AnyItem] = msgspec.msgpack.Decoder(commands.AnyItem)
_transaction = msgspec.msgpack.Decoder(transitions.Transaction)
_snapshot: msgspec.msgpack.Decoder[snapshot.AnyPart] = msgspec.msgpack.Decoder(snapshot.AnyPart)
_anything = msgspec.msgpack.Decoder()


def encode_inbox(items: Sequence[commands.AnyItem]) -> bytes:
    """One inbox message holding `items` in this order (LOG-7)."""
    return _encoder.encode(commands.InboxMessage(version=INBOX_VERSION, items=tuple(items)))


def encode_item(item: commands.AnyItem) -> bytes:
    """One item, for writers that fill messages up to a limit."""
    return _encoder.encode(item)


def join_inbox(encoded: Sequence[bytes]) -> bytes:
    """One inbox message of items that are encoded already; the same bytes as `encode_inbox` gives."""
    return _encoder.encode(_InboxParts(version=INBOX_VERSION, items=tuple(map(msgspec.Raw, encoded))))


def decode_inbox(data: bytes) -> tuple[commands.AnyItem | commands.Undecodable, ...]:
    """The items of one inbox message. Never fails on content; raises UnknownVersion."""
    try:
        message = _inbox.decode(data)
    except msgspec.MsgspecError as error:  # DecodeError and ValidationError
        return _decode_leniently(data, str(error))
    if message.version != INBOX_VERSION:
        raise UnknownVersion("inbox message", message.version, INBOX_VERSION)
    return message.items


def _decode_leniently(data: bytes, reason: str) -> tuple[commands.AnyItem | commands.Undecodable, ...]:
    """Item by item, each bad one replaced. A message that is no message at all is one bad item (LOG-9)."""
    try:
        parts = _inbox_parts.decode(data)
    except msgspec.MsgspecError:
        _check_version(data, "inbox message", INBOX_VERSION)
        return (commands.Undecodable(reason=reason),)
    if parts.version != INBOX_VERSION:
        raise UnknownVersion("inbox message", parts.version, INBOX_VERSION)
    items: list[commands.AnyItem | commands.Undecodable] = []
    for raw in parts.items:
        try:
            items.append(_item.decode(raw))
        except msgspec.MsgspecError as error:
            items.append(commands.Undecodable(reason=str(error)))
    return tuple(items)


def encode_transaction(transaction: transitions.Transaction) -> bytes:
    """The bytes of one ledger message."""
    return _encoder.encode(transaction)


def decode_transaction(data: bytes) -> transitions.Transaction:
    """One ledger message. Raises UnknownVersion, Malformed."""
    try:
        transaction = _transaction.decode(data)
    except msgspec.MsgspecError as error:
        _check_version(data, "transaction", LEDGER_VERSION)
        raise Malformed(f"transaction does not decode: {error}") from error
    if transaction.header.version != LEDGER_VERSION:
        raise UnknownVersion("transaction", transaction.header.version, LEDGER_VERSION)
    return transaction


def encode_snapshot_part(part: snapshot.AnyPart) -> bytes:
    """The bytes of one part of a snapshot, as `snapshot.dump` yields them (LOG-6)."""
    return _encoder.encode(part)


def decode_snapshot_part(data: bytes) -> snapshot.AnyPart:
    """One part of a snapshot. Raises UnknownVersion, Malformed."""
    try:
        part = _snapshot.decode(data)
    except msgspec.MsgspecError as error:
        version = _peek(data, 1)
        if isinstance(version, int) and version > SNAPSHOT_VERSION:
            raise UnknownVersion("snapshot", version, SNAPSHOT_VERSION) from error
        raise Malformed(f"snapshot part does not decode: {error}") from error
    if part.version != SNAPSHOT_VERSION:
        raise UnknownVersion("snapshot", part.version, SNAPSHOT_VERSION)
    return part


def _check_version(data: bytes, what: str, known: int) -> None:
    """Tell a newer version from damage: the version is the first integer of the message."""
    version = _peek(data, 0)
    if isinstance(version, list):  # a transaction starts with its header
        version = version[0] if version else None
    if isinstance(version, int) and version > known:
        raise UnknownVersion(what, version, known)


def _peek(data: bytes, index: int) -> object:
    try:
        value = _anything.decode(data)
    except msgspec.MsgspecError:
        return None
    return value[index] if isinstance(value, list) and len(value) > index else None
