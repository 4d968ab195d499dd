"""The shape of an answer: a JSON schema, or a class that has one, such as a pydantic model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quire.core.errors import InputError
from quire.core.sampling import Grammar, GrammarSort, Sampling
from quire.text.answer import Delta

Schema = Mapping[str, Any] | type[Any]
"""A class needs `model_json_schema` and `model_validate`, as pydantic's models have them."""


def with_grammar(sampling: Sampling, schema: Schema | None, call: Grammar | None = None) -> Sampling:
    """The sampling with the grammar of a schema, or of a tool call that is required."""
    wanted = [call, None if schema is None else Grammar(GrammarSort.JSON, _json_schema(schema))]
    grammars = [grammar for grammar in wanted if grammar is not None]
    if len(grammars) + (sampling.grammar is not None) > 1:
        raise InputError(
            "an answer keeps one grammar: give one of schema, sampling.grammar and a tool_choice that requires a call"
        )
    return replace(sampling, grammar=grammars[0]) if grammars else sampling


def parse(schema: Schema, answer: Delta) -> tuple[Any, str]:
    """The object that an answer represents, or None and why there is none. An answer of tool calls has none."""
    if answer.tool_calls:
        return None, ""
    try:
        value = json.loads(answer.text)
    except (ValueError, RecursionError):
        return None, f"the answer is no complete JSON after {len(answer.tokens):,} tokens: raise max_tokens"
    if isinstance(schema, Mapping):
        return value, ""
    try:
        return schema.model_validate(value), ""
    except ValueError as error:  # pydantic's own errors are such
        return None, f"{schema.__name__} does not take the answer: {'; '.join(str(error).split(chr(10)))}"


def _json_schema(schema: Schema) -> str:
    if not isinstance(schema, Mapping) and not hasattr(schema, "model_json_schema"):
        raise InputError(f"schema is {schema!r:.80}: give a JSON schema as a dict, or a pydantic model")
    try:
        return json.dumps(schema if isinstance(schema, Mapping) else schema.model_json_schema())
    except (TypeError, ValueError) as error:
        raise InputError(f"schema cannot be written as JSON: {error}") from None
