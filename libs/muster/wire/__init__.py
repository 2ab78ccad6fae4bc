"""Bytes and protobuf to core types and back, nothing else.

`codec` is the MessagePack of inbox, ledger and snapshots. Everything that knows protobuf stands beside it; the core
knows neither.
"""
