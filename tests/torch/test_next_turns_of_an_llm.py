"""Next turns through the library, on tiny models of several kinds: cold tokens afterwards, and hits to the token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire import LLM, Sampling
from quire.core.errors import InputError
from quire.llm.answers import Completion
from quire.plan.settings import Budget, Settings
from quire.text.templates import Message
from quire.worker.support.tiny import tiny_config
from tiny_folder import make_folder, save_folder

GREEDY = Sampling(ignore_eos=True)
SETTINGS = Settings(max_requests=4, batch_tokens=64, max_length=1024, match_unit_tokens=16)
POOL = Budget(pool_bytes=8 << 20)
TURNS = 5


def _folder(place: Path, name: str) -> Path:
    if name == "llama":
        return make_folder(place)
    config = tiny_config(name)
    config.max_position_embeddings = 1024
    return save_folder(place, config)


@pytest.fixture(scope="module", params=["llama", "gemma3_text", "qwen3_next"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Full attention, windows, recurrent states."""
    return _folder(tmp_path_factory.mktemp(request.param), request.param)


def _talk(llm: LLM, is_idle: bool) -> list[Completion]:
    messages: list[Message] = []
    answers = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"{turn} the quick brown fox sees the lazy dog"})
        answers.append(llm.chat(messages, GREEDY, max_tokens=12))
        messages.append(answers[-1].message)
        if is_idle:
            llm.warm()
    return answers


def test_with_idle_time_the_next_turn_finds_all_but_its_message_and_says_the_same(folder: Path) -> None:
    with LLM(folder, settings=SETTINGS, budget=POOL, next_turn="off") as cold:
        expected = _talk(cold, is_idle=False)
    with LLM(folder, settings=SETTINGS, budget=POOL) as llm:
        found = _talk(llm, is_idle=True)
        has_boundaries = llm.engine.scheduler.reuse.index.coverage.has_boundaries
        message = llm.count("4 the quick brown fox sees the lazy dog", raw=True) + 4
        unit = 1 if has_boundaries else llm.plan.reuse_unit_tokens
        assert llm.warm() == 0, "all of it is there"
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    for one in found[1:]:
        assert one.prompt_tokens - one.reused_tokens < message + unit
    assert sum(one.reused_tokens for one in found) > sum(one.reused_tokens for one in expected)


def test_an_announced_prompt_is_computed_and_found(folder: Path) -> None:
    messages = [{"role": "user", "content": "announced: the lazy dog sees the quick brown fox, and " * 3}]
    with LLM(folder, settings=SETTINGS, budget=POOL) as llm:
        computed = llm.warm(messages)
        has_boundaries = llm.engine.scheduler.reuse.index.coverage.has_boundaries
        reusable = llm.count(messages) - 1
        assert computed == (reusable if has_boundaries else reusable // 16 * 16)
        assert llm.chat(messages, GREEDY, max_tokens=4).reused_tokens == computed
        assert llm.warm(seconds=0.0) == 0


def test_a_template_that_cannot_be_rendered_again_is_said_once_and_changes_no_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_folder(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["chat_template"] = (
        "{% if messages | length > 1 %}{{ raise_exception('one message alone') }}{% endif %}"
        "<|user|>{{ messages[0].content }}<|end|>{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with LLM(tmp_path, settings=SETTINGS, budget=POOL) as llm:
        for _ in range(2):
            assert llm.chat([{"role": "user", "content": "hello"}], GREEDY, max_tokens=4).ending == "length"
        assert llm.warm() == 0
    (said,) = [record.message for record in caplog.records if "next turn" in record.message]
    assert "one message alone" in said
    assert "hello" not in said


def test_turned_off_nothing_can_be_announced(tmp_path: Path) -> None:
    llm = LLM(make_folder(tmp_path), settings=SETTINGS, budget=POOL, next_turn="off")
    with llm, pytest.raises(InputError, match="nothing is computed ahead"):
        llm.warm("hello")
    with pytest.raises(InputError, match="choose one of on, off"):
        LLM(tmp_path, next_turn="maybe")
    with pytest.raises(InputError, match="give a whole number from 1"):
        LLM(tmp_path, warm_milliseconds=0)
