"""The grammar that a body asks for, under the names that clients use for it: OpenAI's `response_format`, vLLM's
`structured_outputs` and `guided_…`, SGLang's `regex` and `ebnf`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llguidance import StructTag
from llguidance.gbnf_to_lark import any_to_lark

from quire.core.sampling import Grammar, GrammarSort
from quire.serve.errors import ApiError
from quire.serve.schemas import AsSchema, AsTags, AsText, Sampled, Structure, StructuredOutputs
from quire.text.grammar import COMPACT

ANY_OBJECT = '{"type": "object"}'
MOST_CHARACTERS = 65_536
"""Most characters of a grammar."""


@dataclass(frozen=True, slots=True)
class WantedGrammar:
    grammar: Grammar
    field: str
    """The client's name for it."""


def wanted_grammar(body: Sampled, name: str = "response_format") -> WantedGrammar | None:
    """None: any text may be the answer. Raises if two fields ask for a grammar, or if one cannot be read. `name`: the
    client's name of response_format."""
    found = [one for one in (*_direct(body), _response_format(body, name)) if one is not None]
    if len(found) > 1:
        names = f"{found[0].field} and {found[1].field}"
        message = f"{names} both say what the answer looks like: leave one of them out"
        raise ApiError(400, message, "unsupported_field", found[1].field)
    return found[0] if found else None


def _schema(schema: str, field: str) -> WantedGrammar:
    return _limited(GrammarSort.JSON, schema, field)


def _direct(body: Sampled) -> list[WantedGrammar]:
    """From fields that name the notation themselves."""
    asked = body.structured_outputs or StructuredOutputs()
    given: list[tuple[str, Callable[[Any, str], WantedGrammar], Any]] = [
        ("structured_outputs.json", _json, asked.json_),
        ("structured_outputs.json_object", _any_object, asked.json_object or None),
        ("structured_outputs.regex", _regex, asked.regex),
        ("structured_outputs.choice", _choice, asked.choice),
        ("structured_outputs.grammar", _rules, asked.grammar),
        ("structured_outputs.structural_tag", _tag_text, asked.structural_tag),
        ("guided_json", _json, body.guided_json),
        ("guided_regex", _regex, body.guided_regex),
        ("guided_choice", _choice, body.guided_choice),
        ("guided_grammar", _rules, body.guided_grammar),
        ("regex", _regex, body.regex),
        ("ebnf", _rules, body.ebnf),
    ]
    return [read(value, field) for field, read, value in given if value is not None]


def _response_format(body: Sampled, name: str) -> WantedGrammar | None:
    wanted = body.response_format
    if wanted is None or isinstance(wanted, AsText):
        return None
    if isinstance(wanted, AsTags):
        return _tags(wanted.structures, wanted.triggers, name)
    schema = json.dumps(wanted.json_schema.schema_) if isinstance(wanted, AsSchema) else ANY_OBJECT
    return _schema(schema, name)


def _json(value: Mapping[str, Any] | str, field: str) -> WantedGrammar:
    return _schema(value if isinstance(value, str) else json.dumps(value), field)


def _any_object(_is_wanted: bool, field: str) -> WantedGrammar:
    return _schema(ANY_OBJECT, field)


def _regex(text: str, field: str) -> WantedGrammar:
    return _limited(GrammarSort.REGEX, text, field)


def _choice(values: Sequence[str], field: str) -> WantedGrammar:
    """One of these texts, exactly."""
    return _limited(GrammarSort.LARK, "start: " + " | ".join(json.dumps(one) for one in values), field)


def _rules(text: str, field: str) -> WantedGrammar:
    """In Lark's notation or in GBNF, which other servers read."""
    if len(text) > MOST_CHARACTERS:
        raise _too_long(text, field)
    try:
        rules = any_to_lark(text)
    except Exception as error:  # its parser raises just that
        said = " ".join(str(error).split())[:120]
        message = f"{field} is neither Lark nor GBNF ({said}): correct it"
        raise ApiError(400, message, "invalid_schema", field) from None
    return _limited(GrammarSort.LARK, rules, field)


def _tags(structures: Sequence[Structure], triggers: Sequence[str], field: str) -> WantedGrammar:
    """Any text, in which each tag that begins is completed as its schema says."""
    tags = []
    for place, one in enumerate(structures):
        trigger = next((trigger for trigger in triggers if one.begin.startswith(trigger)), None)
        if trigger is None:
            message = f"{field}.structures.{place}.begin starts with none of the triggers: give one that it starts with"
            raise ApiError(400, message, "invalid_value", field)
        schema = {"x-guidance": COMPACT, **one.schema_}
        tags.append(StructTag(trigger=trigger, begin=one.begin, grammar=schema, end=one.end))
    return _limited(GrammarSort.LARK, StructTag.to_grammar(tags, assume_special=False), field)


def _tag_text(text: str, field: str) -> WantedGrammar:
    """vLLM sends the tags as JSON in a string."""
    if len(text) > MOST_CHARACTERS:
        raise _too_long(text, field)
    try:
        tags = AsTags.model_validate_json(text)
    except ValueError as error:
        said = " ".join(str(error).split())[:120]
        message = f"{field} is no structural tag ({said}): give an object with type, structures and triggers"
        raise ApiError(400, message, "invalid_schema", field) from None
    return _tags(tags.structures, tags.triggers, field)


def _limited(sort: GrammarSort, text: str, field: str) -> WantedGrammar:
    return limited(Grammar(sort, text), field)


def limited(grammar: Grammar, field: str) -> WantedGrammar:
    """Raises if the grammar is too long."""
    if len(grammar.text) > MOST_CHARACTERS:
        raise _too_long(grammar.text, field)
    return WantedGrammar(grammar, field)


def _too_long(text: str, field: str) -> ApiError:
    size = f"the schema has {len(text):,} characters, {MOST_CHARACTERS:,} may be: simplify it"
    return ApiError(400, size, "invalid_schema", field)
