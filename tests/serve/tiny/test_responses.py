"""/v1/responses of a running server: what a stream holds, what is stored for whom, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from running_server import WAIT_SECONDS, RunningServer

PATH = "/v1/responses"
LOGPROBS: Any = ["message.output_text.logprobs"]


def official(server: RunningServer, key: str) -> OpenAI:
    return OpenAI(base_url=server.address + "/v1", api_key=key, max_retries=0, timeout=WAIT_SECONDS)


@pytest.fixture
def alice(tiny_server: RunningServer, keys: Any) -> Iterator[OpenAI]:
    with official(tiny_server, keys.alice) as client:
        yield client


@pytest.fixture
def bob(tiny_server: RunningServer, keys: Any) -> Iterator[OpenAI]:
    with official(tiny_server, keys.bob) as client:
        yield client


def respond(client: OpenAI, **change: Any) -> Any:
    own = {"ignore_eos": True, **change.pop("extra_body", {})}
    given = {"model": "tiny", "input": "the quick fox", "max_output_tokens": 4, "temperature": 0, **change}
    return client.responses.create(**given, extra_body=own)


def test_a_response_repeats_what_was_asked_and_counts_its_tokens(alice: OpenAI) -> None:
    answer = respond(
        alice, instructions="Be brief.", metadata={"a": "b"}, user="me", top_p=0.5, prompt_cache_key="k",
        reasoning={"effort": "low", "summary": "auto"}, text={"verbosity": "low"}, service_tier="auto",
        tools=[{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}],
        include=["reasoning.encrypted_content"], truncation="disabled", background=False, safety_identifier="s",
        stream_options={"include_obfuscation": False},
    )  # fmt: skip
    assert answer.id.startswith("resp_")
    assert (answer.status, answer.error, answer.object) == ("incomplete", None, "response")
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert (answer.instructions, answer.metadata, answer.user, answer.top_p) == ("Be brief.", {"a": "b"}, "me", 0.5)
    assert (answer.temperature, answer.max_output_tokens, answer.parallel_tool_calls) == (0, 4, True)
    assert (answer.tools[0].name, answer.tool_choice, answer.text.verbosity) == ("weather", "auto", "low")
    assert (answer.text.format.type, answer.reasoning.effort, answer.prompt_cache_key) == ("text", "low", "k")
    usage = answer.usage
    assert (usage.output_tokens, usage.output_tokens_details.reasoning_tokens) == (4, 0)
    assert usage.total_tokens == usage.input_tokens + 4
    assert answer.output_text


def test_the_tokens_of_a_call_are_counted_before_it_is_made(alice: OpenAI, bob: OpenAI) -> None:
    """With the conversation that it continues, which is the key's own, instructions and tools."""
    tool: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
    before = respond(alice)
    given: Any = {"input": "and then?", "previous_response_id": before.id, "instructions": "Be brief.", "tools": [tool]}
    counted = alice.responses.input_tokens.count(model="tiny", **given)
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == respond(alice, **given).usage.input_tokens > before.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="of this key is stored"):
        bob.responses.input_tokens.count(model="tiny", **given)
    with pytest.raises(openai.NotFoundError, match="is not here"):
        alice.responses.input_tokens.count(model="other", input="x")


def test_a_stream_ends_with_the_response_that_is_stored(alice: OpenAI) -> None:
    """The same one is found by its id, and a call that is not streamed has the same text."""
    events = list(respond(alice, stream=True, include=LOGPROBS, top_logprobs=2))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last.type == "response.incomplete"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == last.response.output_text == respond(alice).output_text
    assert len(last.response.output[0].content[0].logprobs) == 4
    assert all(len(one.top_logprobs) == 2 for one in last.response.output[0].content[0].logprobs)
    assert alice.responses.retrieve(last.response.id).to_dict() == last.response.to_dict()


