"""Structured output through the whole engine: every answer is what its schema, regex or rules say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from quire import LLM, Completion, Sampling
from quire.core.sampling import Grammar, GrammarSort
from quire.fetch.convert import folder_of_gguf
from quire.fetch.default import fetch_default
from quire.fetch.folder import in_silence
from quire.plan.settings import Budget, Settings
from quire.text.tokenizer import Tokenizer
from small_gguf import write_gguf

PLACE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "people": {"type": "integer", "minimum": 0, "maximum": 99_999},
        "is_old": {"type": "boolean"},
    },
    "required": ["name", "people", "is_old"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 4}
CHOICE = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["fish", "bird"]},
        "age": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 1, "maximum": 60}]},
        "marks": {"type": "array", "items": {"type": "integer", "minimum": -9, "maximum": 9}, "maxItems": 3},
    },
    "required": ["kind", "age", "marks"],
    "additionalProperties": False,
}
NESTED = {
    "type": "object",
    "properties": {"first": {"$ref": "#/$defs/point"}, "second": {"$ref": "#/$defs/point"}},
    "required": ["first", "second"],
    "additionalProperties": False,
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 999}, "y": {"const": 0}},
            "required": ["x", "y"],
            "additionalProperties": False,
        }
    },
}
SCHEMAS = {"place": PLACE, "list": LIST, "choice": CHOICE, "nested": NESTED}
PATTERNS = [
    (GrammarSort.REGEX, r"(north|south), [0-9]{1,3} km", r"(north|south), [0-9]{1,3} km"),
    (GrammarSort.REGEX, r"[A-Z]{2}-[0-9]{4}", r"[A-Z]{2}-[0-9]{4}"),
    (GrammarSort.LARK, 'start: "yes" | "no" ", " WORD\nWORD: /[a-z]{1,8}/', r"yes|no, [a-z]{1,8}"),
]
"""(sort, grammar, what its texts match)"""
THINGS = ["river", "town", "ship", "bird", "song", "stone", "road", "tree", "king", "lake"]
PROMPTS = [f"Tell me about {how} {thing}." for thing in THINGS for how in ("a", "the old", "my", "that", "another")]


@pytest.fixture(scope="module")
def tiny(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """Random weights: it knows nothing, so all structure comes from the grammar."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, tokenizer.inner)
    folder = folder_of_gguf(path, in_silence, path.parent / "tiny")
    settings = Settings(max_requests=16, batch_tokens=512, max_length=256)
    llm = LLM(folder, settings=settings, budget=Budget(pool_bytes=1 << 20))
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def smollm() -> Iterator[LLM]:
    folder = fetch_default()
    settings = Settings(max_requests=16, batch_tokens=512, max_length=256)
    llm = LLM(folder, settings=settings, budget=Budget(pool_bytes=128 << 20))
    yield llm
    llm.close()


def answers(
    llm: LLM, sort: GrammarSort, text: str, prompts: list[str], max_tokens: int, hot: float
) -> list[Completion]:
    sampling = Sampling(temperature=hot, seed=11, grammar=Grammar(sort, text))
    found = llm.generate(prompts, sampling, max_tokens=max_tokens)
    assert [answer.ending for answer in found] == ["stop"] * len(prompts), "none was cut off"
    return found


def check(schema: dict[str, Any], found: list[Completion]) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    for answer in found:
        validator.validate(json.loads(answer.text))


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_model_that_knows_nothing_answers_fifty_prompts_in_valid_json(tiny: LLM, name: str) -> None:
    found = answers(tiny, GrammarSort.JSON, json.dumps(SCHEMAS[name]), PROMPTS, 160, hot=1.0)
    check(SCHEMAS[name], found)
    assert len({answer.text for answer in found}) > 3, "the answers are its own"


@pytest.mark.parametrize(("sort", "text", "pattern"), PATTERNS)
def test_a_model_that_knows_nothing_keeps_to_a_regex_and_to_rules(
    tiny: LLM, sort: GrammarSort, text: str, pattern: str
) -> None:
    found = answers(tiny, sort, text, PROMPTS, 80, hot=1.0)
    assert all(re.fullmatch(pattern, answer.text) for answer in found)


@pytest.mark.network
@pytest.mark.parametrize("prompts", [10, pytest.param(50, marks=pytest.mark.soak)])
def test_the_default_model_answers_in_valid_json(smollm: LLM, prompts: int) -> None:
    check(PLACE, answers(smollm, GrammarSort.JSON, json.dumps(PLACE), PROMPTS[:: 50 // prompts], 64, hot=0.0))


@pytest.mark.network
@pytest.mark.parametrize(("sort", "text", "pattern"), PATTERNS)
def test_the_default_model_keeps_to_a_regex_and_to_rules(
    smollm: LLM, sort: GrammarSort, text: str, pattern: str
) -> None:
    found = answers(smollm, sort, text, PROMPTS[:4], 32, hot=0.7)
    assert all(re.fullmatch(pattern, answer.text) for answer in found)
