"""One request as text: what came so far, and what is left when it is over."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.events import LoadFinished, RequestAdmitted
from quire.core.logprobs import Logprob
from quire.engine.engine import Engine, Stream
from quire.text.stops import StopStrings
from quire.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the model held a token to be where it stands."""

    text: str
    token: int
    logprob: float
    rank: int
    """1: no other token was likelier there."""
    top: tuple[TokenLogprob, ...] = ()
    """As many as were asked for, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    token_ids: tuple[int, ...]
    ending: str
    prompt_tokens: int
    reused_tokens: int
    """Of the prompt, found in the cache or brought from a tier."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each of `token_ids`, where the sampling asked for them."""
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each token of the prompt from the second on, where the sampling asked for them."""
    error: str = ""
    """Why it could not go on, where `ending` is "failed"; `text` is what came before."""


class Talk:
    def __init__(self, engine: Engine, tokenizer: Tokenizer, stream: Stream) -> None:
        self._engine, self._tokenizer, self._stream = engine, tokenizer, stream
        self._text = tokenizer.stream()
        self._stops = StopStrings(stream.request.sampling.stop)
        self._pieces: list[str] = []
        self._given = 0
        self._read = 0
        self._ending = ""
        self._reused: int | None = None

    @property
    def name(self) -> str:
        return self._stream.request.name

    @property
    def failure(self) -> str:
        return self._stream.failure

    @property
    def is_over(self) -> bool:
        return bool(self._ending)

    def read(self) -> None:
        """Takes what came since the last look."""
        if self.is_over:
            return
        ended, stops = self._stream.ending, self._stream.request.stop_tokens
        if self._reused is None and (ended is not None or len(self._stream.tokens())):
            self._reused = self._found()  # before others push it out of the history
        for token in self._stream.take().tolist():
            self._read += 1
            passed = self._stops.feed("" if token in stops else self._text.feed([token]))
            self._pieces.append(passed.text)
            if passed.stop is not None:
                self._engine.cancel(self.name)
                self._ending = "stop"
                return
        if ended is not None:
            self._pieces += [self._stops.feed(self._text.finish()).text, self._stops.finish()]
            self._ending = "failed" if self.failure else ended.value

    def take(self) -> str:
        pieces, self._given = self._pieces[self._given :], len(self._pieces)
        return "".join(pieces)

    def completion(self, first: Talk) -> Completion:
        """`first`: of the samples of this prompt, the one that asks about the prompt itself."""
        request = self._stream.request
        tokens, prompt = tuple(self._stream.tokens()[: self._read].tolist()), len(request.prompt)
        return Completion(
            "".join(self._pieces),
            tokens,
            self._ending,
            prompt,
            self._reused or 0,
            None if request.sampling.logprobs is None else self._logprobs(prompt, prompt + len(tokens)),
            first.prompt_logprobs(),
            self.failure,
        )

    def _found(self) -> int:
        events = self._engine.history.of(self.name)
        found = [event.hit_tokens for event in events if isinstance(event, RequestAdmitted)][:1]
        brought = [event.tokens for event in events if isinstance(event, LoadFinished) and not event.preemptions]
        return max(found + brought, default=0)

    def prompt_logprobs(self) -> tuple[TokenLogprob, ...] | None:
        request = self._stream.request
        return None if request.sampling.prompt_logprobs is None else self._logprobs(1, len(request.prompt))

    def _logprobs(self, begin: int, end: int) -> tuple[TokenLogprob, ...]:
        return tuple(self._told(self._stream.logprobs[position]) for position in range(begin, end))

    def _told(self, one: Logprob) -> TokenLogprob:
        top = (TokenLogprob(self._spelt(t), t, value, rank) for rank, (t, value) in enumerate(one.top, 1))
        return TokenLogprob(self._spelt(one.token), one.token, one.value, one.rank, tuple(top))

    def _spelt(self, token: int) -> str:
        """A token alone: part of a character is shown as the sign for one."""
        return self._tokenizer.decode([token], skip_special_tokens=False)
