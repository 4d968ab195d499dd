"""How the other ranks come to be: as processes of this machine, or started elsewhere and connecting here. As actors of
Ray: `ray_ranks.py`."""

from __future__ import annotations

import contextlib
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from quire.core.errors import InputError
from quire.options.child import python
from quire.options.run import RunOptions
from quire.options.tiers import Tiers
from quire.plan.file import encode
from quire.plan.plan import Plan
from quire.ranks.channel import Channel, Json
from quire.ranks.environment import Address, Listener, Place, place_of
from quire.ranks.group import Link
from quire.worker.ranks.interfaces import loopback
from quire.worker.ranks.share import Share

CONTROL = "quire/control"
"""Where the store has rank 0's address."""


@dataclass(frozen=True, slots=True, eq=False)
class RankSetup:
    """All that a rank on this machine needs to start. It comes on its standard input."""

    folder: Path
    plan: Json | None
    """As of `quire.plan.file.encode`; None: it comes from rank 0."""
    options: RunOptions
    share: Share | None
    """None: the environment says which rank this is."""
    meeting: Path | None
    """A file in which the processes of one machine find each other; None: the environment says where."""
    address: Address | None = None
    """Rank 0's, if it is known; None: the store that the environment names has it."""


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """Ranks that have started, and where all meet."""

    links: Sequence[Link]
    store: Callable[[], Any]
    """Opened once torch is there, which takes seconds."""
    interface: str
    """On which gloo listens; empty: that of the host's name."""
    close: Callable[[], None]
    gpu: int = 0
    """Of this machine, that rank 0 uses."""


def launch_here(folder: Path, plan: Plan, options: RunOptions, shares: Sequence[Share]) -> Launched:
    """A process of this machine for each share but the first."""
    ours, links = Path(tempfile.mkdtemp(prefix="quire-ranks-")), list[Link]()
    meeting, encoded = ours / "meeting", encode(plan)
    try:
        for share in shares[1:]:
            links.append(_start(RankSetup(folder, encoded, of_a_rank(options), share, meeting)))
    except BaseException:
        for link in links:
            link.kill()
        shutil.rmtree(ours, ignore_errors=True)
        raise
    store = partial(file_store, meeting, len(shares))
    return Launched(links, store, loopback(), partial(shutil.rmtree, ours, ignore_errors=True))


def _start(setup: RankSetup) -> Link:
    ours, theirs = socket.socketpair()
    with theirs:
        process = follower_process([theirs.fileno()], setup)
    assert setup.share is not None, "it is known here"
    assert process.stdin is not None, "it is a pipe"
    with contextlib.suppress(BrokenPipeError):  # how it has ended is seen at its other pipe
        process.stdin.close()
    return Link(setup.share.number, Channel(ours), process)


def follower_process(descriptors: Sequence[int], setup: RankSetup) -> subprocess.Popen[bytes]:
    """Its standard input stays open."""
    command = python("-m", "quire.build.follower", *map(str, descriptors))
    process = subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.PIPE, stdout=sys.stderr)
    assert process.stdin is not None, "it is a pipe"
    with contextlib.suppress(BrokenPipeError):
        pickle.dump(setup, process.stdin)
        process.stdin.flush()
    return process


def of_a_rank(options: RunOptions) -> RunOptions:
    """What the other ranks need: the engine, and whatever listens to it, is on rank 0. They may have another working
    folder."""
    own = options.tiers
    disk, secret = (None if path is None else path.absolute() for path in (own.disk, own.secret))
    tiers = Tiers(host_bytes=own.host_bytes, disk=disk, disk_bytes=own.disk_bytes, secret=secret)
    return replace(options, tiers=tiers, record=None, kv_events=None, kv_events_topic="")


def await_others(plan: Plan, options: RunOptions, shares: Sequence[Share]) -> Launched:
    """Ranks that torchrun, Slurm or a person has started connect to this process."""
    place, seconds = place_of(), options.ranks.start_seconds
    require_place(place, len(shares))
    store = open_store(place, seconds)
    listener = Listener(place.host)
    store.set(CONTROL, listener.address.text())
    found = listener.accept(place.ranks, seconds)
    links = [Link(rank, found[rank]) for rank in sorted(found)]
    for link in links:
        link.channel.send_json({"plan": encode(plan)})
    return Launched(links, partial(life_of_store, store, listener.address.token), "", lambda: None, place.local_rank)


def require_place(place: Place, ranks: int) -> None:
    if place.ranks != ranks:
        raise InputError(
            f"WORLD_SIZE is {place.ranks}, and the plan has {ranks} ranks (--tensor-parallel times "
            f"--pipeline-parallel): start {ranks} processes"
        )


def file_store(path: Path, processes: int) -> Any:
    from quire.worker.ranks.joining import file_store

    return file_store(path, processes)


def life_of_store(store: Any, life: str) -> Any:
    from quire.worker.ranks.joining import part_of_store

    return part_of_store(store, life)


def open_store(place: Place, seconds: float) -> Any:
    from quire.worker.ranks.joining import network_store

    return network_store(place.host, place.port, place.rank == 0 and not place.is_served, seconds)
