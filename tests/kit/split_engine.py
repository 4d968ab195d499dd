"""An engine whose model runs on several ranks and stages: threads, each with a runner of its own, as processes have."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from quire.build.engine import make_engine
from quire.build.model import check_weights, place_model, read_weights
from quire.build.plan import plan_checkpoint, run_settings
from quire.build.runner import make_runner
from quire.core.events import Listener
from quire.core.step import Step, StepResult
from quire.engine.engine import Engine
from quire.options.run import RunOptions
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.worker.ranks.member import NO_OTHERS, Member
from quire.worker.ranks.proof import Proof, prove_split
from quire.worker.ranks.reading import read_configuration, read_share
from quire.worker.ranks.share import Share, stage_of
from quire.worker.ranks.threads import ThreadGroup
from quire.worker.steps.place import Weights
from quire.worker.steps.runner import TorchRunner

CPU = RunOptions(device="cpu", threads=1)


class ThreadRanks:
    """Every runner launches the same steps; results are the first one's."""

    def __init__(self, runners: Sequence[TorchRunner], group: ThreadGroup) -> None:
        self.runners, self._group = runners, group
        self._pool = ThreadPoolExecutor(len(runners))

    def launch(self, step: Step) -> None:
        running = [self._pool.submit(self._launch, runner, step) for runner in self.runners]
        for one in running:
            one.result()

    def _launch(self, runner: TorchRunner, step: Step) -> None:
        try:
            runner.launch(step)
        except BaseException:
            for meeting in self._group.meetings:
                meeting.leave()
            raise

    def collect(self) -> StepResult:
        first, *others = [runner.collect() for runner in self.runners]
        assert {one.number for one in others} <= {first.number}, "all have run the same steps"
        return first

    def close(self) -> None:
        self._pool.shutdown()


class StagesInTurn:
    """The first stage computes its layers when a step is launched, the others theirs when its result is wanted."""

    def __init__(self, runners: Sequence[TorchRunner], group: ThreadGroup) -> None:
        assert len(group.meetings) == len(runners), "a stage has one rank"
        self._first, *self._others = runners
        self._waiting: deque[Step] = deque()
        self.most_waiting = 0

    def launch(self, step: Step) -> None:
        self._first.launch(step)
        self._waiting.append(step)
        self.most_waiting = max(self.most_waiting, len(self._waiting))

    def collect(self) -> StepResult:
        step = self._waiting.popleft()
        for runner in self._others:
            runner.launch(step)
            runner.collect()
        return self._first.collect()

    def close(self) -> None: ...


def plan_folder(folder: Path, settings: Settings, pool_bytes: int, options: RunOptions = CPU) -> Plan:
    """`pool_bytes`: of each rank."""
    return plan_checkpoint(folder, run_settings(settings, options), Budget(pool_bytes=pool_bytes), options)


def read_part(folder: Path, plan: Plan, member: Member, options: RunOptions = CPU) -> Weights:
    """As `read_weights` does, one thread at a time: building models is not for several."""
    if member.share.is_whole:
        return read_weights(folder, plan, options)
    share, stage = member.share, stage_of(plan, member.share)
    proof = _proof_of(folder, share.ranks, share.stages)
    layers = range(stage.first_layer, stage.first_layer + stage.layers)
    return Weights(read_share(folder, member, layers, torch.float32, proof.layer_outputs), member=member)


@cache
def _proof_of(folder: Path, ranks: int, stages: int) -> Proof:
    return prove_split(read_configuration(folder), ranks, stages)


@contextmanager
def split_engine(
    folder: Path,
    plan: Plan,
    options: RunOptions = CPU,
    listeners: Sequence[Listener] = (),
    join: type[ThreadRanks] | type[StagesInTurn] = ThreadRanks,
) -> Iterator[Engine]:
    """The plan says how many ranks and stages there are. `join`: how they work together."""
    group = ThreadGroup(plan.tensor_parallel, plan.pipeline_parallel)
    members = {share: Member(share, *group.ports(share)) for share in group.shares}
    if len(members) == 1:
        members = dict.fromkeys(members, NO_OTHERS)
    weights = {share: read_part(folder, plan, member, options) for share, member in members.items()}

    def runner(share: Share) -> TorchRunner:
        check_weights(plan, weights[share])
        placed = place_model(plan, weights[share], options)
        placed.arena.bytes.fill_(0xFF)  # no number, in any data type
        return make_runner(plan, placed)

    ranks = join(group.run(runner), group)
    try:
        yield make_engine(plan, ranks, options, listeners=listeners)
    finally:
        ranks.close()
