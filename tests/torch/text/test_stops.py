"""Stop strings over streamed text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.text.stops import Passed, StopStrings
from quire.text.tokenizer import Tokenizer

PIECES = st.lists(st.text("abc", max_size=4), max_size=12)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition, character by character."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


@settings(deadline=None)
@given(pieces=PIECES, stops=STOPS)
@pytest.mark.law
def test_the_text_ends_before_the_first_stop_string_however_it_is_cut(pieces: list[str], stops: list[str]) -> None:
    watch = StopStrings(stops)
    shown = "".join(watch.feed(piece).text for piece in pieces) + watch.finish()
    assert (shown, watch.found) == first_stop("".join(pieces), stops)


@settings(deadline=None)
@given(pieces=PIECES, stops=STOPS)
@pytest.mark.law
def test_only_what_could_become_a_stop_string_is_held_back(pieces: list[str], stops: list[str]) -> None:
    watch, shown, text = StopStrings(stops), "", ""
    for piece in pieces:
        text += piece
        shown += watch.feed(piece).text
        if watch.found:
            return
        held = text[len(shown) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_split_over_tokens_is_found_and_not_shown(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("the fox STOP the dog")
    stream, watch = tokenizer.stream(), StopStrings(["STOP"])
    assert max(len(tokenizer.decode([token])) for token in tokens[2:6]) < 4
    shown = []
    for token in tokens:
        shown.append(watch.feed(stream.feed([token])))
        if shown[-1].stop:
            break
    assert "".join(passed.text for passed in shown) == "the fox "
    assert shown[-1] == Passed("", "STOP")
    assert watch.feed(" the dog") == Passed("", "STOP")
    assert watch.finish() == ""


def test_without_stop_strings_everything_passes() -> None:
    assert StopStrings([]).feed("abc") == Passed("abc")
