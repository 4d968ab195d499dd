"""Every causal language model of the installed transformers, tiny and random: does it yield the tokens it should?

pass      the tokens of three requests are those that transformers' own forward pass would choose
refused   Quire says by name why it does not run this model
fails     tokens differ, or something broke that nobody foresaw
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quire.core.dtypes import DType
from quire.core.errors import QuireError
from quire.core.request import Request
from quire.core.step import Step
from quire.engine.engine import Engine
from quire.models.read import read_config
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.worker.arena import Arena
from quire.worker.drafting import DraftModel
from quire.worker.model import TorchModel, build
from quire.worker.runner import TorchRunner
from quire.worker.support import check_model
from quire.worker.tiny import tiny_config

PROMPTS = (5, 23, 61)
OUTPUTS = 6
SPREAD = 8
KEPT = ("embed", "wte", "wpe", "A_log", "conv", "router", "sinks")
"""Parameters that stay as they were made."""
TOLERANCE = 1e-3
"""Of the greatest logit. Most types stay within 1e-5; Mamba's own pass in fp32 is 7e-4 away from that in fp64."""


class WatchedRunner(TorchRunner):
    """Remembers the logits that each token of each request was chosen from."""

    def __init__(self, plan: Plan, model: TorchModel, arena: Arena, draft: DraftModel | None = None) -> None:
        super().__init__(plan, model, arena, draft=draft)
        self.logits: dict[tuple[str, int], torch.Tensor] = {}
        """By the request's name and the length of the sequence before the token."""
        self._names: dict[int, str] = {}

    def sample(self, step: Step, logits: torch.Tensor) -> np.ndarray:
        self._names.update((row, request.name) for row, request, _ in step.entered)
        entries, _, ends = step.sampled()
        for row, end, one in zip(step.rows[entries], ends, logits, strict=True):
            self.logits[self._names[int(row)], int(end)] = one.clone()
        return super().sample(step, logits)


@dataclass(frozen=True, slots=True)
class Finding:
    type: str
    verdict: str
    reason: str = ""


def types() -> list[str]:
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def sweep(chosen: list[str]) -> Iterator[Finding]:
    logger: Any = transformers.logging
    logger.set_verbosity_error()
    for name in chosen:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield examine(name)


def examine(name: str) -> Finding:
    try:
        difference = _examined(name)
    except QuireError as error:
        return Finding(name, "refused", short(error))
    except Exception as error:
        return Finding(name, "fails", short(error))
    return Finding(name, "fails", difference) if difference else Finding(name, "pass")


def _examined(name: str) -> str:
    config = tiny_config(name)
    plan = planned(config, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = spread(build(config, torch.float32))
    check_model(model, plan.stages[0])
    return compare(plan, model)


def short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, QuireError) else f"{type(error).__name__}: {text}"


def spread(model: Any) -> Any:
    """Small random matrices leave a token what it was: larger ones make every layer count."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and not any(part in name for part in KEPT):
                parameter.mul_(SPREAD)
    return model


def planned(config: Any, architecture: str) -> Plan:
    fields = {**json.loads(config.to_json_string()), "architectures": [architecture]}
    shape = read_config(fields, config.model_type)
    settings = Settings(max_length=128, max_requests=4, batch_tokens=32, kv_dtype=DType.FP32, match_unit_tokens=16)
    return make_plan(shape, settings, Budget(pool_bytes=8 << 20)).require_fit()


def compare(plan: Plan, model: Any) -> str:
    """What differs, or nothing."""
    reference = copy.deepcopy(model).eval()
    reference.set_attn_implementation("eager")
    arena = Arena(plan.stages[0], torch.device("cpu"))
    arena.bytes.view(torch.float32).fill_(float("nan"))
    runner = WatchedRunner(plan, TorchModel(model, arena), arena)
    engine = Engine(plan, runner)
    random = np.random.default_rng(0)
    prompts = [random.integers(3, 97, length).astype(np.int32) for length in PROMPTS]
    streams = [engine.submit(Request(str(len(prompt)), prompt, OUTPUTS)) for prompt in prompts]
    engine.drain()
    for prompt, stream in zip(prompts, streams, strict=True):
        logits = [runner.logits[stream.request.name, len(prompt) + output] for output in range(OUTPUTS)]
        if (place := first_difference(reference, prompt, stream.tokens(), torch.stack(logits))) is not None:
            return f"token {place} of {OUTPUTS} after a prompt of {len(prompt)} differs"
    return ""


@torch.inference_mode()
def first_difference(reference: Any, prompt: np.ndarray, tokens: np.ndarray, mine: torch.Tensor) -> int | None:
    """One forward pass over all tokens: logits are near, and each token is the best choice after those before it."""
    sequence = torch.from_numpy(np.concatenate([prompt, tokens[:-1]]).astype(np.int64))
    logits = reference(input_ids=sequence[None], use_cache=False).logits[0, len(prompt) - 1 :].float()
    near = TOLERANCE * logits.abs().max()
    chosen = logits.gather(1, torch.from_numpy(tokens.astype(np.int64))[:, None])[:, 0]
    wrong = (logits.max(dim=1).values - chosen > near) | ~((logits - mine).abs().max(dim=1).values <= near)
    return int(wrong.nonzero()[0]) if wrong.any() else None
