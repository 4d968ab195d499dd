"""From a chat template and tokens to an answer: marks that are special tokens are read, other special tokens have no
text."""

from __future__ import annotations

import json

import numpy as np
import pytest

from byte_tokenizer import END, MARKS, byte_tokenizer
from quire.core.sampling import Sampling
from quire.options.dialects import ToolDialect
from quire.text.answer import join_deltas
from quire.text.prompts import Prompts
from quire.text.question import Question
from transcripts import TOOLS

CALL = '{"city": "Rome"}'
OTHER = "<|other|>"


@pytest.mark.parametrize(
    ("dialect", "template", "said"),
    [
        (
            ToolDialect.HARMONY,
            "<|start|>assistant<|channel|>final<|message|> tools",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Yes.<|end|>"
            f"<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{CALL}",
        ),
        (
            ToolDialect.MISTRAL_ARGS,
            "[TOOL_CALLS][ARGS][THINK][/THINK] tools",
            f"[THINK]Hm.[/THINK]Yes.[TOOL_CALLS]weather[ARGS]{CALL}",
        ),
        (
            ToolDialect.DEEPSEEK_V31,
            "<｜tool▁calls▁begin｜> </think> tools",
            "<think>Hm.</think>Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
            f"{CALL}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            ToolDialect.GRANITE,
            "<|start_of_role|> </think> tools",
            '<think>Hm.</think><response>Yes.</response><|tool_call|>[{"name": "weather", "arguments": ' + f"{CALL}}}]",
        ),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_reasoning_text_and_calls_are_read_from_the_tokens_of_a_family(
    dialect: ToolDialect, template: str, said: str, size: int
) -> None:
    """Special tokens that are no marks have no text, wherever they are."""
    marks = [*MARKS[dialect], "<|end|>", "[THINK]", "[/THINK]", OTHER]
    tokenizer = byte_tokenizer(marks, template)
    prompts = Prompts(tokenizer, tokenizer.vocab_size)
    assert prompts.dialect.name is dialect
    use = prompts.tool_use(TOOLS, "auto")
    prompt = np.array([1], dtype=np.int32)
    question = Question((prompt,), ("",), (9,), Sampling(), tools=use, reasoning=prompts.reasoning)
    (answer,) = question.answers(tokenizer)
    tokens = tokenizer.encode(said.replace("Yes.", f"Yes{OTHER}.") + END)
    cuts = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    whole = join_deltas([*(answer.feed(cut) for cut in cuts), answer.feed([], ending="stop")])
    assert (whole.reasoning, whole.text, whole.ending) == ("Hm.", "Yes.", "tool_calls")
    assert [(call.name, json.loads(call.arguments)) for call in whole.tool_calls] == [("weather", {"city": "Rome"})]
