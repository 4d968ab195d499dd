"""Which backend computes a kind. Backends declare as data what they accept; a kind that none accepts is refused.

    kinds of the plan ──▶ choose() ──▶ backend and kernel page of each kind ──▶ prepare() a step ──▶ attend() a layer

A kernel may read a page of 128 tokens as two of 64. Only its backend knows that: tables, arena, manifest and tiers have
pages of 128.
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
from quire.kinds import Keeps
from quire.plan.plan import KindPlan, StagePlan
from quire.worker.backends.attention import Scores, read, write
from quire.worker.backends.batch import KindBatch, Packed, prepare
from quire.worker.pages.arena import PartView

Value = TypeVar("Value")
Pair = tuple[Value, Value]
"""For keys and for values."""


@dataclass(frozen=True, slots=True)
class Accepts:
    """What a backend can run. An empty field accepts anything."""

    kinds: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    """Of stored numbers, as the manifest names them."""
    kernel_tokens: tuple[int, ...] = ()
    """Tokens of the pages that its kernels see."""
    states: tuple[frozenset[str], ...] = ()
    """Sets of parts, each of which is a state that it runs."""
    head_widths: frozenset[int] = frozenset()
    """Widths of keys and values, which are equal."""
    needs_index: bool = False
    """Pages must lie at index × page bytes."""
    bounds_masks: bool = False
    """It knows masks that are bounded by a window, a chunk or sinks (`Kind.mask_bounds`), no others."""
    adds_slopes: bool = False
    """It takes from scores by distance (ALiBi)."""
    but: str = ""
    """What it leaves to another backend, and to which."""

    def refusal(self, plan: KindPlan, device: str, sheet_bytes: int = 0, has_slopes: bool = False) -> str:
        """Why it does not run this kind; empty if it does. `has_slopes`: layers have ALiBi."""
        if has_slopes and plan.manifest and not (self.adds_slopes and plan.kind.kind == "full"):
            return f"does not take from the scores of {plan.kind.kind} by distance (ALiBi)"
        stored = {entry.dtype for entry in plan.manifest}
        if (self.kinds and plan.kind.kind not in self.kinds) or not plan.kind.is_shareable:
            return f"does not know {plan.kind.kind}"
        if self.bounds_masks and plan.kind.keeps is not Keeps.STATE and plan.kind.mask_bounds is None:
            return f"does not know the mask of {plan.kind.kind}"
        if self.devices and device not in self.devices:
            return f"does not run on {device}"
        if self.dtypes and not stored <= self.dtypes:
            return f"does not read {', '.join(sorted(stored - self.dtypes))}"
        if plan.kind.keeps is Keeps.STATE and self.states and (unknown := _states(plan) - set(self.states)):
            return f"does not know a state of {', '.join(sorted(min(unknown, key=sorted)))}"
        if self.kernel_tokens and not self.kernel_page(plan):
            pages = " or ".join(map(str, self.kernel_tokens))
            return f"needs pages that kernel pages of {pages} tokens divide, not {plan.page_tokens}"
        return self._refusal_of_heads(plan) or self._refusal_of_view(plan, sheet_bytes)

    def _refusal_of_heads(self, plan: KindPlan) -> str:
        heads = {(entry.layer, entry.row_bytes // DType(entry.dtype).bytes) for entry in plan.manifest}
        widths = {width for _, width in heads}
        if self.head_widths and (len(heads) > len(plan.layers) or not widths <= self.head_widths):
            known = " or ".join(map(str, sorted(self.head_widths)))
            return f"needs keys and values of {known} numbers, not {', '.join(map(str, sorted(widths)))}"
        return ""

    def _refusal_of_view(self, plan: KindPlan, sheet_bytes: int) -> str:
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
    """Computes attention over pages."""

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
    accepts = Accepts(dtypes=frozenset({"bf16", "fp16", "fp32", "fp8"}), adds_slopes=True)

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
class BackendChoice:
    """The backend that runs a kind."""

    kind: str
    backend: Backend
    refusals: tuple[str, ...]
    """Why each backend before it does not."""

    def describe(self) -> str:
        notes = "; ".join((*filter(None, (self.backend.accepts.but,)), *self.refusals))
        return f"{self.kind} on {self.backend.name}" + (f" ({notes})" if notes else "")


def choose(
    stage: StagePlan, device: str, backends: Sequence[Backend] = (REFERENCE,), has_slopes: bool = False
) -> tuple[BackendChoice, ...]:
    """For each kind the first backend that accepts it. Raises PlanError with each backend's refusal."""
    chosen = []
    for plan in stage.kinds:
        answers = [(one, one.accepts.refusal(plan, device, stage.sheet_bytes, has_slopes)) for one in backends]
        refusals = tuple(f"{backend.name} {why}" for backend, why in itertools.takewhile(lambda one: one[1], answers))
        if len(refusals) == len(backends):
            raise PlanError(
                f"no attention backend runs {plan.kind.name} in pages of {plan.page_tokens}: {'; '.join(refusals)}"
            )
        chosen.append(BackendChoice(plan.kind.name, backends[len(refusals)], refusals))
    return tuple(chosen)
