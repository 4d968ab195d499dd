"""The official client, against the default model: what it sends is understood, what it gets is what it expects."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from running_server import RunningServer

pytestmark = pytest.mark.network
QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
MODEL = "smollm2-135m-instruct"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def client(default_server: RunningServer) -> OpenAI:
    return OpenAI(base_url=default_server.address + "/v1", api_key="none", max_retries=0, timeout=120)


def test_a_chat_is_answered_with_its_usage(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=12, temperature=0)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (37, 8, 45)
    assert answer.id.startswith("chatcmpl-")
    assert answer._request_id


def test_a_stream_is_the_answer_in_pieces_and_ends_with_the_usage(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert len(chunks) > 5
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-2:] == [None, "stop"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_an_answer_that_reaches_its_length_says_so(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_completion_tokens=3, temperature=0)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content == "The capital of"


def test_a_seed_repeats_what_chance_decided_and_choices_differ(client: OpenAI) -> None:
    def ask(seed: int, n: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=8, seed=seed, n=n
        )
        assert [choice.index for choice in answer.choices] == list(range(n))
        return [choice.message.content for choice in answer.choices]

    first = ask(7, 3)
    assert ask(7, 3) == first
    assert len(set(first)) == 3
    assert ask(7, 1) == first[:1]
    assert ask(8, 1) != first[:1]


def test_choices_of_a_stream_are_told_apart(client: OpenAI) -> None:
    pieces: dict[int, str] = {}
    for chunk in client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=6, seed=1, n=2, temperature=1, stream=True
    ):
        for choice in chunk.choices:
            pieces[choice.index] = pieces.get(choice.index, "") + (choice.delta.content or "")
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=6, seed=1, n=2, temperature=1)
    assert pieces == {choice.index: choice.message.content for choice in whole.choices}


@pytest.mark.parametrize("stream", [False, True])
def test_the_text_ends_before_a_stop_string(client: OpenAI, stream: bool) -> None:
    answer: Any = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=12, temperature=0, stop=["xyz", "ance is"], stream=stream
    )
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    texts = [c.delta.content or "" if stream else c.message.content for c in choices]
    assert "".join(texts) == "The capital of Fr"
    assert choices[-1].finish_reason == "stop"


def test_a_json_schema_is_kept(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 10}, "people": {"type": "integer", "maximum": 99}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=60, temperature=1, seed=3,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}},
    )  # fmt: skip
    found = json.loads(answer.choices[0].message.content or "")
    assert isinstance(found["city"], str)
    assert isinstance(found["people"], int)
    assert set(found) == {"city", "people"}


def test_a_json_object_begins_as_one(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=8, temperature=0, response_format={"type": "json_object"}
    )
    assert (answer.choices[0].message.content or "").startswith("{")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_required_tool_is_called_with_arguments_that_keep_its_schema(client: OpenAI, choice: Any) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Is it warm in Rome?"}], tools=[WEATHER],
        tool_choice=choice, max_tokens=60, temperature=0,
    )  # fmt: skip
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    (call,) = calls
    assert call.type == "function"
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in "CF"
    assert answer.choices[0].message.content is None


def test_a_tool_call_streams_and_its_result_can_be_answered(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        tools=[WEATHER],
        tool_choice="required",
        max_tokens=60,
        temperature=0,
        stream=True,
    )
    chunks = [chunk.choices[0] for chunk in stream]
    call, *pieces = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert call.function is not None
    assert (call.index, call.type, call.function.name, call.function.arguments) == (0, "function", "weather", "")
    assert {(piece.index, piece.id, piece.type) for piece in pieces} == {(0, None, None)}
    call.function.arguments = "".join(piece.function.arguments or "" for piece in pieces if piece.function)
    assert json.loads(call.function.arguments)["unit"] in "CF"
    assert chunks[-1].finish_reason == "tool_calls"
    said: list[Any] = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump(exclude={"index"})]},
        {"role": "tool", "tool_call_id": call.id, "content": "24 C"},
    ]
    answer = client.chat.completions.create(
        model=MODEL, messages=said, tools=[WEATHER], max_tokens=4, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "length"


def test_the_clients_own_accumulator_makes_whole_calls_of_a_stream(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=QUESTION, tools=[WEATHER], tool_choice="required", max_tokens=60, temperature=0
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls or []
    assert call.function.name == "weather"
    assert set(json.loads(call.function.arguments)) == {"city", "unit"}


def test_tools_that_need_not_be_called_leave_text_as_it_is(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=[WEATHER], max_tokens=8, temperature=0
    )
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_come_with_the_tokens_they_belong_to(client: OpenAI, stream: bool) -> None:
    """Greedy: each token is the most likely of its place, and together they spell the answer."""
    answer: Any = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=12, temperature=0, logprobs=True, top_logprobs=3, stream=stream
    )
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    entries = [entry for choice in choices for entry in choice.logprobs.content]
    assert len(entries) == 8
    assert "".join(entry.token for entry in entries) == ANSWER + "<|im_end|>"
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob) == (entry.token, entry.logprob)
        assert bytes(entry.bytes).decode() == entry.token
        assert 0 >= entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob


def test_log_probabilities_of_a_completion_have_their_places_in_the_text(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=4, temperature=0, logprobs=2)
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.tokens is not None
    assert found.text_offset is not None
    assert "".join(found.tokens) == answer.choices[0].text
    text = answer.choices[0].text
    assert all(text[place:].startswith(t) for place, t in zip(found.text_offset, found.tokens, strict=True))
    assert len(found.token_logprobs or []) == len(found.top_logprobs or []) == 4
    assert all(len(top) == 2 for top in found.top_logprobs or [])


def test_completions_take_text_and_tokens_one_or_several(client: OpenAI) -> None:
    one = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=4, temperature=0)
    assert one.choices[0].text.startswith(" four")
    assert one.object == "text_completion"
    tokens = client.post("/tokenize", body={"prompt": "One, two, three,"}, cast_to=object)
    several = client.completions.create(
        model=MODEL,
        prompt=[tokens["tokens"], tokens["tokens"]],
        max_tokens=4,
        temperature=0,
        n=2,  # type: ignore[index]
    )
    assert [choice.text for choice in several.choices] == [one.choices[0].text] * 4
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.usage is not None
    assert several.usage.prompt_tokens == 2 * tokens["count"]  # type: ignore[index]


def test_a_completion_streams_and_echoes(client: OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL, prompt="One, two, three,", max_tokens=4, temperature=0, stream=True, echo=True
    )
    text = "".join(chunk.choices[0].text for chunk in stream)
    assert text.startswith("One, two, three, four")


def test_models_are_listed_with_the_length_that_the_plan_admits(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert model.model_dump()["max_length"] == 512
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_are_of_the_clients_own_classes(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="is not here"):
        client.chat.completions.create(model="gpt-9", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="at least 1 item"):
        client.chat.completions.create(model=MODEL, messages=[])
    with pytest.raises(openai.BadRequestError, match="lora is not supported") as refused:
        client.chat.completions.create(model=MODEL, messages=QUESTION, extra_body={"lora": "x"})
    assert refused.value.code == "unsupported_field"
    picture: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    with pytest.raises(openai.BadRequestError, match="'image_url' is not supported"):
        client.chat.completions.create(model=MODEL, messages=picture)
    with pytest.raises(openai.BadRequestError, match="the json grammar cannot be used"):
        client.chat.completions.create(
            model=MODEL, messages=QUESTION,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}},
        )  # fmt: skip


def test_a_request_that_can_never_fit_is_refused_with_the_numbers(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="512") as refused:
        client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=500)
    assert refused.value.code == "context_length_exceeded"
    numbers = refused.value.body["numbers"]  # type: ignore[index]
    assert numbers["prompt_tokens"] == 37
    assert numbers["max_tokens"] == 500
    assert numbers["max_length"] == 512
    assert numbers["sheets_needed"] > 0
