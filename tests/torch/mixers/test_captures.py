"""States that are captured while a prompt is computed: after exactly the tokens named, in every class of mixer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mixer_models import CONFIGS, RELATIVES
from transformers import CONFIG_MAPPING

from by_hand import Chunk, Make, make_by_hand

NAMES = tuple(name for name in CONFIGS | RELATIVES if not name.startswith(("deepseek", "glm")))
"""Every class of mixers that runs."""
FORMS = ("qwen3_next", "bamba", "falcon_h1", "lfm2", "jamba", "kimi_linear")
"""One class of each form, and keys beside a state."""
PROMPT_TOKENS = 70


@pytest.fixture(params=NAMES)
def make(request: pytest.FixtureRequest) -> Make:
    config = CONFIG_MAPPING[request.param](**(CONFIGS | RELATIVES)[request.param])
    return make_by_hand(request.param, config, lookahead=2)


def prompt(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 97, PROMPT_TOKENS).astype(np.int32)


def stopped(make: Make, row: int, start: int, *ends: int) -> list[list[torch.Tensor]]:
    """A row's states, computed from `start` on in steps of its own that stop at these tokens."""
    rows, found = make(), []
    for number in range(4):
        rows.enter(prompt(number))
    if start:
        rows.mix(Chunk(row, 0, start))
    for end in ends:
        rows.mix(Chunk(row, start, end - start))
        found.append(rows.state(rows.own_pages(row)))
        start = end
    return found


def are_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_captured_state_is_exactly_that_of_a_row_that_stops_there(make: Make) -> None:
    """Rows that begin, rows that go on from odd places, rows with several captures, with one behind their last token,
    with drafts, with none: all in one step. Red if a piece is cut one token off, if a capture goes to another row's
    page or group, or if a mixer forgets part of its state."""
    rows = make()
    for number in range(4):
        rows.enter(prompt(number))
    rows.mix(Chunk(1, 0, 13), Chunk(2, 0, 5), Chunk(3, 0, 7))
    ends = {0: (5, 65, 66), 1: (14, 21), 3: (9,)}
    pages = {row: [rows.pages() for _ in own] for row, own in ends.items()}
    named = {row: list(zip(own, pages[row], strict=True)) for row, own in ends.items()}
    rows.mix(Chunk(0, 0, 66, named[0]), Chunk(1, 13, 12, named[1]), Chunk(2, 5, 12), Chunk(3, 7, 2, named[3], (4, 4)))
    starts = {0: 0, 1: 13, 3: 7}
    for row, own in ends.items():
        for found, expected in zip(pages[row], stopped(make, row, starts[row], *own), strict=True):
            assert are_equal(rows.state(found), expected)
    (last,) = stopped(make, 2, 5, 17)
    assert are_equal(rows.state(rows.own_pages(2)), last)
    assert all(part.isnan().all() for part in rows.state(rows.pages())), "a page that nobody named"


@pytest.mark.parametrize("make", ["bamba", "jamba"], indirect=True)
def test_rows_that_are_captured_after_the_same_tokens_run_together(make: Make) -> None:
    """Each into its own page. Red if rows of one group exchange pages."""
    rows, alone = make(), make()
    for number in range(3):
        rows.enter(prompt(number))
        alone.enter(prompt(number))
    pages = [rows.pages() for _ in range(3)]
    rows.mix(*(Chunk(row, 0, 20, [(11, pages[row])]) for row in range(3)))
    alone.mix(*(Chunk(row, 0, 11) for row in range(3)))
    (batch,) = rows.runner.model.context.running().kinds[rows.kind].state_groups
    assert len(batch.queries) == 3
    for row in range(3):
        assert are_equal(rows.state(pages[row]), alone.state(alone.own_pages(row)))


@pytest.mark.parametrize("make", FORMS, indirect=True)
def test_captures_change_no_token_and_rows_go_on_from_them(make: Make) -> None:
    """Whole models, through the runner. Red if captures are dropped on the way from the step to a layer, or if a
    captured page lacks a layer."""
    rows = make()
    text, ends = prompt(0), (3, 30, 66, PROMPT_TOKENS)
    plain, with_captures = rows.enter(text), rows.enter(text)
    pages = [rows.pages() for _ in ends]
    (expected,) = rows.run(Chunk(plain, 0, PROMPT_TOKENS))
    rows.run(Chunk(with_captures, 0, 41, list(zip(ends[:2], pages[:2], strict=True))))
    second = Chunk(with_captures, 41, PROMPT_TOKENS - 41, list(zip(ends[2:], pages[2:], strict=True)))
    assert rows.run(second) == [expected]
    assert are_equal(rows.state(pages[-1]), rows.state(rows.own_pages(with_captures)))
    last = rows.state(rows.own_pages(plain))
    for end, found in zip(ends, pages[:-1], strict=False):
        row = rows.enter(text, like=plain, state=found)
        assert rows.run(Chunk(row, end, PROMPT_TOKENS - end)) == [expected]
        torch.testing.assert_close(rows.state(rows.own_pages(row)), last, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("make", ["lfm2"], indirect=True)
@pytest.mark.parametrize("tokens", [0, 10, 21, 22])
def test_a_capture_outside_of_what_a_row_knows_is_not_taken(make: Make, tokens: int) -> None:
    """Before the chunk, where it begins, and among drafts. Red if the bounds are off by one."""
    rows = make()
    row, pages = rows.enter(prompt(0)), rows.pages()
    with pytest.raises(AssertionError, match="within the tokens that a row knows"):
        rows.runner.model.prepare(rows.step(Chunk(row, 10, 10, [(tokens, pages)], (5, 5))))
