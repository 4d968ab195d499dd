"""Runs a model on a few tokens at any positions, and records what each layer passes to its attention.

A token attends only to itself here, so what a layer computes for it depends on the token and its position alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from quire.core.errors import ModelError
from quire.worker.mixers.attach import INDEXED, PAIRED, STATES, flat_norms, flatten
from quire.worker.mixers.packed import NoStates, cache_name

PROBE = "quire_probe"
MASKED_TOKENS = 64
"""Larger masks are not made: the mask function is compared instead."""

Numbers = tuple[int, int]
"""How many numbers a mixer keeps of a row: for its convolution, and besides."""
Mask = Callable[[Any, Any, Any, Any], torch.Tensor]


@dataclass(slots=True)
class AttentionCall:
    """What one layer passed to its attention."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    options: dict[str, object]


@dataclass(slots=True)
class ProbeRecord:
    """What one call of the model computed."""

    positions: torch.Tensor
    places: torch.Tensor
    """Places of the tokens that are recorded."""
    calls: dict[int, list[AttentionCall]] = field(default_factory=dict)
    masks: list[tuple[torch.Tensor, Mask]] = field(default_factory=list)
    states: dict[int, Numbers] = field(default_factory=dict)
    """By layer: what its mixer keeps."""
    logits: torch.Tensor | None = None


class NotedStates(NoStates):
    """An empty cache that counts what a mixer would keep."""

    def __init__(self) -> None:
        self.channels = self.numbers = 0

    def update_conv_state(self, new: torch.Tensor, *_layer: int, **_options: int) -> torch.Tensor:
        self.channels += new.shape[1]
        return new

    def update_recurrent_state(self, new: torch.Tensor, *_layer: int, **_options: int) -> torch.Tensor:
        self.numbers += new[0].numel()
        return new


_record: ContextVar[ProbeRecord | None] = ContextVar("_record", default=None)
"""Of the running probe of this thread: transformers calls a registered function, which has no other place to write
to."""


@contextmanager
def probe_attention(model: Any) -> Iterator[None]:
    """Within this context, attention and known recurrent mixers see each token alone."""
    AttentionInterface.register(PROBE, _attend_to_itself)
    AttentionMaskInterface.register(PROBE, _remember_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(PROBE)
    if model.config._attn_implementation != PROBE:
        raise ModelError(
            f"{type(model).__name__} has attention code of its own: it does not ask the attention interface"
        )
    known, norms = STATES.keys() | PAIRED.keys(), flat_norms(model)
    mixers = [module for module in model.modules() if type(module).__name__ in known]
    for module in mixers:
        module.forward = partial(_each_alone, module)
    for norm in norms:
        flatten(norm)
    indexers = [own for module in model.modules() if (own := _indexer(module)) is not None]
    for indexer in indexers:
        indexer.forward = _select_itself
    try:
        yield
    finally:
        _record.set(None)  # its tensors may lie in a device's memory
        model.set_attn_implementation(before)
        for module in (*mixers, *norms, *indexers):
            del module.forward


def _indexer(module: Any) -> Any:
    return module.indexer if type(module).__name__ in INDEXED else None


def _select_itself(*_given: Any, **_options: Any) -> torch.Tensor:
    """Replaces an indexer's forward: what it selects does not matter where a token attends only to itself."""
    return _running().places


def _each_alone(module: Any, hidden_states: torch.Tensor, **_options: Any) -> Any:
    """Computes every recorded token as the beginning of its own sequence, and no others."""
    record = _running()
    out = torch.zeros_like(hidden_states)
    alone, name = hidden_states[0, record.places][:, None], type(module).__name__
    if name not in PAIRED:
        kept = NotedStates()
        out[0, record.places] = type(module).forward(module, alone, **{cache_name(type(module).forward): kept})[:, 0]
        record.states[module.layer_idx] = kept.channels * (module.conv_kernel_size - 1), kept.numbers
        return out
    record.states[module.layer_idx] = PAIRED[name][2](module)
    positions = record.positions[record.places][:, None]
    out[0, record.places] = PAIRED[name][1](module, alone, positions)[:, 0]
    return out, None


def _running() -> ProbeRecord:
    record = _record.get()
    assert record is not None, "a probe is running"
    return record


@torch.inference_mode()
def run(model: Any, tokens: torch.Tensor, positions: torch.Tensor, places: torch.Tensor | None = None) -> ProbeRecord:
    """Runs one call. `places`: of the tokens that are recorded; default: all."""
    device = next(model.parameters()).device
    kept = torch.arange(len(tokens)) if places is None else places
    record = ProbeRecord(positions.to(device), kept.to(device))
    _record.set(record)
    asked = {} if places is None else {"logits_to_keep": record.places}
    try:
        out = model(input_ids=tokens[None].to(device), position_ids=record.positions[None], use_cache=False, **asked)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{type(model).__name__} does not take tokens and positions alone: {reason}") from error
    record.logits = out.logits[0].float()
    return record


def _attend_to_itself(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise ModelError(f"{type(module).__name__} does not say which layer it belongs to (layer_idx)")
    causal = options.get("is_causal", getattr(module, "is_causal", True))
    if causal is False and attention_mask is None:
        raise ModelError(f"layer {layer} ({type(module).__name__}) sees later tokens: only causal models run")
    record = _running()
    if (temperature := getattr(module, "quire_temperature", None)) is not None:
        query = temperature.scale(query[0].transpose(0, 1), record.positions).transpose(0, 1)[None]
    asked, stored, mixed = (tensor[:, :, record.places] for tensor in (query, key, value))
    record.calls.setdefault(layer, []).append(AttentionCall(asked, stored, mixed, attention_mask, options))
    alone = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    return alone.transpose(1, 2).contiguous(), None


def _remember_mask(*, q_length: int, kv_length: int, mask_function: Mask, device: Any, **_others: Any) -> torch.Tensor:
    lengths = (min(length, MASKED_TOKENS) for length in (q_length, kv_length))
    queries, keys = (torch.arange(length, device=device) for length in lengths)
    zero = torch.zeros((), dtype=torch.int64, device=device)
    seen = mask_function(zero, zero, queries[:, None], keys[None, :]).expand(len(queries), len(keys))
    mask = seen[None, None].clone()
    _running().masks.append((mask, mask_function))
    return mask


def first_difference(first: torch.Tensor, second: torch.Tensor, tolerance: float) -> int | None:
    """The first token whose results (token, …) differ by more than `tolerance` times the greatest number; None:
    none."""
    if not first.numel():
        return None  # a stage without a head
    first, second = first.float().flatten(1), second.float().flatten(1)
    near = tolerance * first.abs().max().clamp(min=1e-6)
    wrong = ~((first - second).abs().amax(dim=1) <= near)
    return int(wrong.nonzero()[0]) if wrong.any() else None
