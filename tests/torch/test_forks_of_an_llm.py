"""Forks through the library: `n`, `LLM.fork`, and the beam and tree search of docs/forks.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, Sampling
from quire.core.errors import InputError
from quire.forks.forks import ForkRefused
from quire.plan.settings import Budget, Settings
from tiny_folder import make_folder

WHOLE = Sampling(ignore_eos=True)
PROMPT = [3 + place * 7 % 50 for place in range(75)]
DOCS = Path(__file__).parents[2] / "docs" / "forks.md"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    settings = Settings(max_requests=16, batch_tokens=64, max_length=256, match_unit_tokens=16)
    return LLM(make_folder(tmp_path_factory.mktemp("tiny")), settings=settings, budget=Budget(pool_bytes=8 << 20))


def test_samples_of_a_prompt_share_all_but_its_last_token(llm: LLM) -> None:
    answers = llm.generate([PROMPT], Sampling(temperature=1.0, seed=1, ignore_eos=True), max_tokens=5, n=6)
    assert sorted(one.recomputed_tokens for one in answers)[:5] == [0] * 5
    assert len({one.token_ids for one in answers}) > 1
    assert len({one.id for one in answers}) == 6


def test_a_fork_generates_what_its_parent_would_have(llm: LLM) -> None:
    """At its end, before its end, and with other tokens after it: as a prompt of the same tokens does."""
    (parent,) = llm.generate([PROMPT], WHOLE, max_tokens=20)
    (longer,) = llm.generate([PROMPT], WHOLE, max_tokens=28)
    (fork,) = llm.fork(parent, WHOLE, max_tokens=8)
    assert fork.token_ids == longer.token_ids[20:]
    assert fork.prompt_tokens == 95
    (middle,) = llm.fork(parent.id, WHOLE, at=80, max_tokens=8)
    assert middle.token_ids == longer.token_ids[5:13]
    (other,) = llm.fork(parent, WHOLE, append=[5, 6], max_tokens=4)
    (alone,) = llm.generate([[*PROMPT, *parent.token_ids, 5, 6]], WHOLE, max_tokens=4)
    assert other.token_ids == alone.token_ids
    (said,) = llm.fork(parent, WHOLE, append="the fox", max_tokens=4)
    (numbered,) = llm.fork(parent, WHOLE, append=llm.tokenizer.encode("the fox", False), max_tokens=4)
    assert said.token_ids == numbered.token_ids
    assert said.prompt_tokens > parent.prompt_tokens + 20


def test_forks_of_what_is_not_there_raise(llm: LLM) -> None:
    (parent,) = llm.generate([PROMPT], WHOLE, max_tokens=3)
    with pytest.raises(ForkRefused, match="between 1 and 78"):
        llm.fork(parent, at=79)
    with pytest.raises(ForkRefused, match="no request r99999"):
        llm.fork("r99999")
    with pytest.raises(InputError, match="token"):
        llm.fork(parent, append=[1 << 20])


@pytest.fixture(scope="module")
def examples() -> dict[str, Any]:
    """Functions of the page, as a reader would copy them."""
    found: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL):
        if "\ndef " in code:
            exec(code, found)
    return found


def test_the_beam_search_of_the_page_finds_what_trying_everything_finds(llm: LLM, examples: dict[str, Any]) -> None:
    """With as many beams as there are tokens to try, nothing better is left out."""
    token_ids, logprob = examples["beam_search"](llm, PROMPT, width=3, tokens=3)
    beams = [((), 0.0)]
    for _ in range(3):
        beams = [
            ((*tokens, one.token), total + one.logprob)
            for tokens, total in beams
            for one in _next_tokens(llm, [*PROMPT, *tokens], 3)
        ]
        beams = sorted(beams, key=lambda beam: -beam[1])[:3]
    assert token_ids == beams[0][0]
    assert logprob == pytest.approx(beams[0][1], abs=1e-4)


def _next_tokens(llm: LLM, prompt: list[int], count: int) -> Any:
    (answer,) = llm.generate([prompt], Sampling(ignore_eos=True, logprobs=count), max_tokens=1)
    assert answer.logprobs is not None
    return answer.logprobs[0].top


def test_the_tree_search_of_the_page_returns_its_best_leaf(llm: LLM, examples: dict[str, Any]) -> None:
    leaves: dict[str, float] = {}

    def score(answer: Any) -> float:
        if answer.prompt_tokens == len(PROMPT) + 8:
            leaves[answer.id] = sum(answer.token_ids)
        return float(sum(answer.token_ids))

    best = examples["tree_search"](llm, PROMPT, score, depth=3, width=2, tokens=4)
    assert len(leaves) == 4
    assert leaves[best.id] == max(leaves.values())
