"""How long a step takes, from what it must read and compute. Pure: equal steps take equal time.

    products    weights once, experts that are chosen  ÷ bytes per second ─┐
                weights × tokens                       ÷ FLOP per second  ─┴─ the longer
    attention   live set of each row + what is written ÷ bytes per second ─┐
                queries × what they see                ÷ FLOP per second  ─┴─ the longer
    captures    states that are written once more      ÷ bytes per second
    a stage     products + attention + captures + overhead of its layers: one kernel runs after another
    passing     hidden states, from stage to stage     ÷ bytes per second of a link, + what a message takes
    a step      stage 0 + passing + stage 1 + …; a stage works on the next step while this one is in stages after it

Ranks of a stage work in parallel on equal shares, so one rank's bytes and FLOPs determine the time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.dtypes import DType
from quire.core.step import Capture, Ints
from quire.core.units import ceil_div
from quire.kinds import Keeps, Kind
from quire.models.shape import ModelShape
from quire.plan.layout import Entry
from quire.plan.plan import KindPlan, Plan
from quire.simulate.devices import Speed

EXPERT_EFFICIENCY = 0.65
"""Fraction of the bandwidth of large products that is reached if many experts have a few tokens each: measured with
torch's grouped product, 128 tokens over 512 experts on an H200."""
LAYER_SECONDS = 40e-6
"""Time of each layer in addition to reads and products: small kernels, and the gaps between all of them. Fitted to
decode steps of models of 16 to 48 layers, measured on H200s."""
LINK_BYTES_PER_SECOND = 50e9
"""Of a device's link to the next stage, if that is on another machine: 400 Gbit/s. An assumption."""
MESSAGE_SECONDS = 20e-6
"""From the end of a stage to the beginning of the next one, in addition to its bytes. An assumption."""
MOST_STEP_TOKENS = 1 << 20
QUERY_BLOCK = 128
"""Tokens of a chunk that attention processes together: each block reads the row's live set once."""


@dataclass(frozen=True, slots=True)
class KindCost:
    """One kind on one rank. A unit is what `Kind.units` counts: a token, a folded state, a recurrent state."""

    kind: Kind
    read_bytes: float
    """Bytes of one unit read by all layers, including those that share another layer's memory."""
    token_bytes: float
    """Bytes that one token writes."""
    row_bytes: int
    """Bytes that a row writes whatever its tokens: recurrent states."""
    flops: float
    """For one query and one unit."""


@dataclass(frozen=True, slots=True)
class StageCost:
    weight_bytes: int
    expert_bytes: int
    """The part of these that belongs to routed experts."""
    head_bytes: int
    """Bytes of the output head, which only rows that sample multiply."""
    kinds: tuple[KindCost, ...]
    layers_share: float = 1.0
    """The fraction of the model's layers: of the overhead, too."""


@dataclass(frozen=True, slots=True)
class CostModel:
    stages: tuple[StageCost, ...]
    speed: Speed
    overhead_seconds: float
    """Of a step, on all stages together."""
    expert_share: float = 1.0
    """The fraction of the experts that one token chooses."""
    token_passed_bytes: int = 0
    """Of one token, from a stage to the next."""
    link_bytes_per_second: float = LINK_BYTES_PER_SECOND

    def figures(self) -> dict[str, float]:
        """What it was made with, for reports; weights are those of the heaviest stage, on one device."""
        return {
            "bytes_per_second": self.speed.bytes_per_second,
            "flops_per_second": self.speed.flops_per_second,
            "overhead_seconds": self.overhead_seconds,
            "link_bytes_per_second": self.link_bytes_per_second,
            "active_share": self._active_share(),
            "weight_bytes": max(stage.weight_bytes + stage.head_bytes for stage in self.stages),
        }

    def _active_share(self) -> float:
        """The fraction of the layers' weights that computes one token."""
        weights, experts = (
            sum(stage.weight_bytes for stage in self.stages),
            sum(stage.expert_bytes for stage in self.stages),
        )
        return 1 - (1 - self.expert_share) * experts / max(1, weights)

    def seconds(self, starts: Ints, counts: Ints, samples: int, captures: Sequence[Capture] = ()) -> float:
        """One step in which row i computes tokens [starts[i], starts[i] + counts[i]), from its first stage's begin to
        its last one's end, if it waits for no other step."""
        passing = (len(self.stages) - 1) * self.passing_seconds(int(counts.sum()))
        return sum(self.stage_seconds(starts, counts, samples, captures)) + passing

    def stage_seconds(
        self, starts: Ints, counts: Ints, samples: int, captures: Sequence[Capture] = ()
    ) -> tuple[float, ...]:
        """How long each stage works on such a step."""
        tokens, captured = int(counts.sum()), self._captured_bytes(captures)
        seconds = []
        for place, stage in enumerate(self.stages):
            size, flops = self._products(stage, tokens, samples)
            more_bytes, more_flops = _attention(stage.kinds, starts, counts, tokens)
            fixed = self.overhead_seconds * stage.layers_share + captured[place] / self.speed.bytes_per_second
            seconds.append(fixed + (self._longer(size, flops) + self._longer(more_bytes, more_flops)))
        return tuple(seconds)

    def passing_seconds(self, tokens: int) -> float:
        """From the end of a stage to the begin of the next one."""
        return MESSAGE_SECONDS + tokens * self.token_passed_bytes / self.link_bytes_per_second

    def memory_bound_tokens(self) -> int:
        """The most tokens of a step, all of which sample, whose products take no longer than reading the weights: more
        tokens take more time."""

        def is_longer(tokens: int) -> bool:
            products = [self._products(stage, tokens, tokens) for stage in self.stages]
            speed = self.speed.flops_per_second / self.speed.bytes_per_second
            return any(flops > size * speed for size, flops in products)

        return max(1, bisect_right(range(1, MOST_STEP_TOKENS), False, key=is_longer))

    def _products(self, stage: StageCost, tokens: int, samples: int) -> tuple[float, float]:
        """Bytes and FLOPs. A weight of b bytes costs b FLOPs of bf16: 2 for 2 bytes, and half the time for half the
        width."""
        touched = (1 - (1 - self.expert_share) ** tokens) / (EXPERT_EFFICIENCY if self.expert_share < 1 else 1.0)
        dense, experts = stage.weight_bytes - stage.expert_bytes, stage.expert_bytes
        flops = (dense + self.expert_share * experts) * tokens + stage.head_bytes * samples
        return dense + touched * experts + stage.head_bytes, flops

    def _captured_bytes(self, captures: Sequence[Capture]) -> Counter[int]:
        """By stage. Captures name a stage by its place among those that keep anything, as tables do."""
        kept = [place for place, stage in enumerate(self.stages) if stage.kinds] if captures else []
        captured: Counter[int] = Counter()
        for capture in captures:
            place = kept[capture.stage]
            captured[place] += self.stages[place].kinds[capture.kind].row_bytes
        return captured

    def _longer(self, size: float, flops: float) -> float:
        return max(size / self.speed.bytes_per_second, flops / self.speed.flops_per_second)


