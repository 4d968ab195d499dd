"""Tiny random models, what transformers generates with them one by one, and the same requests on Quire's engine."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quire.build.tiers import attach
from quire.core.drafting import Drafter
from quire.core.dtypes import DType
from quire.core.request import Request
from quire.engine.engine import Engine, Stream
from quire.models.draft_model import with_draft_model
from quire.models.read import read_config
from quire.models.shape import ModelShape
from quire.options.tiers import Tiers
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.sweep import WatchedRunner, spread
from quire.sweep.options.ropes import longrope
from quire.tiers.stack import Stack
from quire.worker.backends.choice import REFERENCE, Backend
from quire.worker.model.drafting import DraftModel, part_of
from quire.worker.model.model import NAME, TorchModel, build
from quire.worker.model.positions import fix_positions
from quire.worker.pages.arena import Arena
from quire.worker.steps.drafting import DeferredDrafter
from quire.worker.support.tiny import WINDOW, tiny_config

PAGE = 16
PAGES: Mapping[str, int] = MappingProxyType({"": PAGE})
LENGTHS = (1, 2, 5, 16, 17, 31, 33, 3 * WINDOW + 1)
OUTPUTS = 18
"""More than a page, so that every request outgrows what it was let in with."""
LONGEST = 96
"""Tokens of a request."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3 longrope": ("phi3", {"original_max_position_embeddings": 24, "rope_parameters": longrope(8, 24)}),
    "phimoe longrope": ("phimoe", {"rope_parameters": longrope(8, 24, short_mscale=1.0, long_mscale=1.3)}),
    "llama4_text scaled": ("llama4_text", {"floor_scale": 7, "attn_scale": 0.9}),
}
"""Types with options of their own, by the names that stand for them here."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A model with transformers' own attention, prompts, and what it yields for each alone."""

    config: Any
    model: Any
    prompts: list[np.ndarray]
    tokens: list[list[int]]
    logits: list[torch.Tensor]
    """(output, vocabulary) for each prompt."""


def config_of(name: str) -> Any:
    own, options = VARIANTS.get(name, (name, {}))
    config = tiny_config(own)
    return type(config)(**{**config.to_dict(), **copy.deepcopy(options)})


@cache
def reference(name: str) -> Reference:
    config = config_of(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = spread(build(config, torch.float32)).eval()
    model.set_attn_implementation("eager")
    random = np.random.default_rng(0)
    prompts = [random.integers(3, 97, length).astype(np.int32) for length in LENGTHS]
    generate = _padded if shape_of(name, config).ropes else _generate
    generated = [generate(model, prompt) for prompt in prompts]
    return Reference(config, model, prompts, [one[0] for one in generated], [one[1] for one in generated])


def _generate(model: Any, prompt: np.ndarray) -> tuple[list[int], torch.Tensor]:
    model.generation_config.eos_token_id = None
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=OUTPUTS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits).float()


@torch.inference_mode()
def _padded(model: Any, prompt: np.ndarray) -> tuple[list[int], torch.Tensor]:
    """One call for each token, as long as the longest request, so that rotary frequencies are those of that length."""
    call, logits = torch.zeros(1, LONGEST, dtype=torch.int64), []
    call[0, : len(prompt)] = torch.from_numpy(prompt.astype(np.int64))
    for end in range(len(prompt), len(prompt) + OUTPUTS):
        logits.append(model(input_ids=call, use_cache=False).logits[0, end - 1].float())
        call[0, end] = logits[-1].argmax()
    return call[0, len(prompt) : len(prompt) + OUTPUTS].tolist(), torch.stack(logits)


def plan_of(
    name: str,
    *,
    batch_tokens: int,
    sheets: int | None = None,
    max_requests: int = 8,
    pages: Mapping[str, int] = PAGES,
    lookahead: int = 0,
    draft: str | None = None,
    kv_dtype: DType = DType.FP32,
    ranks: int = 1,
) -> Plan:
    shape = shape_of(name, reference(name).config)
    shape = shape if draft is None else with_draft_model(shape, shape_of(draft, draft_config(draft, name)))
    settings = Settings(
        max_length=LONGEST,
        max_requests=max_requests,
        batch_tokens=batch_tokens,
        kv_dtype=kv_dtype,
        page_tokens=pages,
        match_unit_tokens=PAGE,
        speculative_tokens=lookahead,
        tensor_parallel=ranks,
    )
    budget = Budget(pool_bytes=8 << 20) if sheets is None else Budget(sheets=(sheets,))
    return make_plan(shape, settings, budget)


