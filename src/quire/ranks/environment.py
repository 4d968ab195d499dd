"""Ranks that others have started, on one machine or several: by torchrun, Slurm, or anything that sets four variables.

rank 0    listens, and writes its address into the store at MASTER_ADDR:MASTER_PORT
others    read it there, connect, and say who they are
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from quire.core.errors import InputError
from quire.ranks.channel import Channel, Message

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
MOST_HELLO_BYTES, MOST_CALLERS = 4096, 64
"""Of a caller before it has said who it is, and how many of these are waited for."""


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
    """Rank 0's: accepts the other ranks. Each caller has a time and a few bytes to say who it is, and callers that do
    not are read next to each other, so that no stranger keeps a rank out."""

    def __init__(self, host: str) -> None:
        try:
            self._socket = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise InputError(f"rank 0 cannot listen at {host}: {why}; give MASTER_ADDR as its own address") from None
        self.address = Address(host, self._socket.getsockname()[1], secrets.token_hex(16))
        self._callers: dict[Channel, float] = {}
        """Those that have not said who they are, the oldest first: until when each may."""

    def accept(self, ranks: int, seconds: float, require: Callable[[], None] = lambda: None) -> dict[int, Channel]:
        """Channels of ranks 1, 2, … Raises InputError if some do not connect in time. `require`: raises if one of them
        never will."""
        found: dict[int, Channel] = {}
        end = time.monotonic() + seconds
        with self._socket, _closing_on_error(found), selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            try:
                while len(found) < ranks - 1:
                    if (left := end - time.monotonic()) <= 0:
                        raise self._missing(found, ranks, seconds)
                    require()
                    self._listen(min(left, LOOK_SECONDS), ranks, found, selector)
            finally:
                self._drop(list(self._callers), selector)
        return found

    def close(self) -> None:
        self._socket.close()

    def _missing(self, found: dict[int, Channel], ranks: int, seconds: float) -> InputError:
        missing = ", ".join(str(rank) for rank in range(1, ranks) if rank not in found)
        return InputError(
            f"of {ranks} ranks, {missing} did not connect to {self.address.host} within {seconds:g} s: start each with "
            "the same command, or raise --start-seconds"
        )

    def _listen(self, seconds: float, ranks: int, found: dict[int, Channel], selector: selectors.BaseSelector) -> None:
        for key, _ in selector.select(seconds):
            if key.fileobj is self._socket:
                self._take(selector)
            elif isinstance(key.fileobj, Channel) and key.fileobj in self._callers:
                self._hear(key.fileobj, ranks, found, selector)
        now = time.monotonic()
        self._drop([one for one, until in self._callers.items() if until < now], selector)

    def _take(self, selector: selectors.BaseSelector) -> None:
        """A caller; of too many the oldest goes."""
        with contextlib.suppress(OSError):
            channel = Channel(self._socket.accept()[0])
            selector.register(channel, selectors.EVENT_READ)
            self._callers[channel] = time.monotonic() + HELLO_SECONDS
            self._drop(list(self._callers)[:-MOST_CALLERS], selector)

    def _hear(self, channel: Channel, ranks: int, found: dict[int, Channel], selector: selectors.BaseSelector) -> None:
        """Whoever does not know the token is sent away."""
        try:
            hello = next(channel.receive(), None)
            rank = None if hello is None else self._rank_in(hello, ranks)
        except (EOFError, ValueError):
            hello, rank = None, 0
        if rank:
            selector.unregister(channel)
            del self._callers[channel]
            found[rank] = channel
        elif rank == 0 or channel.waiting_bytes > MOST_HELLO_BYTES:
            self._drop([channel], selector)

    def _rank_in(self, hello: Message, ranks: int) -> int:
        """0: it is none of ours."""
        try:
            said = hello.json()
            rank, token = said["rank"], str(said["token"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return 0
        is_ours = secrets.compare_digest(token.encode(), self.address.token.encode())
        return rank if is_ours and isinstance(rank, int) and 0 < rank < ranks else 0

    def _drop(self, callers: list[Channel], selector: selectors.BaseSelector) -> None:
        for channel in callers:
            selector.unregister(channel)
            del self._callers[channel]
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