def _attention(kinds: tuple[KindCost, ...], starts: Ints, counts: Ints, tokens: int) -> tuple[float, float]:
    """Bytes and FLOPs. What a chunk's queries see grows evenly from first to last: the middle is the average."""
    size = flops = 0.0
    first, last = starts + 1, starts + counts
    blocks = -(-counts // QUERY_BLOCK)
    for cost in kinds:
        seen_twice = cost.kind.units(first) + cost.kind.units(last)
        size += cost.read_bytes * float(seen_twice @ blocks) / 2
        size += cost.token_bytes * tokens + cost.row_bytes * len(counts)
        flops += cost.flops * float(seen_twice @ counts) / 2
    return size, flops


def cost_model(
    plan: Plan,
    model: ModelShape,
    speed: Speed,
    overhead_seconds: float | None = None,
    active_share: float | None = None,
    *,
    link_bytes_per_second: float = LINK_BYTES_PER_SECOND,
) -> CostModel:
    """`overhead_seconds`: fixed time of a step; None: `LAYER_SECONDS` for each layer. `active_share`: treats all
    weights as experts of which a token chooses this fraction; None: as the shape says."""
    if overhead_seconds is None:
        overhead_seconds = LAYER_SECONDS * len(model.layers)
    queries = max(1, ceil_div(model.query_heads, plan.tensor_parallel))
    stages, layers = [], sum(stage.layers for stage in plan.stages)
    for index, stage in enumerate(plan.stages):
        readers = Counter(source for _, source in stage.aliases)
        kinds = tuple(_kind_cost(kind, queries, readers) for kind in stage.kinds)
        weights = _layer_bytes(plan, model, index)
        experts = weights if active_share is not None else min(weights, _expert_bytes(plan, model, index))
        head = _head_bytes(plan, model, index)
        stages.append(StageCost(weights, experts, head, kinds, stage.layers / layers))
    share = model.experts.share if active_share is None else active_share
    passed = DType.BF16.bytes * model.hidden_size
    return CostModel(tuple(stages), speed, overhead_seconds, share, passed, link_bytes_per_second)


def _layer_bytes(plan: Plan, model: ModelShape, stage: int) -> int:
    """Bytes of the stage's fullest rank, without the ledger's embedding (looked up, not read) and head."""
    lines = (line for rank in plan.ranks if rank.stage == stage for line in rank.ledger)
    total = max((line.bytes for line in lines if line.name == "weights"), default=0)
    ends = model.embedding_bytes if stage == 0 else 0
    if stage == len(plan.stages) - 1:
        ends += model.head_bytes or (model.embedding_bytes if len(plan.stages) > 1 else 0)
    return max(0, total - ceil_div(ends, plan.tensor_parallel))


def _expert_bytes(plan: Plan, model: ModelShape, stage: int) -> int:
    own = plan.stages[stage]
    layers = (*model.layers, *model.draft_layers)[own.first_layer : own.first_layer + own.layers]
    return sum(ceil_div(layer.expert_weight_bytes, plan.tensor_parallel) for layer in layers)


def _head_bytes(plan: Plan, model: ModelShape, stage: int) -> int:
    """A tied head is the vocabulary's part of the embedding, which may hold more tables."""
    if stage < len(plan.stages) - 1:
        return 0
    tied = min(model.embedding_bytes, DType.BF16.bytes * model.vocab_size * model.hidden_size)
    return ceil_div(model.head_bytes or tied, plan.tensor_parallel)


def _kind_cost(plan: KindPlan, queries: int, readers: Counter[int]) -> KindCost:
    read = sum((1 + readers[entry.layer]) * entry.heads * entry.row_bytes for entry in plan.manifest)
    flops = sum((1 + readers[entry.layer]) * _flops(plan.kind, entry, queries) for entry in plan.manifest)
    state = plan.unit_bytes if plan.kind.keeps is Keeps.STATE else 0
    return KindCost(plan.kind, read, plan.token_bytes, state, flops)


def _flops(kind: Kind, entry: Entry, queries: int) -> int:
    """A multiplication and an addition for each number and query head; a latent is key and value at once.

    A recurrent state is decayed, added to and read once for each token, whatever the queries.
    """
    width = entry.row_bytes // DType(entry.dtype).bytes
    if kind.keeps is Keeps.STATE:
        return 4 * entry.heads * width
    return 2 * max(queries, entry.heads) * width * (2 if entry.part == "latent" else 1)
