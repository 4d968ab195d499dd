"""Layers in C compute what transformers' do."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import quantised_folders
from quantised_folders import plain_folder
from quire.core.dtypes import DType
from quire.core.events import RequestPreempted
from quire.core.reasons import Why
from quire.core.request import Request
from quire.engine.engine import Engine
from quire.fetch.find import converted
from quire.models.read import read_model
from quire.models.weight_layout import WeightFormat
from quire.native.library import CHOICE, OFF, versions
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.sweep import WatchedRunner
from quire.worker.model.lean import LeanModel
from quire.worker.model.model import TorchModel, load
from quire.worker.model.native_layers import PIECE, NativeModel
from quire.worker.model.positions import fix_positions
from quire.worker.pages.arena import Arena
from quire.worker.weights.expand import expand

torch.set_num_threads(1)
VERSIONS = [version.name for version in versions()]
pytestmark = pytest.mark.skipif(not VERSIONS, reason="Quire was installed without a C compiler")
NAMES = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
WIDE = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "max_position_embeddings": 4096}  # fmt: skip
LENGTHS, OUTPUTS = (1, 2, 17, 40, 90), 20
NEAR = 2e-3
"""Of logits, relative to the greatest."""


@cache
def folders(name: str, weights: str) -> tuple[Path, Path]:
    """Packed, and what that means in fp32."""
    scratch = Path(mkdtemp(prefix="quire-native-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUIRE_CACHE", str(scratch / "cache"))
        patch.setattr(quantised_folders, "LAYERS", 4)  # SmolLM3 rotates nothing in the fourth
        packed = converted(plain_folder(name, **WIDE), weights=weights)
        return packed, expand(packed, scratch / "dense")


class Started:
    """An engine on a packed model, with every byte of its memory spoilt before the start."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        arena, model = Arena(plan.require_fit().stages[0], torch.device("cpu")), load(folder, torch.float32)
        fix_positions(model, plan.max_length)
        self.model = TorchModel(model, arena)
        arena.bytes.view(torch.float32).fill_(float("nan"))
        self.runner = WatchedRunner(plan, self.model, arena)
        self.engine = Engine(plan, self.runner)

    def run(self, prompts: list[np.ndarray], outputs: int, label: str = "") -> list[list[int]]:
        streams = [
            self.engine.submit(Request(f"{label}{place}", prompt, outputs, scope=f"{label}{place}"))
            for place, prompt in enumerate(prompts)
        ]
        self.engine.drain()
        return [stream.tokens().tolist() for stream in streams]

    def logits(self, name: str, prompt: np.ndarray, outputs: int) -> torch.Tensor:
        return torch.stack([self.runner.logits[name, len(prompt) + place] for place in range(outputs)])


def plan_of(folder: Path, longest: int = 128, sheets: int | None = None, **settings: Any) -> Plan:
    shape = read_model(str(folder), weight_format=WeightFormat(DType.FP32, on_cpu=True))
    budget = Budget(pool_bytes=16 << 20) if sheets is None else Budget(sheets=(sheets,))
    own = {"max_requests": 8, "batch_tokens": 32, "page_tokens": {"": 16}, "match_unit_tokens": 16, **settings}
    return make_plan(shape, Settings(max_length=longest, kv_dtype=DType.FP32, **own), budget)


def prompts_of(lengths: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(3, 97, length).astype(np.int32) for length in lengths]


def expected(dense: Path, prompt: np.ndarray, tokens: list[int]) -> torch.Tensor:
    """Logits of transformers' model, from which each of the tokens was chosen."""
    model = AutoModelForCausalLM.from_pretrained(dense, attn_implementation="eager").eval()
    ids = torch.from_numpy(np.append(prompt, tokens[:-1]).astype(np.int64))[None]
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=ids).logits[0, len(prompt) - 1 :]
    return found


def check(started: Started, dense: Path, lengths: tuple[int, ...], outputs: int, near: float) -> None:
    prompts = prompts_of(lengths)
    answers = started.run(prompts, outputs)
    for place, (prompt, tokens) in enumerate(zip(prompts, answers, strict=True)):
        right, found = expected(dense, prompt, tokens), started.logits(str(place), prompt, outputs)
        assert (found - right).abs().max() <= near * right.abs().max(), f"prompt of {len(prompt)}"


