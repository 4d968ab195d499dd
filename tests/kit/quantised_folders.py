"""Tiny checkpoints in a quantised format, and the same checkpoint dequantised by the rule that packed it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from quire.models.shape import ModelShape
from quire.sweep import spread
from quire.worker.model.model import build, load
from quire.worker.support.tiny import tiny_config

Tensors = dict[str, torch.Tensor]
Pack = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor] | None]
"""A parameter's name and its weight (out, in) → the tensors that a format has instead, and what they mean; None: the
weight is not quantised."""
SHAPES = ("llama", "gemma3_text", "qwen3_moe", "deepseek_v3", "gpt_oss")
TRANSPOSED = ("gate_up_proj", "down_proj")
"""Parameters of gpt_oss that lie (expert, in, out)."""
LAYERS = 2
WIDTHS = {"intermediate_size": 128, "moe_intermediate_size": 64, "q_lora_rank": 32, "kv_lora_rank": 32}
"""All inputs of linear layers are whole groups of 32."""
PROMPT = torch.arange(3, 40) * 7 % 97


@dataclass(frozen=True, slots=True)
class Pair:
    packed: Path
    dense: Path


@cache
def plain_folder(name: str, **options: Any) -> Path:
    """In fp32, saved by transformers under the names of published checkpoints."""
    config = tiny_config(name)
    for field, value in ({"num_hidden_layers": LAYERS} | WIDTHS | options).items():
        if hasattr(config, field):
            setattr(config, field, value)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:LAYERS]
    folder = Path(mkdtemp(prefix=f"quire-{name}-"))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        spread(build(config, torch.float32)).save_pretrained(folder)
    return folder


def write_pair(folder: Path, name: str, pack: Pack, section: dict[str, Any], **options: Any) -> Pair:
    """Both checkpoints of a tiny model, with weights in fp32 where they are not quantised."""
    packed, dense = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for key, weight in load_file(plain_folder(name, **options) / "model.safetensors").items():
        is_transposed = weight.dim() == 3 and key.endswith(TRANSPOSED) and name == "gpt_oss"
        found = pack(key, weight.mT if is_transposed else weight)
        tensors, meant = found or ({key: weight}, weight)
        packed |= {own: tensor.contiguous() for own, tensor in tensors.items()}
        dense[key] = (meant.mT if found and is_transposed else meant).contiguous()
    config = json.loads((plain_folder(name, **options) / "config.json").read_text())
    pair = Pair(folder / "packed", folder / "dense")
    for own, tensors, more in ((pair.packed, packed, {"quantization_config": section}), (pair.dense, dense, {})):
        own.mkdir()
        save_file(tensors, own / "model.safetensors", {"format": "pt"})
        (own / "config.json").write_text(json.dumps({**config, **more}))
    return pair


def is_matrix(key: str, weight: torch.Tensor) -> bool:
    """Weights of linear layers in layers: what formats quantise."""
    others = ("gate.weight", "router", "bias")
    return weight.dim() >= 2 and ".layers." in key and not any(other in key for other in others)


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    model.set_attn_implementation("eager")
    found: torch.Tensor = model(input_ids=PROMPT[None]).logits[0]
    return found


def compare(pair: Pair, tolerance: float = 2e-4) -> Any:
    """The packed model computes what the dense one does, relative to the largest logit; returns it."""
    packed, dense = load(pair.packed, torch.float32), load(pair.dense, torch.float32)
    found, expected = logits(packed), logits(dense)
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()
    assert found.argmax(-1).equal(expected.argmax(-1))
    return packed


def packed_modules(model: Any) -> Iterator[Any]:
    from quire.worker.model.packed_linear import Packed

    return (module for module in model.modules() if isinstance(module, Packed))


def total(shape: ModelShape) -> int:
    layers = sum(layer.weight_bytes + layer.replicated_weight_bytes for layer in shape.layers)
    return layers + shape.embedding_bytes + shape.head_bytes


def allocated(model: Any) -> int:
    """Parameters and buffers of weights; rotary tables and the like are no weights."""
    packed = ("codes", "scales", "minimums", "factors", "order", "panels", "_0", "_1", "tiles")
    tensors = [*model.parameters()]
    tensors += [tensor for name, tensor in model.named_buffers() if name.endswith((*packed, "correction_bias"))]
    return sum({tensor.untyped_storage().data_ptr(): tensor.nbytes for tensor in tensors}.values())
