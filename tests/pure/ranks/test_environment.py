"""Ranks that others have started find rank 0, or are told what is missing."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import pytest

from quire.core.errors import InputError
from quire.ranks.channel import Channel, Kind
from quire.ranks.environment import MOST_CALLERS, Address, Listener, address_of, connect, place_of

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node-a"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "2"}


def test_a_rank_knows_its_place_from_torchrun_or_slurm() -> None:
    torchrun = place_of({**TORCHRUN, "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    slurm = place_of({**SLURM, "MASTER_ADDR": "node-a", "MASTER_PORT": "29500"})
    assert (torchrun.rank, torchrun.ranks, torchrun.local_rank, torchrun.local_ranks) == (3, 8, 1, 2)
    assert (slurm.rank, slurm.ranks, slurm.local_rank, slurm.local_ranks) == (3, 8, 1, 2)
    assert (torchrun.is_served, slurm.is_served) == (True, False)
    assert (torchrun.host, torchrun.port) == ("node-a", 29500)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"RANK": ""}, "RANK is not set: start every rank with torchrun or Slurm"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"MASTER_PORT": "high"}, "MASTER_PORT is 'high': give a whole number"),
        ({"RANK": "8"}, "RANK is 8 of 8: give 0 to 7"),
    ],
)
def test_a_place_that_is_none_is_refused_in_one_line(change: dict[str, str], problem: str) -> None:
    with pytest.raises(InputError, match=f"^{problem}"):
        place_of({**TORCHRUN, "MASTER_PORT": "29500", **change})


def test_ranks_connect_in_any_order_and_strangers_are_sent_away() -> None:
    listener = Listener("127.0.0.1")
    stranger = Channel(socket.create_connection(("127.0.0.1", listener.address.port)))
    stranger.send_json({"rank": 1, "token": "guessed"})
    text = listener.address.text()
    joined: dict[int, Channel] = {}

    def join(rank: int) -> None:
        joined[rank] = connect(lambda: text, rank, 30.0)[0]

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (2, 1)]
    for thread in threads:
        thread.start()
    found = listener.accept(3, 30.0)
    for thread in threads:
        thread.join()
    assert sorted(found) == [1, 2]
    found[2].send(Kind.STEP, b"hello")
    assert joined[2].receive_one().data == b"hello"
    with pytest.raises(EOFError):
        stranger.receive_one()
    for channel in (*found.values(), *joined.values(), stranger):
        channel.close()


def said(data: bytes) -> bytes:
    return struct.pack("<cI", Kind.JSON.value, len(data)) + data


@pytest.mark.story
@pytest.mark.parametrize(
    "sent",
    [
        said(b"[" * 4000),
        said(b'{"rank": Infinity, "token": "x"}'),
        said(b'{"rank": 1, "token": "\xc3\xa9"}'),
        said(b"[1]"),
        struct.pack("<cI", b"Z", 1) + b"x",
        struct.pack("<cI", Kind.JSON.value, (1 << 32) - 1) + bytes(8192),
    ],
    ids=["nested", "infinite", "not ascii", "a list", "another kind", "without an end"],
)
def test_whatever_a_stranger_says_it_is_sent_away_and_a_rank_is_taken(sent: bytes) -> None:
    """Nested too deeply, or with an infinite rank, it ended rank 0; without an end, up to 4 GiB of it were kept."""
    listener = Listener("127.0.0.1")
    with socket.create_connection(("127.0.0.1", listener.address.port)) as stranger:
        stranger.sendall(sent)
        found = accepting(listener)
        stranger.settimeout(30.0)
        with contextlib.suppress(ConnectionResetError):  # it had sent more than was read
            assert stranger.recv(1) == b""
    assert sorted(found) == [1]


@pytest.mark.story
def test_strangers_that_say_nothing_do_not_keep_a_rank_out() -> None:
    """One that sent a byte now and then was listened to for ever, whatever the time limit; others were heard one after
    another. The oldest go when there are too many. Red: a rank that waits behind them."""
    listener = Listener("127.0.0.1")
    address = ("127.0.0.1", listener.address.port)
    strangers = [socket.create_connection(address) for _ in range(MOST_CALLERS + 2)]
    strangers[-1].sendall(b"J")
    assert sorted(accepting(listener)) == [1]
    for one in strangers:
        one.close()


def accepting(listener: Listener) -> dict[int, Channel]:
    """Of two ranks; the other one connects."""
    text, joined = listener.address.text(), list[Channel]()
    thread = threading.Thread(target=lambda: joined.append(connect(lambda: text, 1, 30.0)[0]))
    thread.start()
    found = listener.accept(2, 30.0)
    thread.join()
    for channel in (*found.values(), *joined):
        channel.close()
    return found


def test_a_machine_that_is_missing_is_named_within_the_time() -> None:
    listener = Listener("127.0.0.1")
    address = listener.address.text()
    channel, life = connect(lambda: address, 2, 30.0)
    assert life == listener.address.token
    with pytest.raises(InputError, match=r"of 4 ranks, 1, 3 did not connect to 127\.0\.0\.1 within 0\.2 s: start each"):
        listener.accept(4, 0.2)
    channel.close()


def test_a_rank_that_ends_before_it_connects_is_not_waited_for() -> None:
    """Those that have connected see that rank 0 does not go on."""
    listener, ended = Listener("127.0.0.1"), threading.Event()
    address = listener.address.text()
    channel, _ = connect(lambda: address, 2, 30.0)

    def require() -> None:
        if ended.is_set():
            raise InputError("rank 1 cannot start")
        ended.set()

    with pytest.raises(InputError, match="rank 1 cannot start"):
        listener.accept(3, 60.0, require)
    with pytest.raises(EOFError):
        channel.receive_one()
    channel.close()


def test_the_address_of_an_engine_that_is_gone_is_read_again() -> None:
    """A store keeps what a dead rank 0 has written, until the next one writes."""
    listener = Listener("127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as gone:
        texts = [Address("127.0.0.1", gone.getsockname()[1], "old").text()]
    texts.append(listener.address.text())
    channel, life = connect(lambda: texts.pop(0) if len(texts) > 1 else texts[0], 1, 30.0)
    assert life == listener.address.token
    channel.close()
    listener.close()
    with pytest.raises(InputError, match=r"rank 0 did not answer within 0\.1 s"):
        connect(lambda: Address("127.0.0.1", 1, "old").text(), 1, 0.1)


def test_a_wrong_interface_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^rank 0 cannot listen at 192\.0\.2\.1: .*; give MASTER_ADDR as its own"):
        Listener("192.0.2.1")
    assert address_of(Address("a", 1, "t").text()) == Address("a", 1, "t")
