"""`LLM`: text in, text out, on any model that Quire can run.

    llm = LLM()                                              # the default model, fetched once
    print(llm.generate("Why is the sky blue?")[0].text)
    print(llm.chat([{"role": "user", "content": "Name a city."}], schema=City).parsed)
    for piece in llm.stream("Tell me a story."):
        print(piece, end="")
    llm.close()                                              # or: with LLM() as llm

Requests of all threads and tasks run together: each caller that waits runs steps of the engine for all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from quire.build.engine import BuiltEngine, build_engine, prepare
from quire.core.errors import InputError, QueueFull
from quire.core.request import Request
from quire.core.sampling import Sampling
from quire.explain.leases import LeaseReport, held_leases, report_answer
from quire.fetch.folder import Progress, in_silence
from quire.forks.forks import Forks
from quire.llm.answers import Completion, Generation, completions
from quire.llm.options import run_options, signature_of
from quire.llm.questions import Options, Prompt, Questions, one_for_each, require_prompts, require_seconds
from quire.llm.schema import Schema, with_grammar
from quire.llm.turn import whole_turn
from quire.llm.warm import expect_next, warm_up
from quire.options.extras import naming_extras
from quire.options.run import RunOptions
from quire.plan.settings import Budget, Settings
from quire.prefix.leases import LeaseTerms
from quire.text.answer import Answer, Delta
from quire.text.dialects.calls import Tool
from quire.text.next_turn import Spoken
from quire.text.question import Question
from quire.text.spelling import Spelling
from quire.text.templates import Message

DEFAULT_TOKENS = 256


class LLM:
    """A model on this machine. Keywords are the fields of `RunOptions`, which can also be given whole as `options`."""

    @naming_extras("LLM")
    def __init__(
        self,
        model: str | Path | None = None,
        *,
        settings: Settings | None = None,
        budget: Budget | None = None,
        options: RunOptions | None = None,
        progress: Progress = in_silence,
        **keywords: Any,
    ) -> None:
        """`model`: a checkpoint folder, a GGUF file, or a hub id (`org/name[@revision][:FILE.gguf]`); None: the default
        model. `budget` None: half of this machine's free memory, or most of a GPU's. `progress`: called as files are
        fetched, converted and loaded."""
        options = run_options(options, keywords)
        if options.tiers.peer is not None:
            raise InputError("LLM has no background loop, so it cannot take part in hand-over: use quire serve --role")
        settings = settings or Settings(max_requests=32, batch_tokens=2048)
        prepared = prepare(model, options, settings=settings, budget=budget, progress=progress)
        self._start(build_engine(prepared, progress=progress))

    @classmethod
    def on(cls, built: BuiltEngine) -> LLM:
        """An LLM on an engine that was built step by step (`quire.build.engine`)."""
        llm = cls.__new__(cls)
        llm._start(built)
        return llm

    def _start(self, built: BuiltEngine) -> None:
        self.parts = built
        self.engine, self.plan, self.tokenizer = built.engine, built.plan, built.tokenizer
        self._names, self._forks = itertools.count(), Forks(self.engine)
        self._turn = threading.Lock()
        self._is_closed = False
        self._questions = Questions(self.parts)
        self._warm = built.warm()

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        max_tokens: int = DEFAULT_TOKENS,
        raw: bool = False,
        n: int = 1,
        schema: Schema | None = None,
        priority: int = 0,
        retain: float | None = None,
    ) -> list[Completion]:
        """All prompts together, `n` samples of each: the samples of the first prompt, then those of the second. Text is
        a user's message if the model has a chat template, unless `raw`. `sampling`: one for all prompts, or one for
        each. `schema`: a JSON schema or a pydantic model, which the answer keeps; `Completion.parsed` is the object.
        `priority`: greater goes first. `retain`: seconds for which prompt and answer are leased when the answer is
        complete (`Completion.lease`), so that a prompt that continues them finds them; of a single sample.

        A single prompt that cannot run raises. Of several, one that cannot run has the ending "refused" and an `error`,
        and one that cannot continue has "failed"; the others run."""
        self._require_open("generate was called")
        asked = [prompts] if isinstance(prompts, str) else prompts
        require_prompts(asked)
        options = Options(max_tokens, n, priority, retain)
        samplings = [with_grammar(one, schema) for one in one_for_each(sampling, len(asked))]
        return self._answers(
            [
                partial(self._questions.plain, prompt, raw, one, options)
                for prompt, one in zip(asked, samplings, strict=True)
            ],
            n,
            schema,
        )

    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        schema: Schema | None = None,
        max_tokens: int = DEFAULT_TOKENS,
        priority: int = 0,
        parallel_tool_calls: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        retain: float | None = None,
    ) -> Completion:
        """The answer to one conversation. Tools, `tool_choice` and messages are written as OpenAI's are; calls are in
        `Completion.tool_calls`, reasoning is in `Completion.reasoning`. `chat_template_kwargs`: switches of the model's
        template, such as enable_thinking. `retain`: as in `generate`. Raises what cannot run. Several answers:
        `chat_batch([messages], n=4)`."""
        return self.chat_batch(
            [messages],
            sampling,
            tools=tools,
            tool_choice=tool_choice,
            schema=schema,
            max_tokens=max_tokens,
            priority=priority,
            parallel_tool_calls=parallel_tool_calls,
            chat_template_kwargs=chat_template_kwargs,
            retain=retain,
        )[0]

    def chat_batch(
        self,
        conversations: Sequence[Sequence[Message]],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        schema: Schema | None = None,
        max_tokens: int = DEFAULT_TOKENS,
        n: int = 1,
        priority: int = 0,
        parallel_tool_calls: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        retain: float | None = None,
    ) -> list[Completion]:
        """Several conversations together, `n` answers to each, in the order of `generate`; of several, one that cannot
        run is refused alone."""
        self._require_open("chat was called")
        options = Options(max_tokens, n, priority, retain)
        use, call = self._questions.tool_use(tools or (), tool_choice, parallel_tool_calls)
        samplings = [with_grammar(one, schema, call) for one in one_for_each(sampling, len(conversations))]
        return self._answers(
            [
                partial(self._questions.chat, messages, one, options, use, chat_template_kwargs)
                for messages, one in zip(conversations, samplings, strict=True)
            ],
            n,
            schema,
        )

    def chat_stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        schema: Schema | None = None,
        max_tokens: int = DEFAULT_TOKENS,
        priority: int = 0,
        parallel_tool_calls: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[Delta]:
        """`chat` in pieces, each with text, reasoning, tool calls, and at last an ending. A call may come in pieces:
        `quire.text.answer.join_deltas` makes whole calls of them."""
        self._require_open("chat_stream was called")
        use, call = self._questions.tool_use(tools or (), tool_choice, parallel_tool_calls)
        chosen = with_grammar(sampling or Sampling(), schema, call)
        options = Options(max_tokens, priority=priority)
        return self._deltas(self._questions.chat(messages, chosen, options, use, chat_template_kwargs))

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        max_tokens: int = DEFAULT_TOKENS,
        raw: bool = False,
        priority: int = 0,
    ) -> Iterator[str]:
        """The answer piece by piece. Leaving the loop early ends the request; one that cannot continue raises."""
        self._require_open("stream was called")
        options = Options(max_tokens, priority=priority)
        for delta in self._deltas(self._questions.plain(prompt, raw, sampling or Sampling(), options)):
            if delta.text:
                yield delta.text

    async def astream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        max_tokens: int = DEFAULT_TOKENS,
        raw: bool = False,
        priority: int = 0,
    ) -> AsyncIterator[str]:
        """The same for asyncio: steps run in a thread, requests of all tasks together."""
        self._require_open("astream was called")
        options = Options(max_tokens, priority=priority)
        generation = self._submit_one(self._questions.plain(prompt, raw, sampling or Sampling(), options))
        try:
            while not generation.is_over:
                await asyncio.to_thread(self._step, [generation])
                if text := generation.take().text:
                    yield text
            generation.raise_failure()
        finally:
            self._cancel([generation])

    def fork(
        self,
        parent: Completion | str,
        sampling: Sampling | None = None,
        *,
        at: int | None = None,
        append: str | Sequence[int] = (),
        max_tokens: int = DEFAULT_TOKENS,
        n: int = 1,
        priority: int = 0,
    ) -> list[Completion]:
        """Continues another request, running or recent, from its first `at` tokens, prompt and output together; None:
        from all that it has. `parent`: what it answered, or its `id`. `append`: text or token numbers that follow.
        `n` continuations, which share these tokens."""
        self._require_open("fork was called")
        name, options = parent if isinstance(parent, str) else parent.id, Options(max_tokens, n, priority)

        def ask() -> Question:
            with whole_turn(self._turn):
                tokens = self._forks.tokens(name, at)
            return self._questions.fork(name, tokens, append, sampling or Sampling(), options)

        return self._answers([ask], n, None)

    def count(self, prompt: Prompt, *, raw: bool = False) -> int:
        """The prompt's tokens. An answer can have what they leave of `plan.max_length`: `max_tokens` beyond that is cut
        to it, which is logged once, and a prompt that leaves nothing is refused."""
        self._require_open("count was called")
        return self._questions.count(prompt, raw)

    def lease(self, prompt: Prompt, *, seconds: float, name: str | None = None, raw: bool = False) -> LeaseReport:
        """Keeps the longest prefix of a prompt that is in the cache for some seconds, whatever else runs. Granted, or
        refused with what is possible; a lease of the same name moves to this prefix."""
        self._require_open("lease was called")
        require_seconds(seconds, "seconds")
        tokens, name = self._questions.tokens(prompt, raw), name or f"lease-{next(self._names)}"
        with whole_turn(self._turn):
            return report_answer(self.engine.lease(LeaseTerms(name, "", seconds), "", tokens), self.engine)

    def leases(self) -> list[LeaseReport]:
        """Leases that are held, the first to end first."""
        self._require_open("leases was called")
        with whole_turn(self._turn):
            return held_leases(self.engine)

    def release(self, name: str) -> bool:
        """Ends a lease; its prefix stays in the cache as others do. False: there is none of this name."""
        self._require_open("release was called")
        with whole_turn(self._turn):
            return self.engine.release_lease(name)

    def warm(self, prompt: Prompt | None = None, *, seconds: float = math.inf, raw: bool = False) -> int:
        """Computes what the next turns of conversations begin with, and a prompt that is expected, until all of it is
        in the cache, time is over or a request arrives. Returns the tokens that were computed."""
        self._require_open("warm was called")
        tokens = None if prompt is None else self._questions.tokens(prompt, raw)
        return warm_up(self._warm, self._turn, tokens, seconds)

    def close(self) -> None:
        """Ends everything; stores to a tier are completed first. Unfinished answers, and later calls, raise."""
        with whole_turn(self._turn):
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self.engine.close()
            finally:
                self.parts.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_open(self, what: str) -> None:
        if self._is_closed:
            raise InputError(f"{what}, and this LLM is closed: make a new LLM")

    def _answers(self, ask: Sequence[Callable[[], Question]], samples: int, schema: Schema | None) -> list[Completion]:
        """`ask`: makes the question of each prompt, or raises why it cannot run."""
        groups: list[list[Generation] | InputError] = []
        begun: list[Generation] = []
        try:
            for question in ask:
                try:
                    groups.append(self._begin(question(), begun))
                except InputError as error:
                    if len(ask) == 1 or self._is_closed:
                        raise
                    groups.append(error)
            while unfinished := [generation for generation in begun if not generation.is_over]:
                self._step(unfinished)
            expect_next(self._warm, self._turn, self._questions.ahead, begun)
        finally:
            self._cancel(begun)
        spelling = Spelling(self.tokenizer)
        return [one for group in groups for one in completions(group, samples, spelling, schema)]

    def _begin(self, question: Question, begun: list[Generation]) -> list[Generation]:
        """Submits its requests. If too many wait already, requests that were begun run until there is room."""
        first = len(begun)
        for request, answer in self._requests(question):
            while True:
                try:
                    begun.append(self._submit(request, answer, question.spoken))
                    break
                except QueueFull:
                    self._step([generation for generation in begun if not generation.is_over])
        return begun[first:]

    def _deltas(self, question: Question) -> Iterator[Delta]:
        generation = self._submit_one(question)
        try:
            while not generation.is_over:
                self._step([generation])
                if not (delta := generation.take()).is_empty:
                    yield delta
            generation.raise_failure()
            expect_next(self._warm, self._turn, self._questions.ahead, [generation])
        finally:
            self._cancel([generation])

    def _submit_one(self, question: Question) -> Generation:
        ((request, answer),) = self._requests(question)
        return self._submit(request, answer, question.spoken)

    def _requests(self, question: Question) -> list[tuple[Request, Answer]]:
        requests = question.requests(map("r{}".format, self._names), self.tokenizer)
        return list(zip(requests, question.answers(self.tokenizer), strict=True))

    def _submit(self, request: Request, answer: Answer, spoken: Spoken | None) -> Generation:
        with whole_turn(self._turn):
            self._require_open("an answer was to begin")
            if self._warm is not None:
                self._warm.give_way()
            return Generation(self.engine, self._forks.note(self.engine.submit(request)), answer, spoken)

    def _step(self, generations: list[Generation]) -> None:
        with whole_turn(self._turn):
            self._require_open("an answer was under way")
            self.engine.step()
            self.parts.after_step()
            for generation in generations:
                generation.read()

    def _cancel(self, generations: list[Generation]) -> None:
        """Ends those that are not finished."""
        with whole_turn(self._turn):
            for generation in generations:
                if not generation.is_over:
                    self.engine.cancel(generation.name)


LLM.__signature__ = signature_of(LLM.__init__)  # type: ignore[attr-defined]
