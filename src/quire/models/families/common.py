"""What nearly every family states in the same words: depth, width, vocabulary, heads, windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.core.errors import ModelError
from quire.core.memory import Memory
from quire.models.blueprint import Block, Blueprint, Weights
from quire.models.fields import MOST_LAYERS, Fields
from quire.models.memories import Heads, full, windowed
from quire.models.weights import norms

WINDOW_WORDS = {"sliding_attention": "window", "full_attention": "full"}


@dataclass(frozen=True, slots=True)
class Trunk:
    """The stem that layers hang on."""

    layers: int
    hidden: int
    vocab: int
    tied: bool
    max_length: int | None

    def blueprint(
        self, blocks: Sequence[Block], *, query_heads: int, intermediate: int, drafts: Sequence[Block] = (),
        final: Weights | None = None, more_embeddings: int = 0, head_bias: int = 0,
    ) -> Blueprint:  # fmt: skip
        return Blueprint(
            tuple(blocks), self.hidden, self.vocab, self.tied, query_heads, intermediate, self.max_length,
            tuple(drafts), norms(self.hidden) if final is None else final, more_embeddings, head_bias,
        )  # fmt: skip


def read_trunk(fields: Fields, *, tied: bool = False, limited: bool = True) -> Trunk:
    layers = fields.integer("num_hidden_layers", "n_layer", "n_layers", "num_layers", maximum=MOST_LAYERS)
    hidden = fields.integer("hidden_size", "d_model", "n_embd", "dim")
    return Trunk(layers, hidden, fields.integer("vocab_size"), read_tied(fields, tied), read_length(fields, limited))


def read_tied(fields: Fields, absent: bool) -> bool:
    for name in ("tie_word_embeddings", "tie_embeddings", "tie_embedding"):
        if fields.raw(name) is not None:
            return fields.flag(name)
    return absent


def read_length(fields: Fields, limited: bool) -> int | None:
    names = ("max_position_embeddings", "model_max_length", "n_positions", "max_seq_len", "seq_length")
    if limited:
        return fields.integer(*names)
    fields.raw(*names)
    return None


def must_divide(whole: int, part: int, whole_name: str, part_name: str, why: str) -> int:
    if whole % part:
        raise ModelError(f"{whole_name} {whole} does not divide by {part_name} {part}: {why}")
    return whole // part


def must_be(fields: Fields, name: str, value: object) -> None:
    """transformers computes it one way, whatever the configuration says."""
    if fields.raw(name) not in (None, value):
        raise fields.wrong(name, fields.raw(name), f"transformers computes it as {value}")


def read_heads(fields: Fields, hidden: int) -> Heads:
    query = fields.integer("num_attention_heads", "n_head", "num_heads")
    default = fields.defaults.get("num_key_value_heads")
    kv = fields.integer("num_key_value_heads", "num_kv_heads", absent=query if default is None else None)
    must_divide(query, kv, "num_attention_heads", "num_key_value_heads", "each K/V head serves equally many queries")
    dim = fields.optional_integer("head_dim", "attention_head_dim")
    if dim is not None:
        return Heads(query, kv, dim, dim)
    if "head_dim" in fields.defaults:
        dim = fields.integer("head_dim")
    else:
        dim = must_divide(hidden, query, "hidden_size", "num_attention_heads", "state head_dim")
    origin = "head_dim" if "head_dim" in fields.defaults else f"hidden_size {hidden} ÷ num_attention_heads {query} ="
    return Heads(query, kv, dim, dim, dim_field=origin)


WindowRule = Callable[[Fields, int], list[str]]


def never(fields: Fields, layers: int) -> list[str]:
    """Every layer sees everything."""
    given = fields.kinds("layer_types", layers, WINDOW_WORDS)
    return given or ["full"] * layers


def always(fields: Fields, layers: int) -> list[str]:
    """Every layer has the window, if there is one."""
    given = fields.kinds("layer_types", layers, WINDOW_WORDS)
    has_window = _states_window(fields)
    return given or ["window" if has_window else "full"] * layers


def _states_window(fields: Fields) -> bool:
    """Null says no; absent leaves it to the family's default."""
    if "sliding_window" in fields.config:
        return fields.optional_integer("sliding_window") is not None
    return "sliding_window" in fields.defaults


def every(period: int) -> WindowRule:
    """Each `period`-th layer is full, the others have the window; the configuration may state another period."""

    def rule(fields: Fields, layers: int) -> list[str]:
        given = fields.kinds("layer_types", layers, WINDOW_WORDS)
        pattern = fields.raw("sliding_window_pattern", "_sliding_window_pattern")
        has_window = _states_window(fields)
        if given is not None:
            return given
        if not has_window:
            return ["full"] * layers
        if isinstance(pattern, str):
            return _spelled(pattern, layers)
        step = fields.integer("sliding_window_pattern", "_sliding_window_pattern", absent=period)
        return ["window" if (layer + 1) % step else "full" for layer in range(layers)]

    return rule


def _spelled(pattern: str, layers: int) -> list[str]:
    words = {"L": "window", "G": "full"}
    if not pattern or set(pattern) - set(words):
        raise ModelError(f"sliding_window_pattern is {pattern!r}: use L for window layers and G for full ones")
    return [words[pattern[layer % len(pattern)]] for layer in range(layers)]


def when_used(rule: Callable[[int, int], bool]) -> WindowRule:
    """`sliding_window` counts only where `use_sliding_window` is true: `rule` says for which layers, given the layer
    and `max_window_layers`. `layer_types` come first."""

    def windows(fields: Fields, layers: int) -> list[str]:
        given = fields.kinds("layer_types", layers, WINDOW_WORDS)
        slides = fields.flag("use_sliding_window")
        fields.raw("sliding_window", "max_window_layers")
        if given is not None or not slides:
            return given or ["full"] * layers
        border = fields.integer("max_window_layers", minimum=0)
        return ["window" if rule(layer, border) else "full" for layer in range(layers)]

    return windows


qwen = when_used(lambda layer, border: layer >= border)
qwen2_moe = when_used(lambda layer, border: layer % 2 == 0 and layer < border)
qwen3_moe = when_used(lambda _layer, _border: True)


def within_length(fields: Fields, layers: int) -> list[str]:
    """A window as long as the model itself is no window."""
    window = fields.optional_integer("sliding_window")
    longest = fields.raw("max_position_embeddings", "model_max_length")
    if window is not None and isinstance(longest, int) and window >= longest:
        fields.notes.append(f"sliding_window {window:,} reaches max_position_embeddings {longest:,}: layers are full")
        return ["full"] * layers
    return always(fields, layers)


def read_window(fields: Fields, layers: int) -> int:
    if "sliding_window" in fields.config and fields.raw("sliding_window") is None:
        raise fields.wrong("sliding_window", None, f"{layers} layers have a window, state how many tokens it spans")
    return fields.integer("sliding_window")


def attention_memories(fields: Fields, kinds: Sequence[str], heads: Heads) -> list[tuple[Memory, ...]]:
    """One memory for each layer, `full` or `window`."""
    window, sinks = None, 0
    if "window" in kinds:
        window = read_window(fields, kinds.count("window"))
        sinks = fields.integer("attention_sink_size", absent=0, minimum=0)
    wide = (full(heads),)
    narrow = wide if window is None else (windowed(heads, window, sinks),)
    return [narrow if kind == "window" else wide for kind in kinds]
