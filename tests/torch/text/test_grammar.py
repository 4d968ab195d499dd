"""Structured output."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from quire.core.errors import InputError
from quire.core.sampling import Grammar, GrammarSort, Sampling
from quire.text.grammar import Constraint, Grammars
from quire.text.tokenizer import Tokenizer
from quire.worker.sampling.sampler import Sampler

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "b": {"enum": ["fox", "dog"]}},
    "required": ["n", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer)


def allowed(constraint: Constraint) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Grammar(GrammarSort.REGEX, "(fox|dog){1,3}!"), r"(fox|dog){1,3}!"),
        (Grammar(GrammarSort.LARK, 'start: "fox" ("," "dog")? '), r"fox(,dog)?"),
        (Grammar(GrammarSort.JSON, json.dumps(SCHEMA)), r'\{"n": -?\d+, "b": "(fox|dog)"\}'),
    ],
)
def test_a_model_that_knows_nothing_still_puts_out_what_the_grammar_says(
    tokenizer: Tokenizer, grammars: Grammars, grammar: Grammar, pattern: str, seed: int
) -> None:
    """Random logits, padded beyond the vocabulary; digits lose a little so that numbers end."""
    sampler = Sampler(2, 512, masks=grammars)
    sampler.enter(1, Sampling(temperature=1.0, seed=seed, grammar=grammar), [0])
    grammars.enter(1, grammar)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 512, generator=generator)
    logits[0, tokenizer.encode("0123456789")] -= 1
    tokens: list[int] = []
    while not tokens or tokens[-1] not in tokenizer.eos_token_ids:
        tokens.append(int(sampler.sample(logits, [1], [1 + len(tokens)])))
        assert len(tokens) < 200
    assert re.fullmatch(pattern, tokenizer.decode(tokens))


def test_when_nothing_may_follow_only_ends_are_allowed_for_ever(tokenizer: Tokenizer, grammars: Grammars) -> None:
    constraint = grammars.compile(Grammar(GrammarSort.REGEX, "fox"))
    for token in tokenizer.encode("fox"):
        assert not constraint.is_done()
        constraint.accept(token)
    assert constraint.is_done()
    for _ in range(3):
        assert allowed(constraint) == set(tokenizer.eos_token_ids)
        constraint.accept(tokenizer.eos_token_ids[0])


def test_each_request_goes_its_own_way_through_the_same_grammar(tokenizer: Tokenizer, grammars: Grammars) -> None:
    grammar = Grammar(GrammarSort.REGEX, "(fox|dog)")
    first, second = grammars.compile(grammar), grammars.compile(grammar)
    first.accept(tokenizer.encode("f")[0])
    assert allowed(first) != allowed(second)
    assert tokenizer.encode("d")[0] in allowed(second)


def test_a_preempted_request_goes_on_where_it_was(tokenizer: Tokenizer, grammars: Grammars) -> None:
    grammar = Grammar(GrammarSort.REGEX, "dog, fox")
    tokens = tokenizer.encode("dog, ")
    grammars.enter(3, grammar)
    for token in tokens:
        grammars.accept(3, token)
    grammars.enter(4, grammar, tokens)
    assert np.array_equal(grammars.mask(3), grammars.mask(4))


@pytest.mark.parametrize(
    ("sort", "text", "message"),
    [
        (GrammarSort.JSON, r'{"const": "\ud800"}', "the json grammar cannot be used: .*give whole characters"),
        (GrammarSort.JSON, f'{{"minimum": {"9" * 400}}}', "the json grammar cannot be used: .*numbers of 64 bits"),
        (GrammarSort.REGEX, "a(b", "the regex grammar cannot be used: .*unclosed group"),
        (GrammarSort.LARK, 'start: "a" foo', "the lark grammar cannot be used: .*unknown name"),
        (GrammarSort.JSON, '{"type": "objekt"}', "the json grammar cannot be used: Invalid type: objekt"),
        (
            GrammarSort.JSON,
            '{"type": "array", "uniqueItems": true}',
            "the keyword uniqueItems of the schema cannot be enforced: leave it out",
        ),
        (GrammarSort.JSON, '{"type":', "the json grammar is not JSON: .*; give a JSON schema"),
        (GrammarSort.JSON, "[1]", "the json grammar is a list: give a JSON schema, an object"),
    ],
)
def test_a_grammar_that_cannot_be_used_says_why_on_one_line(
    grammars: Grammars, sort: GrammarSort, text: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as refused:
        grammars.compile(Grammar(sort, text))
    assert "\n" not in str(refused.value)


def test_a_token_the_grammar_does_not_allow_is_refused(tokenizer: Tokenizer, grammars: Grammars) -> None:
    constraint = grammars.compile(Grammar(GrammarSort.REGEX, "fox"))
    with pytest.raises(InputError, match="not allowed by the grammar"):
        constraint.accept(tokenizer.encode("d")[0])
