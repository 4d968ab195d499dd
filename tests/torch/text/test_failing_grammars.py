"""A grammar that can be compiled and then grows too large to follow: its own request fails, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from quire import LLM, Sampling
from quire.core.errors import InputError
from quire.core.sampling import Grammar, GrammarSort
from quire.plan.settings import Budget, Settings
from tiny_folder import make_folder

WIDE = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1200)}}
FAILING = Sampling(grammar=Grammar(GrammarSort.JSON, json.dumps(WIDE)))
PROMPT = "the quick fox"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder: Path = make_folder(tmp_path_factory.mktemp("tiny"))
    settings = Settings(max_requests=8, batch_tokens=64, max_length=256)
    return LLM(folder, settings=settings, budget=Budget(pool_bytes=2 << 20))


def test_a_request_that_cannot_go_on_ends_with_an_error_and_others_stream_on(llm: LLM) -> None:
    sampling = Sampling(ignore_eos=True)
    undisturbed = "".join(llm.stream(PROMPT, sampling, max_tokens=40))
    pieces = llm.stream(PROMPT, sampling, max_tokens=40)
    text = next(pieces)
    answers = llm.generate([PROMPT, PROMPT], FAILING, max_tokens=60)
    assert [answer.ending for answer in answers] == ["failed", "failed"]
    assert all("is not allowed by the grammar here" in answer.error for answer in answers)
    assert text + "".join(pieces) == undisturbed
    (after,) = llm.generate(PROMPT, sampling, max_tokens=40)
    assert (after.text, after.error) == (undisturbed, "")
    assert not llm.engine.streams


def test_a_stream_that_cannot_go_on_raises(llm: LLM) -> None:
    with pytest.raises(InputError, match="not allowed by the grammar"):
        list(llm.stream(PROMPT, FAILING, max_tokens=60))

    async def read() -> None:
        async for _ in llm.astream(PROMPT, FAILING, max_tokens=60):
            pass

    with pytest.raises(InputError, match="not allowed by the grammar"):
        asyncio.run(read())