def shape_of(name: str, config: Any) -> ModelShape:
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[VARIANTS.get(name, (name,))[0]]
    return read_config({**json.loads(config.to_json_string()), "architectures": [architecture]}, name)


def draft_config(draft: str, name: str) -> Any:
    """Of a draft model with the vocabulary of the model that it guesses for."""
    config = tiny_config(draft)
    config.vocab_size = reference(name).config.vocab_size
    return config


@cache
def draft_weights(draft: str, name: str) -> Any:
    """The reference itself where both have one name, so that its guesses come true; else other random weights."""
    if draft == name:
        return reference(name).model
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return spread(build(draft_config(draft, name), torch.float32)).eval()


def tight_plan(
    name: str, more_sheets: int, pages: Mapping[str, int] = PAGES, lookahead: int = 0, draft: str | None = None
) -> Plan:
    """A few sheets more than the longest request needs, none of them for leases."""

    def plan(sheets: int) -> Plan:
        return plan_of(name, batch_tokens=32, sheets=sheets, pages=pages, lookahead=lookahead, draft=draft)

    fewest = next(sheets for sheets in range(1, 4096) if plan(sheets).fits)
    tight = plan(fewest + more_sheets)
    return replace(tight, stages=tuple(replace(stage, lease_sheets=0) for stage in tight.stages))


class Service:
    """An engine on a copy of the reference, with every byte of its memory spoilt before the start."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        overlap: int = 2,
        drafter: Drafter | None = None,
        backends: Sequence[Backend] = (REFERENCE,),
        draft: str | None = None,
        tiers: Tiers | None = None,
        weights: str = "tiny",
    ) -> None:
        """`draft`: a draft model makes the guesses; the plan has its layers too. `tiers`: the runner copies from and to
        them, and `stack` is for an engine. `weights`: what records are named after."""
        self.reference = reference(name)
        stage, device = plan.require_fit().stages[0], torch.device("cpu")
        arena = Arena(stage, device)
        arena.bytes.view(torch.float32).fill_(float("nan"))
        own = len(shape_of(name, self.reference.config).layers)

        def attached(weights: Any, arena: Arena) -> TorchModel:
            own = copy.deepcopy(weights)
            own.set_attn_implementation(NAME)
            fix_positions(own, plan.max_length)
            return TorchModel(own, arena, backends)

        model = attached(self.reference.model, Arena(part_of(stage, 0, own), device, arena.bytes))
        guesser = None
        if draft is not None:
            rest = Arena(part_of(stage, own, stage.layers - own), device, arena.bytes)
            guesser, drafter = DraftModel(attached(draft_weights(draft, name), rest)), DeferredDrafter()
        self._stack, staging = (None, None) if tiers is None else attach(plan, arena, tiers, weights)
        self.runner = WatchedRunner(plan, model, arena, guesser, staging=staging)
        self.engine = Engine(plan, self.runner, drafter=drafter, overlap=overlap)

    @property
    def stack(self) -> Stack:
        assert self._stack is not None, "a service without tiers"
        return self._stack

    def send(self, prompts: list[np.ndarray], outputs: int, label: str = "", scope: str = "") -> list[Stream]:
        return [
            self.engine.submit(Request(f"{label}{place}", prompt, outputs, scope=scope))
            for place, prompt in enumerate(prompts)
        ]

    def check(self, label: str = "") -> None:
        """Sends the reference's prompts together: tokens are equal, logits near."""
        streams = self.send(self.reference.prompts, OUTPUTS, label)
        self.engine.drain()
        for place, (prompt, stream) in enumerate(zip(self.reference.prompts, streams, strict=True)):
            assert stream.tokens().tolist() == self.reference.tokens[place], f"prompt of {len(prompt)}"
            mine = torch.stack([self.runner.logits[f"{label}{place}", len(prompt) + i] for i in range(OUTPUTS)])
            assert (mine - self.reference.logits[place]).abs().max() < 1e-4, f"prompt of {len(prompt)}"
