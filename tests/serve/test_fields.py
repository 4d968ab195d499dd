"""Fields that Quire does not have: which are ignored, which are refused, and where that is written down."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from quire.serve.fields import ANY, Ignored, noting_ignored
from quire.serve.schemas import (
    Body,
    ChatBody,
    CompletionBody,
    Said,
    StreamOptions,
    StructuredOutputs,
    TextPart,
    Tool,
)

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
SECTION = PAGE.split("### Fields of other servers")[1].split("\n##")[0]
SAID: dict[str, Any] = {"role": "user", "content": "the fox"}
BODIES: dict[type[Body], dict[str, Any]] = {
    ChatBody: {"model": "tiny", "messages": [SAID]},
    CompletionBody: {"model": "tiny", "prompt": "the fox"},
    StreamOptions: {},
    StructuredOutputs: {"regex": "a"},
    Said: SAID,
    TextPart: {"type": "text", "text": "the fox"},
    Tool: {"type": "function", "function": {"name": "weather"}},
}
CASES = [(schema, name, values) for schema in BODIES for name, values in schema.neutral.items()]


@pytest.mark.parametrize(("schema", "name", "values"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_a_neutral_value_is_ignored_and_named_and_any_other_is_refused(
    schema: type[Body], name: str, values: tuple[Any, ...]
) -> None:
    """The same body without the field is what is read."""
    known = schema.model_validate(BODIES[schema])
    for value in (None, *("anything" if one is ANY else one for one in values)):
        ignored = Ignored()
        with noting_ignored(ignored):
            assert schema.model_validate({**BODIES[schema], name: value}) == known
        assert ignored.header() == schema.place + name
    if ANY not in values:
        with pytest.raises(ValidationError, match=f"{name}\n.*not permitted"):
            schema.model_validate({**BODIES[schema], name: "anything else"})


@pytest.mark.parametrize("value", [None, 1])
def test_with_strict_fields_every_unknown_field_is_refused(value: Any) -> None:
    ignored = Ignored(strict=True)
    with noting_ignored(ignored), pytest.raises(ValidationError, match="best_of"):
        ChatBody.model_validate({**BODIES[ChatBody], "best_of": value})
    assert not ignored.names


def test_true_is_not_one_and_a_number_may_have_a_point() -> None:
    assert CompletionBody.model_validate({**BODIES[CompletionBody], "length_penalty": 1.0})
    with pytest.raises(ValidationError):
        CompletionBody.model_validate({**BODIES[CompletionBody], "best_of": True})


def test_a_name_that_a_header_cannot_have_does_not_reach_one() -> None:
    ignored = Ignored()
    with noting_ignored(ignored):
        ChatBody.model_validate({**BODIES[ChatBody], "a\r\nset-cookie: é" + "x" * 100: None})
    assert re.fullmatch(r"a\?\?set-cookie\?\?\?x{1,60}", ignored.header())
    assert len(ignored.header()) == 64


def test_a_field_that_is_known_is_never_ignored() -> None:
    for schema in BODIES:
        assert not set(schema.neutral) & {field.alias or name for name, field in schema.model_fields.items()}


def test_the_page_has_each_ignored_field_with_its_values() -> None:
    """A row for each field: its name, the values that are ignored."""
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*?) \|", SECTION, re.MULTILINE))
    own = [(schema.place + name, values) for schema, name, values in CASES]
    assert set(rows) == {name for name, _ in own}
    for name, values in own:
        told = ["any value" if value is ANY else f"`{json.dumps(value)}`" for value in values]
        assert all(one in rows[name] for one in told), name
