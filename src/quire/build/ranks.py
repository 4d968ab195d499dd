"""The ranks of a model that runs on several processes: how rank 0 starts, compares and ends the others.

open_ranks     the others are started; each states what it has, and a difference is refused
join           all connect to each other, to read and run their shares together
wrap           the engine's runner sends every step to the others
confirm        all are ready: what each has measured
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from quire.build.identity import weights_sample
from quire.core.step import Runner
from quire.core.tier import StagingMemory
from quire.options.child import python
from quire.options.run import RunOptions
from quire.options.tiers import Tiers
from quire.plan.file import encode
from quire.plan.plan import Plan
from quire.ranks.channel import Channel, Json
from quire.ranks.facts import facts_of, require_same
from quire.ranks.group import Group, Link
from quire.ranks.runner import Ranks
from quire.worker.ranks.share import WHOLE, Share, shares_of

if TYPE_CHECKING:
    from quire.worker.model.collective import Collective, Line
    from quire.worker.steps.runner import TorchRunner

    Ports = tuple[Collective, Line]

OnLost = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class RankSetup:
    """All that a rank on this machine needs to start. It comes on its standard input."""

    folder: Path
    plan: Json
    """As of `quire.plan.file.encode`."""
    options: RunOptions
    share: Share
    meeting: Path
    """A file in which the processes find each other."""


class OneRank:
    """A model on this process alone."""

    share = WHOLE
    ports: Ports | None = None
    processes: tuple[int, ...] = ()
    """Of the other ranks on this machine."""

    def wrap(self, runner: TorchRunner, stack: StagingMemory | None) -> Runner:
        """`stack`: knows where the records of loads are."""
        del stack
        return runner

    def confirm(self, step_seconds: float) -> tuple[str, ...]:
        del step_seconds
        return ()

    def blame(self) -> None: ...

    def close(self) -> None: ...


class RankZero(OneRank):
    """The first of several processes, which has the engine."""

    def __init__(self, share: Share, group: Group, folder: Path) -> None:
        self.share, self._group, self._folder = share, group, folder
        self.processes = tuple(link.process.pid for link in group.links if link.process is not None)

    def begin(self, own: Json, options: RunOptions) -> None:
        """Raises InputError if a rank has other things than this one; else all connect to each other."""
        from quire.worker.ranks.joining import file_store, join  # torch is imported while the other ranks do so

        require_same(own, self._group.answers())
        self._group.send_json({"go": True})
        seconds, store = options.ranks.start_seconds, file_store(self._folder / MEETING, self.share)
        self.ports = self._group.watched(lambda: join(self.share, options.device, store, True, seconds))

    def wrap(self, runner: TorchRunner, stack: StagingMemory | None) -> Runner:
        return Ranks(runner, self._group, runner.plan, stack, runner.recording)

    def confirm(self, step_seconds: float) -> tuple[str, ...]:
        """Waits until all are ready. What each has measured, for the report at the start."""
        ready = self._group.answers()
        self._group.run(step_seconds)
        return tuple(f"rank {number}: {line}" for number, answer in enumerate(ready, 1) for line in answer["ready"])

    def blame(self) -> None:
        """After an error: raises RankLost if the reason is that a rank is gone."""
        self._group.require_all(BLAME_SECONDS)

    def close(self) -> None:
        from quire.worker.ranks.joining import leave

        self._group.close()
        with contextlib.suppress(RuntimeError):  # of connections whose other end is gone
            leave()
        shutil.rmtree(self._folder, ignore_errors=True)


MEETING = "meeting"
BLAME_SECONDS = 0.5


def open_ranks(folder: Path, plan: Plan, options: RunOptions, on_lost: OnLost) -> OneRank:
    """`on_lost`: called from another thread when a rank is gone, with what happened to it."""
    shares = shares_of(plan)
    if len(shares) == 1:
        return OneRank()
    ours = Path(tempfile.mkdtemp(prefix="quire-ranks-"))
    links: list[Link] = []
    try:
        for share in shares[1:]:
            links.append(_start(RankSetup(folder, encode(plan), _of_a_rank(options), share, ours / MEETING)))
    except BaseException:
        for link in links:
            link.kill()
        shutil.rmtree(ours, ignore_errors=True)
        raise
    ranks = RankZero(shares[0], Group(links, options.ranks.start_seconds, on_lost), ours)
    try:
        ranks.begin(rank_facts(folder, plan, options), options)
    except BaseException:
        ranks.close()
        raise
    return ranks


def _start(setup: RankSetup) -> Link:
    ours, theirs = socket.socketpair()
    with theirs:
        command = python("-m", "quire.build.follower", str(theirs.fileno()))
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.PIPE, stdout=sys.stderr)
    link = Link(setup.share.number, Channel(ours), process)
    assert process.stdin is not None, "it is a pipe"
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # how it has ended is seen at its other pipe
        pickle.dump(setup, pipe)
    return link


def _of_a_rank(options: RunOptions) -> RunOptions:
    """What the other ranks need: the engine, and whatever listens to it, is on rank 0."""
    tiers = Tiers(host_bytes=options.tiers.host_bytes)
    return replace(options, tiers=tiers, record=None, kv_events=None, kv_events_topic="")


def rank_facts(folder: Path, plan: Plan, options: RunOptions) -> Json:
    """What all ranks must have in common."""
    run = f"{options.device}, {options.weights_dtype.value}, {plan.kv_dtype}, compile {options.compile}"
    return facts_of(plan, weights_sample(folder), run)


def thread_share(options: RunOptions, processes: int) -> RunOptions:
    """Ranks on one machine divide its cores, unless the number of threads is given."""
    if options.device != "cpu" or options.threads is not None or processes == 1:
        return options
    return replace(options, threads=max(1, (os.cpu_count() or 1) // processes))
