"""Tool calls in the dialect of each family, read out of text however it is cut."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import InputError
from quire.options.dialects import ToolDialect
from quire.options.run import RunOptions
from quire.text.dialects.calls import ToolCall, join_calls
from quire.text.dialects.harmony import Channels
from quire.text.dialects.reader import ToolCalls
from quire.text.dialects.table import DIALECTS, dialect_of
from quire.text.reasoning import Parted, Reasoning, ReasoningMarks
from transcripts import TOOLS, TRANSCRIPTS, Transcript

Found = tuple[str, list[ToolCall], bool]


def read(dialect: ToolDialect, pieces: Sequence[str], most: int | None = None) -> Found:
    reader = ToolCalls(TOOLS, most, DIALECTS[dialect])
    parts = [*map(reader.feed, pieces), reader.finish()]
    calls = join_calls(call for part in parts for call in part.calls)
    return "".join(part.content for part in parts), list(calls), reader.is_whole


def cuts(text: str) -> list[list[str]]:
    """Every single cut, and one character at a time."""
    return [*([text[:at], text[at:]] for at in range(1, len(text))), list(text)]


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda one: f"{one.dialect.value}: {one.text[:30]!r}")
def test_a_transcript_is_read_as_its_family_means_it_however_it_is_cut(transcript: Transcript) -> None:
    whole = read(transcript.dialect, [transcript.text])
    content, calls, is_whole = whole
    assert content == transcript.content
    assert [(call.name, json.loads(call.arguments)) for call in calls] == list(transcript.calls)
    assert [call.index for call in calls] == list(range(len(calls)))
    assert is_whole
    assert all(read(transcript.dialect, pieces) == whole for pieces in cuts(transcript.text))


@pytest.mark.law
@pytest.mark.parametrize("dialect", ToolDialect)
def test_nonsense_of_marks_and_calls_is_read_alike_however_it_is_cut(dialect: ToolDialect) -> None:
    """Pieces of transcripts in any order: what is read depends on the characters alone."""
    texts = [one.text for one in TRANSCRIPTS if one.dialect is dialect]
    for seed in range(60):
        draw = random.Random(f"{dialect.value} {seed}")
        ends = [(text, sorted(draw.choices(range(len(text) + 1), k=2))) for text in draw.choices(texts, k=5)]
        said = "".join(text[begin:end] for text, (begin, end) in ends)
        sizes = [draw.randint(1, 9) for _ in said]
        places = [0, *itertools.accumulate(sizes)]
        pieces = [said[begin:end] for begin, end in itertools.pairwise(places)]
        assert read(dialect, pieces) == read(dialect, list(said)) == read(dialect, [said])


def test_every_dialect_has_transcripts_of_one_call_of_two_and_of_none() -> None:
    assert set(DIALECTS) == set(ToolDialect)
    counts = Counter((one.dialect, min(len(one.calls), 2)) for one in TRANSCRIPTS)
    assert all(counts[dialect, calls] for dialect in ToolDialect for calls in range(3))


BEGUN = '{"name": "weather", "arguments": {"city": "Ro'


def test_arguments_pass_as_they_arrive_once_the_tool_is_known_and_the_object_has_opened() -> None:
    """The first piece has name and id; later pieces belong to the same call and have only the next characters."""
    reader = ToolCalls(TOOLS)
    first = [reader.feed(character) for character in "Well. <tool_call>" + BEGUN.partition("{")[1] + BEGUN[1:]]
    assert "".join(part.content for part in first) == "Well. "
    pieces = [call for part in first for call in part.calls]
    assert [(piece.continues, piece.arguments) for piece in pieces] == [
        (False, "{"),
        *((True, one) for one in '"city": "Ro'),
    ]
    assert len({(piece.id, piece.name, piece.index) for piece in pieces}) == 1
    rest = reader.feed('me"}}</tool_call>').calls
    assert [(piece.continues, piece.arguments, piece.id) for piece in rest] == [(True, 'me"}', pieces[0].id)]


@pytest.mark.parametrize(
    ("text", "content", "arguments"),
    [
        (f"<tool_call>{BEGUN}", "", '{"city": "Ro'),
        ('<tool_call>{"name": "weather", "arguments": {"city": Rome}}</tool_call>', "Rome}}</tool_call>", '{"city": '),
        ('<tool_call>{"name": "weather", "arguments": {"a": 01}} Well.', "}} Well.", '{"a": 01'),
        ('<tool_call>{"name": "weather", "arguments": {"a": "b\nc"}}', '\nc"}}', '{"a": "b'),
        ('<tool_call>{"name": "weather", "arguments": {"a": "\\x"}}', 'x"}}', '{"a": "\\'),
        ('{"name": "weather", "arguments": {,', ",", "{"),
    ],
)
def test_a_call_whose_json_breaks_keeps_its_arguments_so_far_and_what_follows_is_text(
    text: str, content: str, arguments: str
) -> None:
    """It has begun, so it cannot become text; `is_whole` keeps the ending from being `tool_calls`."""
    whole = read(ToolDialect.JSON, [text])
    assert (whole[0], [call.arguments for call in whole[1]], whole[2]) == (content, [arguments], False)
    assert all(read(ToolDialect.JSON, pieces) == whole for pieces in cuts(text))


@pytest.mark.parametrize(
    ("text", "content", "arguments"),
    [
        ('<tool_call>{"name": "weather", "arguments": {"a": 1}</tool_call>!', "!", ['{"a": 1}']),
        ('<tool_call>{"name": "weather", "arguments": {}, "id": [1]}</tool_call>', "", ["{}"]),
        ('<tool_call>{"id": 1, "name": "weather", "arguments": "{}"}</tool_call>', "", ["{}"]),
        ('<tool_call>{"name": "weather"}</tool_call>', "", ["{}"]),
        ('<tool_call>{"name": "weather", "arguments": {}}</tool_call>\n\nDone.', "\n\nDone.", ["{}"]),
        ('<tool_call>x<tool_call>{"name": "weather", "arguments": {}}</tool_call>', "<tool_call>x", ["{}"]),
        (' \n<tool_call>{"name": "weather_map", "arguments": {}}', " \n", ["{}"]),
        ('<tool_call>{"name": "weather\\u005fmap", "arguments": {}}', "", ["{}"]),
        ("  ", "  ", []),
        ("", "", []),
        ("[" * 100_000, "[" * 100_000, []),
        ("{" * 1000, "{" * 1000, []),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_small_liberties_of_models_are_understood(text: str, content: str, arguments: list[str]) -> None:
    """A brace that is missing at the end, more keys, another order, text between marks, no closing mark."""
    whole = read(ToolDialect.JSON, [text])
    assert (whole[0], [call.arguments for call in whole[1]]) == (content, arguments)
    assert all(read(ToolDialect.JSON, pieces) == whole for pieces in cuts(text[:2000]) if len(text) < 2000)


def test_calls_beyond_the_most_are_left_out() -> None:
    for transcript in TRANSCRIPTS:
        content, calls, _ = read(transcript.dialect, list(transcript.text), most=1)
        assert (content, len(calls)) == (transcript.content, min(1, len(transcript.calls)))


@pytest.mark.parametrize(
    ("dialect", "template"),
    [
        ("harmony", "<|start|>assistant<|channel|>final<|message|>"),
        ("minimax-m2", "<minimax:tool_call><invoke name="),
        ("kimi-k2", "<|tool_calls_section_begin|><|tool_call_begin|>"),
        ("kimi-k2", "assistant ◁think▷"),
        ("deepseek-v3", "<｜tool▁calls▁begin｜> tool['type'] ```json"),
        ("deepseek-v3.1", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜> name <｜tool▁sep｜> </think>"),
        ("deepseek-v3.2", "message.tool_calls <｜DSML｜function_calls> <｜DSML｜invoke name="),
        ("deepseek-v4", "message.tool_calls {%- set dsml = '｜DSML｜' %} tool_calls"),
        ("glm-4.5", "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key></tool_call>"),
        ("qwen3-coder", "<tool_call>\n<function=example>\n<parameter=p>\n</tool_call>"),
        ("mistral-args", "[AVAILABLE_TOOLS][TOOL_CALLS] name [ARGS]"),
        ("mistral", "[AVAILABLE_TOOLS][TOOL_CALLS] ["),
        ("phi-4-mini", "<|tool|> message['tools'] <|/tool|>"),
        ("granite", "<|start_of_role|>assistant<|end_of_role|><|tool_call|>"),
        ("hermes", "<|start_of_role|>tools <tool_call></tool_call>"),
        ("llama4", "<|header_start|>assistant<|header_end|>"),
        ("llama3", "<|start_header_id|>ipython<|end_header_id|>"),
        ("llama3", "<|python_tag|>"),
        ("gemma-3", "<start_of_turn>model"),
        ("gemma-4", "<|turn>model <|tool_call>call: <|channel>thought <channel|>"),
        ("hermes", '<|im_start|> <tool_call>\n{"name": <function-name>}\n</tool_call>'),
        ("json", "<|im_start|>assistant"),
        ("json", ""),
    ],
)
def test_a_template_is_recognised_by_its_marks(dialect: str, template: str) -> None:
    assert dialect_of(template).name.value == dialect


def test_the_documentation_has_a_row_for_every_dialect() -> None:
    page = (Path(__file__).parents[3] / "docs" / "text.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9.-]+)` \|.*$", page.partition("### Dialects")[2].partition("## ")[0], re.MULTILINE)
    assert rows == [dialect.value for dialect in ToolDialect]


def test_an_unknown_dialect_is_refused_with_the_list() -> None:
    assert RunOptions(tool_dialect="kimi-k2").tool_dialect is ToolDialect.KIMI  # type: ignore[arg-type]
    with pytest.raises(InputError, match="tool_dialect 'kimi' is not known: choose one of json, hermes, qwen3-coder"):
        RunOptions(tool_dialect="kimi")  # type: ignore[arg-type]


def parted(reader: Any, pieces: Sequence[str]) -> Parted:
    parts = [*map(reader.feed, pieces), reader.finish()]
    return Parted("".join(part.reasoning for part in parts), "".join(part.content for part in parts))


@pytest.mark.parametrize(
    ("dialect", "template", "text", "expected"),
    [
        ("mistral", "[/THINK]", "[THINK]hm[/THINK]Yes", Parted("hm", "Yes")),
        ("mistral", "</think>", "<think>hm</think>Yes", Parted("hm", "Yes")),
        ("kimi-k2", "◁/think▷", "◁think▷hm◁/think▷Yes", Parted("hm", "Yes")),
        (
            "granite",
            "Here is my response:",
            "Here is my thought process:\nhm\n\nHere is my response:\nYes",
            Parted("hm", "Yes"),
        ),
        (
            "granite",
            "<response></response></think>",
            "<think>hm</think>\n<response>Yes <b></response>",
            Parted("hm", "Yes <b>"),
        ),
        ("minimax-m2", "</think>", "<think>\nhm\n</think>\n\nYes", Parted("hm", "Yes")),
        ("gemma-4", "<channel|>", "<|channel>thought\nhm<channel|>Yes", Parted("hm", "Yes")),
    ],
)
def test_reasoning_is_separated_by_the_marks_of_the_dialect(
    dialect: str, template: str, text: str, expected: Parted
) -> None:
    marks = DIALECTS[ToolDialect(dialect)].reasoning_in(template)
    assert isinstance(marks, ReasoningMarks)
    for pieces in ([text], *cuts(text)):
        assert parted(Reasoning.after("", marks), pieces) == expected


WRAPPED = ReasoningMarks("<think>", "</think>", ("<response>", "</response>"))
FRAGMENTS = [
    *("<think>", "</think>", "<response>", "</response>", "\n", "a", "<", "res"),
    *("<|channel|>", "analysis", "final", "commentary", " to=functions.f", "<|message|>", "<|end|>", "<|start|>", "<|"),
]


@pytest.mark.law
@pytest.mark.parametrize("make", [lambda: Reasoning.after("", WRAPPED), lambda: Reasoning.after("<think>"), Channels])
def test_nonsense_of_marks_is_separated_alike_however_it_is_cut(make: Callable[[], Any]) -> None:
    for seed in range(1500):
        draw = random.Random(seed)
        text = "".join(draw.choices(FRAGMENTS, k=draw.randint(1, 9)))
        at = draw.randint(0, len(text))
        assert parted(make(), [text]) == parted(make(), list(text)) == parted(make(), [text[:at], text[at:]]), text


ANALYSIS = "<|channel|>analysis<|message|>The user asks.<|end|>"
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{ANALYSIS}<|start|>assistant<|channel|>final<|message|>Yes.", Parted("The user asks.", "Yes.")),
        (f"{ANALYSIS}<|start|>assistant{CALL}", Parted("The user asks.", CALL)),
        (f"{ANALYSIS}<|start|>assistant{CALL}<|call|>", Parted("The user asks.", CALL + "<|call|>")),
        (
            '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Rome"}<|call|>',
            Parted("", CALL + "<|call|>"),
        ),
        (
            "<|channel|>commentary<|message|>I shall look.<|end|><|start|>assistant" + CALL,
            Parted("", "I shall look." + CALL),
        ),
        ("<|channel|>analysis<|message|>never ends", Parted("never ends", "")),
        ("Plain text, a < b.", Parted("", "Plain text, a < b.")),
        ("<|channel|>fin", Parted("", "<|channel|>fin")),
    ],
)
def test_the_channels_of_harmony_are_reasoning_calls_and_the_answer(text: str, expected: Parted) -> None:
    for pieces in ([text], *cuts(text)):
        assert parted(Channels(), pieces) == expected
