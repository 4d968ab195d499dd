"""Which part of a model one process runs, and the part of a step that concerns it.

          rank 0   rank 1          ranks split every layer of a stage: heads, widths, vocabulary
stage 0   [ layers 0 … 15 ]
stage 1   [ layers 16 … 31 ]       stages split the layers
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.core.step import Step, TableView
from quire.plan.plan import Plan, RankPlan, StagePlan

NO_TABLES: tuple[TableView, ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """The tensor-parallel rank of a process and the pipeline stage that its rank belongs to."""

    rank: int
    ranks: int
    stage: int
    stages: int

    @property
    def is_whole(self) -> bool:
        return self.ranks == self.stages == 1

    @property
    def leads(self) -> bool:
        """Whether this process has the engine and samples: rank 0 of the first stage."""
        return self.rank == self.stage == 0

    @property
    def sends_logits(self) -> bool:
        """Rank 0 of the last stage, where others lead."""
        return self.rank == 0 and self.is_last and self.stage > 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1

    @property
    def number(self) -> int:
        """Of the process in its group, as the plan numbers ranks: all of one stage, then those of the next."""
        return self.stage * self.ranks + self.rank


WHOLE = Share(0, 1, 0, 1)


def shares_of(plan: Plan) -> tuple[Share, ...]:
    """One for each process, in the plan's order."""
    ranks, stages = plan.tensor_parallel, plan.pipeline_parallel
    return tuple(Share(rank, ranks, stage, stages) for stage in range(stages) for rank in range(ranks))


def stage_of(plan: Plan, share: Share) -> StagePlan:
    return plan.stages[share.stage]


def ledger_of(plan: Plan, share: Share) -> RankPlan:
    return plan.ranks[share.number]


def memory_of(plan: Plan, share: Share) -> int | None:
    """Where steps have the tables of the share's stage: they count only stages that keep anything. None: it keeps
    nothing."""
    if not stage_of(plan, share).kinds:
        return None
    return sum(bool(stage.kinds) for stage in plan.stages[: share.stage])


def own_part(step: Step, memory: int | None) -> Step:
    """A step with the tables, copies, clears and captures of one stage alone, which is then stage 0.

    Steps of a single stage, and those without tables, stay as they are. Places of other stages may be empty.
    """
    if memory == 0 and len(step.tables) < 2:
        return step
    return replace(
        step,
        tables=(NO_TABLES if memory is None else step.tables[memory],),
        copies=tuple((0, kind, source, target) for stage, kind, source, target in step.copies if stage == memory),
        clears=tuple((0, kind, pages) for stage, kind, pages in step.clears if stage == memory),
        captures=tuple(replace(one, stage=0) for one in step.captures if one.stage == memory),
    )
