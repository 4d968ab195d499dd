"""Rotary positions of a GGUF file, as transformers' `rope_parameters`.

in the file                                             here
rope.scaling.type linear, factor                        linear
rope.scaling.type yarn, factor, original length         yarn
rope_freqs: a divisor of each frequency (Llama 3.1)     longrope with the same divisors for short and long texts
rope_factors_short, rope_factors_long (Phi 3)           longrope
"""

from __future__ import annotations

from typing import Any

from quire.worker.weights.gguf_facts import Facts, short

DIVISORS = "rope_freqs.weight"
SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"
_YARN = {
    "yarn_attn_factor": "attention_factor",
    "attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}


def read_rope(facts: Facts) -> dict[str, Any]:
    """Of layers without a window, where these have their own."""
    theta = {"rope_theta": facts.real("rope.freq_base", 10_000.0)}
    sort = facts.raw("rope.scaling.type") or "none"
    if facts.has(LONG) or facts.has(SHORT):
        return _longrope(facts, SHORT, LONG) | theta
    if facts.has(DIVISORS):
        if sort != "none":
            raise facts.wrong("rope.scaling.type", f"{sort} and a tensor {DIVISORS}")
        limit = facts.number("context_length")
        return (
            _longrope(facts, DIVISORS, DIVISORS)
            | theta
            | {
                "attention_factor": 1.0,
                "original_max_position_embeddings": limit,
            }
        )
    if sort == "none":
        factor = facts.real("rope.scale_linear", 1.0)  # of old files
        scaled = {"rope_type": "linear", "factor": factor} if factor != 1.0 else {"rope_type": "default"}
        return scaled | theta
    if sort == "linear":
        return {"rope_type": "linear", "factor": facts.real("rope.scaling.factor")} | theta
    if sort == "yarn":
        return _yarn(facts) | theta
    raise facts.wrong("rope.scaling.type", sort)


def _longrope(facts: Facts, short_name: str, long_name: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": [short(value) for value in facts.values(short_name)],
        "long_factor": [short(value) for value in facts.values(long_name)],
    }
    if facts.raw("rope.scaling.original_context_length") is not None:
        found["original_max_position_embeddings"] = facts.number("rope.scaling.original_context_length")
    if facts.raw("rope.scaling.attn_factor") is not None:
        found["attention_factor"] = facts.real("rope.scaling.attn_factor")
    return found


def _yarn(facts: Facts) -> dict[str, Any]:
    """A file without some of these means transformers' defaults, which are llama.cpp's, too."""
    for key in ("yarn_ext_factor", "yarn_log_multiplier"):
        value = facts.raw(f"rope.scaling.{key}")
        if value is not None and value != (1.0 if key == "yarn_ext_factor" else 0.0):
            raise facts.wrong(f"rope.scaling.{key}", value)
    found: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": facts.real("rope.scaling.factor"),
        "original_max_position_embeddings": facts.number("rope.scaling.original_context_length"),
    }
    stated = {theirs: key for key, theirs in _YARN.items() if facts.raw(f"rope.scaling.{key}") is not None}
    return found | {theirs: facts.real(f"rope.scaling.{key}") for theirs, key in stated.items()}
