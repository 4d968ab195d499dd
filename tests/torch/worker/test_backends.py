"""Backends say what they accept; kernels may see smaller pages than everybody else does."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from quire.core.errors import PlanError
from quire.core.request import Request
from quire.core.step import TableView
from quire.engine.engine import Engine
from quire.plan.plan import KindPlan
from quire.worker.backends.attention import Scores, mix, write
from quire.worker.backends.batch import KindBatch, Packed, prepare
from quire.worker.backends.choice import REFERENCE, Accepts, Pair, choose
from quire.worker.model.model import NAME, TorchModel
from quire.worker.pages.arena import Arena, PartView
from quire.worker.steps.runner import TorchRunner
from tiny_models import OUTPUTS, plan_of, reference

torch.set_num_threads(1)
KERNEL = 64


class InKernelPages:
    """Reads row by row, through tables of kernel pages, as a kernel with pages of 64 tokens would."""

    name = "kernel pages"
    accepts = Accepts(frozenset({"full"}), frozenset({"cpu"}), frozenset({"fp32"}), (KERNEL,))

    def __init__(self) -> None:
        self.calls = 0

    def prepare(self, plan: KindPlan, table: TableView, packed: Packed, device: torch.device) -> KindBatch:
        pieces = np.arange(0, plan.page_tokens, self.accepts.kernel_page(plan))
        step = packed.step
        rows = []
        for row, start, count, begin in zip(step.rows, step.starts, step.counts, packed.begins, strict=True):
            pages = np.arange(-(-(start + count) // plan.page_tokens))
            rows.append((table.addresses[row, :, table.column(pages)].astype(np.int64), start, count, begin))
        return KindBatch(prepare(plan, table, packed, device).new, kernel=(pieces, rows))

    def attend(
        self, kind: KindBatch, parts: Pair[PartView], query: torch.Tensor, new: Pair[torch.Tensor], scores: Scores
    ) -> torch.Tensor:
        self.calls += 1
        for part, values in zip(parts, new, strict=True):
            write(kind, part, values)
        out = torch.empty(*query.shape[:2], parts[1].tensor.shape[-1])
        pieces, rows = kind.kernel  # type: ignore[misc]
        for addresses, start, count, begin in rows:
            found = []
            for part in parts:
                entries = part.cut.places(addresses[:, part.group, None], pieces).reshape(-1)
                tokens = kernel_pages(part, KERNEL)[torch.from_numpy(entries)].flatten(0, 1)[: start + count]
                found.append(tokens.transpose(0, 1)[None])
            asked = query[begin : begin + count].transpose(0, 1)[None]
            seen = torch.arange(start + count) <= torch.arange(start, start + count)[:, None]
            out[begin : begin + count] = mix(asked, *found, seen[None], scores)[0].transpose(0, 1)
        return out


def kernel_pages(part: PartView, kernel_tokens: int) -> torch.Tensor:
    """(place, token, head, number): pages as a kernel sees them that takes them in pieces of so many tokens."""
    places, width = part.rows.shape
    inside = places - (kernel_tokens - 1) * width // part.rows.stride(0)
    heads, row = part.tensor.shape[2:]
    return part.rows.as_strided((inside, kernel_tokens, heads, row), (part.rows.stride(0), width, row, 1))


def test_pages_of_128_over_kernel_pages_of_64_yield_the_same_and_look_the_same() -> None:
    """Tables, arena and manifest are those of the reference; the tokens are transformers'."""
    expected = reference("llama")
    plan = plan_of("llama", batch_tokens=32, pages={"": 128})
    (kind,) = plan.stages[0].kinds
    assert kind.page_tokens == 128
    model = copy.deepcopy(expected.model)
    model.set_attn_implementation(NAME)
    arena = Arena(plan.require_fit().stages[0], torch.device("cpu"))
    arena.bytes.view(torch.float32).fill_(float("nan"))
    backend = InKernelPages()
    assert backend.accepts.kernel_page(kind) == KERNEL
    engine = Engine(plan, TorchRunner(plan, TorchModel(model, arena, (backend, REFERENCE)), arena))
    streams = [engine.submit(Request(str(i), prompt, OUTPUTS)) for i, prompt in enumerate(expected.prompts)]
    engine.drain()
    assert [stream.tokens().tolist() for stream in streams] == expected.tokens
    assert backend.calls > 0
    assert {part.tensor.shape[1] for parts in arena.layers.values() for part in parts.values()} == {128}


def test_the_first_that_accepts_a_kind_gets_it() -> None:
    """Windows go to the reference here, full attention to the backend that comes first."""
    backend = InKernelPages()
    (stage,) = plan_of("gemma2", batch_tokens=32, pages={"": 128}).stages
    chosen = choose(stage, "cpu", (backend, REFERENCE))
    told = {plan.kind.kind: one.describe() for plan, one in zip(stage.kinds, chosen, strict=True)}
    assert told["full"] == "full on kernel pages"
    assert told["window"].endswith(" on reference (kernel pages does not know window)")


@pytest.mark.parametrize(
    ("name", "pages", "device", "reason"),
    [
        ("gemma2", 128, "cpu", "kernel pages does not know window"),
        ("llama", 128, "cuda", "kernel pages does not run on cuda"),
        ("llama", 48, "cpu", "needs pages that kernel pages of 64 tokens divide, not 48"),
    ],
)
def test_what_nobody_accepts_is_refused_with_what_each_says(name: str, pages: int, device: str, reason: str) -> None:
    (stage,) = plan_of(name, batch_tokens=32, pages={"": pages}).stages
    with pytest.raises(PlanError, match=reason):
        choose(stage, device, (InKernelPages(),))


def test_a_backend_without_alibi_is_refused_for_layers_that_have_it() -> None:
    """The reference has it for kinds that see every token, and for no others."""
    (full,) = plan_of("llama", batch_tokens=32).stages[0].kinds
    (window,) = plan_of("mistral", batch_tokens=32).stages[0].kinds
    without = "does not take from the scores of full by distance (ALiBi)"
    assert InKernelPages.accepts.refusal(full, "cpu", has_slopes=True) == without
    assert REFERENCE.accepts.refusal(full, "cpu", has_slopes=True) == ""
    assert REFERENCE.accepts.refusal(window, "cpu", has_slopes=True) != ""


def test_a_dtype_that_a_backend_does_not_read_is_named() -> None:
    (kind,) = plan_of("llama", batch_tokens=32).stages[0].kinds
    accepts = Accepts(frozenset({"full"}), dtypes=frozenset({"bf16"}))
    assert accepts.refusal(kind, "cpu") == "does not read fp32"
