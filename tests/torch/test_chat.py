"""Conversations with an `LLM`: tools, schemas, reasoning, and batches in which one fails alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator

from quire import LLM, Completion, Sampling
from quire.core.errors import InputError, NeverFits
from quire.core.request import Request
from quire.core.sampling import Grammar, GrammarSort
from quire.engine.engine import Stream
from quire.plan.settings import Budget, Settings
from quire.text.answer import join_deltas
from tiny_folder import make_folder

SETTINGS, POOL = Settings(max_requests=8, batch_tokens=64, max_length=512), Budget(pool_bytes=4 << 20)
FOX = [{"role": "user", "content": "the quick fox"}]
DOG = [{"role": "system", "content": "the lazy dog"}, *FOX]
WHOLE = Sampling(ignore_eos=True)
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
CLOSED = {**CITY, "additionalProperties": False}
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": CLOSED}}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
BAD = Sampling(grammar=Grammar(GrammarSort.JSON, '{"type": "nonsense"}'))


class City(BaseModel):
    city: str = Field(max_length=8)
    people: int = Field(ge=0, le=99)


class Elsewhere(BaseModel):
    city: str = Field(max_length=2)

    @field_validator("city")
    @classmethod
    def _is_known(cls, value: str) -> str:
        raise ValueError(f"{value!r} is on no map")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, settings=SETTINGS, budget=POOL) as llm:
        yield llm
        assert not llm.engine.streams


# ── one conversation ──────────────────────────────────────────────────────


def test_a_chat_is_one_answer_the_same_that_generate_has(llm: LLM) -> None:
    answer = llm.chat(FOX, WHOLE, max_tokens=12)
    assert answer == llm.generate([FOX], WHOLE, max_tokens=12)[0]
    assert (answer.ending, len(answer.token_ids), answer.tool_calls, answer.reasoning) == ("length", 12, (), "")
    assert answer.message == {"role": "assistant", "content": answer.text}
    longer = llm.chat([*FOX, answer.message, *FOX], WHOLE, max_tokens=2)
    assert longer.prompt_tokens > answer.prompt_tokens + 12


def test_the_pieces_of_a_chat_are_the_answer(llm: LLM) -> None:
    drawn = Sampling(temperature=1.0, seed=1, ignore_eos=True)
    pieces = list(llm.chat_stream(FOX, drawn, max_tokens=12))
    answer, whole = llm.chat(FOX, drawn, max_tokens=12), join_deltas(pieces)
    assert (whole.text, whole.tokens, whole.ending) == (answer.text, answer.token_ids, "length")
    assert len(pieces) > 3
    for _ in llm.chat_stream(FOX, drawn, max_tokens=60):
        break
    assert not llm.engine.streams, "who leaves early ends the request"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_required_tool_is_called_and_its_result_goes_on_with_the_conversation(llm: LLM, choice: Any) -> None:
    answer = llm.chat(FOX, tools=[WEATHER], tool_choice=choice, max_tokens=60)
    (call,) = answer.tool_calls
    assert (answer.text, answer.ending, call.name) == ("", "tool_calls", "weather")
    assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")
    result = {"role": "tool", "tool_call_id": call.id, "content": "24 C"}
    after = llm.chat([*FOX, answer.message, result], WHOLE, tools=[WEATHER], max_tokens=2)
    assert after.ending == "length"
    streamed = join_deltas(list(llm.chat_stream(FOX, tools=[WEATHER], tool_choice=choice, max_tokens=60)))
    assert streamed.tool_calls == answer.tool_calls


def test_the_dialect_of_an_llm_can_be_given(folder: Path) -> None:
    """Its template is in no dialect: the form of the call shows that the option counts."""
    named = {"type": "function", "function": {"name": "weather"}}
    with LLM(folder, settings=SETTINGS, budget=POOL, tool_dialect="mistral-args") as llm:
        answer = llm.chat(FOX, tools=[WEATHER], tool_choice=named, max_tokens=60)
        assert llm.tokenizer.decode(answer.token_ids).startswith('[TOOL_CALLS]weather[ARGS]{"city": "')
        assert [call.name for call in answer.tool_calls] == ["weather"]


def test_tools_that_are_not_offered_are_not_in_the_prompt(llm: LLM) -> None:
    plain = llm.chat(FOX, max_tokens=1).prompt_tokens
    assert llm.chat(FOX, tools=[WEATHER], tool_choice="none", max_tokens=1).prompt_tokens == plain
    assert llm.chat(FOX, tools=[WEATHER], max_tokens=1).prompt_tokens > plain


def test_reasoning_is_parted_where_the_template_marks_it(folder: Path, tmp_path: Path) -> None:
    """A template that begins the reasoning, and an answer that never ends it: all of it is reasoning. Under a schema
    nothing is."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    template = "{{ messages[0].content }}{% if thinking %}<think>\n{% endif %}{# </think> #}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    with LLM(tmp_path, settings=SETTINGS, budget=POOL) as llm:
        switches = {"thinking": True}
        thought = llm.chat(FOX, WHOLE, max_tokens=12, chat_template_kwargs=switches)
        assert (thought.text, bool(thought.reasoning)) == ("", True)
        assert thought.reasoning.strip("\n") == llm.tokenizer.decode(thought.token_ids).strip("\n")
        assert llm.chat(FOX, WHOLE, max_tokens=12).reasoning == ""
        kept = llm.chat(FOX, schema=CLOSED, max_tokens=40, chat_template_kwargs=switches)
        assert (kept.reasoning, set(kept.parsed)) == ("", {"city"})


# ── schemas ───────────────────────────────────────────────────────────────


def test_an_answer_under_a_schema_is_an_object(llm: LLM) -> None:
    """A dict stays one; a pydantic model is validated; `generate` does the same."""
    assert llm.chat(FOX, schema=CLOSED, max_tokens=40).parsed["city"] in ("Rome", "Oslo")
    first, second = llm.generate(["the fox", "the dog"], schema=CLOSED, max_tokens=40)
    assert {first.parsed["city"], second.parsed["city"]} <= {"Rome", "Oslo"}
    answer = llm.chat(FOX, Sampling(temperature=1.0, seed=1), schema=City, max_tokens=120)
    assert isinstance(answer.parsed, City)
    assert answer.parsed == City.model_validate_json(answer.text)
    assert answer.error == ""


def test_an_answer_that_is_no_object_says_why(llm: LLM) -> None:
    """Cut too early, or against a rule that no schema can say."""
    cut = llm.chat(FOX, schema=CLOSED, max_tokens=3)
    assert (cut.parsed, cut.ending) == (None, "length")
    assert cut.error == "the answer is no complete JSON after 3 tokens: raise max_tokens"
    refused = llm.chat(FOX, Sampling(temperature=1.0, seed=1), schema=Elsewhere, max_tokens=60)
    assert refused.parsed is None
    assert refused.error.startswith("Elsewhere does not take the answer: ")
    assert "is on no map" in refused.error
    assert "\n" not in refused.error


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"schema": "city"}, "schema is 'city': give a JSON schema as a dict, or a pydantic model"),
        ({"schema": {"type": object}}, "schema cannot be written as JSON"),
        ({"schema": {"type": "nonsense"}}, "the json grammar cannot be used"),
        ({"schema": CITY, "sampling": BAD}, "an answer keeps one grammar"),
        ({"schema": CITY, "tools": [WEATHER], "tool_choice": "required"}, "an answer keeps one grammar"),
        ({"tools": [WEATHER], "tool_choice": {"function": {"name": "x"}}}, "tool_choice names 'x', and the tools are"),
        ({"tool_choice": "required"}, "there are no tools: give tools"),
        ({"max_tokens": 0}, "max_tokens is 0: ask for at least 1"),
    ],
)
def test_what_cannot_be_asked_of_a_chat_is_refused(llm: LLM, asked: dict[str, Any], words: str) -> None:
    for ask in (llm.chat, lambda *given, **named: list(llm.chat_stream(*given, **named))):
        with pytest.raises(InputError) as refused:
            ask(FOX, **asked)
        assert words in str(refused.value)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url", "file"])
