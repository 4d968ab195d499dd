"""A model that Quire's memory would change the answers of is refused at load, by name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from command import run_text
from quire.core.errors import ModelError
from quire.core.memory import Memory
from quire.kinds import Keeps
from quire.models.memories import Heads, full, indexed, latent, latent_parts, windowed
from quire.models.shape import Layer, ModelShape
from quire.plan.make import make_plan
from quire.plan.plan import StagePlan
from quire.plan.settings import Budget, Settings
from quire.worker.model.model import build
from quire.worker.support.check_model import check_model
from quire.worker.support.tiny import tiny_config
from tiny_models import plan_of

torch.set_num_threads(1)
PLAIN = full(Heads(4, 2, 16, 16))
INDEXED = indexed(latent_parts(16, 8), 19, 16)


def stage_of(*memories: Memory) -> StagePlan:
    shape = ModelShape("odd", "odd", tuple(Layer((memory,)) for memory in memories), max_length=512)
    return make_plan(shape, Settings(max_length=64), Budget(pool_bytes=1 << 20)).stages[0]


@pytest.mark.parametrize(
    ("name", "memories", "problem"),
    [
        ("llama", [full(Heads(4, 4, 16, 16))] * 4, "layer 0 stores key 2 × 16, value 2 × 16, planned is key 4 × 16"),
        ("llama", [PLAIN] * 3, "layer 3 asks for attention, but nothing is planned for it"),
        ("llama", [PLAIN] * 5, "layer 4 asks for attention 0 times, full is planned"),
        ("mistral", [windowed(Heads(4, 2, 16, 16), 20)] * 4, "layer 0 hides token 20 from token 39"),
        ("mistral", [windowed(Heads(4, 2, 16, 16), 18)] * 4, "layer 0 sees token 17 from token 35"),
        ("mistral", [PLAIN] * 4, "layer 0 hides token 0 from token 1048576"),
        ("olmo_hybrid", [PLAIN] * 4, "layer 0 asks for attention 0 times"),
        ("recurrent_gemma", [PLAIN] * 4, "asks for attention 0 times, full is planned"),
        ("rembert", [PLAIN] * 4, "has attention code of its own"),
        ("diffllama", [full(Heads(4, 2, 16, 32))] * 4, "layer 0 asks for attention 2 times"),
        ("deepseek_v32", [latent(16, 8)] * 4, "layer 0 asks attention for indices, which latent does not take"),
        ("deepseek_v3", [INDEXED] * 4, "layer 0 passes no indices to attention, indexed-19 is planned"),
        ("hrm_text", [full(Heads(4, 4, 16, 16))] * 4, "layer 0 asks for attention 8 times"),
    ],
)  # fmt: skip
def test_what_differs_from_the_plan_is_said(name: str, memories: list[Memory], problem: str) -> None:
    """Sizes, layers, how far a mask reaches, attention that is not the usual one."""
    with pytest.raises(ModelError, match=problem):
        check_model(build(tiny_config(name), torch.float32), stage_of(*memories))


def test_a_layer_that_mixes_tokens_beside_attention_is_found() -> None:
    """Here a convolution before every attention: keys depend on neighbours."""
    model = build(tiny_config("llama"), torch.float32)
    projection = model.model.layers[2].self_attn.k_proj
    projection.register_forward_hook(lambda _module, _inputs, out: out + out.roll(1, dims=1))
    with pytest.raises(ModelError, match="the key of layer 2 depends on neighbours"):
        check_model(model, plan_of("llama", batch_tokens=32).stages[0])


@pytest.mark.parametrize("name", ["qwen3_next", "mamba2", "lfm2", "minimax", "recurrent_gemma"])
def test_states_of_other_sizes_than_planned_are_found(name: str) -> None:
    """A plan with the states of one of two ranks, and a model that was not split. Red if only keys and values were
    compared: a layer would write its state over another's."""
    model = build(tiny_config(name), torch.float32)
    whole, part = (plan_of(name, batch_tokens=32, ranks=ranks).stages[0] for ranks in (1, 2))
    check_model(model, whole)
    kinds = [two if two.kind.keeps is Keeps.STATE else one for one, two in zip(whole.kinds, part.kinds, strict=True)]
    with pytest.raises(ModelError, match=r"numbers for its convolution and [\d,]+ besides, planned for state"):
        check_model(model, replace(whole, kinds=tuple(kinds)))


def test_positions_that_are_counted_instead_of_taken_are_found() -> None:
    """A model that numbers the tokens of each call anew would be wrong from the second chunk on."""
    model = build(tiny_config("llama"), torch.float32)
    rotary = model.model.rotary_emb
    forward = rotary.forward
    rotary.forward = lambda states, position_ids: forward(states, torch.arange(position_ids.shape[1])[None])
    with pytest.raises(ModelError, match="positions are counted instead of taken"):
        check_model(model, plan_of("llama", batch_tokens=32).stages[0])


@pytest.mark.parametrize(
    "name", ["gemma2", "gpt_oss", "llama4_text", "deepseek_v3", "glm_moe_dsa", "falcon_h1", "gemma3n_text"]
)
def test_the_probe_leaves_no_trace(name: str) -> None:
    """Attention, mixers and logits are what they were."""
    model = build(tiny_config(name), torch.float32).eval()
    before = {key for module in model.modules() for key in vars(module)}
    check_model(model, plan_of(name, batch_tokens=32).stages[0])
    assert model.config._attn_implementation == "quire"
    assert {key for module in model.modules() for key in vars(module)} == before


def test_the_sweep_tells_pass_from_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a type, the sum last; progress goes to standard error."""
    out, error = run_text(capsys, "models", "--check", "--only", "qwen3")
    assert out.splitlines()[-1] == "1 pass, 0 refused by name, 0 fail"
    assert error == "1/1 qwen3: pass\n"
    out, _ = run_text(capsys, "models", "--check", "--only", "rembert", "--json")
    (finding,) = json.loads(out)
    assert (finding["type"], finding["verdict"]) == ("rembert", "refused")
    assert "no such family" in finding["reason"]


def test_a_type_that_nobody_has_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    _, error = run_text(capsys, "models", "--check", "--only", "lama", code=2)
    assert "no causal language model of type 'lama'" in error
    _, error = run_text(capsys, "models", "--only", "llama", code=2)
    assert "add --check" in error
