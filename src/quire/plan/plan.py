"""The frozen result of planning: engine, tiers, simulator and reports read it and derive nothing again.

Plan ── StagePlan (one per pipeline stage: one pool, one allocator)
        ├── KindPlan (one per kind: pages)
        └── RankPlan (one per tensor-parallel rank: its ledger)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.errors import DoesNotFit
from quire.core.units import ceil_div
from quire.kinds import Keeps, Kind
from quire.plan.layout import GRANULE_BYTES, Entry

Pages = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KindPlan:
    """How one stage cuts one kind."""

    kind: Kind
    slots: int
    """Memories of this kind on the stage: its layers, counted once per memory."""
    layers: tuple[int, ...]
    groups: int
    page_tokens: int
    page_bytes: int
    pages_per_sheet: int
    unit_bytes: int
    """Per rank, all layers, per token (per folded state, per request): no padding."""
    unique_unit_bytes: int
    """Over all ranks of the stage, each byte once."""
    manifest: tuple[Entry, ...]

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def unique_page_bytes(self) -> int:
        """A page of all groups over all ranks, each byte once: the page on one rank, and what other ranks add to it."""
        others = (self.unique_unit_bytes - self.unit_bytes) * self.kind.units_per_page(self.page_tokens)
        return self.groups * self.page_bytes + others

    @property
    def token_bytes(self) -> float:
        """Bytes that one token writes; 0 for kinds that do not store by token."""
        return self.unit_bytes / self.kind.tokens_per_unit if self.kind.holds_tokens else 0.0

    @property
    def bytes_per_token(self) -> float:
        """Slope of a request's footprint beyond every window (B)."""
        return self.token_bytes if self.kind.grows else 0.0

    @property
    def fixed_bytes(self) -> int:
        """Bytes that a long request holds independent of its length (A)."""
        return self.kind.fixed_units * self.unit_bytes


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One use of a device's memory. Basis: computed (from the configuration), estimated, chosen (by the user)."""

    name: str
    bytes: int
    basis: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One device of a stage: its ledger, line by line."""

    rank: int
    stage: int
    tensor_rank: int
    pool_bytes: int
    idle_bytes: int
    """Pool bytes unused at the reference length: sheets that the bottleneck leaves free, page rows without a head."""
    ledger: tuple[LedgerLine, ...]


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One pipeline stage: a pool of `sheets`, shared by all kinds, the same on each of its ranks."""

    first_layer: int
    layers: int
    kinds: tuple[KindPlan, ...]
    sheet_bytes: int
    sheets: int
    max_length: int
    """The longest request this stage alone would admit."""
    aliases: tuple[tuple[int, int], ...] = ()
    """(layer, source): the layer keeps nothing and reads what the source layer keeps."""
    lease_sheets: int = 0
    """The most sheets that leased prefixes may take."""

    @property
    def pool_bytes(self) -> int:
        return self.sheets * self.sheet_bytes

    @property
    def request_sheets(self) -> int:
        """Sheets that are left for requests while leases take all that they may."""
        return self.sheets - self.lease_sheets

    def addresses(self, kind: int, pages: Pages) -> npt.NDArray[np.int32]:
        """Addresses of a kind's pages in the pool, in granules: what tables hold and kernels read."""
        plan = self.kinds[kind]
        sheet, slot = np.divmod(pages, plan.pages_per_sheet)
        granules = sheet * (self.sheet_bytes // GRANULE_BYTES) + slot * (plan.page_bytes // GRANULE_BYTES)
        return np.asarray(granules, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class HostPlan:
    """What a budget of host memory holds."""

    budget_bytes: int
    block_bytes: int
    blocks: int
    pages: Mapping[str, int]
    """Pages of each kind, if idle sessions of `session_tokens` tokens fill the blocks."""
    page_bytes: Mapping[str, int]
    """One page of all layers, over all ranks and stages, each byte once."""
    warm_sessions: int
    """How many of these sessions fit."""
    session_tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How the memory of every device is divided, and the limits that follow: longest length, unit of reuse, concurrent
    requests. `file.py` computes its fingerprint."""

    model: str
    family: str
    model_max_length: int | None
    requested_max_length: int | None
    max_length: int
    """The longest request that is admitted: the requested one if it fits, else the longest that would."""
    fits: bool
    problem: str
    """Why it does not fit, with the numbers; empty when it fits."""
    kv_dtype: str
    state_dtype: str | None
    tensor_parallel: int
    pipeline_parallel: int
    max_requests: int
    batch_tokens: int
    lookahead: int
    reserved_pages: int
    match_unit_tokens: int
    host_block_tokens: int | None
    """Requested tokens per block of host memory, for kinds that grow; None: one unit of reuse."""
    stages: tuple[StagePlan, ...]
    ranks: tuple[RankPlan, ...]
    bottleneck_stage: int
    host: HostPlan | None
    notes: tuple[str, ...]
    limit_bytes: int | None = None
    """The most bytes of a device that the user allows; later measurements must stay within it too. None: no limit."""
    rope: str = ""
    """Rotary frequencies that depend on the longest length, the same for all requests; empty: none do."""

    def require_fit(self) -> Plan:
        if not self.fits:
            raise DoesNotFit(self.problem)
        return self

    def steps_in_flight(self, overlap: int) -> int:
        """At most: 1 waits for each result, 2 schedules while one runs; a pipeline has one for each stage."""
        return overlap if overlap == 1 else max(overlap, self.pipeline_parallel)

    @property
    def bottleneck(self) -> StagePlan:
        return self.stages[self.bottleneck_stage]

    @property
    def bottleneck_rank(self) -> int:
        return self.bottleneck_stage * self.tensor_parallel

    @property
    def checkpoint_bytes(self) -> int:
        """One checkpoint of every recurrent state, over all stages, on one tensor-parallel rank."""
        return sum(k.fixed_bytes for stage in self.stages for k in stage.kinds if k.kind.keeps is Keeps.STATE)

    @property
    def reuse_unit_tokens(self) -> int:
        """Tokens per prefix key: whole pages of every kind on every stage, at least the planned match unit."""
        pages = math.lcm(*(kind.page_tokens for stage in self.stages for kind in stage.kinds))
        return pages * ceil_div(self.match_unit_tokens, pages)

    @property
    def no_reuse_because(self) -> str:
        """Why prefixes cannot be reused; empty if they can."""
        alone = [kind.name for stage in self.stages for kind in stage.kinds if not kind.kind.is_shareable]
        return f"{alone[0]} depends on more than the tokens" if alone else ""

    @property
    def bytes_per_token(self) -> float:
        """Slope of a request's footprint over all stages, on one tensor-parallel rank."""
        return sum(kind.bytes_per_token for stage in self.stages for kind in stage.kinds)
