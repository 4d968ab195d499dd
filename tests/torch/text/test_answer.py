"""From tokens to an answer: the same machine for the library and the server."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quire.core.logprobs import Logprob
from quire.text.answer import Answer, Delta, join_deltas
from quire.text.dialects.reader import ToolCalls
from quire.text.reasoning import Reasoning
from quire.text.tokenizer import Tokenizer

TOOLS = [{"type": "function", "function": {"name": "weather"}}]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
END = 0
"""The token <|end|>."""


def fed(answer: Answer, tokens: Sequence[int], size: int, ending: str = "stop") -> list[Delta]:
    """In updates of `size` tokens, the ending with the last of them."""
    cuts = range(0, len(tokens), size)
    return [
        answer.feed(tokens[at : at + size], ending=ending if at == cuts[-1] else "") for at in cuts if not answer.ending
    ]


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_the_pieces_joined_are_the_answer_however_many_tokens_an_update_has(tokenizer: Tokenizer, size: int) -> None:
    """Text, reasoning, calls, tokens and ending do not depend on how the tokens arrive."""
    tokens = tokenizer.encode(f"<think>die Füße 🤗</think>the fox {CALL}{CALL}<|end|>")
    answer = Answer(tokenizer, (END,), (), Reasoning.after("the fox?"), ToolCalls(TOOLS))
    whole = join_deltas(fed(answer, tokens, size))
    assert (whole.text.rstrip(), whole.reasoning, whole.ending) == ("the fox", "die Füße 🤗", "tool_calls")
    assert [(call.index, call.name, call.arguments) for call in whole.tool_calls] == [
        (0, "weather", '{"city": "Rome"}'),
        (1, "weather", '{"city": "Rome"}'),
    ]
    assert whole.tokens == tuple(tokens)
    assert answer.output_tokens == len(tokens)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_answer_in_which_nothing_is_looked_for_has_the_same_pieces(tokenizer: Tokenizer, size: int) -> None:
    """It takes a shorter way than one with a stop string that never comes."""
    tokens = [*tokenizer.encode("die Füße 🤗 of the fox"), END, *tokenizer.encode("é")]
    logprobs = [Logprob(token, -0.5, 1, ()) for token in tokens]

    def pieces(answer: Answer) -> list[Delta]:
        cuts = range(0, len(tokens), size)
        fed = [answer.feed(tokens[at : at + size], logprobs[at : at + size]) for at in cuts]
        return [*fed, answer.feed((), (), "length")]

    plain, searched = Answer(tokenizer, (END,)), Answer(tokenizer, (END,), ["§§"])
    assert pieces(plain) == pieces(searched)
    assert plain.output_tokens == searched.output_tokens == len(tokens)


@pytest.mark.parametrize("stops", [(), ["§§"], ["fox"]])
def test_the_shortest_way_for_a_token_gives_its_text_or_leaves_everything_as_it_was(
    tokenizer: Tokenizer, stops: Sequence[str]
) -> None:
    """The first token, halves of characters, stop tokens and stop strings take the other way, to the same pieces."""
    tokens = [*tokenizer.encode("die Füße 🤗 of the fox"), END, *tokenizer.encode("é the end")]
    short, whole = Answer(tokenizer, (END,), stops), Answer(tokenizer, (END,), stops)
    taken = 0
    for token in tokens:
        text = short.feed_plain(token)
        taken += bool(text)
        delta = whole.feed((token,))
        assert (text or short.feed((token,)).text) == delta.text
        assert (short.output_tokens, short.ending) == (whole.output_tokens, whole.ending)
    assert short.feed((), (), "length") == whole.feed((), (), "length")
    assert (taken > len(tokens) // 2) is (not stops)


def test_a_stop_string_ends_the_answer_and_what_follows_it_is_not_counted(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("the fox STOP the dog")
    answer = Answer(tokenizer, (), ["STOP"])
    whole = join_deltas(fed(answer, tokens, 1, "length"))
    assert (whole.text, whole.ending, answer.ending) == ("the fox ", "stop", "stop")
    assert tokenizer.decode(whole.tokens) == "the fox STOP"
    at_once = Answer(tokenizer, (), ["STOP"])
    assert join_deltas(fed(at_once, tokens, 1000, "length")) == whole
    assert at_once.output_tokens == answer.output_tokens == len(whole.tokens)


@pytest.mark.parametrize(
    ("said", "stop"), [("the fox STOP", "STOP"), ("the dog HALT the fox STOP", "HALT"), ("fox", None)]
)
def test_the_last_piece_names_the_stop_string_that_ended_the_answer(
    tokenizer: Tokenizer, said: str, stop: str | None
) -> None:
    """Of several, the one that was found first; none if the answer ended otherwise."""
    deltas = fed(Answer(tokenizer, (), ["STOP", "HALT"]), tokenizer.encode(said), 1, "length")
    assert [delta.stop_string for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].stop_string == join_deltas(deltas).stop_string == stop


def test_an_end_of_text_has_no_text_unless_it_is_no_stop_token(tokenizer: Tokenizer) -> None:
    """A model may write a stop token that has text of its own; where it does not stop the request, it is text."""
    fox, dog = tokenizer.encode(" fox"), tokenizer.encode(" dog")
    assert len(dog) == 1
    assert join_deltas([Answer(tokenizer, dog).feed([*fox, *dog], ending="stop")]).text == " fox"
    assert join_deltas([Answer(tokenizer).feed([*fox, *dog], ending="length")]).text == " fox dog"


def test_what_is_held_back_comes_with_the_ending(tokenizer: Tokenizer) -> None:
    """Half a character, the beginning of a stop string, and a call whose name comes after its arguments."""
    half = [tokenizer.inner.get_vocab()[sign] for sign in ("ð", "Ł")]
    answer = Answer(tokenizer, (), ["STOP"])
    before = answer.feed([*tokenizer.encode("the ST")])
    assert before.text == "the "
    assert answer.feed(half).is_empty
    last = answer.feed([], ending="length")
    assert (last.text, last.ending) == ("ST\ufffd", "length")
    held = Answer(tokenizer, (), (), None, ToolCalls(TOOLS))
    assert held.feed(tokenizer.encode('<tool_call>{"arguments": {}, "name": "weather"')).is_empty
    (call,) = held.feed(tokenizer.encode("}"), ending="stop").tool_calls
    assert call.name == "weather"


def test_tokens_without_text_of_their_own_and_their_logprobs_come_with_the_next_text(tokenizer: Tokenizer) -> None:
    """A client that adds up log-probabilities gets one for each token, in the order of the tokens."""
    tokens = tokenizer.encode("😀!")
    assert len(tokens) > 2
    answer = Answer(tokenizer)
    pieces = [answer.feed([token], [Logprob(token, -1.0, 1, ())]) for token in tokens]
    assert [piece.text for piece in pieces if not piece.is_empty] == ["😀", "!"]
    assert all(not piece.tokens for piece in pieces if piece.is_empty)
    assert [one.token for one in join_deltas(pieces).logprobs] == list(join_deltas(pieces).tokens) == tokens


def test_an_answer_that_has_to_be_short_calls_no_tool_by_its_ending(tokenizer: Tokenizer) -> None:
    """`tool_calls` says that the model stopped to call; an answer that was cut says `length` even after a call."""
    answer = Answer(tokenizer, (), (), None, ToolCalls(TOOLS, most=1))
    whole = join_deltas([answer.feed(tokenizer.encode(CALL + CALL), ending="length")])
    assert (len(whole.tool_calls), whole.ending) == (1, "length")