def test_what_is_not_text_is_refused_by_name(llm: LLM, kind: str) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": kind}]}
    for ask in (lambda: llm.chat([message]), lambda: llm.generate([[message]]), lambda: llm.count([message])):
        with pytest.raises(InputError, match=f"messages.0.content.1: content of type '{kind}' is not supported: "):
            ask()


# ── batches ───────────────────────────────────────────────────────────────


def test_of_a_batch_what_cannot_run_is_refused_alone_with_its_numbers(llm: LLM) -> None:
    """Whatever the reason; the others get what they get alone."""
    long, unknown = [5, 6, 7] * 200, [3, 10**6]
    answers = llm.generate([FOX, long, "the fox", unknown, IMAGE, DOG], WHOLE, max_tokens=6)
    refused = [answer.ending == "refused" for answer in answers]
    assert refused == [False, True, False, True, True, False]
    assert "the longest that fits is 512" in answers[1].error
    assert "600" in answers[1].error
    assert "the prompt has token 1000000" in answers[3].error
    assert "'image_url' is not supported" in answers[4].error
    alone = [llm.generate([prompt], WHOLE, max_tokens=6)[0] for prompt in (FOX, "the fox", DOG)]
    ran = [answer for answer in answers if answer.ending != "refused"]
    assert [answer.token_ids for answer in ran] == [answer.token_ids for answer in alone]
    assert all(answer.text == answer.error == "" or answer.text for answer in ran)


