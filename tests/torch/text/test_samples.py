"""Several samples of one prompt, and what the model thought of each token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quire import LLM, Sampling
from quire.cache.audit import audit
from quire.cache.pool import Holder
from quire.core.errors import InputError
from quire.core.events import StepLaunched
from quire.fetch.convert import folder_of_gguf
from quire.fetch.folder import in_silence
from quire.llm.answers import completions
from quire.llm.questions import Options
from quire.plan.settings import Budget, Settings
from quire.text.question import with_seed
from quire.text.spelling import Spelling
from quire.text.tokenizer import Tokenizer
from small_gguf import write_gguf

UNIT = 16
PROMPT = list(range(60, 60 + 3 * UNIT + 5))
HOT = Sampling(temperature=1.5, seed=7, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, tokenizer.inner)
    return folder_of_gguf(path, in_silence, path.parent / "tiny")


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    settings = Settings(max_requests=8, batch_tokens=64, max_length=128, match_unit_tokens=UNIT)
    llm = LLM(folder, settings=settings, budget=Budget(pool_bytes=4 << 20))
    yield llm
    llm.close()


def test_samples_differ_and_come_in_order(llm: LLM) -> None:
    prompts = [PROMPT, PROMPT[:20]]
    together = llm.generate(prompts, HOT, max_tokens=6, n=3)
    assert [one.prompt_tokens for one in together] == [len(PROMPT)] * 3 + [20] * 3
    assert len({one.token_ids for one in together}) == 6
    for place, prompt in enumerate(prompts):
        for sample in range(3):
            (alone,) = llm.generate([prompt], with_seed(HOT, sample), max_tokens=6)
            assert together[3 * place + sample].token_ids == alone.token_ids


def test_the_prompt_is_computed_once_and_its_pages_are_shared(llm: LLM) -> None:
    """Each sample computes the prompt's last token for itself, which its first output is sampled from."""
    shared = 0
    samples = llm._begin(llm._questions.plain(PROMPT, True, HOT, Options(8, samples=4)), [])
    (memory,) = llm.engine.scheduler.memories
    while not all(sample.is_over for sample in samples):
        llm._step(samples)
        shared = max(shared, int(memory.pool.shelves[0].count(Holder.REQUEST).max()))
        audit(memory, {row: request.name for row, request in llm.engine.scheduler.rows.requests.items()})
    assert shared == 4, "each page of the prompt's whole units had four holders"
    answers = completions(samples, 4, Spelling(llm.tokenizer), None)
    assert [answer.reused_tokens for answer in answers] == [0, *[len(PROMPT) - 1] * 3]
    computed = llm.engine.counters.sums[StepLaunched, "tokens"]
    outputs = 4 * 8 - 4 + 4  # the last one of each is not computed; a step that was under way already may have begun it
    assert computed <= len(PROMPT) + 3 + outputs


def test_no_sample_is_no_question(llm: LLM) -> None:
    with pytest.raises(InputError, match="n is 0: ask for at least 1"):
        llm.generate("x", n=0)


def test_each_token_comes_with_its_text_and_what_else_was_likely(llm: LLM, tokenizer: Tokenizer) -> None:
    (one,) = llm.generate([PROMPT], Sampling(logprobs=3, prompt_logprobs=1, ignore_eos=True), max_tokens=5)
    assert one.logprobs is not None
    assert one.prompt_logprobs is not None
    assert tuple(told.token for told in one.logprobs) == one.token_ids
    assert [told.token for told in one.prompt_logprobs] == PROMPT[1:]
    for told in one.logprobs:
        assert told.rank == 1
        assert told.text == tokenizer.decode([told.token], skip_special_tokens=False)
        assert (told.top[0].token, told.top[0].logprob) == (told.token, told.logprob)
        assert [other.rank for other in told.top] == [1, 2, 3]
        assert told.logprob >= told.top[1].logprob >= told.top[2].logprob
    assert all(len(told.top) == 1 and told.logprob <= told.top[0].logprob < 0 for told in one.prompt_logprobs)
    (silent,) = llm.generate([PROMPT], max_tokens=5)
    assert (silent.logprobs, silent.prompt_logprobs) == (None, None)


def test_samples_share_what_is_known_about_their_prompt(llm: LLM) -> None:
    """One of them computes it; the others find it in the cache."""
    first, second = llm.generate([PROMPT], Sampling(temperature=1.0, seed=3, prompt_logprobs=0), max_tokens=4, n=2)
    assert first.prompt_logprobs == second.prompt_logprobs
    assert len(first.prompt_logprobs or ()) == len(PROMPT) - 1
    assert (first.reused_tokens, second.reused_tokens) == (0, len(PROMPT) - 1)
    assert np.isfinite([told.logprob for told in first.prompt_logprobs or ()]).all()


def test_a_stop_string_cuts_the_logprobs_too(llm: LLM) -> None:
    (whole,) = llm.generate([PROMPT], Sampling(logprobs=0, ignore_eos=True), max_tokens=8)
    stop = whole.text[2:4]
    (cut,) = llm.generate([PROMPT], Sampling(logprobs=0, ignore_eos=True, stop=(stop,)), max_tokens=8)
    assert cut.ending == "stop"
    assert 0 < len(cut.logprobs or ()) == len(cut.token_ids) < 8
