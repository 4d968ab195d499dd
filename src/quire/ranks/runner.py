"""`Ranks`: the runner of an engine whose model runs on several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from quire.cache.tables import Table
from quire.core.step import Runner, Step, StepResult
from quire.core.tier import Staged, StagingMemory
from quire.ranks.group import REAP_SECONDS, Group, RankLost
from quire.ranks.message import RankStep, encode
from quire.ranks.tables import TableLog

Recording = tuple[int, bool] | None


class Ranks:
    """Sends each step to the other ranks before rank 0's own runner launches it: they work at the same time. Results
    are rank 0's, which draws all tokens."""

    def __init__(
        self,
        own: Runner,
        group: Group,
        memory: StagingMemory | None = None,
        recording: Callable[[Step], Recording] = lambda _step: None,
    ) -> None:
        """`memory`: knows where a load's records are. `recording`: which one a step is played from."""
        self._own, self._group, self._memory, self._recording = own, group, memory, recording
        self._logs: list[TableLog] = []
        self._broken = ""

    def follow(self, tables: Iterable[Table]) -> None:
        """The scheduler's, stage by stage, before its first step."""
        self._logs = [TableLog(table) for table in tables]

    def launch(self, step: Step) -> None:
        if self._broken:
            raise RankLost(self._broken)
        message = RankStep(step, self._recording(step), self._loads(step))
        self._group.launch(step.number, encode(message, [log.take() for log in self._logs]))
        with self._together(step):
            self._own.launch(step)

    def collect(self) -> StepResult:
        return self._own.collect()

    def _loads(self, step: Step) -> tuple[Staged, ...]:
        if not step.loads:
            return ()
        assert self._memory is not None, "a load comes from a tier"
        return tuple(self._memory.staged_load(number) for number, _ in step.loads)

    @contextmanager
    def _together(self, step: Step) -> Iterator[None]:
        """A step that fails on rank 0 leaves the others in the middle of it: they cannot go on together."""
        try:
            yield
        except BaseException as error:
            self._broken = (
                f"step {step.number} failed on rank 0 ({error!r}): its ranks are started again with the engine"
            )
            self._group.require_all(REAP_SECONDS)  # it failed because another rank is gone
            raise
