"""Every family's reader counts the weights of the model that transformers builds, to the last one."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from quire.models.families import dense, sparse
from quire.models.read import read_config
from quire.worker.tiny import tiny_config


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", [family.model_type for family in (*dense.FAMILIES, *sparse.FAMILIES)])
def test_a_tiny_model_weighs_what_its_configuration_says(name: str) -> None:
    """What a checkpoint would hold; tied tensors once."""
    config = tiny_config(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    held = {id(tensor): tensor.numel() for tensor in model.state_dict(keep_vars=True).values()}
    shape = read_config({**json.loads(config.to_json_string()), "dtype": "float32"}, name)
    layers = sum(layer.weight_bytes + layer.replicated_weight_bytes for layer in shape.layers)
    assert layers + shape.embedding_bytes + shape.head_bytes == 4 * sum(held.values())
