"""Scenario 5: tokens after a hit at any boundary, however the rest is cut, are those of an undisturbed run."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from examples import rest_in_soak
from quire.core.events import RequestAdmitted
from quire.worker.support.tiny import WINDOW
from tiny_models import PAGE, Service, plan_of, reference

torch.set_num_threads(1)
LENGTHS = (*range(1, 3 * PAGE + 3), 3 * WINDOW, 3 * WINDOW + 4)
WHOLE = tuple(
    (length, boundary) for boundary in range(0, 3 * PAGE + 1, PAGE) for length in LENGTHS if length > boundary
)
"""Hits that end with a page: many requests go on from there, each in its own way."""
INSIDE = tuple((boundary + 1, boundary) for boundary in range(1, 3 * PAGE + 2) if boundary % PAGE)
"""Hits where someone stopped inside a page: whoever goes on first has it."""
PAIRS = WHOLE + INSIDE
OUTPUTS = 2
MODELS = {"gemma3_text": "full and window", "lfm2": "full and state"}


@cache
def prompts() -> list[np.ndarray]:
    """For each pair: the same tokens up to the boundary, and from there on nobody else's."""
    random = np.random.default_rng(5)
    common = random.integers(3, 97, max(LENGTHS)).astype(np.int32)
    made = []
    for length, boundary in PAIRS:
        own = random.integers(3, 97, length - boundary).astype(np.int32)
        own[0] = 3 + length
        made.append(np.concatenate([common[:boundary], own]))
    return made


@cache
def undisturbed(name: str) -> list[list[int]]:
    """What transformers' whole forward pass chooses. Nothing looks ahead, so what comes later may be padding."""
    lengths = torch.tensor([length for length, _ in PAIRS])
    rows = torch.zeros(len(PAIRS), max(LENGTHS) + OUTPUTS, dtype=torch.int64)
    for row, prompt in zip(rows, prompts(), strict=True):
        row[: len(prompt)] = torch.from_numpy(prompt)
    index = torch.arange(len(PAIRS))
    for output in range(OUTPUTS):
        with torch.inference_mode():
            logits = reference(name).model(input_ids=rows, use_cache=False).logits
        rows[index, lengths + output] = logits[index, lengths + output - 1].argmax(dim=1)
    return [row[length : length + OUTPUTS].tolist() for row, length in zip(rows, lengths, strict=True)]


@pytest.mark.parametrize("batch_tokens", rest_in_soak([1, 7, PAGE - 1, PAGE, 512], [PAGE - 1, 512]))
@pytest.mark.parametrize("name", MODELS)
def test_every_length_after_every_boundary_yields_the_same(name: str, batch_tokens: int) -> None:
    """Someone of the same scope came before, and sent just as many tokens as the boundary says."""
    service = Service(name, plan_of(name, batch_tokens=batch_tokens, max_requests=16))
    scopes = [str(boundary) for _, boundary in WHOLE] + [f"inside {boundary}" for _, boundary in INSIDE]
    before = {scope: prompt[:boundary] for scope, prompt, (_, boundary) in zip(scopes, prompts(), PAIRS, strict=True)}
    for scope, prompt in before.items():
        if len(prompt):
            service.send([prompt], 1, f"before {scope} ", scope)
    service.engine.drain()
    streams = []
    for scope, prompt in zip(scopes, prompts(), strict=True):
        streams += service.send([prompt], OUTPUTS, f"{len(prompt)} after {scope} ", scope)
    service.engine.drain()
    for (length, boundary), stream, tokens in zip(PAIRS, streams, undisturbed(name), strict=True):
        assert stream.tokens().tolist() == tokens, f"length {length}, hit at {boundary}"
        events = service.engine.history.of(stream.request.name)
        hits = [event.hit_tokens for event in events if isinstance(event, RequestAdmitted)]
        assert hits == [boundary], f"length {length}"
