"""The models and pools of bench/reuse.py: plans, and the bytes that all reusable prefixes would take.

The *working set* is the least that a cache with foresight keeps: of kinds that grow, the pages of every prefix that a
later request shares, each page once; of the others, what a hit needs at each place where the longest prefix ends that a
request shares with an earlier one (the tail of a window, one state), each page once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache

import numpy as np

from quire.core.dtypes import DType
from quire.core.request import Tokens
from quire.core.units import GIB, ceil_div
from quire.models.read import read_model
from quire.models.shape import ModelShape
from quire.plan.make import make_plan
from quire.plan.plan import KindPlan, Plan
from quire.plan.settings import Budget, Settings
from quire.planner.reverse import reverse
from quire.simulate.cost import CostModel, cost_model
from quire.simulate.devices import speed_of
from quire.simulate.tokens import scrambled
from reuse_workloads import Work, order_of

BATCH_TOKENS, MOST_REQUESTS = 4096, 256
DEVICE, DEVICE_BYTES = "h200", 1 << 50
"""As fast as one; its memory is what the pool asks for."""
LARGEST_POOL = 512 * GIB
"""Of a rank: what tables of 32-bit addresses reach."""
PAGE = 16
"""Tokens: pages of the baselines, and the grain in which prefixes are compared before tokens are."""


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    ranks: int = 1
    state_dtype: DType | None = None
    """None: what the model asks for. The same on all sides: what vLLM 0.32.0 would keep."""
    state_block: int = 0
    """Tokens from one state of the baselines to the next: the block that vLLM 0.32.0's planner gives."""

    exports_states: bool = False
    """vLLM's kernel saves a state from within a chunk, which is not split for it then."""

    @property
    def is_hybrid(self) -> bool:
        return self.name != "meta-llama-3.1-8b"

    @property
    def has_states(self) -> bool:
        return self.state_block > 0


MODELS = {
    "llama-3.1-8b": Model("meta-llama-3.1-8b"),
    "gemma-3-27b": Model("gemma-3-27b", ranks=2),
    "gpt-oss-120b": Model("gpt-oss-120b"),
    "qwen3-next-80b-a3b": Model("qwen3-next-80b-a3b", ranks=2, state_dtype=DType.BF16, state_block=544),
    "nemotron-3-nano-30b": Model("nvidia-nemotron-3-nano-30b-a3b-bf16", state_block=2096, exports_states=True),
}


@cache
def shape_of(name: str) -> ModelShape:
    return read_model(MODELS[name].name)


def settings_of(name: str, longest: int) -> Settings:
    model = MODELS[name]
    return Settings(
        max_length=longest,
        max_requests=MOST_REQUESTS,
        batch_tokens=BATCH_TOKENS,
        tensor_parallel=model.ranks,
        state_dtype=model.state_dtype,
    )


def plan_of(name: str, longest: int, pool_bytes: int) -> Plan:
    budget = Budget(DEVICE_BYTES, pool_bytes=pool_bytes)
    return make_plan(shape_of(name), settings_of(name, longest), budget)


def least_pool_bytes(name: str, longest: int) -> int:
    """Of the smallest pool that runs the longest request alone, as the plan says."""
    any_pool = Budget(pool_bytes=LARGEST_POOL)
    settings = settings_of(name, longest)
    plan = make_plan(shape_of(name), settings, any_pool)
    return reverse(shape_of(name), settings, any_pool, plan, longest, 1).pool_bytes


def cost_of(name: str, plan: Plan) -> CostModel:
    return cost_model(plan, shape_of(name), speed_of(DEVICE, None, None))


def seconds_per_token(cost: CostModel) -> float:
    """Of a full chunk at the beginning of a prompt."""
    return cost.seconds(np.array([0]), np.array([BATCH_TOKENS]), 1) / BATCH_TOKENS


