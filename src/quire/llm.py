"""`LLM`: text in, text out, on any model that Quire can run.

    llm = LLM()                                              # the default model, fetched once
    print(llm.generate("Why is the sky blue?")[0].text)
    for piece in llm.stream("Tell me a story."):
        print(piece, end="")

Requests run together: whoever asks turns the engine's loop for everyone.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quire.assemble import assemble
from quire.core.dtypes import DType, parse_dtype
from quire.core.errors import InputError
from quire.core.events import What
from quire.core.request import MOST_STOP_TOKENS, Request
from quire.core.rules import Rules
from quire.core.sampling import Sampling
from quire.engine.engine import Stream
from quire.plan.settings import Budget, Settings
from quire.text.stops import StopStrings

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token numbers, or a conversation: messages with `role` and `content`."""
DEFAULT_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    token_ids: tuple[int, ...]
    ending: str
    prompt_tokens: int
    reused_tokens: int
    """Of the prompt, found in the cache."""


class LLM:
    def __init__(
        self,
        model: str | Path | None = None,
        *,
        settings: Settings | None = None,
        budget: Budget | None = None,
        dtype: str | DType = DType.FP32,
        rules: Rules | None = None,
    ) -> None:
        """`model`: a checkpoint folder; none: the default model. `budget` none: half of this machine's free memory."""
        settings = settings or Settings(max_requests=32, batch_tokens=2048)
        dtype = dtype if isinstance(dtype, DType) else parse_dtype(dtype)
        self.parts = assemble(_folder(model), settings, budget, dtype=dtype, rules=rules)
        self.engine, self.plan, self.tokenizer = self.parts.engine, self.parts.plan, self.parts.tokenizer
        self._names = itertools.count()
        self._turn = threading.Lock()

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        sampling: Sampling | None = None,
        *,
        max_tokens: int = DEFAULT_TOKENS,
        raw: bool = False,
    ) -> list[Completion]:
        """All prompts together. Text is put to the model as a user's message where it has a chat template, unless
        `raw`."""
        asked = [prompts] if isinstance(prompts, str) else prompts
        talks = [self._ask(prompt, sampling or Sampling(), max_tokens, raw) for prompt in asked]
        while not all(talk.is_over for talk in talks):
            self._step(talks)
        return [talk.completion() for talk in talks]

    def stream(
        self, prompt: Prompt, sampling: Sampling | None = None, *, max_tokens: int = DEFAULT_TOKENS, raw: bool = False
    ) -> Iterator[str]:
        """The answer piece by piece. Leaving the loop early ends the request."""
        talk = self._ask(prompt, sampling or Sampling(), max_tokens, raw)
        try:
            while not talk.is_over:
                self._step([talk])
                if piece := talk.take():
                    yield piece
        finally:
            talk.cancel()

    async def astream(
        self, prompt: Prompt, sampling: Sampling | None = None, *, max_tokens: int = DEFAULT_TOKENS, raw: bool = False
    ) -> AsyncIterator[str]:
        """The same for asyncio: steps run in a thread, requests of all tasks together."""
        talk = self._ask(prompt, sampling or Sampling(), max_tokens, raw)
        try:
            while not talk.is_over:
                await asyncio.to_thread(self._step, [talk])
                if piece := talk.take():
                    yield piece
        finally:
            talk.cancel()

    def close(self) -> None:
        self.engine.close()

    def _step(self, talks: list[Talk]) -> None:
        with self._turn:
            self.engine.step()
            for talk in talks:
                talk.read()

    def _ask(self, prompt: Prompt, sampling: Sampling, max_tokens: int, raw: bool) -> Talk:
        """Raises within the call what could not run: a prompt too long, a grammar that cannot be compiled."""
        if sampling.grammar is not None:
            self.parts.grammars.compile(sampling.grammar)
        tokens = np.array(self._tokens(prompt, raw), dtype=np.int32)
        room = self.plan.max_length - len(tokens)
        stops = () if sampling.ignore_eos else tuple(self.tokenizer.eos_token_ids)[:MOST_STOP_TOKENS]
        request = Request(
            f"r{next(self._names)}",
            tokens,
            max(1, min(max_tokens, room)),
            stop_tokens=stops,
            sampling=sampling.with_seed(),
        )
        with self._turn:
            return Talk(self, self.engine.submit(request))

    def _tokens(self, prompt: Prompt, raw: bool) -> Sequence[int]:
        if isinstance(prompt, str):
            if raw or not self.tokenizer.has_chat_template:
                return self.tokenizer.encode(prompt)
            return self.tokenizer.chat([{"role": "user", "content": prompt}])
        if len(prompt) and isinstance(prompt[0], Mapping):
            return self.tokenizer.chat(prompt)  # type: ignore[arg-type]
        return prompt  # type: ignore[return-value]


class Talk:
    """One request, as text."""

    def __init__(self, llm: LLM, stream: Stream) -> None:
        self._llm, self._stream = llm, stream
        self._text = llm.tokenizer.stream()
        self._stops = StopStrings(stream.request.sampling.stop)
        self._pieces: list[str] = []
        self._given = 0
        self._read = 0
        self._ending = ""

    @property
    def is_over(self) -> bool:
        return bool(self._ending)

    def read(self) -> None:
        """Takes what came since the last look."""
        if self.is_over:
            return
        ended, stops = self._stream.ending, self._stream.request.stop_tokens
        for token in self._stream.take().tolist():
            self._read += 1
            passed = self._stops.feed("" if token in stops else self._text.feed([token]))
            self._pieces.append(passed.text)
            if passed.stop is not None:
                self._llm.engine.cancel(self._stream.request.name)
                self._ending = "stop"
                return
        if ended is not None:
            self._pieces += [self._stops.feed(self._text.finish()).text, self._stops.finish()]
            self._ending = ended.value

    def take(self) -> str:
        pieces, self._given = self._pieces[self._given :], len(self._pieces)
        return "".join(pieces)

    def cancel(self) -> None:
        if not self.is_over:
            with self._llm._turn:
                self._llm.engine.cancel(self._stream.request.name)

    def completion(self) -> Completion:
        request = self._stream.request
        events = [event for event in self._llm.engine.history.of(request.name) if event.what is What.ADMITTED]
        reused = events[0].numbers["hit_tokens"] if events else 0
        tokens = tuple(self._stream.tokens()[: self._read].tolist())
        return Completion("".join(self._pieces), tokens, self._ending, len(request.prompt), reused)


def _folder(model: str | Path | None) -> Path:
    if model is None:
        from quire.fetch.default import fetch_default

        return fetch_default()
    folder = Path(model)
    if not folder.is_dir():
        raise InputError(f"{model}: there is no such folder; give one with config.json, or none for the default model")
    return folder
