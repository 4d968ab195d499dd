"""Anthropic's conversations as chats: what each block becomes, and what is refused by its name and place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from quire.serve.anthropic.schemas import CountBody, MessageBody
from quire.serve.anthropic.translation import chat_of
from quire.serve.errors import ApiError
from quire.serve.invalid import refusal_of
from quire.serve.schemas import ChatBody
from quire.text.conversation import template_messages
from quire.text.prompts import Prompts
from quire.text.tokenizer import Tokenizer

BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "the fox"}]}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
WEATHER = {"name": "weather", "description": "of a city", "input_schema": {"type": "object"}, **CACHED}
CALL = {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def chat(has_late_system: bool = True, **change: Any) -> ChatBody:
    return chat_of(MessageBody.model_validate({**BODY, **change}), has_late_system)


def said(*messages: dict[str, Any], **change: Any) -> list[dict[str, Any]]:
    chatted = chat(messages=list(messages), **change).messages
    return [one.model_dump(exclude_none=True, exclude={"cache_control"}) for one in chatted]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, **CACHED}


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def assistant(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def result(words: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "a", **({} if words is None else {"content": words}), **more}


ASK, GO = user(text("the fox")), user(text("go on"))


def test_the_longest_mark_anywhere_is_the_turns() -> None:
    """It is the last message's, wherever the client has it: in a block, a tool, the system or the body."""
    brief: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
    plain = {"role": "user", "content": "the fox"}
    tool = {"name": "weather", "input_schema": SCHEMA, **CACHED}

    def ttl(*messages: dict[str, Any], **change: Any) -> str | None:
        mark = chat(messages=list(messages), **change).messages[-1].cache_control
        return None if mark is None else mark.ttl or "default"

    assert ttl(plain) is None
    assert ttl(plain, **brief) == "default"
    assert ttl(plain, **brief, tools=[tool]) == "1h"
    assert ttl(plain, system=[text("be brief")]) == "1h"
    assert ttl(user({"type": "text", "text": "the fox", **brief}), plain) == "default"
    assert ttl(user(text("the fox")), assistant(CALL), user(result([text("sunny")]))) == "1h"


def test_text_and_blocks_of_text_are_the_same_conversation() -> None:
    """Blocks of a user and of the system are lines, and `cache_control` changes none of them."""
    blocks = said(user(text("the fox"), text("the dog")), system=[text("be"), text("brief")])
    assert blocks == said({"role": "user", "content": "the fox\nthe dog"}, system="be\nbrief")
    assert blocks == [{"role": "system", "content": "be\nbrief"}, {"role": "user", "content": "the fox\nthe dog"}]
    assert said(ASK, system="") == said(ASK, system=[]) == said(ASK) == [{"role": "user", "content": "the fox"}]


def test_consecutive_messages_of_one_role_are_one_turn() -> None:
    """As the API defines it; many templates refuse a conversation whose roles do not alternate."""
    found = said(ASK, GO, assistant(text("Well, ")), assistant(text("yes")), GO)
    assert [(one["role"], one["content"]) for one in found] == [
        ("user", "the fox\ngo on"),
        ("assistant", "Well, yes"),
        ("user", "go on"),
    ]


def test_instructions_in_the_middle_stay_there() -> None:
    """As text of the user where the template would refuse or drop them; those at the beginning are one message."""
    late = {"role": "system", "content": "be brief"}
    found = said(late, ASK, late, GO, system="be")
    assert [one["role"] for one in found] == ["system", "user", "system", "user"]
    assert found[0]["content"] == "be\nbe brief"
    assert said(late, ASK, late, GO, system="be", has_late_system=False) == [
        {"role": "system", "content": "be\nbe brief"},
        {"role": "user", "content": "the fox\nbe brief\ngo on"},
    ]


LATE = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
REFUSING = LATE + "{{ raise_exception('no') }}{% endif %}{% endfor %}"
DROPPING = LATE + "{% else %}{{ m.content }}{% endif %}{% endfor %}"


@pytest.mark.parametrize(("template", "expected"), [(None, True), (REFUSING, False), (DROPPING, False)])
def test_a_template_shows_whether_it_has_a_place_for_them(
    tiny_folder: Path, tmp_path: Path, template: str | None, expected: bool
) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    if template is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": template}))
    assert Prompts(Tokenizer.load(folder), 320).has_late_system is expected


