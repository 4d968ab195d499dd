"""From tokens to what a client reads: reasoning, text and tool calls of one choice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire.build.plan import plan_checkpoint
from quire.core.dtypes import DType
from quire.options.dialects import ToolDialect
from quire.options.run import RunOptions
from quire.plan.settings import Budget, Settings
from quire.serve.formats import ChatFormat, Extras
from quire.serve.questions import BodyReader
from quire.serve.schemas import ChatBody
from quire.text.answer import join_deltas
from quire.text.spelling import Spelling
from quire.text.tokenizer import Tokenizer

MESSAGES = [{"role": "user", "content": "the fox"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'


@pytest.fixture(scope="module")
def reasoning_folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its template knows of reasoning, and begins it where a switch says so."""
    folder = tmp_path_factory.mktemp("reasoning") / "model"
    shutil.copytree(tiny_folder, folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    begins = "{% if add_generation_prompt %}<|assistant|>{% if thinking %}<think>\n{% endif %}{% endif %}{# </think> #}"
    template = config["chat_template"].partition("{% if add_generation_prompt %}")[0] + begins
    file.write_text(json.dumps({**config, "chat_template": template}))
    return folder


def answered(
    folder: Path, said: str, dialect: ToolDialect | None = None, **asking: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The message in one piece, and put together from chunks, when the model says this token by token."""
    tokenizer = Tokenizer.load(folder)
    settings = Settings(max_length=256, max_requests=8, batch_tokens=64, kv_dtype=DType.FP32)
    plan = plan_checkpoint(folder, settings, Budget(pool_bytes=2 << 20), RunOptions(device="cpu"))
    body = ChatBody(model="tiny", messages=MESSAGES, **asking)  # type: ignore[arg-type]
    question = BodyReader(tokenizer, plan, "tiny", tokenizer.vocab_size, dialect=dialect).chat(body)
    (answer,) = question.answers(tokenizer)
    tokens = tokenizer.encode(said, add_special_tokens=False)
    deltas = [*(answer.feed([token]) for token in tokens), answer.feed([], ending="stop")]
    call: Any = SimpleNamespace(question=question, output_tokens=len(tokens), cached_tokens=0, lease=None)
    form = ChatFormat(call, {"id": "id", "model": "tiny"}, Spelling(tokenizer), Extras())
    whole = form.whole([join_deltas(deltas)])["choices"][0]
    chunks = [chunk["choices"][0] for delta in deltas for chunk in _chunks(form.piece(0, delta, False))]
    assert [chunk["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + [whole["finish_reason"]]
    pieces = [chunk["delta"] for chunk in chunks]
    parts = {name: "".join(piece.get(name, "") for piece in pieces) for name in ("reasoning_content", "content")}
    return whole, parts | {"tool_calls": [call for piece in pieces for call in piece.get("tool_calls", [])]}


def _chunks(events: bytes) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(b"data: ")) for line in events.splitlines() if line]


@pytest.mark.parametrize(
    ("thinking", "said"), [(True, "the dog sees</think>\n\nYes"), (False, "<think>the dog sees</think>Yes")]
)
def test_reasoning_has_a_field_of_its_own_where_the_template_marks_it(
    reasoning_folder: Path, thinking: bool, said: str
) -> None:
    whole, parts = answered(reasoning_folder, said, chat_template_kwargs={"thinking": thinking})
    assert whole["message"] == {
        "role": "assistant", "content": "Yes", "reasoning_content": "the dog sees", "refusal": None
    }  # fmt: skip
    assert parts == {"reasoning_content": "the dog sees", "content": "Yes", "tool_calls": []}
    assert whole["finish_reason"] == "stop"


def test_marks_are_text_where_the_template_knows_none(tiny_folder: Path) -> None:
    whole, parts = answered(tiny_folder, "<think>the dog</think>Yes")
    assert whole["message"]["content"] == parts["content"] == "<think>the dog</think>Yes"
    assert "reasoning_content" not in whole["message"]


def test_a_tool_is_called_after_reasoning(reasoning_folder: Path) -> None:
    whole, parts = answered(reasoning_folder, f"<think>the fox</think>{CALL}{CALL}", tools=[TOOL])
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["reasoning_content"] == parts["reasoning_content"] == "the fox"
    assert [call["function"]["arguments"] for call in whole["message"]["tool_calls"]] == ['{"city": "Rome"}'] * 2
    assert len({call["id"] for call in whole["message"]["tool_calls"]}) == 2
    assert whole["message"]["content"] is None


def test_the_arguments_of_a_call_stream_as_openai_writes_them(tiny_folder: Path) -> None:
    """The first delta of a call has its id, its type and its name, and no arguments. Later ones have its index and the
    next part of its arguments, and together they are the arguments of the whole answer."""
    whole, parts = answered(tiny_folder, f"{CALL}{CALL}", tools=[TOOL])
    for index, call in enumerate(whole["message"]["tool_calls"]):
        first, *later = (piece for piece in parts["tool_calls"] if piece["index"] == index)
        named = {"name": "weather", "arguments": ""}
        assert first == {"index": index, "id": call["id"], "type": "function", "function": named}
        assert all(
            piece.keys() == {"index", "function"} and piece["function"].keys() == {"arguments"} for piece in later
        )
        assert "".join(piece["function"]["arguments"] for piece in later) == '{"city": "Rome"}'
        assert len(later) > 2


def test_a_call_that_was_cut_keeps_the_ending_of_its_answer(tiny_folder: Path) -> None:
    """Its arguments are no JSON: `tool_calls` would ask the client to run it."""
    whole, parts = answered(tiny_folder, CALL.partition("Ro")[0], tools=[TOOL])
    assert whole["finish_reason"] == "stop"
    assert whole["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "'
    assert "".join(piece["function"]["arguments"] for piece in parts["tool_calls"]) == '{"city": "'


def test_a_dialect_that_is_given_is_read_whatever_the_template_says(tiny_folder: Path) -> None:
    said = 'the fox[TOOL_CALLS]weather[ARGS]{"city": "Rome"}'
    whole, _ = answered(tiny_folder, said, ToolDialect.MISTRAL_ARGS, tools=[TOOL])
    assert whole["message"]["content"] == "the fox"
    assert whole["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert answered(tiny_folder, said, tools=[TOOL])[0]["message"]["content"] == said


def test_one_tool_is_called_where_no_more_may_be(tiny_folder: Path) -> None:
    whole, _ = answered(tiny_folder, CALL + CALL, tools=[TOOL], parallel_tool_calls=False)
    assert len(whole["message"]["tool_calls"]) == 1
