"""Models whose layers have attention code of their own are connected without changing that code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from quire.core.errors import ModelError
from quire.worker.model.model import build, load
from quire.worker.model.own_attention import has_slopes
from quire.worker.support.tiny import tiny_config

TYPES = (
    "bloom",
    "codegen",
    "falcon",
    "gpt_neo",
    "gpt_neox_japanese",
    "gptj",
    "mpt",
    "recurrent_gemma",
    "xglm",
    "zamba2",
)
TOKENS = torch.arange(3, 43)[None] * 7 % 97


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TYPES)
@torch.inference_mode()
def test_with_eager_attention_a_connected_model_is_transformers_own(name: str) -> None:
    """Results of the sweep are compared with it: to the last bit it must be what nobody touched."""
    config = tiny_config(name)
    connected = build(config, torch.float32).eval()
    connected.set_attn_implementation("eager")
    untouched = AutoModelForCausalLM.from_config(tiny_config(name), attn_implementation="eager").float().eval()
    untouched.load_state_dict(connected.state_dict())
    given = {"input_ids": TOKENS, "use_cache": False}
    assert torch.equal(connected(**given).logits, untouched(**given).logits)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["bloom", "falcon", "gpt_neo"])
def test_a_checkpoint_of_such_a_model_loads_connected(name: str, tmp_path: Path) -> None:
    """Slopes are made here and are in no checkpoint."""
    built = build(tiny_config(name), torch.float32)
    built.save_pretrained(tmp_path)
    loaded = load(tmp_path, torch.float32)
    assert all(torch.equal(one, loaded.state_dict()[key]) for key, one in built.state_dict().items())
    assert has_slopes(loaded) == has_slopes(built) == (name == "bloom")
    loaded.set_attn_implementation("eager")
    assert loaded.config._attn_implementation == "eager"


def test_falcon_with_alibi_is_refused() -> None:
    """transformers rounds what it adds to bf16: positions beyond 256 are no longer exact."""
    config = type(tiny_config("falcon"))(**{**tiny_config("falcon").to_dict(), "alibi": True})
    with pytest.raises(ModelError, match="with alibi rounds"):
        build(config, torch.float32)