def unlimited_bytes(plan: Plan, work: Work) -> int:
    """Room for every page of every request as if nothing were shared, and for a state each 512 tokens and 8 more."""
    size = 0.0
    for kind in kinds_of(plan):
        if kind.kind.kind == "state":
            size += kind.fixed_bytes * (work.total_tokens / 512 + 8 * len(work.known))
        else:
            size += kind.token_bytes * (work.total_tokens + 2 * plan.reuse_unit_tokens * len(work.known))
    return min(int(1.05 * size), LARGEST_POOL)


def kinds_of(plan: Plan) -> tuple[KindPlan, ...]:
    (stage,) = plan.stages
    return stage.kinds


# ── the working set ───────────────────────────────────────────────────────


def page_names(tokens: Tokens, page: int = PAGE) -> list[int]:
    """A 63-bit name for the prefix that ends with each whole page."""
    pages = len(tokens) // page
    whole = tokens[: pages * page].reshape(pages, page).astype(np.uint64)
    weights = scrambled(np.arange(1, page + 1, dtype=np.uint64)) | np.uint64(1)
    places = scrambled(np.arange(pages, dtype=np.uint64))
    names = np.cumsum(scrambled(whole @ weights + places), dtype=np.uint64) >> np.uint64(1)
    return [int(one) for one in names.tolist()]


@dataclass(frozen=True, slots=True)
class Shared:
    """Of one request: the longest prefix that an earlier one had computed, and who that was."""

    place: int
    tokens: int


def shared_prefixes(work: Work) -> list[Shared]:
    """In the order of arrival. The last token of a prompt is always computed, and that of an answer never."""
    holders: dict[int, list[int]] = defaultdict(list)
    shared, earlier = [], []
    for place in order_of(work.trace.requests):
        names = page_names(work.known[place][:-1])
        prompt = work.known[place][: work.prompts[place] - 1]
        depth = next((i for i in range(len(prompt) // PAGE) if names[i] not in holders), len(prompt) // PAGE)
        candidates = holders[names[depth - 1]] if depth else earlier
        rest = prompt[depth * PAGE :]
        more = (_alike(rest, work.known[one][depth * PAGE : -1]) for one in candidates)
        shared.append(Shared(place, depth * PAGE + max(more, default=0)))
        for name in names:
            holders[name].append(place)
        earlier.append(place)
    return shared


def _alike(some: Tokens, other: Tokens) -> int:
    """How many tokens both begin with, up to a page."""
    most = min(len(some), len(other), PAGE)
    differ = np.flatnonzero(some[:most] != other[:most])
    return int(differ[0]) if len(differ) else most


def working_set_bytes(plan: Plan, work: Work) -> int:
    found = [one for one in shared_prefixes(work) if one.tokens]
    return sum(_kind_bytes(kind, work, found) for kind in kinds_of(plan))


def _kind_bytes(kind: KindPlan, work: Work, found: list[Shared]) -> int:
    """Of the pages of one kind; a page is the same where the prefix up to its last token is."""
    pages: set[int | bytes] = set()
    for one in found:
        tokens = work.known[one.place][: one.tokens]
        if kind.kind.kind == "state":
            pages.add(tokens.tobytes())
            continue
        names = page_names(tokens, kind.page_tokens)
        for begin, end in ((0, one.tokens),) if kind.kind.grows else kind.kind.hit_needs(one.tokens):
            pages.update(names[begin // kind.page_tokens : end // kind.page_tokens])
            if end % kind.page_tokens:
                pages.add(tokens[:end].tobytes())
    return len(pages) * (kind.fixed_bytes if kind.kind.kind == "state" else kind.groups * kind.page_bytes)


def pool_bytes_of(share: str, plan: Plan, work: Work, working_set: int) -> int:
    """`share`: percent of the working set, or `unlimited`."""
    return unlimited_bytes(plan, work) if share == "unlimited" else ceil_div(working_set * int(share), 100)
