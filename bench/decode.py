"""A whole decode step on this GPU: transformers' model code on Quire's pages and kernels, recorded in a CUDA graph.

    python bench/decode.py [--compile] [--json FILE]

Random weights; every row has as many tokens, in pages in random order. A step takes a token for each row, writes its
keys and values, attends, and finds the likeliest token. There is no scheduler here: figures are graph replays. The
floor is the time to read weights, keys and values at the speed that a plain read reaches on this GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from transformers import AttentionInterface, LlamaConfig

from kernels import DEVICE, microseconds, read_words, show
from quire.core.step import Step, TableView
from quire.models.read import read_config
from quire.plan.make import make_plan
from quire.plan.plan import StagePlan
from quire.plan.settings import Budget, Settings
from quire.worker.arena import Arena
from quire.worker.attention import Scores
from quire.worker.batch import KindBatch, make_batch
from quire.worker.kernels.backend import Triton
from quire.worker.model import NAME, build

PAGE = 16
TRITON = Triton()
SHAPES: dict[str, dict[str, Any]] = {
    "Llama-3.2-1B": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True,
    },
    "Llama-3.1-8B": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
    },
}  # fmt: skip
CASES = (("Llama-3.2-1B", 256, 1_024), ("Llama-3.1-8B", 128, 1_024), ("Llama-3.1-8B", 256, 1_024))
running: list[tuple[KindBatch, Arena]] = []


@torch.library.custom_op("quire_bench::attend", mutates_args=())
def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int, scale: float) -> torch.Tensor:
    """One node for the compiler, which need not know where keys and values are kept."""
    step, arena = running[-1]
    parts = arena.layers[layer]
    return TRITON.attend(step, (parts["key"], parts["value"]), query, (key, value), Scores(scale))


@attend.register_fake
def _(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int, scale: float) -> torch.Tensor:
    del key, value, layer, scale
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)


def attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _mask: object, scaling: float, **_: object
) -> tuple[torch.Tensor, None]:
    packed, keys, values = (part[0].transpose(0, 1) for part in (query, key, value))
    return attend(packed.contiguous(), keys, values, module.layer_idx, scaling)[None], None


def read_bandwidth() -> float:
    """Bytes per microsecond."""
    words, size = torch.randint(1 << 30, (1 << 29,), dtype=torch.int32, device=DEVICE), 8_192
    sums = torch.empty(len(words) // size, dtype=torch.int32, device=DEVICE)
    return 4 * len(words) / microseconds(lambda: read_words[(len(sums),)](words, sums, size))


def model_of(name: str) -> Any:
    config = LlamaConfig(vocab_size=128_256, max_position_embeddings=131_072, **SHAPES[name])
    with torch.device(DEVICE):
        model = build(config, torch.bfloat16).eval()
    AttentionInterface.register(NAME, attention)
    return model


def weights_read(model: Any) -> int:
    """Of the table of embeddings a step reads its rows alone, unless it is the output's table too."""
    tied = model.config.tie_word_embeddings
    parts = (part for name, part in model.named_parameters() if tied or "embed_tokens" not in name)
    return sum(part.numel() * part.element_size() for part in parts)


def stage_of(config: Any, rows: int, length: int) -> StagePlan:
    fields = {**json.loads(config.to_json_string()), "architectures": ["LlamaForCausalLM"]}
    settings = Settings(max_length=length, max_requests=rows, page_tokens={"": PAGE})
    pages = rows * -(-length // PAGE)
    pool = pages * PAGE * token_bytes(config)
    return make_plan(read_config(fields, "bench"), settings, Budget(pool_bytes=pool)).require_fit().stages[0]


def token_bytes(config: Any) -> int:
    return int(2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim)


def decode_step(stage: StagePlan, rows: int, length: int) -> KindBatch:
    columns, groups = -(-length // PAGE), stage.kinds[0].groups
    pages = np.random.default_rng(0).permutation(rows * groups * columns)
    table = TableView(stage.addresses(0, pages).reshape(rows, groups, columns), 0)
    each, ones = np.arange(rows), np.ones(rows, dtype=np.int64)
    step = Step(0, each, ones * (length - 1), ones, ones.astype(np.bool_), ones, ones.astype(np.int32))
    (batch,) = make_batch(step, stage, (table,), DEVICE, [TRITON.prepare]).kinds
    return batch


def action_of(model: Any, rows: int, length: int) -> Callable[[], torch.Tensor]:
    ids = torch.randint(1_000, (1, rows), device=DEVICE)
    positions, last = torch.full((1, rows), length - 1, device=DEVICE), torch.arange(rows, device=DEVICE)

    @torch.inference_mode()
    def action() -> torch.Tensor:
        out = model(input_ids=ids, position_ids=positions, attention_mask=None, use_cache=False, logits_to_keep=last)
        tokens: torch.Tensor = out.logits[0].argmax(dim=-1)
        return tokens

    return action


def measure(model: Any, rows: int, length: int, bandwidth: float, is_compiled: bool) -> dict[str, object]:
    stage = stage_of(model.config, rows, length)
    arena = Arena(stage, DEVICE)
    for part in arena.bytes.view(torch.bfloat16).split(1 << 28):
        part.normal_()
    running[:] = [(decode_step(stage, rows, length), arena)]
    took = microseconds(action_of(torch.compile(model) if is_compiled else model, rows, length))
    running.clear()
    floor = (weights_read(model) + rows * length * token_bytes(model.config)) / bandwidth
    return {
        "rows × tokens": f"{rows} × {length:,}",
        "step, ms": round(took / 1e3, 2),
        "floor, ms": round(floor / 1e3, 2),
        "floor ÷ step": f"{floor / took:.1%}",
        "tokens/s": f"{rows / took * 1e6:,.0f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="A whole decode step on this GPU.")
    parser.add_argument("--compile", action="store_true", help="let torch.compile fuse what lies between the kernels")
    parser.add_argument("--json", type=Path, help="write the table there as well")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here: a decode step is timed on one")
    bandwidth = read_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, "
          f"compiled: {options.compile}; a plain read reaches {bandwidth / 1e6:.2f} TB/s")  # fmt: skip
    table: list[dict[str, object]] = []
    models: dict[str, Any] = {}
    for name, rows, length in CASES:
        models = {name: models[name] if name in models else model_of(name)}
        table.append({"shape": name, **measure(models[name], rows, length, bandwidth, options.compile)})
        torch.cuda.empty_cache()
    show("decode step", table)
    if options.json:
        options.json.write_text(json.dumps(table, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