def test_a_stored_conversation_is_continued_and_costs_what_it_costs_when_it_is_sent_whole(alice: OpenAI) -> None:
    """The prompts are equal: the same tokens, and what the first call computed is reused. Instructions of an earlier
    call do not count. The items are listed with the newest first."""
    first = respond(alice, instructions="Be brief.", input="the quick brown fox sees the lazy dog " * 6)
    again = respond(alice, input="and the dog", previous_response_id=first.id)
    whole = [{"role": "user", "content": "the quick brown fox sees the lazy dog " * 6}, *first.output,
             {"role": "user", "content": "and the dog"}]  # fmt: skip
    sent = respond(alice, input=whole, store=False)
    assert again.usage.input_tokens == sent.usage.input_tokens
    assert sent.usage.input_tokens_details.cached_tokens >= 64
    assert again.output_text == sent.output_text
    assert again.previous_response_id == first.id
    named = [*whole[:1], {"type": "item_reference", "id": first.output[0].id}, whole[-1]]
    assert respond(alice, input=named).usage.input_tokens == sent.usage.input_tokens
    listed: Any = alice.responses.input_items.list(again.id, limit=2)
    assert [item.role for item in listed] == ["user", "assistant", "user"]  # the client asks for further pages
    assert listed.data[0].content[0].text == "and the dog"
    assert alice.responses.input_items.list(again.id, order="asc").data[-1].id == listed.data[0].id


def test_what_a_key_stores_is_its_own_until_it_deletes_it(alice: OpenAI, bob: OpenAI) -> None:
    stored = respond(alice)
    answers = []
    for name in (stored.id, "resp_" + "0" * 24):
        for act in (bob.responses.retrieve, bob.responses.delete, bob.responses.input_items.list):
            with pytest.raises(openai.NotFoundError) as missing:
                act(name)
            answers.append(missing.value.message.replace(name, "…"))
    assert len(set(answers)) == 1
    with pytest.raises(openai.BadRequestError) as refused:
        respond(bob, previous_response_id=stored.id)
    assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
    assert alice.responses.retrieve(stored.id).output_text == stored.output_text
    alice.responses.delete(stored.id)
    with pytest.raises(openai.NotFoundError):
        alice.responses.retrieve(stored.id)


def test_what_shall_not_be_stored_is_not(alice: OpenAI) -> None:
    answer = respond(alice, store=False)
    assert answer.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        alice.responses.retrieve(answer.id)


def test_a_client_that_leaves_mid_stream_leaves_nothing_held_or_stored(
    tiny_server: RunningServer, client: httpx.Client
) -> None:
    tiny_server.until("nothing runs", tiny_server.is_idle)
    before = tiny_server.metric("quire_stored_responses")
    given = {"model": "tiny", "input": "the fox", "stream": True, "ignore_eos": True, "max_output_tokens": 400}
    with client.stream("POST", PATH, json=given) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        name = json.loads(next(lines).removeprefix("data: "))["response"]["id"]
        assert any("output_text.delta" in line for line in lines)
    tiny_server.until("nothing runs", tiny_server.is_idle)
    assert tiny_server.metric("quire_stored_responses") == before
    assert client.get(f"{PATH}/{name}").status_code == 404


def test_a_response_in_progress_is_cancelled_by_its_own_key_alone(
    tiny_server: RunningServer, keys: Any, alice: OpenAI, bob: OpenAI
) -> None:
    """Its stream ends with the error, it is not stored and nothing stays held. For others, admins too, it does not
    exist; one that has ended cannot be cancelled."""
    events = respond(alice, stream=True, max_output_tokens=400)
    name = next(event.response.id for event in events if event.type == "response.created")
    with official(tiny_server, keys.admin) as admin:
        for other in (bob, admin):
            with pytest.raises(openai.NotFoundError):
                other.responses.cancel(name)
    cancelled = alice.responses.cancel(name)
    assert (cancelled.id, cancelled.status, cancelled.output_text) == (name, "cancelled", "")
    last = [event for event in events if event.type in ("error", "response.failed")]
    assert [event.type for event in last] == ["error", "response.failed"]
    assert (last[0].code, last[1].response.status) == ("aborted", "failed")
    tiny_server.until("nothing runs", tiny_server.is_idle)
    with pytest.raises(openai.NotFoundError):
        alice.responses.retrieve(name)
    for ended in (name, respond(alice).id, respond(alice, store=False).id):
        with pytest.raises(openai.ConflictError) as refused:
            alice.responses.cancel(ended)
        assert refused.value.code == "response_ended"


