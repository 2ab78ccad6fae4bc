"""What was stored once can be read for ever: LOG-10."""

from __future__ import annotations

import json

import pytest
from tests.contract.golden_samples import FILE, kinds, samples

from muster.wire import codec

GOLDEN = json.loads(FILE.read_text())
DECODE = {
    "inbox": codec.decode_inbox,
    "ledger": codec.decode_transaction,
    "snapshot": codec.decode_snapshot_part,
}


def test_everything_that_is_stored_has_a_sample():
    wanted = {f"{where} {kind.__name__}" for where, types in kinds().items() for kind in types}
    assert wanted == {name.partition("#")[0] for name in samples()}
    assert set(samples()) == set(GOLDEN)


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_golden_bytes_decode_to_the_sample_and_are_still_written_so(name):
    value, data = samples()[name]
    for stored in GOLDEN[name]:  # what any version wrote, oldest first
        assert DECODE[name.split()[0]](bytes.fromhex(stored)) == value
    assert data.hex() == GOLDEN[name][-1], "stored data would change: append fields with defaults, or a new version"