@pytest.mark.parametrize("name", NAMES)
def test_requests_of_many_lengths_get_the_logits_of_transformers(name: str) -> None:
    """Together and in chunks of 7 tokens, on memory that was never written; biases, windows, norms of heads and layers
    without rotation among them."""
    packed, dense = folders(name, "int8")
    started = Started(packed, plan_of(packed, batch_tokens=7))
    assert isinstance(started.model.lean, NativeModel)
    check(started, dense, LENGTHS, OUTPUTS, NEAR)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_set_of_instructions_does(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, version)
    for weights in ("int8", "int4"):
        packed, dense = folders("qwen3", weights)
        started = Started(packed, plan_of(packed))
        assert isinstance(started.model.lean, NativeModel)
        assert started.model.describe_products() == (f"packed weights in C with {version}, whole layers",)
        check(started, dense, LENGTHS, OUTPUTS, NEAR)


def test_rows_longer_than_a_piece_of_attention_are_joined() -> None:
    packed, dense = folders("llama", "int8")
    started = Started(packed, plan_of(packed, longest=4 * PIECE, batch_tokens=256))
    check(started, dense, (PIECE - 3, 3 * PIECE - 2, 5), 6, NEAR)


def test_rows_that_make_room_for_others_continue_as_if_they_had_not() -> None:
    packed, dense = folders("llama", "int8")
    fewest = next(sheets for sheets in range(1, 4096) if plan_of(packed, sheets=sheets).fits)
    started = Started(packed, plan_of(packed, sheets=fewest + 6))
    started.engine.scheduler.admission.typical_output = 1.0  # so that more are let in than will fit to their ends
    check(started, dense, (10, 9, 8, 7), 100, NEAR)
    assert started.engine.counters.events[RequestPreempted, Why.NEEDS_PAGES] > 0


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_row_does_not_depend_on_the_others_of_a_decode_step(weights: str, threads: int) -> None:
    """Bit for bit: prompts of one token, so that every step decodes."""
    packed, _ = folders("qwen3", weights)
    prompts = prompts_of((1,) * 6)
    torch.set_num_threads(threads)
    try:
        started = Started(packed, plan_of(packed))
        together = started.run(prompts, OUTPUTS, "together ")
        for place, prompt in enumerate(prompts):
            assert started.run([prompt], OUTPUTS, f"alone {place} ") == [together[place]]
            alone = started.logits(f"alone {place} 0", prompt, OUTPUTS)
            assert alone.equal(started.logits(f"together {place}", prompt, OUTPUTS))
    finally:
        torch.set_num_threads(1)


def test_heads_of_other_widths_stay_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CACHE", mkdtemp(prefix="quire-native-"))
    packed = converted(plain_folder("llama"), weights="int8")
    started = Started(packed, plan_of(packed))
    assert type(started.model.lean) is LeanModel
    assert started.model.describe_products()[0].endswith("products alone")


def test_without_the_library_torch_computes_them_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(CHOICE, OFF)
    packed, dense = folders("llama", "int8")
    started = Started(packed, plan_of(packed))
    assert type(started.model.lean) is LeanModel
    assert started.model.describe_products() == ("packed weights by torch, not in C: QUIRE_NATIVE is off",)
    assert "multiplied by torch, which is slower than Quire's library in C: QUIRE_NATIVE is off" in caplog.text
    check(started, dense, LENGTHS, OUTPUTS, 0.1)


def test_layers_that_compute_something_else_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are compared when a model is loaded, in a prompt and in a decode step."""
    packed, dense = folders("llama", "int8")
    run = NativeModel._run

    def wrong(self: NativeModel, step: Any, begin: int, end: int) -> None:
        if begin == 0 and end > 3:  # a decode step
            step.rows = 0
        run(self, step, begin, end)

    monkeypatch.setattr(NativeModel, "_run", wrong)
    with caplog.at_level(logging.WARNING):
        started = Started(packed, plan_of(packed))
    assert type(started.model.lean) is LeanModel
    assert "off by" in caplog.text
    monkeypatch.undo()
    check(started, dense, LENGTHS, 4, NEAR)
