"""`LLM`: text in, text out, on any model that Quire can run.

    llm = LLM()                                              # the default model, fetched once
    print(llm.generate("Why is the sky blue?")[0].text)
    for piece in llm.stream("Tell me a story."):
        print(piece, end="")
    llm.close()                                              # or: with LLM() as llm

Requests run together: whoever asks turns the engine's loop for everyone.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from quire.build.assemble import NO_TIERS, assemble
from quire.build.tiers import Tiers
from quire.core.dtypes import DType, parse_dtype
from quire.core.errors import InputError, QueueFull
from quire.core.extras import naming_extras
from quire.core.request import MOST_STOP_TOKENS, Request
from quire.core.rules import Rules
from quire.core.sampling import Sampling
from quire.core.vocabulary import known_prompt, require_known_biases
from quire.fetch.find import find_source
from quire.fetch.folder import Progress, in_silence
from quire.llm.answers import Completion, Talk
from quire.plan.settings import DRAFT_TOKENS, Budget, Settings, guessing

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token numbers, or a conversation: messages with `role` and `content`."""
DEFAULT_TOKENS = 256
_LOG = logging.getLogger("quire.llm")


class LLM:
    @naming_extras("LLM")
    def __init__(
        self,
        model: str | Path | None = None,
        *,
        settings: Settings | None = None,
        budget: Budget | None = None,
        dtype: str | DType | None = None,
        kv_dtype: str | DType | None = None,
        device: str = "auto",
        compiled: bool = False,
        deterministic: bool = False,
        rules: Rules | None = None,
        tiers: Tiers = NO_TIERS,
        draft_model: str | Path | None = None,
        draft_tokens: int | None = None,
        record: str | Path | None = None,
        progress: Progress = in_silence,
    ) -> None:
        """`model`: a checkpoint folder or a GGUF file; none: the default model. `budget` none: half of this machine's
        free memory, or most of a GPU's. `dtype` none: fp32 on a CPU, bf16 on a GPU; `kv_dtype` none: the same.
        `device`: auto, cpu or cuda. `compiled`: on a GPU, faster steps for some seconds at the start. `deterministic`:
        on a GPU, what a request yields does not depend on the others it runs with. `tiers`: where prefixes live beyond
        the pool.
        `draft_model`: a smaller one with the same tokenizer, which guesses up to `draft_tokens` tokens a step, or 4.
        `record`: a file for all that the engine is given, to be played back by `quire replay`; prompts are in it.
        `progress` is told what is fetched, converted and loaded."""
        if tiers.peer is not None:
            raise InputError("LLM turns its loop only while somebody asks, so it takes no peer: use quire serve --role")
        settings = settings or Settings(max_requests=32, batch_tokens=2048)
        if draft_model is None and draft_tokens is not None:
            raise InputError(f"draft_tokens is {draft_tokens}, and there is no draft_model to guess them: name one")
        draft = None if draft_model is None else find_source(draft_model, progress)
        self.parts = assemble(
            find_source(model, progress),
            settings if draft is None else guessing(settings, DRAFT_TOKENS if draft_tokens is None else draft_tokens),
            budget,
            dtype=parse_dtype(dtype) if isinstance(dtype, str) else dtype,
            kv_dtype=parse_dtype(kv_dtype) if isinstance(kv_dtype, str) else kv_dtype,
            device=device,
            compiled=compiled,
            deterministic=deterministic,
            rules=rules,
            tiers=tiers,
            progress=progress,
            draft=draft,
            record=None if record is None else Path(record),
        )
        self.engine, self.plan, self.tokenizer = self.parts.engine, self.parts.plan, self.parts.tokenizer
        self._names = itertools.count()
        self._turn = threading.Lock()
        self._is_closed = False
        self._has_told_of_a_cut = False

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        sampling: Sampling | None = None,
        *,
        max_tokens: int = DEFAULT_TOKENS,
        raw: bool = False,
        n: int = 1,
    ) -> list[Completion]:
        """All prompts together, `n` samples of each: the samples of the first prompt, then those of the second. Text is
        put to the model as a user's message where it has a chat template, unless `raw`. One that cannot go on (its
        grammar has grown too large) ends with an `error`; the others do not notice."""
        self._require_open("generate was called")
        if n < 1:
            raise InputError(f"n is {n}: ask for at least 1 sample of each prompt")
        asked = [prompts] if isinstance(prompts, str) else prompts
        talks: list[Talk] = []
        try:
            for prompt in asked:
                for request in self._requests(prompt, sampling or Sampling(), max_tokens, raw, n):
                    talks.append(self._submit_in_turn(request, talks))
            while unfinished := [talk for talk in talks if not talk.is_over]:
                self._step(unfinished)
        finally:
            self._cancel(talks)
        return [talk.completion(talks[place - place % n]) for place, talk in enumerate(talks)]

    def stream(
        self, prompt: Prompt, sampling: Sampling | None = None, *, max_tokens: int = DEFAULT_TOKENS, raw: bool = False
    ) -> Iterator[str]:
        """The answer piece by piece. Leaving the loop early ends the request; one that cannot go on raises."""
        self._require_open("stream was called")
        talk = self._submit(*self._requests(prompt, sampling or Sampling(), max_tokens, raw))
        try:
            while not talk.is_over:
                self._step([talk])
                if piece := talk.take():
                    yield piece
            _raise_failure(talk)
        finally:
            self._cancel([talk])

    async def astream(
        self, prompt: Prompt, sampling: Sampling | None = None, *, max_tokens: int = DEFAULT_TOKENS, raw: bool = False
    ) -> AsyncIterator[str]:
        """The same for asyncio: steps run in a thread, requests of all tasks together."""
        self._require_open("astream was called")
        talk = self._submit(*self._requests(prompt, sampling or Sampling(), max_tokens, raw))
        try:
            while not talk.is_over:
                await asyncio.to_thread(self._step, [talk])
                if piece := talk.take():
                    yield piece
            _raise_failure(talk)
        finally:
            self._cancel([talk])

    def count(self, prompt: Prompt, *, raw: bool = False) -> int:
        """The prompt's tokens. What they leave of `plan.max_length` an answer can have: `max_tokens` beyond it is cut
        to it, which a log line tells once, and where nothing is left the prompt is refused."""
        self._require_open("count was called")
        return len(self._tokens(prompt, raw))

    def close(self) -> None:
        """Ends everything; what goes to a tier is stored first. Whoever waits for an answer, or asks later, is told."""
        with _whole(self._turn):
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self.engine.close()
            finally:
                if self.parts.stack is not None:
                    self.parts.stack.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_open(self, what: str) -> None:
        if self._is_closed:
            raise InputError(f"{what}, and this LLM is closed: make a new LLM")

    def _step(self, talks: list[Talk]) -> None:
        with _whole(self._turn):
            self._require_open("an answer was under way")
            self.engine.step()
            for talk in talks:
                talk.read()

    def _cancel(self, talks: list[Talk]) -> None:
        """Ends those that are not over."""
        with _whole(self._turn):
            for talk in talks:
                if not talk.is_over:
                    self.engine.cancel(talk.name)

    def _submit(self, request: Request) -> Talk:
        with _whole(self._turn):
            self._require_open("an answer was to begin")
            return Talk(self.engine, self.tokenizer, self.engine.submit(request))

    def _submit_in_turn(self, request: Request, talks: list[Talk]) -> Talk:
        """Where too many wait already, the others go on until there is room."""
        while True:
            try:
                return self._submit(request)
            except QueueFull:
                self._step([talk for talk in talks if not talk.is_over])

    def _requests(self, prompt: Prompt, sampling: Sampling, max_tokens: int, raw: bool, n: int = 1) -> list[Request]:
        """One for each sample. Raises within the call what could not run: a grammar that cannot be compiled, a token
        that the model has not got."""
        if max_tokens < 1:
            raise InputError(f"max_tokens is {max_tokens}: ask for at least 1")
        require_known_biases(sampling, self.parts.vocabulary_tokens)
        if sampling.grammar is not None:
            self.parts.grammars.compile(sampling.grammar)
        tokens = known_prompt(self._tokens(prompt, raw), self.parts.vocabulary_tokens)
        length = self._length(len(tokens), max_tokens)
        stops = () if sampling.ignore_eos else tuple(self.tokenizer.eos_token_ids)[:MOST_STOP_TOKENS]
        samples = [sampling.with_seed(sample) for sample in range(n)]
        samples[1:] = [replace(sample, prompt_logprobs=None) for sample in samples[1:]]  # the first one asks for all
        return [
            Request(f"r{next(self._names)}", tokens, length, stop_tokens=stops, sampling=sample) for sample in samples
        ]

    def _length(self, prompt_tokens: int, max_tokens: int) -> int:
        """Of the answer: as asked, or what is left. Where nothing is, the engine refuses, with its own numbers."""
        longest = self.plan.max_length
        left = max(1, longest - prompt_tokens)
        if left < max_tokens and prompt_tokens < longest and not self._has_told_of_a_cut:
            self._has_told_of_a_cut = True
            _LOG.warning(
                f"max_tokens is {max_tokens:,}, and behind a prompt of {prompt_tokens:,} tokens {left:,} fit (the "
                f"longest request has {longest:,}): the answer is cut to that; told once, others may be cut as well"
            )
        return min(max_tokens, left)

    def _tokens(self, prompt: Prompt, raw: bool) -> Sequence[int]:
        if isinstance(prompt, str):
            if raw or not self.tokenizer.has_chat_template:
                return self.tokenizer.encode(prompt)
            return self.tokenizer.chat([{"role": "user", "content": prompt}])
        if isinstance(prompt, Mapping) or not hasattr(prompt, "__len__"):
            raise InputError(
                f"a prompt is text, a list of token numbers or a list of messages, and this one is {prompt!r:.80}: "
                "generate takes a list of prompts, so give a single one as [[…]]"
            )
        if len(prompt) and isinstance(prompt[0], Mapping):
            return self.tokenizer.chat(prompt)  # type: ignore[arg-type]
        return prompt  # type: ignore[return-value]


@contextmanager
def _whole(turn: threading.Lock) -> Iterator[None]:
    """The engine's turn, from beginning to end: Ctrl-C in the middle would leave its books half written, so it is
    heard when the turn is over. Signals come to the main thread alone, and some programs hear them without Python."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is None:
        with turn:
            yield
        return
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with turn:
            yield
    finally:
        signal.signal(signal.SIGINT, before)
        if heard:
            signal.raise_signal(signal.SIGINT)


def _raise_failure(talk: Talk) -> None:
    if talk.failure:
        raise InputError(talk.failure)
