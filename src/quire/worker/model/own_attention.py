"""Models of transformers with attention code of their own: their layers ask the attention interface instead.

    BLOOM, MPT               scores lose with distance (ALiBi): layers pass the slopes
    Falcon                   keys and values are kept once for all queries that share them, not repeated
    GPT-Neo                  a window in every second layer, where transformers keeps a mask of all pairs of positions
    GPT-J, CodeGen, XGLM     nothing else

Only layers of a model that is built here change, and only while its attention is one of Quire's: the same model with
attention `eager` runs transformers' own code, which results are compared with.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from quire.core.errors import ModelError
from quire.worker.mixers.packed import bind_names

OURS = "quire"
"""Names of Quire's attention functions begin with this."""
TABLES = {
    "falcon": "FALCON_ATTENTION_CLASSES",
    "gpt_neo": "GPT_NEO_ATTENTION_CLASSES",
    "gptj": "GPTJ_ATTENTION_CLASSES",
}
"""By type: its module's table of attention classes, which knows transformers' names alone."""


def stated_type(folder: Path) -> str:
    """A checkpoint's model type; empty where its configuration cannot be read, which loading reports."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(config.get("model_type", "")) if isinstance(config, dict) else ""


def allow(model_type: str, name: str) -> None:
    """Lets a model of this type be built with attention `name`."""
    if model_type in TABLES:
        module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
        classes = getattr(module, TABLES[model_type])
        classes.setdefault(name, classes["eager"])


def adapt(model: Any) -> None:
    """Connects the layers of a model that was just built to the attention interface."""
    own = [module for module in model.modules() if type(module).__name__ in ADAPTED]
    for module in own:
        ADAPTED[type(module).__name__](module, model.config)
    if own:
        model._can_set_attn_implementation = _can_set


def has_slopes(model: Any) -> bool:
    """Whether scores lose with distance."""
    return any(hasattr(module, "quire_slopes") for module in model.modules())


def _can_set() -> bool:
    return True


def _is_ours(module: Any) -> bool:
    return bool(module.config._attn_implementation.startswith(OURS))


def _attend(
    module: Any, parts: tuple[torch.Tensor, ...], mask: torch.Tensor | None, scaling: float, **options: Any
) -> torch.Tensor:
    """Queries, keys and values (1, head, token, width) in, (1, token, head, width) out."""
    query, key, value = parts
    function = ALL_ATTENTION_FUNCTIONS[module.config._attn_implementation]
    out: torch.Tensor = function(
        module, query.to(value.dtype), key.to(value.dtype), value, mask, scaling=scaling, **options
    )[0]
    return out


def _become(module: Any, first: type) -> None:
    own: Any = type(module)
    module.__class__ = _joined(first, own)


@cache
def _joined(first: type, second: type) -> type:
    """A class of the second one's name, whose methods come from the first one where it has them."""
    return type(second.__name__, (first, second), {})


class _OwnScores:
    """GPT-J, CodeGen, GPT-Neo, the Japanese GPT-NeoX: one method has all of attention."""

    quire_scaling: float
    quire_has_mask: bool

    def _attn(self, query: Any, key: Any, value: Any, attention_mask: Any = None) -> tuple[torch.Tensor, Any]:
        if not _is_ours(self):
            found: tuple[torch.Tensor, Any] = super()._attn(query, key, value, attention_mask)  # type: ignore[misc]
            return found
        mask = attention_mask if self.quire_has_mask else None
        return _attend(self, (query, key, value), mask, self.quire_scaling).transpose(1, 2), None


def _scored(scaling: Callable[[Any], float]) -> Callable[[Any, Any], None]:
    def connect(module: Any, config: Any) -> None:
        module.config, module.quire_scaling, module.quire_has_mask = config, scaling(module), True
        _become(module, _OwnScores)

    return connect


class _PairMask:
    """GPT-Neo's masks of all pairs of positions, made when transformers' own attention asks for one."""

    config: Any
    attention_type: str

    @property
    def bias(self) -> torch.Tensor:
        positions = self.config.max_position_embeddings
        seen = torch.ones((positions, positions), dtype=torch.bool).tril()
        if self.attention_type == "local":
            seen = seen & ~seen.tril(-self.config.window_size)
        return seen[None, None]


def _connect_neo(module: Any, config: Any) -> None:
    _scored(lambda _module: 1.0)(module, config)
    module.layer_idx, module.quire_has_mask = module.layer_id, module.attention_type != "local"
    del module.bias
    _become(module, _PairMask)


class _Bloom:
    """Its model takes no positions: slopes are all that it knows of them."""

    def forward(self: Any, hidden_states: Any, residual: Any, alibi: Any, attention_mask: Any, **options: Any) -> Any:
        if not _is_ours(self):
            return super().forward(hidden_states, residual, alibi, attention_mask, **options)  # type: ignore[misc]
        parts = self._reshape(self.query_key_value(hidden_states))
        out = _attend(self, parts, attention_mask, self.inv_norm_factor, alibi=self.quire_slopes)
        return self.dense(out.flatten(2)) + residual, None


def _connect_bloom(module: Any, config: Any) -> None:
    bloom = importlib.import_module("transformers.models.bloom.modeling_bloom")
    made = bloom.build_alibi_tensor(torch.ones(1, 2), module.num_heads, torch.float32)
    _give_slopes(module, made, config)
    _become(module, _Bloom)


def _give_slopes(module: Any, made: torch.Tensor, config: Any) -> None:
    """From (head, 1, 2): what scores of two tokens are given."""
    module.config = config
    module.register_buffer("quire_slopes", (made[:, 0, 1] - made[:, 0, 0]).float().contiguous(), persistent=False)