def test_a_call_can_be_explained_by_the_id_of_its_response(client: httpx.Client, alice: OpenAI) -> None:
    found = client.get(f"/v1/requests/{respond(alice).id}/explain").json()
    assert found["choices"][0]["status"] == "ended"


@pytest.mark.parametrize(
    ("change", "status", "code", "param"),
    [
        ({"model": "gpt-5"}, 404, "model_not_found", "model"),
        ({"input": "fox " * 1000}, 400, "context_length_exceeded", "input"),
        ({"max_output_tokens": 5000}, 400, "context_length_exceeded", "input"),
        ({"tools": [{"type": "web_search"}]}, 400, "invalid_value", "tools.0"),
        ({"previous_response_id": "resp_0"}, 400, "previous_response_not_found", "previous_response_id"),
        ({"input": [{"id": "msg_0"}]}, 400, "item_not_found", "input.0"),
        ({"tool_choice": "required"}, 400, "invalid_value", "tools"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": 3}}}}, 400, "invalid_schema",
         "text.format"),
        ({"text": {"format": {"type": "json_object"}}, "tool_choice": "required",
          "tools": [{"type": "function", "name": "a"}]}, 400, "unsupported_field", "text.format"),
    ],
)  # fmt: skip
def test_refusals_name_the_fields_that_the_client_sent(
    client: httpx.Client, change: dict[str, Any], status: int, code: str, param: str
) -> None:
    answer = client.post(PATH, json={"model": "tiny", "input": "the fox", "max_output_tokens": 4, **change})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error
    assert "messages" not in error["message"]
    assert "response_format" not in error["message"]


@pytest.mark.story
def test_what_is_ignored_may_be_as_deep_as_it_likes(client: httpx.Client) -> None:
    """Nothing of it is kept: pydantic cannot write values 255 levels deep, and the store would."""
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    part = {"type": "output_text", "text": "Yes", "annotations": deep, "logprobs": deep}
    items = [{"role": "assistant", "content": [part]}, {"role": "user", "content": "the fox"}]
    answer = client.post(PATH, json={"model": "tiny", "input": items, "max_output_tokens": 1})
    assert answer.status_code == 200, answer.text
    listed = client.get(f"{PATH}/{answer.json()['id']}/input_items").json()["data"]
    assert listed[1]["content"] == [{"type": "output_text", "annotations": [], "text": "Yes"}]


def test_items_are_listed_page_by_page_and_a_stored_response_is_not_streamed(client: httpx.Client) -> None:
    items = [{"role": "user", "content": word} for word in ("a", "b", "c")]
    name = client.post(PATH, json={"model": "tiny", "input": items, "max_output_tokens": 1}).json()["id"]
    page = client.get(f"{PATH}/{name}/input_items", params={"limit": 2, "order": "asc"}).json()
    assert [item["content"][0]["text"] for item in page["data"]] == ["a", "b"]
    assert page["has_more"]
    rest = client.get(f"{PATH}/{name}/input_items", params={"after": page["last_id"], "order": "asc"}).json()
    assert [item["content"][0]["text"] for item in rest["data"]] == ["c"]
    assert not rest["has_more"]
    wrong = client.get(f"{PATH}/{name}/input_items", params={"after": "x"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "after")
    assert client.get(f"{PATH}/{name}", params={"stream": True}).json()["error"]["param"] == "stream"


@pytest.mark.story
def test_a_conversation_is_continued_up_to_the_size_of_one_that_is_sent_whole(client: httpx.Client) -> None:
    """Reasoning that the template leaves out counts for no prompt: 15 short calls made a conversation of 28 MB, whose
    reading held up all other calls, and which took the place of what others had stored."""
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x" * 150_000}]}
    turn = {"model": "tiny", "input": [thought, {"role": "user", "content": "hi"}], "max_output_tokens": 1}
    first = client.post(PATH, json=turn)
    assert first.status_code == 200, first.text
    refused = client.post(PATH, json={**turn, "previous_response_id": first.json()["id"]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
    short = {"model": "tiny", "input": "hi", "max_output_tokens": 1, "previous_response_id": first.json()["id"]}
    assert client.post(PATH, json=short).status_code == 200
    client.delete(f"{PATH}/{first.json()['id']}")
