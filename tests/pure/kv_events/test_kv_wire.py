"""Bytes of events: golden, written down from the format as it is documented, not from Quire's output."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from kv_follower import decoded
from quire.core.errors import InputError
from quire.kv_events.collector import AllCleared, BlocksRemoved, BlocksStored, hash_of
from quire.kv_events.wire import END, Journal, payload
from quire.options.event_address import event_address

pytest.importorskip("msgpack", reason="MessagePack is not installed: pip install '.[events]'")

NAMES = {name: bytes([0xA0 + len(name)]) + name.encode() for name in ("BlockStored", "BlockRemoved", "GPU", "ab")}
CLEARED = bytes([0xA0 + 16]) + b"AllBlocksCleared"
TOKENS = np.array([1, 127, 128, 70_000], dtype=np.int32)


def batch_of(*events: bytes) -> bytes:
    """[1.5, events, 0]"""
    return b"\x93\xcb" + struct.pack(">d", 1.5) + bytes([0x90 + len(events)]) + b"".join(events) + b"\x00"


@pytest.mark.golden
def test_stored_blocks_are_nine_positions_of_which_those_of_adapters_are_empty() -> None:
    stored = BlocksStored((5, (1 << 63) - 1), None, TOKENS, 2)
    assert payload(1.5, [stored]) == batch_of(
        b"\x99"
        + NAMES["BlockStored"]
        + b"\x92\x05\xcf\x7f\xff\xff\xff\xff\xff\xff\xff"
        + b"\xc0"
        + b"\x94\x01\x7f\xcc\x80\xce\x00\x01\x11\x70"
        + b"\x02"
        + b"\xc0"
        + NAMES["GPU"]
        + b"\xc0"
        + b"\xc0"
    )


@pytest.mark.golden
def test_blocks_of_a_scope_have_a_salt_each_and_name_the_block_before_them() -> None:
    stored = BlocksStored((5, 6), 4, TOKENS, 2, "ab")
    expected = b"\x92" + 2 * (b"\x91" + NAMES["ab"]) + b"\x00"
    found = payload(1.5, [stored])
    assert found.endswith(expected)
    assert b"\x92\x05\x06\x04\x94" in found


@pytest.mark.golden
def test_removed_and_cleared_blocks() -> None:
    removed = b"\x93" + NAMES["BlockRemoved"] + b"\x91\x05" + NAMES["GPU"]
    assert payload(1.5, [AllCleared(), BlocksRemoved((5,))]) == batch_of(b"\x91" + CLEARED, removed)


def test_the_kits_decoder_reads_these_bytes() -> None:
    assert decoded(payload(2.0, [BlocksRemoved((1 << 40,))], 3)) == [2.0, [["BlockRemoved", [1 << 40], "GPU"]], 3]


def test_a_hash_has_63_bits_and_leaves_out_what_a_scope_has_in_common() -> None:
    assert hash_of(b"\xff" * 32) == (1 << 63) - 1
    assert hash_of(b"\x01" * 8 + b"\x07" * 24) == hash_of(b"\x02" * 8 + b"\x07" * 24)


def test_a_journal_repeats_from_a_number_on_what_it_still_has() -> None:
    journal = Journal(kept=3)
    for batch in (b"a", b"b", b"c", b"d"):
        journal.add(batch)
    two = (2).to_bytes(8, "big")
    assert list(journal.since(two)) == [(two, b"c"), ((3).to_bytes(8, "big"), b"d"), (END, b"")]
    assert [batch for _, batch in journal.since(bytes(8))] == [b"b", b"c", b"d", b""]
    assert list(journal.since((9).to_bytes(8, "big"))) == [(END, b"")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("5557", "is not an address"),
        ("http://*:5557", "is not an address"),
        ("tcp://*", "is not an address"),
        ("tcp://*:0", "port 0 is out of range"),
        ("tcp://*:70000", "port 70000 is out of range"),
        ("tcp://*:5557,", "'' is not an address"),
        ("tcp://*:1,tcp://*:2,tcp://*:3", "names 3 addresses"),
        ("tcp://*:5557,tcp://*:5557", "cannot share"),
        ("ipc://", "is not an address"),
    ],
)
def test_bad_addresses_are_refused_with_an_example(text: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        event_address(text)
    assert says in str(refused.value)
    assert "give" in str(refused.value)


def test_an_address_of_this_machine_is_listened_on_and_another_connected_to() -> None:
    assert event_address("tcp://*:5557").is_bound
    assert event_address("ipc:///tmp/events").is_bound
    assert not event_address("tcp://router.svc:5557").is_bound
    assert event_address("tcp://*:5557, tcp://*:5558").replay == "tcp://*:5558"
