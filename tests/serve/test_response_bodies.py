"""Bodies of /v1/responses: what becomes of their items and fields, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter, ValidationError

from quire.serve.errors import ApiError
from quire.serve.invalid import refusal_of
from quire.serve.responses.items import STORED
from quire.serve.responses.schemas import ResponseBody
from quire.serve.responses.translation import chat_of, input_items, item_document, messages_of
from quire.serve.schemas import MOST_MESSAGES, AllowedChoice, ChatBody

LOGPROBS = "message.output_text.logprobs"
HOSTED = "the server runs no tools, so declare a function and run it in your client"
MEDIA = "Quire reads text alone, so send what it says as text"
ITEM: TypeAdapter[Any] = TypeAdapter(ResponseItem)
"""The official client's type of a listed item."""
FUNCTION = {"name": "weather", "description": "of a city", "parameters": {"type": "object"}, "strict": True}


def body(**fields: Any) -> ResponseBody:
    return ResponseBody.model_validate({"model": "tiny", "input": "the fox", **fields})


def chat(**fields: Any) -> ChatBody:
    given = body(**fields)
    return chat_of(given, input_items(given))


def messages(*items: dict[str, Any], instructions: str | None = None) -> list[dict[str, Any]]:
    return messages_of(input_items(body(input=list(items))), instructions)


def refusal(**fields: Any) -> ApiError:
    given = {"model": "tiny", "input": "the fox", **fields}
    with pytest.raises(ValidationError) as refused:
        ResponseBody.model_validate(given)
    return refusal_of([{**one, "loc": ("body", *one["loc"])} for one in refused.value.errors()], given)


def call(name: str) -> dict[str, Any]:
    return {"type": "function_call", "id": f"fc_{name}", "call_id": name, "name": "weather", "arguments": "{}"}


def called(*names: str) -> list[dict[str, Any]]:
    return [{"id": name, "type": "function", "function": {"name": "weather", "arguments": "{}"}} for name in names]


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def test_a_text_is_a_message_of_the_user() -> None:
    assert messages_of(input_items(body(input="the dog"))) == [{"role": "user", "content": "the dog"}]


def test_reasoning_text_and_calls_of_one_turn_become_one_message_of_the_assistant() -> None:
    """As chat templates read a turn. Outputs are messages of role tool; a turn after them begins a new message."""
    said = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
            "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]}  # fmt: skip
    parts = [{"type": "input_text", "text": "wa"}, {"type": "input_text", "text": "rm"}]
    items = (
        {"role": "user", "content": "Is it warm?"}, thought("hm"), said, call("a"), call("b"),
        {"type": "function_call_output", "call_id": "a", "output": "cold"},
        {"type": "function_call_output", "call_id": "b", "output": parts},
        thought("so"), call("c"),
    )  # fmt: skip
    assert messages(*items) == [
        {"role": "user", "content": "Is it warm?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": called("a", "b")},
        {"role": "tool", "tool_call_id": "a", "content": "cold"},
        {"role": "tool", "tool_call_id": "b", "content": "warm"},
        {"role": "assistant", "content": "", "reasoning_content": "so", "tool_calls": called("c")},
    ]


def test_two_messages_of_the_assistant_stay_two() -> None:
    said = [{"role": "assistant", "content": text} for text in ("a", "b")]
    assert messages(*said) == said


def test_instructions_and_the_first_system_messages_become_one() -> None:
    """Later ones stay where they are."""
    first, later = {"role": "developer", "content": "Be kind."}, {"role": "system", "content": "Now be brief."}
    user = {"role": "user", "content": "Hi"}
    assert messages(first, later, user, later, instructions="You help.") == [
        {"role": "system", "content": "You help.\n\nBe kind.\n\nNow be brief."}, user, later
    ]  # fmt: skip
    assert messages(first, user) == [first, user]


def test_reasoning_that_only_its_own_server_can_read_is_left_out() -> None:
    hidden = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    assert messages(hidden, {"role": "user", "content": "Hi"}) == [{"role": "user", "content": "Hi"}]
    with pytest.raises(ApiError, match="the input has no message"):
        messages(hidden)


