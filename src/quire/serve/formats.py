"""The format of answers: chats and completions, as streams of chunks and in one piece."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from quire.core.logprobs import Logprob
from quire.serve.calls import Call
from quire.serve.errors import ApiError, dumps, quoted
from quire.text.answer import Delta
from quire.text.dialects.calls import ToolCall
from quire.text.spelling import Spelling

DONE = b"data: [DONE]\n\n"
STILL_HERE = b": still here\n\n"
"""A comment: keeps connections open while a request waits."""
Json = dict[str, Any]


def event(value: Any, name: str = "") -> bytes:
    """A server-sent event; `name`: for protocols that give each event one."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {dumps(value)}\n\n".encode()


class Format(ABC):
    """How one call's answer is written: in one piece, or as the events of a stream."""

    def __init__(self, call: Call) -> None:
        self.call = call

    @abstractmethod
    def whole(self, answers: Sequence[Delta]) -> Json:
        """The complete answer, with one delta for each choice."""

    def begin(self) -> bytes:
        """Events before the first piece."""
        return b""

    @abstractmethod
    def piece(self, index: int, delta: Delta, is_first: bool) -> bytes:
        """Events for what is new in a choice; `is_first`: nothing of this choice was written yet."""

    def text(self, index: int, text: str) -> bytes:
        """As `piece` of text alone, of a choice that has begun."""
        return self.piece(index, Delta(text), False)

    def keep_alive(self) -> bytes:
        """What is sent while there is nothing new."""
        return STILL_HERE

    @abstractmethod
    def end(self) -> bytes:
        """Events after the last piece."""

    def failure(self, error: ApiError) -> bytes:
        """The last event of a stream that cannot go on."""
        return event(error.body())


@dataclass(frozen=True, slots=True)
class Extras:
    """What chunks and choices carry besides the answer, if requested."""

    logprobs: bool = False
    usage: bool = False
    """The stream ends with its usage."""
    running_usage: bool = False
    """Each chunk has the usage so far."""
    prompt_logprobs: bool = False
    """A complete answer has those of the prompt, in vLLM's form."""


class ChunkFormat(Format):
    """What chats and completions have in common; a subclass writes its choices."""

    whole_name: ClassVar[str]
    chunk_name: ClassVar[str]

    def __init__(self, call: Call, head: Mapping[str, Any], spelling: Spelling, extras: Extras) -> None:
        """`head`: what every piece begins with."""
        super().__init__(call)
        self._head = {"id": head["id"], "object": "", "created": int(time.time()), **head}
        self._spelling, self._extras = spelling, extras
        self._opening = f'data: {dumps({**self._head, "object": self.chunk_name})[:-1]},"choices":['
        """What every chunk begins with."""
        self._is_text_alone = not (extras.logprobs or extras.running_usage)
        """The chunks of a choice differ in nothing but their text, unless they have more than text."""
        self._around: dict[int, tuple[str, str]] = {}
        """By choice: what such a chunk has before and after its text."""

    def whole(self, answers: Sequence[Delta]) -> Json:
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        return self._object(
            self.whole_name, choices, usage=usage(self.call), **lease_of(self.call), **fork_of(self.call)
        )

    def _of_prompt(self, prompt: int) -> list[Json | None]:
        """Log-probabilities of a prompt's tokens as vLLM writes them: by token, with rank and text."""
        return [None, *(self._candidates(one) for one in self.call.prompt_logprobs.get(prompt, ()))]

    def _candidates(self, one: Logprob) -> Json:
        top = {token: (value, place + 1) for place, (token, value) in enumerate(one.top)}
        found = {**top, one.token: (one.value, one.rank)}
        return {
            str(token): {"logprob": _finite(value), "rank": rank, "decoded_token": self._spelling.text(token)}
            for token, (value, rank) in found.items()
        }

    def piece(self, index: int, delta: Delta, is_first: bool) -> bytes:
        """A call that begins has no arguments in its first chunk, as clients expect: they follow in a second one."""
        if delta.tool_calls:
            first, second = _parted(delta)
            more = "" if second is None else self._chunk(index, second, False)
            return f"{self._chunk(index, first, is_first)}{more}".encode()
        if is_first or delta.reasoning or delta.ending or not self._is_text_alone:
            return self._chunk(index, delta, is_first).encode()
        return self.text(index, delta.text)

    def text(self, index: int, text: str) -> bytes:
        if not self._is_text_alone:
            return self._chunk(index, Delta(text), False).encode()
        before, after = self._around.get(index) or self._split(index)
        return f"{before}{quoted(text)}{after}".encode()

    def _split(self, index: int) -> tuple[str, str]:
        """A chunk of text alone, without its text."""
        before, _, after = self._chunk(index, Delta(text="\0"), False).rpartition(quoted("\0"))
        self._around[index] = before, after
        return before, after

    def _chunk(self, index: int, delta: Delta, is_first: bool) -> str:
        more = ',"usage":null' if self._extras.usage else ""
        if self._extras.running_usage:
            more = f',"usage":{dumps(usage(self.call))}'
        return f"{self._opening}{dumps(self._piece(index, delta, is_first))}]{more}}}\n\n"

    def end(self) -> bytes:
        more = {"usage": usage(self.call)} if self._extras.usage else {}
        more |= lease_of(self.call) | fork_of(self.call)
        return (event(self._object(self.chunk_name, [], **more)) if more else b"") + DONE

    def _object(self, name: str, choices: Sequence[Json], **more: Any) -> Json:
        return {**self._head, "object": name, "choices": list(choices), **more}

    @abstractmethod
    def _piece(self, index: int, delta: Delta, is_first: bool) -> Json:
        """A choice in a chunk of a stream."""

    @abstractmethod
    def _choice(self, index: int, answer: Delta) -> Json:
        """A complete choice."""


