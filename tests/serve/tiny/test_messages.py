"""The official client of the Messages API, against a tiny model: streams, tools, counts, errors, clients that leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic

from running_server import RunningServer
from serve_kit import MESSAGES

ASK: list[Any] = [{"role": "user", "content": "the quick fox"}]
GREEDY: Any = {"extra_body": {"temperature": 0}}
WEATHER: Any = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"unit": {"enum": ["C", "F"]}},
        "required": ["unit"],
        "additionalProperties": False,
    },
}


def connected(server: RunningServer, key: str) -> Anthropic:
    return Anthropic(base_url=server.address, api_key=key, max_retries=0, timeout=300)


@pytest.fixture
def messages(tiny_server: RunningServer, keys: Any) -> Iterator[Anthropic]:
    with connected(tiny_server, keys.alice) as client:
        yield client


def test_an_answer_is_a_message_with_its_usage(messages: Anthropic, client: httpx.Client) -> None:
    """The same text and the same prompt as a chat has."""
    answer = messages.messages.create(model="tiny", messages=ASK, max_tokens=8, system="be brief", **GREEDY)
    said = [{"role": "system", "content": "be brief"}, *ASK]
    body = {"model": "tiny", "messages": said, "max_tokens": 8, "temperature": 0}
    chat = client.post("/v1/chat/completions", json=body).json()
    (block,) = answer.content
    assert block.type == "text"
    assert block.text == chat["choices"][0]["message"]["content"]
    usage = answer.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == chat["usage"]["prompt_tokens"]
    assert usage.output_tokens == chat["usage"]["completion_tokens"]
    assert (answer.type, answer.role, answer.model, answer.id[:4]) == ("message", "assistant", "tiny", "msg_")
    assert answer._request_id


def test_a_repeated_prompt_is_read_from_the_cache(messages: Anthropic) -> None:
    """Input tokens, cached ones and those that are counted beforehand add up."""
    ask: list[Any] = [{"role": "user", "content": "the lazy dog sees the quick fox " * 12}]
    count = messages.messages.count_tokens(model="tiny", messages=ask).input_tokens
    usages = [messages.messages.create(model="tiny", messages=ask, max_tokens=1).usage for _ in range(2)]
    assert [usage.input_tokens + (usage.cache_read_input_tokens or 0) for usage in usages] == [count, count]
    assert usages[1].cache_read_input_tokens
    assert [usage.cache_creation_input_tokens for usage in usages] == [0, 0]


def test_a_stream_is_the_answer_in_pieces(messages: Anthropic) -> None:
    whole = messages.messages.create(model="tiny", messages=ASK, max_tokens=20, **GREEDY)
    with messages.messages.stream(model="tiny", messages=ASK, max_tokens=20, **GREEDY) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert stream.response.headers["content-type"].startswith("text/event-stream")
    assert stream.request_id


@pytest.mark.parametrize("streams", [False, True])
def test_the_stop_sequence_that_ended_an_answer_is_named(messages: Anthropic, streams: bool) -> None:
    first = messages.messages.create(model="tiny", messages=ASK, max_tokens=20, **GREEDY).content[0]
    assert first.type == "text"
    stop = first.text[6:9]
    asked: Any = {"model": "tiny", "messages": ASK, "max_tokens": 200, "stop_sequences": ["\x00\x01", stop], **GREEDY}
    if streams:
        with messages.messages.stream(**asked) as stream:
            answer: Any = stream.get_final_message()
    else:
        answer = messages.messages.create(**asked)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert "".join(block.text for block in answer.content) == first.text[: first.text.index(stop)]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_required_call_makes_a_round_trip(messages: Anthropic, choice: Any) -> None:
    """The call keeps its schema; handed back with its result, as the client's own objects, it is a conversation."""
    asked: Any = {"model": "tiny", "tools": [WEATHER], "max_tokens": 150, **GREEDY}
    choice = {**choice, "disable_parallel_tool_use": True}
    answer = messages.messages.create(messages=ASK, tool_choice=choice, **asked)
    assert answer.stop_reason == "tool_use"
    (call,) = answer.content
    assert call.type == "tool_use"
    assert (call.name, set(call.input)) == ("weather", {"unit"})
    with messages.messages.stream(messages=ASK, tool_choice=choice, **asked) as stream:
        (again,) = stream.get_final_message().content
    assert again.type == "tool_use"
    assert again.input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "24"}]}
    turn: list[Any] = [*ASK, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    dumped = [{**turn[1], "content": [block.model_dump() for block in answer.content]}, turn[2]]
    for said in (turn, [*ASK, *dumped]):
        assert messages.messages.create(messages=said, **{**asked, "max_tokens": 2}).usage.output_tokens


def test_a_length_that_does_not_fit_is_shortened_to_what_does(messages: Anthropic) -> None:
    """Coding agents send a large one always. 512 tokens are the longest request here."""
    answer = messages.messages.create(model="tiny", messages=ASK, max_tokens=2000, **GREEDY)
    usage = answer.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) + usage.output_tokens == 512
    assert answer.stop_reason == "model_context_window_exceeded"