def test_calls_and_their_results_are_an_assistants_message_and_messages_of_tools() -> None:
    """Arguments reach the template as the object that they are; thinking becomes reasoning, redacted thinking is left
    out; what the user says after the results comes after them."""
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    found = said(
        ASK,
        assistant(thought, hidden, text("I look."), CALL, {**CALL, "id": "b", "input": {}}),
        user(result("24 C"), result([text("18"), text("C")], tool_use_id="b"), text("and?")),
    )
    read = template_messages(found)
    assert read[1]["reasoning_content"] == "hm"
    assert read[1]["content"] == "I look."
    assert [(call["id"], call["function"]) for call in read[1]["tool_calls"]] == [
        ("a", {"name": "weather", "arguments": {"city": "Rome"}}),
        ("b", {"name": "weather", "arguments": {}}),
    ]
    assert read[2:] == [
        {"role": "tool", "content": "24 C", "tool_call_id": "a"},
        {"role": "tool", "content": "18\nC", "tool_call_id": "b"},
        {"role": "user", "content": "and?"},
    ]


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (result("no such city", is_error=True), "Error: no such city"),
        (result("24 C", is_error=False), "24 C"),
        (result(), ""),
        (result([]), ""),
    ],
)
def test_a_result_of_a_failed_call_says_so(block: dict[str, Any], words: str) -> None:
    assert said(ASK, assistant(CALL), user(block))[-1]["content"] == words


def test_an_assistant_that_only_thought_has_a_message_without_text() -> None:
    """It is a message like any other, not an error inside the server."""
    found = said(ASK, assistant({"type": "redacted_thinking", "data": "x"}), GO)
    assert found[1] == {"role": "assistant", "content": ""}


def test_more_messages_than_a_chat_may_have_can_come_of_one() -> None:
    """4,096 messages are the limit of what a client sends; each of their results is a message of the chat."""
    assert len(said(ASK, assistant(CALL), user(*[result("24 C")] * 5000))) == 5002


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        (None, None, True),
        ({"type": "auto"}, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any", "disable_parallel_tool_use": False}, "required", True),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}, True),
    ],
)
def test_a_choice_of_tools_is_the_chats(choice: Any, expected: Any, parallel: bool) -> None:
    asked = chat(tools=[WEATHER], tool_choice=choice)
    found = asked.tool_choice
    assert (found if found is None or isinstance(found, str) else found.model_dump()) == expected
    assert asked.parallel_tool_calls is parallel
    function = {"name": "weather", "description": "of a city", "parameters": {"type": "object"}}
    assert [tool.model_dump(exclude_none=True) for tool in asked.tools or ()] == [
        {"type": "function", "function": function}
    ]


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "between_tools"}, False),
        ({"type": "adaptive", "display": "omitted"}, True),
        ({"type": "enabled", "budget_tokens": 2048}, True),
    ],
)
def test_thinking_is_the_templates_switch_and_off_unless_requested(thinking: Any, expected: bool) -> None:
    assert chat(thinking=thinking).chat_template_kwargs == {"enable_thinking": expected, "thinking": expected}


def test_sampling_is_the_chats() -> None:
    asked = chat(temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["END"], stream=True)
    assert (asked.temperature, asked.top_p, asked.top_k, asked.stops) == (0.5, 0.9, 7, ("END",))
    assert (asked.max_tokens, asked.stream, asked.n) == (4, True, None)
    assert chat().stops == ()


def test_an_output_format_is_a_response_format() -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"}
    found = chat(output_config=form).response_format
    assert found is not None
    assert found.model_dump(exclude_none=True)["json_schema"]["schema_"] == SCHEMA
    assert chat(output_config={"effort": "low"}).response_format is None
    with pytest.raises(ApiError, match="a required tool call with an output_config"):
        chat(output_config=form, tools=[WEATHER], tool_choice={"type": "any"})


def test_a_last_message_of_the_assistant_is_continued_unless_it_has_calls() -> None:
    """Calls without results cannot be continued: their text is no text of an answer."""
    assert chat(messages=[ASK, assistant(text("The answer is ("))]).continue_final_message
    assert not chat(messages=[ASK, assistant(text("The answer")), GO]).continue_final_message
    with pytest.raises(ApiError, match="calls without results") as refused:
        chat(messages=[ASK, assistant(CALL)])
    assert (refused.value.status, refused.value.param) == (400, "messages.1")


def test_a_conversation_that_the_server_should_keep_is_refused_with_the_clients_own_code() -> None:
    """The official client continues without a thread on this code alone."""
    with pytest.raises(ApiError, match="send all messages without it") as refused:
        chat(thread={"type": "create"})
    assert refused.value.code == "thread_unsupported_request"
    assert chat(thread=None)


