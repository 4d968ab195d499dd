"""Grammars that are tried before the engine hears of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import InputError
from quire.core.sampling import Grammar, GrammarSort
from quire.serve.trial import Trial
from quire.text.tokenizer import Tokenizer

GOOD = {"type": "object", "properties": {"a": {"type": "string"}}}


def of(schema: dict[str, Any]) -> Grammar:
    return Grammar(GrammarSort.JSON, json.dumps(schema))


@pytest.fixture
def trial(tiny_folder: Path) -> Iterator[Trial]:
    trial = Trial(Tokenizer.load(tiny_folder), seconds=0.5)
    yield trial
    trial.close()


def test_what_is_wrong_with_a_grammar_is_told(trial: Trial) -> None:
    trial.compile(of(GOOD))
    with pytest.raises(InputError, match="the json grammar cannot be used"):
        trial.compile(of({"type": "nonsense"}))
    trial.compile(of(GOOD))


@pytest.mark.story
@pytest.mark.parametrize(
    "endless",
    [
        {"type": "integer", "multipleOf": 1234567},
        {"allOf": [{"type": "string", "pattern": f"^.*a.{{{place}}}$"} for place in range(10, 40)]},
    ],
)
def test_a_grammar_that_takes_for_ever_is_refused_and_the_next_one_is_tried(
    trial: Trial, endless: dict[str, Any]
) -> None:
    for _ in range(2):
        with pytest.raises(InputError, match=r"was not compiled after 0.5 s of computing: simplify it"):
            trial.compile(of(endless))
        trial.compile(of(GOOD))
