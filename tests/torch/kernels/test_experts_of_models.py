"""Models of transformers whose experts and routers run on kernels compute what they did."""

from __future__ import annotations

import copy

import pytest
import torch
from paged_case import DEVICE
from torch import nn
from transformers import GptOssConfig, MixtralConfig, OlmoeConfig, Qwen3MoeConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from quire.worker.model.experts import KernelExperts, KernelRouter, use_experts

SIZES = {"hidden_size": 48, "num_experts_per_tok": 3, "num_hidden_layers": 1}
MODELS = {
    "qwen3_moe": (Qwen3MoeSparseMoeBlock, Qwen3MoeConfig(**SIZES, num_experts=7, moe_intermediate_size=24)),
    "qwen3_moe, not scaled": (
        Qwen3MoeSparseMoeBlock,
        Qwen3MoeConfig(**SIZES, num_experts=7, moe_intermediate_size=24, norm_topk_prob=False),
    ),
    "mixtral": (MixtralSparseMoeBlock, MixtralConfig(**SIZES, num_local_experts=5, intermediate_size=40)),
    "olmoe": (OlmoeSparseMoeBlock, OlmoeConfig(**SIZES, num_experts=12, intermediate_size=24)),
    "gpt_oss": (GptOssMLP, GptOssConfig(**SIZES, num_local_experts=6, intermediate_size=40)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tokens", [2, 21])
def test_a_layer_computes_the_same_on_kernels(name: str, tokens: int) -> None:
    torch.manual_seed(0)
    kind, config = MODELS[name]
    config._experts_implementation = "eager"
    plain: nn.Module = kind(config).to(DEVICE).eval()
    for parameter in plain.parameters():
        nn.init.normal_(parameter, std=0.3)
    on_kernels, given = copy.deepcopy(plain), torch.randn(1, tokens, 48, device=DEVICE)
    assert use_experts(on_kernels) == 2
    for sort in (KernelExperts, KernelRouter):
        assert any(isinstance(module, sort) for module in on_kernels.modules())
    with torch.inference_mode():
        right, found = (module(given) for module in (plain, on_kernels))
    right, found = (one[0] if isinstance(one, tuple) else one for one in (right, found))
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
