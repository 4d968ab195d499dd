"""Does a model run on Quire's memory? Asked once at load, by a probe of a few tokens instead of a list of names.

    whole    tokens a b c d e f    positions 0 1 2 3 4 5
    packed   tokens d e f a b      positions 3 4 5 0 1       two chunks in one batch, as a step hands them over

In the probe a token attends to itself alone, so whatever a layer computes for it must be the same in both. Where it is
not, something beside attention carries tokens along (a recurrence, a convolution), or positions are not taken from
where they are given. What layers store, and what their masks let them see, is compared with the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from quire.core.errors import ModelError
from quire.kinds import Kind
from quire.plan.plan import StagePlan
from quire.worker.arena import DTYPES
from quire.worker.mixers import STATES, flat_norms, flatten

PROBE = "quire_probe"
TOLERANCE = 0.02
"""Of the greatest number: far above rounding, far below what a lost neighbour or a wrong position does."""
KNOWN_OPTIONS = {
    "dropout", "scaling", "softcap", "s_aux", "sliding_window", "is_causal", "position_ids", "cache_position",
    "use_cache", "output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep",
    "cache_params", "inputs_embeds", "past_key_values", "labels", "seq_idx",
}  # fmt: skip
"""Of an attention call: obeyed, or without a say in the result. Any other that is set is refused."""

Parts = dict[str, tuple[int, int]]
"""Heads and width, by name."""
Mask = Callable[[Any, Any, Any, Any], torch.Tensor]


@dataclass(slots=True)
class Call:
    """What one layer handed to its attention."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    options: dict[str, object]

    @property
    def stored(self) -> Parts:
        return {name: (part.shape[1], part.shape[3]) for name, part in (("key", self.key), ("value", self.value))}


@dataclass(slots=True)
class Record:
    calls: dict[int, list[Call]] = field(default_factory=dict)
    masks: list[tuple[torch.Tensor, Mask]] = field(default_factory=list)
    mixers: set[int] = field(default_factory=set)
    logits: torch.Tensor | None = None


_record = Record()
"""Of the probe that runs: transformers calls a registered function, which has no other place to write to."""


def check_model(model: Any, stage: StagePlan) -> None:
    """Raises ModelError, with the layer and what differs. Asked before a `TorchModel` is made of the model."""
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(f"{name} has an encoder: only decoder-only models run")
    vocab = model.get_input_embeddings().weight.shape[0]
    tokens = torch.arange(2, 8) * 5 % vocab
    order = torch.tensor([3, 4, 5, 0, 1])
    model.eval()
    with _probing(model):
        whole = _run(model, tokens, torch.arange(6))
        packed = _run(model, tokens[order], order)
    _compare_layers(name, whole, stage)
    _compare_runs(name, whole, packed, order)