class _Mpt:
    def forward(
        self: Any, hidden_states: Any, position_bias: Any, past_key_values: Any = None, attention_mask: Any = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        if not _is_ours(self):
            given = (hidden_states, position_bias, past_key_values, attention_mask)
            return super().forward(*given, **options)  # type: ignore[misc]
        mixed = self.Wqkv(hidden_states)
        if self.clip_qkv:
            mixed = mixed.clamp(min=-self.clip_qkv, max=self.clip_qkv)
        parts = [part.unflatten(2, (self.n_heads, self.head_dim)).transpose(1, 2) for part in mixed.chunk(3, dim=2)]
        out = _attend(self, tuple(parts), attention_mask, self.softmax_scale, alibi=self.quire_slopes)
        return self.out_proj(out.flatten(2)), None


def _connect_mpt(module: Any, config: Any) -> None:
    mpt = importlib.import_module("transformers.models.mpt.modeling_mpt")
    _give_slopes(module, mpt.build_mpt_alibi_tensor(module.n_heads, 2), config)
    _become(module, _Mpt)


class _MaskedMpt:
    """Its model asks for a mask where there is none, and converts it."""

    def forward(self: Any, *given: Any, **options: Any) -> Any:
        own: Any = type(self)
        return _with_masks(own)(self, *given, **options)


@cache
def _with_masks(model: type) -> Any:
    own = inspect.unwrap(model.__mro__[2].forward)  # type: ignore[attr-defined]

    def create_mask(*given: Any, **options: Any) -> Any:
        made = own.__globals__["create_causal_mask"](*given, **options)
        return _NoMask() if made is None else made

    return bind_names(own, {"create_causal_mask": create_mask})


class _NoMask:
    def to(self, _dtype: torch.dtype) -> None:
        return None


def _connect_mpt_model(module: Any, _config: Any) -> None:
    _become(module, _MaskedMpt)


class _Falcon:
    def forward(
        self: Any, hidden_states: Any, alibi: Any, attention_mask: Any, position_embeddings: Any = None, **options: Any
    ) -> Any:
        if not _is_ours(self):
            options["position_embeddings"] = position_embeddings
            return super().forward(hidden_states, alibi, attention_mask, **options)  # type: ignore[misc]
        falcon = importlib.import_module("transformers.models.falcon.modeling_falcon")
        query, key, value = self._parts(self.query_key_value(hidden_states))
        query, key = falcon.apply_rotary_pos_emb(query, key, *position_embeddings)
        out = _attend(self, (query, key, value), attention_mask, self.inv_norm_factor)
        return self.dense(out.flatten(2)), None

    def _parts(self: Any, fused: Any) -> tuple[torch.Tensor, ...]:
        """(1, head, token, width). In the newer layout each group of queries is followed by its key and its value."""
        if self.new_decoder_architecture:
            grouped = fused.unflatten(2, (self.num_kv_heads, -1, self.head_dim))
            parts = (grouped[..., :-2, :].flatten(2, 3), grouped[..., -2, :], grouped[..., -1, :])
        else:
            parts = self._split_heads(fused)
        return tuple(part.transpose(1, 2) for part in parts)


def _connect_falcon(module: Any, config: Any) -> None:
    if config.alibi:
        raise ModelError("FalconForCausalLM with alibi rounds what it adds to scores to 8 bits: it does not run here")
    _become(module, _Falcon)


class _Xglm:
    def forward(self: Any, hidden_states: Any, key_value_states: Any = None, past_key_values: Any = None,
                attention_mask: Any = None, **options: Any) -> Any:  # fmt: skip
        if not _is_ours(self):
            given = (hidden_states, key_value_states, past_key_values, attention_mask)
            return super().forward(*given, **options)  # type: ignore[misc]
        projections = (self.q_proj, self.k_proj, self.v_proj)
        parts = [one(hidden_states).unflatten(2, (-1, self.head_dim)).transpose(1, 2) for one in projections]
        return self.out_proj(_attend(self, tuple(parts), attention_mask, self.scaling).flatten(2)), None


def _connect_xglm(module: Any, config: Any) -> None:
    module.config = config
    _become(module, _Xglm)


def _number_blocks(module: Any, _config: Any) -> None:
    """RecurrentGemma's recurrent blocks do not know which layer they are in."""
    for layer, block in enumerate(module.layers):
        block.temporal_block.layer_idx = layer


class _SharedAttention:
    """Zamba2: several layers share one block; each call names the layer whose keys and values it reads."""

    def forward(self: Any, hidden_states: Any, layer_idx: int, *given: Any, **options: Any) -> Any:
        self.layer_idx = layer_idx
        return super().forward(hidden_states, layer_idx, *given, **options)  # type: ignore[misc]


def _connect_shared(module: Any, _config: Any) -> None:
    _become(module, _SharedAttention)


def shares_blocks(model: Any) -> bool:
    """Whether layers share attention blocks. What is compiled knows its layer once for all, so these are not."""
    return any(isinstance(module, _SharedAttention) for module in model.modules())


ADAPTED: dict[str, Callable[[Any, Any], None]] = {
    "BloomAttention": _connect_bloom,
    "CodeGenAttention": _scored(lambda module: 1 / module.scale_attn),
    "FalconAttention": _connect_falcon,
    "GPTJAttention": _scored(lambda module: 1 / module.scale_attn),
    "GPTNeoSelfAttention": _connect_neo,
    "GPTNeoXJapaneseAttention": _scored(lambda module: 1 / module.norm_factor),
    "MptAttention": _connect_mpt,
    "MptModel": _connect_mpt_model,
    "RecurrentGemmaModel": _number_blocks,
    "XGLMAttention": _connect_xglm,
    "Zamba2Attention": _connect_shared,
}
"""By class: how a layer of it is connected."""
