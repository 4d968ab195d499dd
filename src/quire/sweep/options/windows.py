"""Windows, chunks and indexes that divide by nothing, in any mix of layers; real ones, over longer sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quire.sweep.case import Case
from quire.sweep.options.ropes import longrope

FULL, WINDOW, CHUNK = "full_attention", "sliding_attention", "chunked_attention"
SLIDES: dict[str, Any] = {"use_sliding_window": True, "layer_types": None}


def _sizes() -> Iterator[Case]:
    for name, window in (("mistral", 1), ("mistral", 2), ("gemma2", 5), ("mixtral", 17), ("gpt_oss", 33)):
        yield Case(name, f"window of {window}", {"sliding_window": window}, is_quick=(name, window) == ("mistral", 2))
    for name, window in (("phi3", 16), ("starcoder2", 48), ("gemma3_text", 63), ("cohere2", 127), ("ministral", 3)):
        yield Case(name, f"window of {window}", {"sliding_window": window})
    for name, window in (("granite_swa", 7), ("exaone4", 31), ("flint", 18), ("beam", 2), ("afmoe", 47)):
        yield Case(name, f"window of {window}", {"sliding_window": window})
    for chunk in (1, 5, 16, 33):
        yield Case("llama4_text", f"chunks of {chunk}", {"attention_chunk_size": chunk}, is_quick=chunk == 5)
    for name in ("mistral", "mixtral", "starcoder2", "phi3"):
        yield Case(name, "no window", {"sliding_window": None})


def _mixes() -> Iterator[Case]:
    first, last, inner = [FULL, WINDOW, WINDOW, WINDOW], [WINDOW, WINDOW, WINDOW, FULL], [WINDOW, FULL, FULL, WINDOW]
    for name, layers in (
        ("gemma2", first), ("gemma3_text", inner), ("cohere2", last), ("qwen2", inner), ("qwen3", first),
        ("olmo3", last), ("gpt_oss", [WINDOW] * 4), ("exaone4", [FULL] * 4), ("ministral", first), ("vaultgemma", last),
        ("afmoe", inner), ("dots1", first), ("granite_swa", last), ("qwen2_moe", inner), ("laguna", [FULL] * 4),
    ):  # fmt: skip
        letters = "".join(kind[0] for kind in layers)
        yield Case(name, f"layers {letters}", {"layer_types": layers, "sliding_window": 19, "use_sliding_window": True}
                   if "qwen" in name else {"layer_types": layers})  # fmt: skip
    yield Case("llama4_text", "layers fcfc", {"layer_types": [FULL, CHUNK] * 2, "no_rope_layers": [0, 1, 0, 1]})
    yield Case("qwen2", "windows from layer 1", {**SLIDES, "max_window_layers": 1, "sliding_window": 11})
    yield Case("qwen3_moe", "window", {"use_sliding_window": True, "sliding_window": 13}, is_quick=True)
    yield Case("qwen2_moe", "windows in turn", {**SLIDES, "max_window_layers": 3, "sliding_window": 13})
    yield Case("smollm3", "windows", {
        **SLIDES, "sliding_window": 21, "no_rope_layers": [1, 0, 1, 0],
    })  # fmt: skip
    yield Case("smollm3", "no rotary layer", {"no_rope_layers": [0] * 4})
    yield Case(
        "gemma3n_text", "one layer shares", {"num_kv_shared_layers": 1, "layer_types": [WINDOW, FULL, WINDOW, FULL]}
    )
    yield Case("gemma4_text", "two layers share", {"num_kv_shared_layers": 2})
    yield Case("gemma4_text", "layers sssf", {"layer_types": last, "per_layer_config": {"3": {"head_dim": 48}}})


def _indexes() -> Iterator[Case]:
    for top in (1, 5, 512):
        yield Case("deepseek_v32", f"{top} tokens read", {"index_topk": top}, is_quick=top == 5)
    for label, layers in (("each layer", "ffff"), ("the first layer", "fsss"), ("two layers", "ffss")):
        words = [{"f": "full", "s": "shared"}[letter] for letter in layers]
        yield Case("glm_moe_dsa", f"an index in {label}", {"indexer_types": words}, is_quick=layers == "fsss")
    yield Case("glm_moe_dsa", "512 tokens read", {"index_topk": 512})
    yield Case("deepseek_v32", "wide index keys", {"index_head_dim": 40, "qk_rope_head_dim": 16})


def _long() -> Iterator[Case]:
    """Lengths that real configurations name, crossed by requests that are as long."""

    def long(name: str, label: str, prompt: int, outputs: int = 30, **options: Any) -> Case:
        return Case(name, label, options, (prompt, 61, 300), outputs, prompt + outputs, batch_tokens=512)

    yield long("llama4_text", "8,192 tokens", 8185, attention_chunk_size=8192, floor_scale=8192, attn_scale=0.9)
    yield long("phi3", "longrope beyond 4,096 tokens", 4090, rope_parameters=longrope(8, 4096),
               original_max_position_embeddings=4096, sliding_window=None)  # fmt: skip
    yield long("mistral", "window of 4,096", 4300, sliding_window=4096)
    yield long("gemma3_text", "window of 1,024", 2100, sliding_window=1024)
    yield long("gpt_oss", "window of 128, yarn of 4,096", 4110, sliding_window=128)
    yield long("qwen3_next", "states over 3,000 tokens", 3000, outputs=90)
    yield long("deepseek_v3", "latents over 4,100 tokens", 4100)
    yield long("lfm2", "states over 3,000 tokens", 3000, outputs=60)
    yield long("deepseek_v32", "an index over 4,100 tokens", 4100, index_topk=512, index_n_heads=16)


CASES = (*_sizes(), *_mixes(), *_indexes(), *_long())