def test_the_beta_client_and_a_bearer_key_work_as_well(tiny_server: RunningServer, keys: Any) -> None:
    """Coding agents use both, and send headers of their own."""
    with Anthropic(base_url=tiny_server.address, auth_token=keys.bob, api_key=None, max_retries=0) as client:
        answer = client.beta.messages.create(
            model="tiny", messages=ASK, max_tokens=2, betas=["context-management-2025-06-27"],
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        )  # fmt: skip
    assert answer.usage.output_tokens


def test_tokens_are_counted_without_the_engine(tiny_server: RunningServer, messages: Anthropic) -> None:
    tiny_server.until("it is idle", tiny_server.is_idle)
    before = tiny_server.metric("quire_prompt_tokens_total")
    plain = messages.messages.count_tokens(model="tiny", messages=ASK).input_tokens
    with_tools = messages.messages.count_tokens(model="tiny", messages=ASK, tools=[WEATHER]).input_tokens
    hidden = messages.messages.count_tokens(model="tiny", messages=ASK, tools=[WEATHER], tool_choice={"type": "none"})
    assert 0 < plain == hidden.input_tokens < with_tools
    assert tiny_server.metric("quire_prompt_tokens_total") == before


LONG, LARGE = ([{"role": "user", "content": "x" * size}] for size in (2000, 300_000))


@pytest.mark.parametrize(
    ("change", "sort", "kind", "code"),
    [
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error", "invalid_value"),
        ({"extra_body": {"lora": 1}}, anthropic.BadRequestError, "invalid_request_error", "unsupported_field"),
        ({"messages": LONG}, anthropic.BadRequestError, "invalid_request_error", "context_length_exceeded"),
        ({"model": "claude"}, anthropic.NotFoundError, "not_found_error", "model_not_found"),
        ({"messages": LARGE}, anthropic.APIStatusError, "request_too_large", "body_too_large"),
    ],
)
def test_errors_are_of_the_clients_own_classes(
    messages: Anthropic, change: dict[str, Any], sort: type[anthropic.APIStatusError], kind: str, code: str
) -> None:
    error = refused(messages, **change)
    assert isinstance(error, sort)
    assert (error.type, error.error_code) == (kind, code)


def test_a_key_that_is_not_known_or_may_not_do_this_is_refused(tiny_server: RunningServer, keys: Any) -> None:
    with connected(tiny_server, "none") as client:
        error = refused(client)
    assert isinstance(error, anthropic.AuthenticationError)
    assert (error.type, error.error_code) == ("authentication_error", "invalid_api_key")
    with connected(tiny_server, keys.brief) as client:
        error = refused(client, max_tokens=80)
    assert isinstance(error, anthropic.BadRequestError)
    assert error.error_code == "tokens_limit"


def refused(client: Anthropic, **change: Any) -> anthropic.APIStatusError:
    """With the request's id where the client looks for it, and in the body."""
    with pytest.raises(anthropic.APIStatusError) as raised:
        client.messages.create(**{"model": "tiny", "messages": ASK, "max_tokens": 4, **change})
    error = raised.value
    assert error.request_id == error.response.headers["x-request-id"] == error.response.json()["request_id"]
    assert error.api_message
    return error


def test_paths_and_methods_that_there_are_none_of_have_the_same_form(client: httpx.Client) -> None:
    for answer, kind in (
        (client.post(f"{MESSAGES}/batches", json={}), "not_found_error"),
        (client.get(MESSAGES), "invalid_request_error"),
        (client.post(MESSAGES, content=b"{"), "invalid_request_error"),
    ):
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["type"] == kind
        assert answer.json()["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    assert client.get(MESSAGES).headers["allow"] == "POST"
    assert client.post("/v1/messagesome", json={}).json()["error"]["code"] == "not_found"


def test_an_answer_can_be_explained_by_its_id(messages: Anthropic, client: httpx.Client) -> None:
    answer = messages.messages.create(model="tiny", messages=ASK, max_tokens=2)
    explained = client.get(f"/v1/requests/{answer.id}/explain").json()
    assert (explained["id"], explained["choices"][0]["status"]) == (answer.id, "ended")


def test_a_client_that_leaves_a_stream_leaves_nothing_held(tiny_server: RunningServer, messages: Anthropic) -> None:
    """On a busy machine an answer can be complete before its client has left: then another one is requested."""

    def is_cancelled() -> bool:
        before = tiny_server.metric("quire_requests_ended_total", ending="cancelled")
        with messages.messages.stream(model="tiny", messages=ASK, max_tokens=450, **GREEDY) as stream:
            for event in stream:
                if event.type == "content_block_delta":
                    break
        tiny_server.until("it is idle", tiny_server.is_idle)
        return tiny_server.metric("quire_requests_ended_total", ending="cancelled") > before

    tiny_server.until("it is idle", tiny_server.is_idle)
    tiny_server.until("a stream that is left is cancelled", is_cancelled, seconds=60)
    tiny_server.until("it is audited", tiny_server.is_audited)
    assert tiny_server.metric("quire_books_balance") == 1
