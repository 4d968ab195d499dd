"""What a cache without end could reuse, by the kinds of the model."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.request import Tokens
from quire.models.read import read_model
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.simulate.ceiling import CHECKPOINT_TOKENS, Ceiling

UNIT, CHECKPOINT = 4, 12


def some_requests(seed: int) -> list[tuple[Tokens, Tokens]]:
    """Prompts of up to 60 tokens that begin with something earlier, and answers."""
    random = np.random.default_rng(seed)
    known: list[Tokens] = [np.zeros(0, np.int32)]
    requests = []
    for _ in range(40):
        begin = known[random.integers(len(known))]
        begin = begin[: random.integers(len(begin) + 1)] if random.random() < 0.7 else begin
        prompt = np.concatenate([begin[-50:], random.integers(0, 2, random.integers(1, 10))]).astype(np.int32)
        answer = random.integers(0, 2, random.integers(1, 7)).astype(np.int32)
        requests.append((prompt, answer))
        known.append(np.concatenate([prompt, answer]))
    return requests


def by_hand(requests: list[tuple[Tokens, Tokens]], kinds: str) -> list[int]:
    """Every place before the last token, tried from the last on, with every earlier request."""
    found = []
    for place, (prompt, _) in enumerate(requests):
        best = 0
        for earlier, answer in requests[:place]:
            known = np.concatenate([earlier, answer[:-1]])
            for end in range(1, min(len(prompt) - 1, len(known)) + 1):
                if np.array_equal(prompt[:end], known[:end]) and may_end(end, len(earlier), len(known), kinds):
                    best = max(best, end)
        found.append(best)
    return found


def may_end(end: int, prompt: int, known: int, kinds: str) -> bool:
    if kinds == "full":
        return end % UNIT == 0
    if kinds == "window":
        return end % UNIT == 0 or end == known
    return end % CHECKPOINT == 0 or end in (prompt, known)


def ceiling_of(kinds: str) -> Ceiling:
    return Ceiling(UNIT, has_ends=kinds == "window", checkpoint_tokens=CHECKPOINT if kinds == "state" else None)


@pytest.mark.law
@pytest.mark.parametrize("kinds", ["full", "window", "state"])
@pytest.mark.parametrize("seed", range(12))
def test_the_ceiling_is_what_trying_every_place_finds(kinds: str, seed: int) -> None:
    """Full attention ends at units, windows at units and ends of turns, states at checkpoints and at the ends of
    prompts and turns; never at the last token of a prompt, nor behind the last but one of an answer."""
    requests, ceiling = some_requests(seed), ceiling_of(kinds)
    found = [ceiling.of(prompt, answer) for prompt, answer in requests]
    assert found == by_hand(requests, kinds)
    assert ceiling.reusable_tokens == sum(found)


@pytest.mark.law
@pytest.mark.parametrize("seed", range(6))
def test_what_is_shared_does_not_depend_on_states(seed: int) -> None:
    """It is what windows could reuse; states that end elsewhere reach less of it, or a little more."""
    requests = some_requests(seed)
    windows, states = ceiling_of("window"), ceiling_of("state")
    for prompt, answer in requests:
        windows.of(prompt, answer)
        states.of(prompt, answer)
    assert states.shared_tokens == windows.shared_tokens == windows.reusable_tokens


def test_a_state_is_found_where_a_prompt_ended() -> None:
    """A prompt of 700 tokens, answered; another goes on where the prompt ended, a third parts from it after 600."""
    first = np.arange(700, dtype=np.int32)
    answer = np.arange(1000, 1010, dtype=np.int32)
    other = np.concatenate([first, np.arange(2000, 2020, dtype=np.int32)])
    parted = np.concatenate([first[:600], np.arange(3000, 3020, dtype=np.int32)])
    ceiling = Ceiling(64, checkpoint_tokens=CHECKPOINT_TOKENS)
    assert [ceiling.of(one, answer) for one in (first, other, parted)] == [0, 700, 512]
    assert ceiling.shared_tokens == 640 + 576


@pytest.mark.parametrize(
    ("model", "reusable"), [("llama-3.2-1b", 576), ("gemma-3-1b", 576), ("qwen3-next-80b-a3b", 512)]
)
def test_a_plan_says_which_ceiling_is_meant(model: str, reusable: int) -> None:
    """Two prompts that part after 600 tokens: 9 units of 64, and one state each 512 tokens."""
    ceiling = Ceiling.of_plan(make_plan(read_model(model), Settings(), Budget(pool_bytes=1 << 34)))
    first = np.arange(700, dtype=np.int32)
    answer = np.arange(1000, 1010, dtype=np.int32)
    parted = np.concatenate([first[:600], np.arange(3000, 3020, dtype=np.int32)])
    assert [ceiling.of(one, answer) for one in (first, parted)] == [0, reusable]


@pytest.mark.story
def test_a_unit_of_zeros_is_not_taken_for_the_beginning() -> None:
    """Its name was that of no tokens at all, which every request has seen."""
    ceiling = Ceiling(UNIT)
    answer = np.ones(1, dtype=np.int32)
    assert ceiling.of(np.ones(6, dtype=np.int32), answer) == 0
    assert ceiling.of(np.zeros(6, dtype=np.int32), answer) == 0