def test_fields_get_the_names_that_chats_have() -> None:
    schema = {"type": "object", "properties": {}}
    found = chat(
        max_output_tokens=7, temperature=0.5, top_p=0.25, seed=3, ignore_eos=True, parallel_tool_calls=False,
        include=[LOGPROBS], top_logprobs=2, tools=[{"type": "function", **FUNCTION}],
        tool_choice={"type": "function", "name": "weather"},
        text={"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}, "verbosity": "low"},
    )  # fmt: skip
    assert found.model_dump(exclude_none=True, by_alias=True) == {
        "model": "tiny", "messages": [{"role": "user", "content": "the fox"}], "max_tokens": 7, "temperature": 0.5,
        "top_p": 0.25, "seed": 3, "ignore_eos": True, "parallel_tool_calls": False, "logprobs": True,
        "top_logprobs": 2, "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
    }  # fmt: skip


def test_tools_that_are_allowed_are_those_of_the_chat() -> None:
    """A chat has them one level deeper."""
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    found = chat(tools=[{"type": "function", **FUNCTION}], tool_choice=choice).tool_choice
    assert isinstance(found, AllowedChoice)
    tools = [{"type": "function", "function": {"name": "weather"}}]
    assert found.model_dump() == {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools}}


def test_an_effort_and_switches_are_those_of_the_chat() -> None:
    found = chat(reasoning={"effort": "high", "summary": "auto"}, chat_template_kwargs={"thinking": False})
    assert (found.reasoning_effort, found.chat_template_kwargs) == ("high", {"thinking": False})


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio"])
@pytest.mark.parametrize("field", ["content", "output"])
def test_parts_that_are_not_text_are_refused_with_their_place(kind: str, field: str) -> None:
    parts = [{"type": "input_text", "text": "What is this?"}, {"type": kind, "file_id": "x"}]
    head = {"role": "user"} if field == "content" else {"type": "function_call_output", "call_id": "a"}
    error = refusal(input=[{"role": "user", "content": "Hi"}, {**head, field: parts}])
    assert (error.status, error.param) == (400, f"input.1.{field}.1")
    assert error.message == f"input.1.{field}.1: content of type '{kind}' is not supported: {MEDIA}"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [{"type": "web_search"}]}, f"tools.0: the type 'web_search' is not supported: {HOSTED}"),
        ({"tools": [{"type": "function", "name": "a"}, {"type": "mcp", "server_label": "x"}]},
         f"tools.1: the type 'mcp' is not supported: {HOSTED}"),
        ({"tools": [{"type": "custom", "name": "a"}]},
         "tools.0: the type 'custom' is not supported: declare a function with one text parameter"),
        ({"tool_choice": {"type": "file_search"}}, f"tool_choice: the type 'file_search' is not supported: {HOSTED}"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "x"}]}},
         f"tool_choice.tools.0: the type 'mcp' is not supported: {HOSTED}"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "none", "tools": [{"type": "function", "name": "a"}]}},
         'tool_choice.mode is "none": give one of "auto" or "required"'),
        ({"input": [{"type": "local_shell_call", "id": "x"}]},
         f"input.0: an item of type 'local_shell_call' is not supported: {HOSTED}"),
        ({"input": [{"type": "custom_tool_call", "id": "x"}]},
         "input.0: an item of type 'custom_tool_call' is not supported: send a function_call"),
        ({"conversation": "conv_1"}, "conversation is not supported: use previous_response_id"),
        ({"max_tool_calls": 3}, "max_tool_calls is not supported: leave it out"),
        ({"truncation": "auto"}, 'truncation is "auto": give "disabled"'),
        ({"background": True},
         "background: a response ends with its connection: leave it out, and stream a long answer"),
        ({"input": [3]}, "input.0 is 3: give an object"),
        ({"input": []}, "input is []: give text or at least 1 item"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    assert refusal(**fields).message == message


def test_the_likeliest_tokens_are_returned_with_log_probabilities_alone() -> None:
    with pytest.raises(ApiError, match="top_logprobs needs include"):
        chat(top_logprobs=2)
    assert chat(top_logprobs=0).logprobs is False


def test_a_conversation_has_as_many_items_as_a_chat_has_messages() -> None:
    items = STORED.validate_python([{"role": "user", "content": "x"}] * MOST_MESSAGES)
    assert len(chat_of(body(instructions="y"), items[:-1]).messages) == MOST_MESSAGES
    with pytest.raises(ApiError, match="the conversation has 4,096 items, 4,095 may be") as refused:
        chat_of(body(), items)
    assert refused.value.param == "input"


def test_what_is_stored_of_an_item_is_read_as_the_same_item() -> None:
    items = input_items(body(input=[
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, thought("hm"), call("a"),
        {"type": "function_call_output", "call_id": "a", "output": "cold"},
    ]))  # fmt: skip
    documents = [item_document(item) for item in items]
    assert [ITEM.validate_python(document).type for document in documents] == [
        document["type"] for document in documents
    ]
    assert messages_of(STORED.validate_python(documents)) == messages_of(items)
    assert documents[0]["content"] == [{"type": "input_text", "text": "Hi"}]
    assert [document["status"] for document in documents] == ["completed"] * 5
    assert [document["id"].partition("_")[0] for document in documents] == ["msg", "msg", "rs", "fc", "fco"]
