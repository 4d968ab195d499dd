"""Who computes attention. Backends say as data what they accept; each kind of a plan gets one at load, or is refused.

    kinds of the plan ──▶ choose() ──▶ backend and kernel page of each kind ──▶ prepare() a step ──▶ attend() a layer

A kernel may see a page of 128 tokens as two of 64. That is between a kind and its backend: tables, arena, manifest and
tiers know pages of 128.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from quire.core.dtypes import DType
from quire.core.errors import PlanError
from quire.core.step import TableView
from quire.plan.plan import KindPlan, StagePlan
from quire.worker.arena import PartView
from quire.worker.attention import Scores, read, write
from quire.worker.batch import KindBatch, Packed, prepare

Value = TypeVar("Value")
Pair = tuple[Value, Value]
"""Of keys and of values."""
ATTENTION = frozenset({"full", "window", "chunked", "sink", "latent"})


@dataclass(frozen=True, slots=True)
class Accepts:
    """What a backend can run; where nothing is listed, anything."""

    kinds: frozenset[str]
    devices: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    """Of what is stored, as the manifest names them."""
    kernel_tokens: tuple[int, ...] = ()
    """Tokens of the pages that its kernels see."""
    states: tuple[frozenset[str], ...] = ()
    """Parts that make up a state which it runs."""
    head_widths: frozenset[int] = frozenset()
    """Numbers of a key and of a value, which are as many."""
    needs_index: bool = False
    """Pages must lie at index × page bytes."""
    but: str = ""
    """What it leaves to another backend even so, and to which."""

    def refusal(self, plan: KindPlan, device: str, sheet_bytes: int = 0) -> str:
        """Why it does not run this kind; empty if it does."""
        stored = {entry.dtype for entry in plan.manifest}
        if plan.kind.kind not in self.kinds:
            return f"does not know {plan.kind.kind}"
        if self.devices and device not in self.devices:
            return f"does not run on {device}"
        if self.dtypes and not stored <= self.dtypes:
            return f"does not read {', '.join(sorted(stored - self.dtypes))}"
        if plan.kind.kind == "state" and self.states and (unknown := _states(plan) - set(self.states)):
            return f"does not know a state of {', '.join(sorted(min(unknown, key=sorted)))}"
        if self.kernel_tokens and not self.kernel_page(plan):
            pages = " or ".join(map(str, self.kernel_tokens))
            return f"needs pages that kernel pages of {pages} tokens divide, not {plan.page_tokens}"
        return self._refused_heads(plan) or self._refused_view(plan, sheet_bytes)

    def _refused_heads(self, plan: KindPlan) -> str:
        heads = {(entry.layer, entry.row_bytes // DType(entry.dtype).bytes) for entry in plan.manifest}
        widths = {width for _, width in heads}
        if self.head_widths and (len(heads) > len(plan.layers) or not widths <= self.head_widths):
            known = " or ".join(map(str, sorted(self.head_widths)))
            return f"needs keys and values of {known} numbers, not {', '.join(map(str, sorted(widths)))}"
        return ""

    def _refused_view(self, plan: KindPlan, sheet_bytes: int) -> str:
        if self.needs_index and (tail := sheet_bytes % plan.page_bytes):
            return f"needs pages by index, and a sheet is {tail:,} B more than whole pages"
        return ""

    def kernel_page(self, plan: KindPlan) -> int:
        """The longest kernel page that divides the page and cuts no state; 0 if there is none."""
        cut = plan.kind.tokens_per_unit
        choices = self.kernel_tokens or (plan.page_tokens,)
        return max((tokens for tokens in choices if not plan.page_tokens % tokens and not tokens % cut), default=0)


def _states(plan: KindPlan) -> set[frozenset[str]]:
    """The parts of each layer."""
    layers: dict[int, set[str]] = {}
    for entry in plan.manifest:
        layers.setdefault(entry.layer, set()).add(entry.part)
    return {frozenset(parts) for parts in layers.values()}


class Backend(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def accepts(self) -> Accepts: ...

    def prepare(self, plan: KindPlan, table: TableView, packed: Packed, device: torch.device) -> KindBatch:
        """What a step means for one kind, once for all its layers."""
        ...

    def attend(
        self, kind: KindBatch, parts: Pair[PartView], query: torch.Tensor, new: Pair[torch.Tensor], scores: Scores
    ) -> torch.Tensor:
        """(token, head, width) of packed tokens in, the same out."""
        ...


class Reference:
    """Plain torch, every kind, any page, any device."""

    name = "reference"
    accepts = Accepts(ATTENTION | {"state"}, dtypes=frozenset({"bf16", "fp16", "fp32", "fp8"}))

    def prepare(self, plan: KindPlan, table: TableView, packed: Packed, device: torch.device) -> KindBatch:
        return prepare(plan, table, packed, device)

    def attend(
        self, kind: KindBatch, parts: Pair[PartView], query: torch.Tensor, new: Pair[torch.Tensor], scores: Scores
    ) -> torch.Tensor:
        for part, values in zip(parts, new, strict=True):
            write(kind, part, values)
        return read(kind, *parts, query, scores)


REFERENCE = Reference()


@dataclass(frozen=True, slots=True)
class Choice:
    """Who runs a kind."""

    kind: str
    backend: Backend
    refusals: tuple[str, ...]
    """Of those that would have been taken before it."""

    def told(self) -> str:
        notes = "; ".join((*filter(None, (self.backend.accepts.but,)), *self.refusals))
        return f"{self.kind} on {self.backend.name}" + (f" ({notes})" if notes else "")


def choose(stage: StagePlan, device: str, backends: Sequence[Backend] = (REFERENCE,)) -> tuple[Choice, ...]:
    """For each kind the first that accepts it. Raises PlanError with what each of them says."""
    chosen = []
    for plan in stage.kinds:
        said = [(backend, backend.accepts.refusal(plan, device, stage.sheet_bytes)) for backend in backends]
        refusals = tuple(f"{backend.name} {why}" for backend, why in itertools.takewhile(lambda one: one[1], said))
        if len(refusals) == len(backends):
            raise PlanError(
                f"no attention backend runs {plan.kind.name} in pages of {plan.page_tokens}: {'; '.join(refusals)}"
            )
        chosen.append(Choice(plan.kind.name, backends[len(refusals)], refusals))
    return tuple(chosen)