@contextmanager
def _probing(model: Any) -> Iterator[None]:
    """Attention sees a token alone, and so do mixers that are known to keep a state."""
    global _record
    AttentionInterface.register(PROBE, _attend_to_itself)
    AttentionMaskInterface.register(PROBE, _remember_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(PROBE)
    if model.config._attn_implementation != PROBE:
        raise ModelError(
            f"{type(model).__name__} has attention code of its own: it does not ask the attention interface"
        )
    mixers = [module for module in model.modules() if type(module).__name__ in STATES]
    norms = flat_norms(model)
    for module in mixers:
        module.forward = partial(_each_alone, module)
    for norm in norms:
        flatten(norm)
    try:
        yield
    finally:
        _record = Record()  # what layers handed over may lie in a device's memory
        model.set_attn_implementation(before)
        for module in (*mixers, *norms):
            del module.forward


def _each_alone(module: Any, hidden_states: torch.Tensor, **_options: Any) -> torch.Tensor:
    """Every token begins a sequence of its own."""
    _record.mixers.add(module.layer_idx)
    mixed: torch.Tensor = type(module).forward(module, hidden_states.transpose(0, 1))
    return mixed.transpose(0, 1)


@torch.inference_mode()
def _run(model: Any, tokens: torch.Tensor, positions: torch.Tensor) -> Record:
    global _record
    _record = record = Record()
    device = model.get_input_embeddings().weight.device
    try:
        out = model(input_ids=tokens[None].to(device), position_ids=positions[None].to(device), use_cache=False)
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
    _record.calls.setdefault(layer, []).append(Call(query, key, value, attention_mask, options))
    alone = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    return alone.transpose(1, 2).contiguous(), None


def _remember_mask(*, q_length: int, kv_length: int, mask_function: Mask, device: Any, **_others: Any) -> torch.Tensor:
    queries, keys = torch.arange(q_length, device=device), torch.arange(kv_length, device=device)
    zero = torch.zeros((), dtype=torch.int64, device=device)
    seen = mask_function(zero, zero, queries[:, None], keys[None, :]).expand(q_length, kv_length)
    mask = seen[None, None].clone()
    _record.masks.append((mask, mask_function))
    return mask


def _compare_layers(name: str, record: Record, stage: StagePlan) -> None:
    planned = _planned(stage)
    for layer, memories in planned.items():
        for kind, parts in memories:
            where = f"{name}: layer {layer}"
            if kind.kind == "state":
                if layer not in record.mixers:
                    raise ModelError(f"{where} keeps {', '.join(parts)}, and no mixer that is known runs there")
                continue
            calls = record.calls.get(layer, [])
            if len(calls) != 1:
                raise ModelError(f"{where} asks for attention {len(calls)} times, {kind.name} is planned")
            _compare_call(where, calls[0], kind, parts)
            _compare_mask(where, calls[0], record, kind)
    for layer in record.calls.keys() - planned.keys():
        raise ModelError(f"{name}: layer {layer} asks for attention, but nothing is planned for it")


def _compare_call(where: str, call: Call, kind: Kind, parts: Parts) -> None:
    """Latents are stored before they become keys and values: their sizes cannot be seen from here."""
    if kind.kind != "latent" and call.stored != parts:
        raise ModelError(f"{where} stores {_shown(call.stored)}, planned is {_shown(parts)}")
    strange = [key for key, value in call.options.items() if value is not None and key not in KNOWN_OPTIONS]
    if strange:
        raise ModelError(f"{where} asks attention for {strange[0]}, which no kind here does")


def _planned(stage: StagePlan) -> dict[int, list[tuple[Kind, Parts]]]:
    """By layer: its kinds, and heads and width of their parts."""
    planned: dict[int, dict[Kind, Parts]] = {}
    for plan in stage.kinds:
        for entry in plan.manifest:
            width = entry.row_bytes // DTYPES[entry.dtype].itemsize
            planned.setdefault(entry.layer, {}).setdefault(plan.kind, {})[entry.part] = (entry.heads, width)
    for layer, source in stage.aliases:
        planned[layer] = planned[source]
    return {layer: list(kinds.items()) for layer, kinds in planned.items()}


def _shown(parts: Parts) -> str:
    return ", ".join(f"{name} {heads} × {width}" for name, (heads, width) in parts.items())


def _compare_mask(where: str, call: Call, record: Record, kind: Kind) -> None:
    """At the borders of what the kind sees, however far away; on the probe's own tokens where there is no rule."""
    rule = next((rule for mask, rule in record.masks if mask is call.mask), None)
    if rule is None:
        if call.mask is not None and not _is_causal(call.mask):
            raise ModelError(f"{where} has a mask of its own that is not causal")
        return
    for query, token, seen in _borders(kind):
        zero, here, there = (torch.tensor(place, device=call.query.device) for place in (0, query, token))
        if bool(rule(zero, zero, here, there)) != seen:
            does, plans = ("hides", "sees") if seen else ("sees", "forgets")
            raise ModelError(f"{where} {does} token {token} from token {query}, the plan's {kind.name} {plans} it")


def _is_causal(mask: torch.Tensor) -> bool:
    seen = (mask if mask.dtype is torch.bool else mask > -1)[0, 0]
    return bool((seen == torch.ones_like(seen).tril()).all())


def _borders(kind: Kind) -> list[tuple[int, int, bool]]:
    """(query, token, is it seen)."""
    window, chunk, sinks = (getattr(kind, name, 0) for name in ("window", "chunk", "sinks"))
    if chunk:
        return [(chunk + 1, chunk, True), (chunk + 1, chunk - 1, False), (chunk + 1, chunk + 2, False)]
    if window:
        query = 2 * window + sinks
        return [(query, query - window + 1, True), (query, query - window, False), (query, query + 1, False)]
    return [(1 << 20, 0, True), (1 << 20, (1 << 20) + 1, False)]


def _compare_runs(name: str, whole: Record, packed: Record, order: torch.Tensor) -> None:
    for layer, calls in sorted(whole.calls.items()):
        for part in ("query", "key", "value"):
            first, second = (getattr(one[layer][0], part) for one in (whole.calls, packed.calls))
            if not _equal(first[0].transpose(0, 1)[order], second[0].transpose(0, 1)):
                raise ModelError(
                    f"{name}: the {part} of layer {layer} depends on neighbours or on where a chunk begins: something "
                    "beside attention remembers tokens, or positions are counted instead of taken"
                )
        del calls
    assert whole.logits is not None
    assert packed.logits is not None
    if not _equal(whole.logits[order], packed.logits):
        raise ModelError(f"{name}: logits depend on neighbours: something after the last attention remembers tokens")


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    first, second = first.float(), second.float()
    return bool((first - second).abs().max() <= TOLERANCE * first.abs().max().clamp(min=1e-6))
