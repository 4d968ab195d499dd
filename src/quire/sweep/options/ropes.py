"""Rotary positions of every type, on both sides of the lengths that they name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from quire.sweep.case import Case

ORIGINAL, LONG = 40, 160
"""Tokens that models were first trained with, and the longest requests of a case."""
Rope = dict[str, Any]


def rope(sort: str, **more: Any) -> Rope:
    return {"rope_type": sort, "rope_theta": 10000.0, **more}


def longrope(pairs: int, original: int = ORIGINAL, **more: Any) -> Rope:
    """One factor for each pair of numbers that are turned."""
    short, long = [1.0 + 0.05 * pair for pair in range(pairs)], [1.5 + 0.7 * pair for pair in range(pairs)]
    return rope(
        "longrope", short_factor=short, long_factor=long, original_max_position_embeddings=original, factor=4.0, **more
    )


STRETCHED = (
    "llama", "mistral", "qwen3", "stablelm", "phi", "granite", "falcon_h1", "deepseek_v3", "lfm2", "granite_swa",
)  # fmt: skip
LINEAR = rope("linear", factor=3.0)
DYNAMIC = rope("dynamic", factor=4.0)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=ORIGINAL)
LLAMA3 = rope(
    "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=ORIGINAL
)
PROPORTIONAL = rope("proportional", partial_rotary_factor=0.5)
MSCALES: Rope = {"short_mscale": 1.1, "long_mscale": 1.3}
LLAMA4: dict[str, Any] = {"attn_temperature_tuning": True, "attn_scale": 0.9}


def _all_types() -> Iterator[Case]:
    """Types whose layers all have the same positions; in some of them only a part of each head is turned."""
    yield from _each("linear", LINEAR, ("llama", "qwen2", "gemma2", "gpt_neox", "starcoder2", "granitemoe"))
    for name in STRETCHED:
        yield Case(name, "dynamic rope, stretched", {"rope_parameters": DYNAMIC, "max_position_embeddings": ORIGINAL})
    yield Case("llama", "dynamic rope within its length", {"rope_parameters": DYNAMIC, "max_position_embeddings": LONG})
    yield from _each("yarn", YARN, ("llama", "qwen3", "qwen2_moe", "glm4", "mixtral", "bamba", "gpt_oss", "exaone4"))
    yield from _each("llama3", LLAMA3, ("llama", "granite", "smollm3", "apertus", "qwen3_next"))
    yield from _each("proportional", PROPORTIONAL, ("llama", "olmo2"))


def _each(label: str, given: Rope, names: Sequence[str]) -> Iterator[Case]:
    for name in names:
        yield Case(name, f"{label} rope", {"rope_parameters": given}, is_quick=(name, label) == ("llama", "llama3"))


def _long() -> Iterator[Case]:
    for name, pairs in (("llama", 8), ("mistral", 8), ("qwen2", 8), ("seed_oss", 8), ("olmoe", 8), ("deepseek_v3", 4)):
        yield Case(name, "longrope, long", {"rope_parameters": longrope(pairs)})
    yield Case("llama", "longrope, short", {"rope_parameters": longrope(8, LONG)})
    yield Case("qwen3", "longrope on a page's border", {"rope_parameters": longrope(8, 48)})
    yield Case("glm", "longrope of half a head", {"rope_parameters": longrope(4, partial_rotary_factor=0.5)})
    yield Case("phi3", "longrope, long", _phi3(longrope(8)), is_quick=True)
    yield Case("phi3", "longrope, short", _phi3(longrope(8, LONG)))
    yield Case("phi3", "longrope of three quarters of a head", _phi3(longrope(6, partial_rotary_factor=0.75)))
    yield Case("phi3", "su", _phi3({**longrope(8), "type": "su"}))
    yield Case("phimoe", "longrope, long", {"rope_parameters": longrope(8, **MSCALES)}, is_quick=True)
    yield Case("phimoe", "longrope, short", {"rope_parameters": longrope(8, LONG, **MSCALES)})


def _phi3(given: Rope) -> dict[str, Any]:
    return {
        "rope_parameters": given,
        "original_max_position_embeddings": given["original_max_position_embeddings"],
        "sliding_window": None,
    }


def _by_layer() -> Iterator[Case]:
    """Types whose full and window layers have positions of their own."""
    plain = rope("default")
    for label, full in (("linear", LINEAR), ("yarn", YARN), ("longrope", longrope(8)), ("llama3", LLAMA3)):
        nested = {"full_attention": full, "sliding_attention": plain}
        yield Case("gemma3_text", f"{label} in full layers", {"rope_parameters": nested}, is_quick=label == "longrope")
    both = {"full_attention": DYNAMIC, "sliding_attention": plain}
    yield Case("gemma3_text", "dynamic in full layers", {"rope_parameters": both, "max_position_embeddings": ORIGINAL})
    yield Case(
        "olmo3", "yarn in full layers", {"rope_parameters": {"full_attention": YARN, "sliding_attention": plain}}
    )
    yield Case("laguna", "longrope in window layers", {
        "rope_parameters": {"full_attention": rope("yarn", factor=2.0, original_max_position_embeddings=ORIGINAL),
                            "sliding_attention": longrope(8)},
    })  # fmt: skip
    yield Case("mellum", "llama3 in full layers", {
        "rope_parameters": {"full_attention": LLAMA3, "sliding_attention": rope("default", rope_theta=500.0)},
    })  # fmt: skip
    yield Case("gemma4_text", "proportional in full layers", {
        "rope_parameters": {"full_attention": PROPORTIONAL, "sliding_attention": plain},
    })  # fmt: skip


def _factors() -> Iterator[Case]:
    """What lengths do to scores beside turning them."""
    original = ORIGINAL
    yarns: dict[str, Rope] = {
        "attention factor": {"attention_factor": 1.7}, "betas": {"beta_fast": 16, "beta_slow": 2},
        "not truncated": {"truncate": False}, "mscale": {"mscale": 1.0, "mscale_all_dim": 0.7},
    }  # fmt: skip
    for label, more in yarns.items():
        yield Case("llama", f"yarn with {label}", {"rope_parameters": {**YARN, **more}})
    for name in ("deepseek_v2", "deepseek_v3"):
        given = {**YARN, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707}
        yield Case(name, "yarn with mscale over all", {"rope_parameters": given}, is_quick=name == "deepseek_v3")
    yield Case("deepseek_v3", "rotary numbers in halves", {"rope_interleave": False})
    yield Case("ministral3", "scaled by position", {
        "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 16},
    })  # fmt: skip
    yield Case("hunyuan_v1_dense", "fixed alpha", {"rope_parameters": rope("dynamic", alpha=100.0, factor=1.0)})
    yield Case("hunyuan_v1_dense", "dynamic rope, stretched", {
        "rope_parameters": DYNAMIC, "max_position_embeddings": original,
    })  # fmt: skip
    for floor in (7, 16, 64):
        yield Case("llama4_text", f"scaled every {floor} tokens", {**LLAMA4, "floor_scale": floor}, is_quick=floor == 7)
    yield Case("llama4_text", "not scaled", {"attn_temperature_tuning": False})
    yield Case("llama4_text", "no rotary layer at all", {**LLAMA4, "floor_scale": 9, "no_rope_layers": [0, 0, 0, 0]})
    yield Case("granitemoe_swa", "a theta by layer", {"layer_rope_theta": [100.0, 10000.0, 500.0, 10000.0]})


CASES = (*_all_types(), *_long(), *_by_layer(), *_factors())
