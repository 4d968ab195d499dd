"""Checks whether results depend on the call that computes them: on its greatest position or its number of tokens.

The check runs a small twin with the model's own options and lengths and few parameters, so that a call of thousands of
tokens costs almost nothing.

    whole    positions 0 … n − 1 in one call of transformers' own model, n beyond every named length
    packed   some of them in one call, in any order, as in a step; also those below each named length
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from quire.core.errors import ModelError
from quire.worker.model.model import build
from quire.worker.model.positions import fix_positions, ropes_of
from quire.worker.support.probe import ProbeRecord, first_difference, probe_attention, run
from quire.worker.support.tiny import twin_config

NAMES = ("window", "chunk", "position", "floor_scale", "original_max", "seq_len", "context")
"""Fields with one of these words name a length at which a model may change its computation."""
BEYOND, FEWEST_TOKENS, MOST_TOKENS = 8, 2048, 1 << 17
"""Tokens of the whole call: a few beyond the greatest named length, within these bounds."""
MOST_LENGTHS = 6
TOLERANCE = 1e-3
"""Relative to the greatest number: the twin computes in fp32."""


def lengths_of(config: Any, longest: int) -> list[int]:
    """The greatest lengths that a configuration names below the longest one."""
    text = config.get_text_config(decoder=True)
    named = {value for name, value in _numbers(text.to_dict()) if any(word in name for word in NAMES)}
    return sorted(value for value in named if 1 < value < longest)[-MOST_LENGTHS:]


def _numbers(fields: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1:
            yield str(name), int(value)


def far_positions(config: Any, longest: int) -> list[int]:
    """Positions on both sides of each named length, half-way, and the last one."""
    near = {place for length in lengths_of(config, longest) for place in (length - 1, length, length + 1)}
    return sorted(place for place in near | {longest // 2, longest - 1} if 5 < place < longest)


def check_calls(model: Any, longest: int) -> None:
    """Raises ModelError with what depends on the call, and at which position. Only the model's configuration is
    used."""
    plain = _twin(model)
    fixed = copy.deepcopy(plain)
    fix_positions(fixed, longest)
    lengths = lengths_of(model.config, longest)
    count = _whole_tokens(plain, lengths, longest)
    near = [place for place in (*range(6), *far_positions(model.config, longest)) if place < count]
    tokens, places = torch.arange(count) * 5 % plain.get_input_embeddings().weight.shape[0], torch.tensor(near)
    with probe_attention(plain):
        whole = run(plain, tokens, torch.arange(count), places)
    with probe_attention(fixed):
        for some in _calls(places, lengths):
            _compare(type(model).__name__, whole, some, run(fixed, tokens[places[some]], places[some]))


def _twin(model: Any) -> Any:
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            config = getattr(model, "quire_config", model.config)  # a share's own configuration is not a whole model's
            return build(twin_config(config), torch.float32).eval()
    except Exception as error:  # any configuration class or model may raise anything
        reason = " ".join(str(error).split())[:120]
        raise ModelError(
            f"{type(model).__name__}: no small twin of its configuration can be made, so whether results depend on "
            f"the length of a call is unknown: {type(error).__name__}: {reason}"
        ) from error


def _whole_tokens(plain: Any, lengths: Sequence[int], longest: int) -> int:
    """Dynamic frequencies are those of the longest length, so the call must have that length."""
    is_stretched = any(rope.sort == "dynamic" and rope.original_tokens < longest for rope in ropes_of(plain))
    wanted = longest if is_stretched else max(FEWEST_TOKENS, max(lengths, default=0) + BEYOND)
    return min(wanted, longest, MOST_TOKENS)


def _calls(places: torch.Tensor, lengths: Sequence[int]) -> Iterator[torch.Tensor]:
    """Which of the places are computed together: those below each length, all in some order, the last one alone. Short
    calls come first, because some models store the length of the longest."""
    for length in lengths:
        yield (places < length).nonzero()[:, 0]
    yield torch.randperm(len(places), generator=torch.Generator().manual_seed(0))
    yield torch.tensor([len(places) - 1])


def _compare(name: str, whole: ProbeRecord, some: torch.Tensor, found: ProbeRecord) -> None:
    pairs = [
        (f"the {part} of layer {layer}", *(getattr(one[0], part)[0].transpose(0, 1) for one in (calls, others)))
        for layer, calls, others in ((layer, whole.calls[layer], found.calls[layer]) for layer in sorted(whole.calls))
        for part in ("query", "key", "value")
    ]
    assert whole.logits is not None
    assert found.logits is not None
    for what, first, second in (*pairs, ("the logits", whole.logits, found.logits)):
        place = first_difference(first[some], second, TOLERANCE)
        if place is not None:
            raise ModelError(
                f"{name}: the call changes {what} at position {int(found.positions[place]):,}: with {len(some) - 1} "
                f"other tokens it is not what a whole sequence of {len(whole.positions):,} tokens has"
            )