def test_what_is_counted_is_what_would_be_answered() -> None:
    asked = {**BODY, "system": "be brief", "tools": [WEATHER], "thinking": {"type": "adaptive"}}
    same = {name: value for name, value in asked.items() if name != "max_tokens"}
    counted = chat_of(CountBody.model_validate(same), True)
    answered = chat_of(MessageBody.model_validate(asked), True)
    assert counted.model_dump(exclude={"max_tokens"}) == answered.model_dump(exclude={"max_tokens"})


def test_fields_that_may_be_ignored_are_accepted() -> None:
    """What clients such as coding agents send along, and null fields of blocks that they hand back."""
    tool = {**WEATHER, "type": "custom", "strict": True, "eager_input_streaming": True, "allowed_callers": ["direct"]}
    back = {**CALL, "caller": {"type": "direct"}, "toolset_name": None}
    assert chat(
        messages=[ASK, assistant({"type": "text", "text": "x", "citations": None}, back), user(result("24 C"))],
        tools=[{**tool, "defer_loading": False}],
        metadata={"user_id": "u"},
        service_tier="auto",
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        cache_control={"type": "ephemeral", "scope": "global"},
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"container": "x"}, "container is not supported: leave it out"),
        ({"max_tokens": None}, "max_tokens is null: give a whole number"),
        ({"messages": [user({"type": "image", "source": {}})]}, "messages.0.content.0: content of type 'image' is not"),
        ({"messages": [ASK, user(text("x"), {"type": "document"})]}, "messages.1.content.1: content of type 'docum"),
        ({"messages": [user(result([{"type": "image"}]))]}, "messages.0.content.0.content.0: content of type 'image'"),
        ({"messages": [user(CALL)]}, "'tool_use' is not supported here: a message of role user has text, tool_result"),
        ({"messages": [assistant(result("x"))]}, "messages.0.content.0: content of type 'tool_result' is not"),
        ({"messages": [user({"text": "x"})]}, "messages.0.content.0: content of type '' is not supported here"),
        ({"messages": [user({"type": "text", "text": "x", "y": 1})]}, "messages.0.content.0.y is not supported"),
        ({"messages": [user({"type": "text", "text": 5})]}, "messages.0.content.0.text is 5: give text"),
        ({"messages": [user({"type": "text"})]}, "messages.0.content.0.text is missing: give it"),
        ({"messages": [user()]}, "messages.0.content is []: give text or at least 1 item"),
        ({"messages": [{"role": "king", "content": "x"}]}, 'give one whose "role" is one of "user", "assist'),
        ({"system": [{"type": "image"}]}, "system.0: content of type 'image' is not supported"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0: a tool of type 'bash_20250124' is not"),
        ({"tools": [{"type": "web_search_20250305", "name": "x"}]}, "tools.0: a tool of type 'web_search_20250305' is"),
        ({"tools": [{**WEATHER, "defer_loading": True}]}, "tools.0.defer_loading is true: give false"),
        ({"tools": [{"name": "x"}]}, "tools.0.input_schema is missing"),
        ({"tool_choice": {"type": "none", "disable_parallel_tool_use": True}}, "disable_parallel_tool_use is not supp"),
        ({"thinking": {"type": "disabled", "budget_tokens": 9}}, "thinking.budget_tokens is not supported"),
        ({"cache_control": {"type": "forever"}}, 'cache_control.type is "forever": give "ephemeral"'),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name_and_place(change: dict[str, Any], words: str) -> None:
    body = {**BODY, **change}
    with pytest.raises(ValidationError) as refused:
        MessageBody.model_validate(body)
    mistakes = [{**mistake, "loc": ("body", *mistake["loc"])} for mistake in refused.value.errors()]
    assert words in refusal_of(mistakes, body).message


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [user(*[{"type": "text"}] * 20_000)]},
        {"messages": [{"role": "user"}] * 4096},
        {"system": [1] * 20_000},
        {"tools": [{}] * 128},
        {"stop_sequences": [1] * 16},
        {"context_management": {str(place): 1 for place in range(20_000)}},
    ],
)
def test_of_a_body_full_of_mistakes_only_the_first_ones_are_looked_at(change: dict[str, Any]) -> None:
    """As elsewhere: the errors of any body are bounded."""
    with pytest.raises(ValidationError) as refused:
        MessageBody.model_validate({**BODY, **change})
    assert refused.value.error_count() <= 8
