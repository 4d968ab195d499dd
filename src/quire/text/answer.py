"""One answer, from tokens to what its reader receives: text, reasoning, tool calls, log-probabilities, an ending.

tokens ─▶ TextStream ─▶ StopStrings ─▶ Reasoning ─▶ ToolCalls ─▶ Delta

The library and the server use the same class; it depends neither on an engine nor on HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from quire.core.logprobs import Logprob
from quire.text.dialects.calls import Read, ToolCall, join_calls
from quire.text.dialects.harmony import Channels
from quire.text.dialects.reader import ToolCalls
from quire.text.reasoning import Parted, Reasoning
from quire.text.stops import StopStrings
from quire.text.tokenizer import Tokenizer


class Delta(NamedTuple):
    """The next piece of an answer; all pieces joined are the finished answer. There is one for each token: of frozen
    values, a named tuple is made in the least time."""

    text: str = ""
    reasoning: str = ""
    """Text that the model wrote between its marks of reasoning, such as <think> and </think>."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls, or pieces of them: one that continues has the next part of a call's arguments."""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    """One for each of `tokens`, if requested."""
    ending: str = ""
    """In the last piece: stop, length, tool_calls, or another one that the answer was fed."""
    stop_string: str | None = None
    """In the last piece: the stop string that ended the text, if one did."""

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.reasoning or self.tool_calls or self.ending)


NOTHING = Delta()


def join_deltas(pieces: Sequence[Delta]) -> Delta:
    return Delta(
        "".join(piece.text for piece in pieces),
        "".join(piece.reasoning for piece in pieces),
        join_calls(_calls_of(pieces)),
        tuple(token for piece in pieces for token in piece.tokens),
        tuple(one for piece in pieces for one in piece.logprobs),
        next((piece.ending for piece in pieces if piece.ending), ""),
        next((piece.stop_string for piece in pieces if piece.stop_string), None),
    )


def _calls_of(pieces: Sequence[Delta]) -> Iterator[ToolCall]:
    """With their places in the text of all pieces."""
    length = 0
    for piece in pieces:
        for call in piece.tool_calls:
            yield replace(call, at=length + call.at)
        length += len(piece.text)


def in_order(delta: Delta) -> Iterator[str | ToolCall]:
    """Text and calls in the order in which the model wrote them."""
    begin = 0
    for call in delta.tool_calls:
        if call.at > begin:
            yield delta.text[begin : call.at]
            begin = call.at
        yield call
    if begin < len(delta.text):
        yield delta.text[begin:]


class Answer:
    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_tokens: Sequence[int] = (),
        stop_strings: Sequence[str] = (),
        reasoning: Reasoning | Channels | None = None,
        tools: ToolCalls | None = None,
    ) -> None:
        """`stop_tokens` end a request and have no text. `reasoning` and `tools` None: such marks are text."""
        self.output_tokens = 0
        self.reasoning_tokens = 0
        """The first of `output_tokens`, up to the mark that ends the reasoning."""
        self.ending = ""
        """Empty while the answer is incomplete."""
        self._stop_tokens = frozenset(stop_tokens)
        self._text = tokenizer.stream(keep=(*(reasoning.marks if reasoning else ()), *(tools.marks if tools else ())))
        self._stops = StopStrings(stop_strings)
        self._reasoning, self._tools = reasoning, tools
        self._is_plain = not stop_strings and reasoning is None and tools is None
        self._held = NOTHING
        """Tokens whose text is held back: they are part of the next piece that has any."""

    def feed(self, tokens: Sequence[int], logprobs: Sequence[Logprob] = (), ending: str = "") -> Delta:
        """The next piece: what these tokens complete, and with an ending all that was held back. A stop string ends the
        answer by itself: what follows it does not count, and the caller cancels the request."""
        if self._is_plain and not ending:
            return self._plain(tokens, logprobs)
        pieces = [self._held]
        for place, token in enumerate(tokens):
            self.output_tokens += 1
            passed = self._stops.feed("" if token in self._stop_tokens else self._text.feed([token]))
            pieces += [Delta(tokens=(token,), logprobs=tuple(logprobs[place : place + 1])), self._part(passed.text)]
            if passed.stop is not None:
                return self._end("stop", pieces)
        if ending:
            rest = self._stops.feed(self._text.finish()).text + self._stops.finish()
            return self._end(ending, [*pieces, self._part(rest)])
        delta = join_deltas(pieces)
        self._held = Delta(tokens=delta.tokens, logprobs=delta.logprobs) if delta.is_empty else NOTHING
        return NOTHING if delta.is_empty else delta

    def feed_plain(self, token: int) -> str:
        """As `feed` of this token, if its text is all that is new; empty, with nothing fed, if more may be."""
        if not self._is_plain or self.ending or self._held is not NOTHING or token in self._stop_tokens:
            return ""
        text = self._text.certain(token)
        if text:
            self.output_tokens += 1
        return text

    def _plain(self, tokens: Sequence[int], logprobs: Sequence[Logprob]) -> Delta:
        """The same as `feed` for text in which nothing is looked for: most tokens take this way."""
        self.output_tokens += len(tokens)
        if not self._stop_tokens.isdisjoint(tokens):
            text = self._text.feed([token for token in tokens if token not in self._stop_tokens])
        else:
            text = self._text.feed(tokens)
        if self._held is not NOTHING:
            tokens, logprobs = (*self._held.tokens, *tokens), (*self._held.logprobs, *logprobs)
        delta = Delta(text, "", (), tuple(tokens), tuple(logprobs))
        self._held = NOTHING if text else delta
        return delta if text else NOTHING

    def _end(self, ending: str, pieces: list[Delta]) -> Delta:
        if self._reasoning is not None:
            pieces.append(self._read(self._reasoning.finish()))
        if self._tools is not None:
            pieces.append(_piece(self._tools.finish()))
            is_called = self._tools.count and self._tools.is_whole
            ending = "tool_calls" if is_called and ending == "stop" else ending
        self.ending = ending
        return join_deltas([*pieces, Delta(ending=ending, stop_string=self._stops.found)])

    def _part(self, text: str) -> Delta:
        if self._reasoning is None:
            return self._read(Parted(content=text))
        was_open = self._reasoning.is_open
        parted = self._reasoning.feed(text)
        if was_open or self._reasoning.is_open:
            self.reasoning_tokens = self.output_tokens
        return self._read(parted)

    def _read(self, parted: Parted) -> Delta:
        read = Read(parted.content) if self._tools is None else self._tools.feed(parted.content)
        return _piece(read, parted.reasoning)


def _piece(read: Read, reasoning: str = "") -> Delta:
    return Delta(read.content, reasoning, read.calls)
