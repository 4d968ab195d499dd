"""Ranks that others have started, on one machine or several: by torchrun, Slurm, or anything that sets four variables.

rank 0    listens, and writes its address into the store at MASTER_ADDR:MASTER_PORT
others    read it there, connect, and say who they are
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from quire.core.errors import InputError
from quire.ranks.channel import Channel

NAMES = {
    "RANK": ("RANK", "SLURM_PROCID"),
    "WORLD_SIZE": ("WORLD_SIZE", "SLURM_NTASKS"),
    "LOCAL_RANK": ("LOCAL_RANK", "SLURM_LOCALID"),
    "LOCAL_WORLD_SIZE": ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"),
    "MASTER_ADDR": ("MASTER_ADDR",),
    "MASTER_PORT": ("MASTER_PORT",),
}
"""Variables, and what Slurm calls them."""
LOOK_SECONDS = 0.2
HELLO_SECONDS = 5.0
"""In which a rank that has connected says who it is."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank this process is, and where rank 0 is found."""

    rank: int
    ranks: int
    host: str
    port: int
    local_rank: int
    local_ranks: int
    """On this machine."""
    is_served: bool
    """Another process serves the store (torchrun's agent does); else rank 0 does."""


def place_of(environment: Mapping[str, str] = os.environ) -> Place:
    """Raises InputError if variables are missing or no numbers."""
    rank, ranks, port = (_number(environment, name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if not 0 <= rank < ranks:
        raise InputError(f"RANK is {rank} of {ranks}: give 0 to {ranks - 1}")
    return Place(
        rank,
        ranks,
        _value(environment, "MASTER_ADDR"),
        port,
        _number(environment, "LOCAL_RANK", 0),
        _number(environment, "LOCAL_WORLD_SIZE", 1),
        environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _value(environment: Mapping[str, str], name: str) -> str:
    for one in NAMES[name]:
        if value := environment.get(one):
            return value
    raise InputError(
        f"{name} is not set: start every rank with torchrun or Slurm, or set {', '.join(list(NAMES)[:2])}"
        ", MASTER_ADDR and MASTER_PORT"
    )


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and not any(environment.get(one) for one in NAMES[name]):
        return default
    text = _value(environment, name)
    if not text.isdecimal():
        raise InputError(f"{name} is {text!r}: give a whole number")
    return int(text)


@dataclass(frozen=True, slots=True)
class Address:
    """Where rank 0 listens, and what proves that a rank has read it in the store."""

    host: str
    port: int
    token: str = field(repr=False)

    def text(self) -> str:
        return json.dumps([self.host, self.port, self.token])


def address_of(text: str) -> Address:
    return Address(*json.loads(text))


class Listener:
    """Rank 0's: accepts the other ranks."""

    def __init__(self, host: str) -> None:
        try:
            self._socket = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise InputError(f"rank 0 cannot listen at {host}: {why}; give MASTER_ADDR as its own address") from None
        self.address = Address(host, self._socket.getsockname()[1], secrets.token_hex(16))

    def accept(self, ranks: int, seconds: float, require: Callable[[], None] = lambda: None) -> dict[int, Channel]:
        """Channels of ranks 1, 2, … Raises InputError if some do not connect in time. `require`: raises if one of them
        never will."""
        found: dict[int, Channel] = {}
        end = time.monotonic() + seconds
        with self._socket, _closing_on_error(found):
            while len(found) < ranks - 1:
                if (left := end - time.monotonic()) <= 0:
                    raise self._missing(found, ranks, seconds)
                require()
                self._socket.settimeout(min(left, LOOK_SECONDS))
                with contextlib.suppress(OSError):
                    self._welcome(self._socket.accept()[0], ranks, found)
        return found

    def close(self) -> None:
        self._socket.close()

    def _missing(self, found: dict[int, Channel], ranks: int, seconds: float) -> InputError:
        missing = ", ".join(str(rank) for rank in range(1, ranks) if rank not in found)
        return InputError(
            f"of {ranks} ranks, {missing} did not connect to {self.address.host} within {seconds:g} s: start each with "
            "the same command, or raise --start-seconds"
        )

    def _welcome(self, connection: socket.socket, ranks: int, found: dict[int, Channel]) -> None:
        """Whoever does not know the token is sent away."""
        channel = Channel(connection)
        connection.settimeout(HELLO_SECONDS)
        with contextlib.suppress(EOFError, ValueError, KeyError, TypeError):
            hello = channel.receive_one().json()
            rank = int(hello["rank"])
            if secrets.compare_digest(str(hello["token"]), self.address.token) and 0 < rank < ranks:
                connection.settimeout(None)
                found[rank] = channel
                return
        channel.close()


@contextlib.contextmanager
def _closing_on_error(channels: Mapping[int, Channel]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for channel in channels.values():
            channel.close()
        raise


def connect(read: Callable[[], str], rank: int, seconds: float) -> tuple[Channel, str]:
    """The way to rank 0, and the token of its life. `read`: the address that it has written, perhaps before it died: it
    is read again until it answers."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        address = address_of(read())
        with contextlib.suppress(OSError):
            channel = Channel(socket.create_connection((address.host, address.port), HELLO_SECONDS))
            channel.send_json({"rank": rank, "token": address.token})
            return channel, address.token
        time.sleep(LOOK_SECONDS)
    raise InputError(f"rank 0 did not answer within {seconds:g} s: is it running, or did it refuse to start?")