def usage(call: Call) -> Json:
    prompt, outputs = call.question.prompt_tokens, call.output_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": outputs,
        "total_tokens": prompt + outputs,
        "prompt_tokens_details": {"cached_tokens": call.cached_tokens},
    }


def lease_of(call: Call) -> Json:
    """The field `lease`, if the call asked for one."""
    return {} if call.lease is None else {"lease": call.lease}


def fork_of(call: Call) -> Json:
    """The field `fork`, if the call is one."""
    fork = call.question.fork
    if fork is None:
        return {}
    again = sum(fork.recomputed(ticket.hit_tokens or 0) for ticket in call.tickets)
    return {"fork": {"id": fork.parent, "at": fork.at, "recomputed_tokens": again}}


def logprob_entries(delta: Delta, spelling: Spelling) -> list[Json]:
    """The tokens of a delta with their log-probabilities, in OpenAI's form."""

    def entry(token: int, logprob: float) -> Json:
        return {"token": spelling.text(token), "logprob": _finite(logprob), "bytes": spelling.bytes(token)}

    pairs = zip(delta.tokens, delta.logprobs, strict=False)
    return [{**entry(token, one.value), "top_logprobs": [entry(*top) for top in one.top]} for token, one in pairs]


def _finite(logprob: float) -> float:
    """JSON has no infinity: the log-probability of an impossible token is -9999, as clients expect."""
    return max(logprob, -9999.0)


def _parted(delta: Delta) -> tuple[Delta, Delta | None]:
    begun = tuple(call for call in delta.tool_calls if not call.continues and call.arguments)
    if not begun:
        return delta, None
    names = tuple(replace(call, arguments="") if call in begun else call for call in delta.tool_calls)
    arguments = tuple(replace(call, continues=True) for call in begun)
    return delta._replace(tool_calls=names, ending=""), Delta(tool_calls=arguments, ending=delta.ending)


def _call_piece(call: ToolCall) -> Json:
    """A call that begins has its id and its name; a piece that continues it has arguments alone."""
    more = {"function": {"arguments": call.arguments}} if call.continues else call.message_part
    return {"index": call.index, **more}


class ChatFormat(ChunkFormat):
    whole_name, chunk_name = "chat.completion", "chat.completion.chunk"

    def _piece(self, index: int, delta: Delta, is_first: bool) -> Json:
        said: Json = {"role": "assistant", "content": ""} if is_first else {}
        if delta.text:
            said["content"] = delta.text
        if delta.reasoning:
            said["reasoning_content"] = delta.reasoning
        if delta.tool_calls:
            said["tool_calls"] = [_call_piece(call) for call in delta.tool_calls]
        piece = {"index": index, "delta": said, "logprobs": self._logprobs(delta)}
        return {**piece, "finish_reason": delta.ending or None}

    def whole(self, answers: Sequence[Delta]) -> Json:
        more = {"prompt_logprobs": self._of_prompt(0)} if self._extras.prompt_logprobs else {}
        return {**super().whole(answers), **more}

    def _choice(self, index: int, answer: Delta) -> Json:
        said: Json = {"role": "assistant", "content": answer.text or (None if answer.tool_calls else "")}
        if answer.reasoning:
            said["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            said["tool_calls"] = [call.message_part for call in answer.tool_calls]
        message = {"index": index, "message": {**said, "refusal": None}, "logprobs": self._logprobs(answer)}
        return {**message, "finish_reason": answer.ending or None}

    def _logprobs(self, delta: Delta) -> Json | None:
        if not self._extras.logprobs:
            return None
        return {"content": logprob_entries(delta, self._spelling), "refusal": None}


class CompletionFormat(ChunkFormat):
    whole_name = chunk_name = "text_completion"

    def __init__(
        self,
        call: Call,
        head: Mapping[str, Any],
        spelling: Spelling,
        extras: Extras,
        *,
        echoes: Sequence[str] = (),
    ) -> None:
        """`echoes`: by choice, the prompt, if it is to be repeated."""
        super().__init__(call, head, spelling, extras)
        self._echoes = echoes
        self._characters: dict[int, int] = {}

    def _piece(self, index: int, delta: Delta, is_first: bool) -> Json:
        echoes = is_first and bool(self._echoes)
        text = (self._echoes[index] if echoes else "") + delta.text
        piece = {"index": index, "text": text, "logprobs": self._logprobs(index, delta, echoes)}
        return {**piece, "finish_reason": delta.ending or None}

    def _choice(self, index: int, answer: Delta) -> Json:
        prompt = index // self.call.question.samples
        more = {"prompt_logprobs": self._of_prompt(prompt)} if self._extras.prompt_logprobs else {}
        return {**self._piece(index, answer, True), **more}

    def _logprobs(self, index: int, delta: Delta, echoes: bool) -> Json | None:
        if not self._extras.logprobs:
            return None
        prompt = self._echoed(index) if echoes else []
        tokens = [*prompt, *zip(delta.tokens, delta.logprobs, strict=True)]
        offset = self._characters.get(index, 0)
        words, offsets = [self._spelling.text(token) for token, _ in tokens], []
        for word in words:
            offsets.append(offset)
            offset += len(word)
        self._characters[index] = offset
        tops = [one and {self._spelling.text(t): _finite(value) for t, value in one.top} for _, one in tokens]
        values = [one and _finite(one.value) for _, one in tokens]
        return {"tokens": words, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _echoed(self, index: int) -> list[tuple[int, Logprob | None]]:
        """The prompt's tokens; the first one has no log-probability."""
        place = index // self.call.question.samples
        tokens = self.call.question.prompts[place].tolist()
        return list(zip(tokens, (None, *self.call.prompt_logprobs.get(place, ())), strict=True))
