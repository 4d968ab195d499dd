"""Does a model run on Quire's memory? Asked once at load, by a probe of a few tokens instead of a list of names.

    whole    tokens a b c d e f    positions 0 1 2 3 4 5
    far      tokens a b c …        positions at the lengths that the configuration names, and at the longest
    packed   tokens d e f a b …    positions 3 4 5 0 1 …     chunks of several requests, as a step hands them over

In the probe a token attends to itself alone, so whatever a layer computes for it must be the same in all of them. Where
it is not, something beside attention carries tokens along (a recurrence, a convolution), or positions are not taken
from where they are given. What layers store, and what their masks let them see, is compared with the plan. What depends
on how long a call is, its small twin shows (`calls`).
"""

from __future__ import annotations

from typing import Any

import torch

from quire.core.errors import ModelError
from quire.kinds import Kind
from quire.plan.plan import StagePlan
from quire.worker.arena import DTYPES
from quire.worker.calls import check_calls, far_positions
from quire.worker.probe import Call, Record, differing, probing, run

KNOWN_OPTIONS = {
    "dropout", "scaling", "softcap", "s_aux", "sliding_window", "is_causal", "position_ids", "cache_position",
    "use_cache", "output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep",
    "cache_params", "inputs_embeds", "past_key_values", "labels", "seq_idx",
}  # fmt: skip
"""Of an attention call: obeyed, or without a say in the result. Any other that is set is refused."""

TOLERANCE = 0.02
"""Of the greatest number: far above rounding, far below what a lost neighbour or a wrong position does."""

Parts = dict[str, tuple[int, int]]
"""Heads and width, by name."""


def check_model(model: Any, stage: StagePlan) -> None:
    """Raises ModelError, with the layer and what differs. Asked before a `TorchModel` is made of the model, after
    `fix_positions`."""
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(f"{name} has an encoder: only decoder-only models run")
    longest = getattr(model, "quire_length", stage.max_length)
    far = torch.tensor(far_positions(model.config, longest), dtype=torch.int64)
    vocab = model.get_input_embeddings().weight.shape[0]
    tokens = torch.arange(2, 8) * 5 % vocab
    others = torch.arange(len(far)) * 7 % vocab
    order = torch.tensor([3, 4, 5, 0, 1])
    model.eval()
    with probing(model):
        whole = run(model, tokens, torch.arange(6))
        _compare_layers(name, whole, stage)
        packed = run(model, torch.cat([tokens[order], others]), torch.cat([order, far]))
        _compare_runs(name, whole, order, packed, 0)
        if len(far):
            _compare_runs(name, run(model, others, far), torch.arange(len(far)), packed, len(order))
    check_calls(model, longest)


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
    stored = {name: (part.shape[1], part.shape[3]) for name, part in (("key", call.key), ("value", call.value))}
    if kind.kind != "latent" and stored != parts:
        raise ModelError(f"{where} stores {_shown(stored)}, planned is {_shown(parts)}")
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
        last = 2 * chunk - 1  # of the second chunk
        return [(last, chunk, True), (last, chunk - 1, False), (last, last + 1, False)]
    if window:
        query = 2 * window + sinks
        return [(query, query - window + 1, True), (query, query - window, False), (query, query + 1, False)]
    return [(1 << 20, 0, True), (1 << 20, (1 << 20) + 1, False)]


def _compare_runs(name: str, alone: Record, order: torch.Tensor, packed: Record, begin: int) -> None:
    """Tokens of a run, in this order, are those of the packed one from `begin` on."""
    end = begin + len(order)
    for layer, calls in sorted(alone.calls.items()):
        for part in ("query", "key", "value"):
            first, second = (getattr(one, part)[0].transpose(0, 1) for one in (calls[0], packed.calls[layer][0]))
            if differing(first[order], second[begin:end], TOLERANCE) is not None:
                raise ModelError(
                    f"{name}: the {part} of layer {layer} depends on neighbours or on where a chunk begins: something "
                    "beside attention remembers tokens, or positions are counted instead of taken"
                )
    assert alone.logits is not None
    assert packed.logits is not None
    if differing(alone.logits[order], packed.logits[begin:end], TOLERANCE) is not None:
        raise ModelError(f"{name}: logits depend on neighbours: something after the last attention remembers tokens")
