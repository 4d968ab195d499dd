"""Checks at load whether a model runs on Quire's memory, by a probe of a few tokens instead of a list of names.

    whole    tokens a b c d e f    positions 0 1 2 3 4 5
    far      tokens a b c …        positions at the lengths that the configuration names, and at the longest
    packed   tokens d e f a b …    positions 3 4 5 0 1 …     chunks of several requests, as in a step

In the probe a token attends only to itself, so what a layer computes for it must be equal in all of them. Otherwise
something other than attention mixes tokens (a recurrence, a convolution), or the model ignores the given positions.
What layers store and what their masks show is compared with the plan. Dependence on the length of a call is checked on
a small twin (`calls.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from quire.core.errors import ModelError
from quire.kinds import Keeps, Kind, counts
from quire.plan.plan import StagePlan
from quire.worker.mixers.context import PLAIN
from quire.worker.pages.arena import DTYPES
from quire.worker.support.calls import check_calls, far_positions
from quire.worker.support.probe import AttentionCall, Numbers, ProbeRecord, first_difference, probe_attention, run

KNOWN_OPTIONS = {
    "dropout", "scaling", "softcap", "s_aux", "sliding_window", "is_causal", "position_ids", "cache_position",
    "use_cache", "output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep",
    "cache_params", "inputs_embeds", "past_key_values", "labels", "seq_idx",
}  # fmt: skip
"""Options of an attention call that are obeyed or do not change the result. Any other that is set is refused."""

SLOPES = "alibi"
"""The option with which a layer passes slopes by which scores lose with distance."""
SELECTION = "indices"
"""The option with which a layer passes what its indexer selected."""
FAR_QUERY = 1 << 20
TOLERANCE = 0.02
"""Relative to the greatest number: far above rounding, far below the effect of a lost token or a wrong position."""

Parts = dict[str, tuple[int, int]]
"""Heads and width, by name."""


def check_model(model: Any, stage: StagePlan) -> None:
    """Raises ModelError with the layer and what differs. Called after `fix_positions`, before a `TorchModel` is
    made."""
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(f"{name} has an encoder: only decoder-only models run")
    longest = getattr(model, "quire_length", stage.max_length)
    far = torch.tensor(far_positions(model.config, longest), dtype=torch.int64)
    vocab = model.config.get_text_config(decoder=True).vocab_size
    tokens = torch.arange(2, 8) * 5 % vocab
    others = torch.arange(len(far)) * 7 % vocab
    order = torch.tensor([3, 4, 5, 0, 1])
    model.eval()
    with probe_attention(model):
        whole = run(model, tokens, torch.arange(6))
        _compare_layers(name, whole, stage)
        packed = run(model, torch.cat([tokens[order], others]), torch.cat([order, far]))
        _compare_runs(name, whole, order, packed, 0)
        if len(far):
            _compare_runs(name, run(model, others, far), torch.arange(len(far)), packed, len(order))
    check_calls(model, longest)


def _compare_layers(name: str, record: ProbeRecord, stage: StagePlan) -> None:
    planned = _planned_parts(stage)
    for layer, memories in planned.items():
        for kind, parts in memories:
            where = f"{name}: layer {layer}"
            if kind.keeps is Keeps.STATE:
                _compare_state(where, record.states.get(layer), kind, parts)
                continue
            calls = record.calls.get(layer, [])
            if len(calls) != 1:
                raise ModelError(f"{where} asks for attention {len(calls)} times, {kind.name} is planned")
            _compare_call(where, calls[0], kind, parts)
            _compare_mask(where, calls[0], record, kind)
    for layer in record.calls.keys() - planned.keys():
        raise ModelError(f"{name}: layer {layer} asks for attention, but nothing is planned for it")


def _compare_call(where: str, call: AttentionCall, kind: Kind, parts: Parts) -> None:
    """Latents are stored before they become keys and values: their sizes cannot be seen from here."""
    stored = {name: (part.shape[1], part.shape[3]) for name, part in (("key", call.key), ("value", call.value))}
    if not kind.holds_latents and stored != parts:
        raise ModelError(f"{where} stores {_format(stored)}, planned is {_format(parts)}")
    known = KNOWN_OPTIONS | ({SELECTION} if kind.selects else set()) | ({SLOPES} if kind.kind == "full" else set())
    strange = [key for key, value in call.options.items() if value is not None and key not in known]
    if strange:
        raise ModelError(f"{where} asks attention for {strange[0]}, which {kind.name} does not take")
    if kind.selects and call.options.get(SELECTION) is None:
        raise ModelError(f"{where} passes no {SELECTION} to attention, {kind.name} is planned")


def _compare_state(where: str, kept: Numbers | None, kind: Kind, parts: Parts) -> None:
    if kept is None:
        raise ModelError(f"{where} keeps {', '.join(parts)}, and no mixer that is known runs there")
    sizes = {name: heads * width for name, (heads, width) in parts.items() if name not in PLAIN}
    columns = sum(size for name, size in sizes.items() if name.startswith("conv"))
    planned = columns, sum(sizes.values()) - columns
    if planned != kept:
        raise ModelError(
            f"{where} keeps {kept[0]:,} numbers for its convolution and {kept[1]:,} besides, planned for {kind.name} "
            f"are {planned[0]:,} and {planned[1]:,}"
        )


def _planned_parts(stage: StagePlan) -> dict[int, list[tuple[Kind, Parts]]]:
    """By layer: its kinds, and heads and width of their parts."""
    planned: dict[int, dict[Kind, Parts]] = {}
    for plan in stage.kinds:
        for entry in plan.manifest:
            width = entry.row_bytes // DTYPES[entry.dtype].itemsize
            planned.setdefault(entry.layer, {}).setdefault(plan.kind, {})[entry.part] = (entry.heads, width)
    for layer, source in stage.aliases:
        planned[layer] = planned[source]
    return {layer: list(kinds.items()) for layer, kinds in planned.items()}


def _format(parts: Parts) -> str:
    return ", ".join(f"{name} {heads} × {width}" for name, (heads, width) in parts.items())


def _compare_mask(where: str, call: AttentionCall, record: ProbeRecord, kind: Kind) -> None:
    """At the borders of what the kind sees, at any distance; on the probe's own tokens where there is no mask
    function."""
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
    """(query, token, whether the query sees it), where what a query sees begins and ends."""
    borders = []
    for query in (max(2 * kind.fixed_units - 1, 1), FAR_QUERY):  # the end of a second window or chunk, and far away
        first = int(kind.first_live(counts(query)))
        tokens = np.array([token for token in (first, first - 1, query + 1) if token >= 0])
        seen = kind.sees(counts(query), tokens)
        borders += [(query, token, sees) for token, sees in zip(tokens.tolist(), seen.tolist(), strict=True)]
    return borders


def _compare_runs(name: str, alone: ProbeRecord, order: torch.Tensor, packed: ProbeRecord, begin: int) -> None:
    """Compares tokens of a run, in this order, with those of the packed run from `begin`."""
    end = begin + len(order)
    for layer, calls in sorted(alone.calls.items()):
        for part in ("query", "key", "value"):
            first, second = (getattr(one, part)[0].transpose(0, 1) for one in (calls[0], packed.calls[layer][0]))
            if first_difference(first[order], second[begin:end], TOLERANCE) is not None:
                raise ModelError(
                    f"{name}: the {part} of layer {layer} depends on neighbours or on where a chunk begins: something "
                    "other than attention remembers tokens, or positions are counted instead of taken"
                )
    assert alone.logits is not None
    assert packed.logits is not None
    if first_difference(alone.logits[order], packed.logits[begin:end], TOLERANCE) is not None:
        raise ModelError(f"{name}: logits depend on neighbours: something after the last attention remembers tokens")
