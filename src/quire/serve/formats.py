"""How answers look on the wire: chats and completions, as streams of chunks and in one piece."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from quire.core.logprobs import Logprob
from quire.serve.answers import Choice, Delta
from quire.serve.asking import Asked
from quire.serve.errors import dumps
from quire.text.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"
STILL_HERE = b": still here\n\n"
"""A comment: keeps connections open while a request waits."""
Json = dict[str, Any]


def event(value: Any) -> bytes:
    return b"data: " + dumps(value).encode() + b"\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """What every piece of an answer begins with."""

    id: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    def of(self, object_name: str, choices: Sequence[Json], **more: Any) -> Json:
        head = {"id": self.id, "object": object_name, "created": self.created, "model": self.model}
        return {**head, "system_fingerprint": self.fingerprint, "choices": list(choices), **more}


def usage(asked: Asked, choices: Sequence[Choice]) -> Json:
    outputs = sum(choice.output_tokens for choice in choices)
    firsts = choices[:: asked.choices]
    """Of each prompt one: the others of its choices find what it computes."""
    cached = sum(choice.hit_tokens for choice in firsts)
    return {
        "prompt_tokens": asked.prompt_tokens,
        "completion_tokens": outputs,
        "total_tokens": asked.prompt_tokens + outputs,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class Format(Protocol):
    def chunk(self, choice: Choice, delta: Delta, is_first: bool) -> Json: ...

    def closing(self, asked: Asked, choices: Sequence[Choice]) -> Json:
        """The chunk with the usage."""
        ...

    def whole(self, asked: Asked, choices: Sequence[Choice], answers: Mapping[int, Delta]) -> Json: ...


def _byte_letters() -> dict[str, int]:
    """Byte-level tokenizers write each byte as a letter: itself where it can be seen, else the next one from 256 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(b): b for b in seen} | {chr(256 + place): b for place, b in enumerate(hidden)}


class Words:
    """Tokens as text and as bytes, for log-probabilities. A token may be a part of a character: its bytes are exact."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._letters = _byte_letters() if "ByteLevel" in repr(tokenizer.inner.decoder) else {}

    def text(self, token: int) -> str:
        return self._tokenizer.decode([token], skip_special_tokens=False)

    def bytes(self, token: int) -> list[int]:
        written = self._tokenizer.inner.id_to_token(token) or ""
        if written and all(letter in self._letters for letter in written):
            return [self._letters[letter] for letter in written]
        return list(self.text(token).encode())

    def described(self, token: int, logprob: float) -> Json:
        return {"token": self.text(token), "logprob": _finite(logprob), "bytes": self.bytes(token)}

    def with_top(self, token: int, one: Logprob) -> Json:
        return {**self.described(token, one.value), "top_logprobs": [self.described(*top) for top in one.top]}


def _finite(logprob: float) -> float:
    """JSON has no infinity: what cannot come at all is -9999, as clients expect."""
    return max(logprob, -9999.0)


class ChatFormat:
    def __init__(self, head: Head, words: Words, has_logprobs: bool, with_usage: bool) -> None:
        self._head, self._words = head, words
        self._has_logprobs, self._with_usage = has_logprobs, with_usage

    def chunk(self, choice: Choice, delta: Delta, is_first: bool) -> Json:
        said: Json = {"role": "assistant", "content": ""} if is_first else {}
        if delta.content:
            said["content"] = delta.content
        if delta.reasoning:
            said["reasoning_content"] = delta.reasoning
        if delta.calls:
            said["tool_calls"] = list(delta.calls)
        piece = {"index": choice.index, "delta": said, "logprobs": self._logprobs(delta)}
        more = {"usage": None} if self._with_usage else {}
        return self._head.of("chat.completion.chunk", [{**piece, "finish_reason": delta.finish_reason}], **more)

    def closing(self, asked: Asked, choices: Sequence[Choice]) -> Json:
        return self._head.of("chat.completion.chunk", [], usage=usage(asked, choices))

    def whole(self, asked: Asked, choices: Sequence[Choice], answers: Mapping[int, Delta]) -> Json:
        made = [self._choice(choice, answers[choice.index]) for choice in choices]
        return self._head.of("chat.completion", made, usage=usage(asked, choices))

    def _choice(self, choice: Choice, answer: Delta) -> Json:
        said: Json = {"role": "assistant", "content": answer.content or (None if answer.calls else "")}
        if answer.reasoning:
            said["reasoning_content"] = answer.reasoning
        if answer.calls:
            said["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in answer.calls]
        message = {"index": choice.index, "message": {**said, "refusal": None}, "logprobs": self._logprobs(answer)}
        return {**message, "finish_reason": choice.finish_reason}

    def _logprobs(self, delta: Delta) -> Json | None:
        if not self._has_logprobs:
            return None
        pairs = zip(delta.tokens, delta.logprobs, strict=False)
        return {"content": [self._words.with_top(token, one) for token, one in pairs], "refusal": None}


class CompletionFormat:
    def __init__(
        self, head: Head, words: Words, has_logprobs: bool, with_usage: bool, echoes: Mapping[int, str] | None = None
    ) -> None:
        self._head, self._words = head, words
        self._has_logprobs, self._with_usage = has_logprobs, with_usage
        self._echoes = echoes or {}
        """By choice: the prompt, where it is to be repeated."""
        self._characters: dict[int, int] = {}

    def chunk(self, choice: Choice, delta: Delta, is_first: bool) -> Json:
        text = (self._echoes.get(choice.index, "") if is_first else "") + delta.content
        piece = {"index": choice.index, "text": text, "logprobs": self._logprobs(choice, delta)}
        more = {"usage": None} if self._with_usage else {}
        return self._head.of("text_completion", [{**piece, "finish_reason": delta.finish_reason}], **more)

    def closing(self, asked: Asked, choices: Sequence[Choice]) -> Json:
        return self._head.of("text_completion", [], usage=usage(asked, choices))

    def whole(self, asked: Asked, choices: Sequence[Choice], answers: Mapping[int, Delta]) -> Json:
        made = [self.chunk(choice, answers[choice.index], True)["choices"][0] for choice in choices]
        return self._head.of("text_completion", made, usage=usage(asked, choices))

    def _logprobs(self, choice: Choice, delta: Delta) -> Json | None:
        if not self._has_logprobs:
            return None
        offset = self._characters.get(choice.index, 0)
        words, offsets = [self._words.text(token) for token in delta.tokens], []
        for word in words:
            offsets.append(offset)
            offset += len(word)
        self._characters[choice.index] = offset
        tops = [{self._words.text(t): _finite(value) for t, value in one.top} for one in delta.logprobs]
        values = [_finite(one.value) for one in delta.logprobs]
        return {"tokens": words, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}
