"""Tool calls and reasoning, read out of text however it is cut; the exact bytes of tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import InputError
from quire.text.dialects.calls import ToolCall, join_calls
from quire.text.dialects.reader import ToolCalls
from quire.text.reasoning import Parted, Reasoning
from quire.text.spelling import Spelling
from quire.text.tokenizer import Tokenizer
from quire.text.tools import ToolUse

TOOLS: list[Any] = [{"type": "function", "function": {"name": name}} for name in ("weather", "time")]


def read_tools(text: str, size: int) -> tuple[str, list[ToolCall]]:
    """Fed in pieces of `size` characters."""
    reader = ToolCalls(TOOLS)
    parts = [reader.feed(text[i : i + size]) for i in range(0, len(text), size)] + [reader.finish()]
    return "".join(part.content for part in parts), list(join_calls(call for part in parts for call in part.calls))


CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
READ = ToolCall("weather", '{"city": "Rome"}')
SECOND = replace(READ, index=1)


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (CALL, "", [READ]),
        (f"<tool_call>{CALL}</tool_call>", "", [READ]),
        (
            f"Let me see. <tool_call>\n{CALL}\n</tool_call>\n<tool_call>{CALL}</tool_call>",
            "Let me see. ",
            [READ, SECOND],
        ),
        (f"Well <tool_call>{CALL}", "Well", [READ]),
        ('{"name": "weather", "parameters": {"city": "Rome"}}', "", [READ]),
        ("a < b and <tool> too", "a < b and <tool> too", []),
        ('{"name": "unknown", "arguments": {}}', '{"name": "unknown", "arguments": {}}', []),
        ("<tool_call>not json</tool_call>!", "<tool_call>not json</tool_call>!", []),
        ('{"name": ["weather"]}', '{"name": ["weather"]}', []),
        ("<tool_call>{", "<tool_call>{", []),
    ],
)
def test_calls_are_read_out_of_text_however_it_is_cut(
    size: int, text: str, content: str, calls: list[ToolCall]
) -> None:
    shown, found = read_tools(text, size)
    assert (shown.rstrip() if calls else shown, found) == (content.rstrip() if calls else content, calls)


def test_a_required_call_is_of_one_of_the_tools_that_are_offered() -> None:
    tools = tuple(TOOLS)
    for allowed, names in ((None, {"weather", "time"}), (("time",), {"time"})):
        grammar = ToolUse(tools, True, allowed).grammar({})
        assert grammar is not None
        assert {name for name in ("weather", "time") if name in grammar.text} == names
    with pytest.raises(InputError, match="weather, time"):
        ToolUse(tools, True, ("time", "nothing")).grammar({})


def test_of_all_tools_that_are_described_only_those_allowed_are_called() -> None:
    """A call of another tool stays text, as a call of a tool that does not exist does."""
    use = ToolUse(tuple(TOOLS), allowed=("time",))
    reader = use.reader()
    assert use.tools == tuple(TOOLS), "the prompt describes all"
    assert reader is not None
    weather = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    read = reader.feed(weather + '<tool_call>{"name": "time", "arguments": {}}</tool_call>')
    assert ([call.name for call in read.calls], read.content) == (["time"], weather)


def read_reasoning(text: str, size: int, prompt: str = "") -> Parted:
    reader = Reasoning.after(prompt)
    parts = [reader.feed(text[i : i + size]) for i in range(0, len(text), size)] + [reader.finish()]
    return Parted("".join(part.reasoning for part in parts), "".join(part.content for part in parts))


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("", "<think>hm</think>Yes", Parted("hm", "Yes")),
        ("", "\n<think>\nhm</think>\n\nYes <think>", Parted("hm", "Yes <think>")),
        ("<think>\n", "hm</think>Yes", Parted("hm", "Yes")),
        ("", "Yes <think>no</think>", Parted("", "Yes <think>no</think>")),
        ("", "<think>never ends", Parted("never ends", "")),
        ("", "<thing>", Parted("", "<thing>")),
        ("", "<thi", Parted("", "<thi")),
        ("<think>", "\n\nhm,\n\nhm\n</think>\n\nYes,\nyes\n", Parted("hm,\n\nhm", "Yes,\nyes\n")),
        ("", "\nYes", Parted("", "\nYes")),
    ],
)
def test_reasoning_is_parted_from_the_answer(size: int, prompt: str, text: str, expected: Parted) -> None:
    assert read_reasoning(text, size, prompt) == expected


def test_tokens_that_are_parts_of_a_character_have_exact_bytes(tiny_folder: Path) -> None:
    tokenizer = Tokenizer.load(tiny_folder)
    spelling = Spelling(tokenizer)
    text = "the Füße 🤗\n"
    assert bytes(byte for token in tokenizer.encode(text) for byte in spelling.bytes(token)).decode() == text
    assert bytes(spelling.bytes(tokenizer.eos_token_ids[0])) == b"<|end|>"