def test_conversations_are_refused_alone_too_with_all_their_samples(llm: LLM) -> None:
    answers = llm.chat_batch([FOX, IMAGE, DOG], Sampling(temperature=1.0, seed=1), max_tokens=6, n=2)
    assert [answer.ending == "refused" for answer in answers] == [False, False, True, True, False, False]
    assert answers[0].token_ids != answers[1].token_ids
    assert answers[2] == Completion("", (), "refused", 0, 0, error=answers[2].error)


def test_a_grammar_that_cannot_be_used_refuses_its_own_prompt(llm: LLM) -> None:
    """With a sampling for each prompt."""
    first, second, third = llm.generate(["the fox"] * 3, [WHOLE, BAD, WHOLE], max_tokens=4)
    assert (first.ending, second.ending, third.ending) == ("length", "refused", "length")
    assert "the json grammar cannot be used" in second.error
    with pytest.raises(InputError, match="2 samplings for 3 prompts: give one for all, or one for each"):
        llm.generate(["the fox"] * 3, [WHOLE, WHOLE])


@pytest.mark.story
@pytest.mark.parametrize("given", [5, [5], "hot", {"temperature": 1}])
def test_what_is_no_sampling_is_refused_in_its_place(llm: LLM, given: Any) -> None:
    with pytest.raises(InputError, match=r"sampling is .*: give a Sampling, or one for each prompt"):
        llm.generate("the fox", given)


def test_a_single_prompt_that_cannot_run_raises(llm: LLM) -> None:
    with pytest.raises(NeverFits, match="the longest that fits is 512"):
        llm.generate([[5, 6, 7] * 200])
    with pytest.raises(NeverFits, match="the longest that fits is 512"):
        llm.chat([{"role": "user", "content": "the quick fox " * 400}])
    with pytest.raises(InputError, match="the json grammar cannot be used"):
        llm.generate("the fox", BAD)


def test_a_priority_reaches_the_engine(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Request] = []
    submit = llm.engine.submit

    def note(request: Request) -> Stream:
        seen.append(request)
        return submit(request)

    monkeypatch.setattr(llm.engine, "submit", note)
    llm.generate(["the fox"], max_tokens=1, priority=3)
    llm.chat(FOX, max_tokens=1, priority=4)
    llm.chat_batch([FOX], max_tokens=1, priority=5, n=2)
    list(llm.chat_stream(FOX, max_tokens=1, priority=6))
    list(llm.stream("the fox", max_tokens=1, priority=-7))
    llm.generate(["the fox"], max_tokens=1)
    assert [request.priority for request in seen] == [3, 4, 5, 5, 6, -7, 0]
