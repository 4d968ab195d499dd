"""One configuration to be checked: a type of model, options that are not its defaults, and how long its sequences are.

All are tiny and random. They may have 32,768 tokens, and are probed up to there; requests are as long as a case says.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quire.core.dtypes import DType
from quire.models.read import read_config
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.worker.model.model import build
from quire.worker.support.tiny import tiny_config

LONGEST = 32_768
"""Positions that every case is probed at, if its model has them."""
SHORTER = {"gpt_bigcode": 2048, "gpt_neo": 2048}
"""By type: it has a mask of all pairs of positions."""
PROMPTS = (3, 17, 40, 62, 101, 128)
"""Tokens of each. With the outputs none is a multiple of a page, and windows and chunks of tiny models are crossed."""
SPREAD = 8
KEPT = ("embed", "wte", "wpe", "A_log", "conv", "router", "sinks")
"""Parameters that stay as they were made."""


@dataclass(frozen=True, slots=True)
class Case:
    type: str
    label: str = ""
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    prompts: tuple[int, ...] = PROMPTS
    outputs: int = 30
    max_length: int = 160
    """Of the plan that its requests run in: it decides frequencies that follow from lengths."""
    batch_tokens: int = 32
    is_quick: bool = False
    """One of those that every test run checks."""

    @property
    def name(self) -> str:
        return f"{self.type}: {self.label}" if self.label else self.type

    @property
    def config(self) -> Any:
        tiny: Any = tiny_config(self.type)
        made, given = type(tiny), tiny.to_dict()
        is_limited = "max_position_embeddings" in {*given, *tiny.attribute_map}
        long = {"max_position_embeddings": SHORTER.get(self.type, LONGEST)} if is_limited else {}
        own = copy.deepcopy(dict(self.options))  # classes write into what they are given
        return made(**{**given, **long, **own})


def shape_of(config: Any, type_name: str) -> ModelShape:
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[type_name]
    fields = {**json.loads(config.to_json_string()), "architectures": [architecture]}
    return replace(read_config(fields, config.model_type), draft_layers=())  # nothing runs them


def planned(case: Case, shape: ModelShape, lookahead: int = 0, spare_sheets: int | None = None) -> Plan:
    """`spare_sheets`: beyond what all requests need together when they begin; none: a pool that holds them to their
    ends."""
    settings = Settings(
        max_length=case.max_length,
        max_requests=len(case.prompts) + 2,
        batch_tokens=case.batch_tokens,
        kv_dtype=DType.FP32,
        match_unit_tokens=16,
        speculative_tokens=lookahead,
    )
    roomy = make_plan(shape, settings, Budget(pool_bytes=64 << 20)).require_fit()
    if spare_sheets is None:
        return roomy
    kinds = roomy.stages[0].kinds
    fewest = bound.minimum(kinds, case.max_length, lookahead)
    each = np.array([bound.resident(kinds, prompt + 1 + lookahead, lookahead) for prompt in case.prompts])
    together = int(bound.sheets_needed(kinds, list(each.sum(axis=0))))
    return make_plan(shape, settings, Budget(sheets=(max(fewest, together + spare_sheets),))).require_fit()


def random_model(config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return spread(build(config, torch.float32)).eval()


def spread(model: Any) -> Any:
    """Small random matrices leave a token what it was: larger ones make every layer count."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and not any(part in name for part in KEPT):
                parameter.mul_(SPREAD)
    return model
