"""The ranks of a model that runs on several processes: how rank 0 starts, compares and ends the others.

open_ranks     the others are started; each states what it has, and a difference is refused
begin          all connect to each other, to read and run their shares together
wrap           the engine's runner sends every step to the others
confirm        all are ready: what each has measured
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from quire.build.bundles import cpus_of
from quire.build.identity import weights_sample
from quire.build.launch import Launched, await_others, launch_here
from quire.build.tiers import Order
from quire.cache.memory import StageMemory
from quire.core.errors import InputError
from quire.core.step import Runner
from quire.core.tier import StagingMemory
from quire.options.ranks import ENVIRONMENT, LOCAL, RAY
from quire.options.run import RunOptions
from quire.plan.plan import Plan
from quire.ranks.channel import Json
from quire.ranks.environment import place_of
from quire.ranks.facts import facts_of, require_same
from quire.ranks.group import Group
from quire.ranks.runner import Ranks
from quire.worker.ranks.share import WHOLE, Share, shares_of

if TYPE_CHECKING:
    from quire.worker.model.collective import Collective, Line
    from quire.worker.steps.runner import TorchRunner

    Ports = tuple[Collective, Line]

OnLost = Callable[[str], None]
BLAME_SECONDS = 0.5
"""How long an error waits for the loss of a rank that may have caused it."""


class OneRank:
    """A model on this process alone."""

    share = WHOLE
    ports: Ports | None = None
    processes: tuple[int, ...] = ()
    """Of the other ranks on this machine."""

    @property
    def order(self) -> Order | None:
        """Sends an order about a record to the other ranks; None: there are none."""
        return None

    def wrap(self, runner: TorchRunner, stack: StagingMemory | None) -> Runner:
        """`stack`: knows where the records of loads are."""
        del stack
        return runner

    def follow(self, memories: Sequence[StageMemory]) -> None:
        """The scheduler's: from now on, each change of their tables goes to the other ranks."""

    def confirm(self, step_seconds: float) -> tuple[str, ...]:
        del step_seconds
        return ()

    def blame(self) -> None: ...

    def close(self) -> None: ...


class RankZero(OneRank):
    """The first of several processes, which has the engine."""

    def __init__(self, share: Share, launched: Launched, start_seconds: float, on_lost: OnLost) -> None:
        self.share, self._launched, self._seconds = share, launched, start_seconds
        self.group = Group(launched.links, start_seconds, on_lost)
        self.processes = tuple(link.process.pid for link in launched.links if link.process is not None)

    def begin(self, own: Json, device: str) -> None:
        """Raises InputError if a rank has other things than this one; else all connect to each other."""
        from quire.worker.ranks.joining import join, use_gpu  # torch is imported while the other ranks do so

        if device != "cpu":
            use_gpu(self._launched.gpu)
        try:
            require_same(own, self.group.answers())
        except InputError as error:
            self.group.refuse(str(error))
            raise
        self.group.send_json({"go": True})
        store, interface = self._launched.store(), self._launched.interface
        self.ports = self.group.watched(lambda: join(self.share, device, store, interface, self._seconds))

    @property
    def order(self) -> Order:
        return self.group.order

    def wrap(self, runner: TorchRunner, stack: StagingMemory | None) -> Runner:
        self._runner = Ranks(runner, self.group, stack, runner.recording)
        return self._runner

    def follow(self, memories: Sequence[StageMemory]) -> None:
        self._runner.follow(table for memory in memories for table in memory.tables)

    def confirm(self, step_seconds: float) -> tuple[str, ...]:
        """Waits until all are ready. What each has measured, for the report at the start."""
        ready = self.group.answers()
        self.group.run(step_seconds)
        self.group.send_json({"go": True})
        return tuple(f"rank {number}: {line}" for number, answer in enumerate(ready, 1) for line in answer["ready"])

    def blame(self) -> None:
        """After an error: raises RankLost if the reason is that a rank is gone."""
        self.group.require_all(BLAME_SECONDS)

    def close(self) -> None:
        from quire.worker.ranks.joining import leave

        self.group.close()
        with contextlib.suppress(RuntimeError):  # of connections whose other end is gone
            leave()
        self._launched.close()


def open_ranks(folder: Path, plan: Plan, options: RunOptions, on_lost: OnLost) -> OneRank:
    """`on_lost`: called from another thread when a rank is gone, with what happened to it."""
    shares = shares_of(plan)
    if len(shares) == 1:
        return OneRank()
    launched = _launch(folder, plan, options, shares)
    ranks = RankZero(shares[0], launched, options.ranks.start_seconds, on_lost)
    try:
        ranks.begin(rank_facts(folder, plan, options), options.device)
    except BaseException:
        try:
            ranks.blame()
        finally:
            ranks.close()
        raise
    return ranks


def _launch(folder: Path, plan: Plan, options: RunOptions, shares: Sequence[Share]) -> Launched:
    if options.ranks.launch == ENVIRONMENT:
        return await_others(plan, options, shares)
    if options.ranks.launch == RAY:
        from quire.build.ray_ranks import launch_on_ray

        return launch_on_ray(folder, plan, options, shares)
    return launch_here(folder, plan, options, shares)


def rank_facts(folder: Path, plan: Plan, options: RunOptions) -> Json:
    """What all ranks must have in common."""
    run = f"{options.device}, {options.weights_dtype.value}, {plan.kv_dtype}, compile {options.compile}"
    return facts_of(plan, weights_sample(folder), run)


def for_this_rank(options: RunOptions, ranks: int) -> RunOptions:
    """Ranks on one machine divide its cores, unless the number of threads is given. On Ray each has those that it
    reserves (`bundles.py`)."""
    if options.device != "cpu" or options.threads is not None or ranks == 1:
        return options
    if options.ranks.launch == RAY:
        return replace(options, threads=cpus_of(options))
    here = ranks if options.ranks.launch == LOCAL else place_of().local_ranks
    return replace(options, threads=max(1, (os.cpu_count() or 1) // here))
