"""One call of the API, from its question to its last token: counts it, submits it, reads it, cancels the rest."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

from quire.core.logprobs import Logprob
from quire.serve.allowance import Allowances
from quire.serve.away import EngineAway
from quire.serve.client import EngineClient
from quire.serve.errors import ApiError
from quire.serve.keys import Tenant
from quire.serve.lease_register import LeaseRegister
from quire.serve.mailbox import Mailbox
from quire.serve.messages import ABORTED, RequestUpdate
from quire.serve.pending import PendingRequest, Update, Updates
from quire.serve.retention import retain_for
from quire.text.answer import NOTHING, Answer, Delta, join_deltas
from quire.text.next_turn import Spoken
from quire.text.question import Question
from quire.text.tokenizer import Tokenizer
from quire.traces.traced import Parent

PATIENCE_SECONDS = 10.0
"""After this time without anything new, an empty list of deltas says that the call is still open."""
RESTART_SECONDS = 10
"""`Retry-After` while the engine starts."""
Deltas = list[tuple[int, Delta]]
"""The number of a choice, and what is new about it."""
Arrived = list[tuple[PendingRequest, Update]]


def unavailable(error: EngineAway) -> ApiError:
    return ApiError(503, str(error), error.code, retry_seconds=RESTART_SECONDS)


class Call:
    def __init__(
        self,
        question: Question,
        tenant: Tenant,
        client: EngineClient,
        allowances: Allowances,
        tokenizer: Tokenizer,
        *,
        seconds: float,
        request_id: str = "",
        leases: LeaseRegister | None = None,
        on_answer: Callable[[Spoken, Delta, Tenant], None] | None = None,
        span: Parent | None = None,
    ) -> None:
        """Counts the call and submits it; raises if it is not accepted. `request_id`: the client's name for it.
        `leases`: asked what became of the lease that the question asks for. `on_answer`: called with the conversation
        and its complete answer. `span`: what its phases belong to, if it is traced."""
        self._on_answer = None if question.spoken is None else on_answer
        self._said: list[Delta] = []
        """The answer so far, for `on_answer`."""
        self.lease: dict[str, Any] | None = None
        """The lease that the question asks for, when the answer is complete."""
        self._leases = leases
        self.id = secrets.token_hex(12)
        self.question, self.tenant = question, tenant
        self._client, self._allowances = client, allowances
        self._ends_at, self._seconds = time.monotonic() + seconds, seconds
        self.updates: Updates = Mailbox()
        names = (f"{self.id}-{number}" for number in count())
        own = {"weight": tenant.weight, "client_id": request_id, "retain": retain_for(question.retain, tenant)}
        requests = question.requests(names, tokenizer, tenant.name, tenant.scope, **own)
        self.answers = question.answers(tokenizer)
        self.prompt_logprobs: dict[int, tuple[Logprob, ...]] = {}
        """By prompt, if requested: they come with the first token of its first answer."""
        allowances.enter(tenant, question.request_count, question.tokens)
        self._is_open, self._is_refused = True, False
        self.is_complete = False
        """All answers have ended."""
        self.tickets: list[PendingRequest] = []
        try:
            self.tickets = client.submit(requests, self.updates, span)
        except EngineAway as error:
            self.close()
            raise unavailable(error) from None

    @property
    def output_tokens(self) -> int:
        return sum(answer.output_tokens for answer in self.answers)

    @property
    def reasoning_tokens(self) -> int:
        return sum(answer.reasoning_tokens for answer in self.answers)

    @property
    def cached_tokens(self) -> int:
        """Counted once for each prompt: its other samples reuse what the first computes."""
        return sum(ticket.hit_tokens or 0 for ticket in self.tickets[:: self.question.samples])

    @property
    def is_over(self) -> bool:
        """All answers have ended, and it is known what became of the lease that was asked for."""
        return self.is_complete and (self.question.retain is None or self._leases is None or self.lease is not None)

    async def deltas(self) -> AsyncIterator[Deltas]:
        """What is new and `updates.reader` has not read, as it arrives; an empty list after `PATIENCE_SECONDS`. Leaving
        early cancels the rest."""
        try:
            while not self.is_complete:
                arrived = await self.updates.take(PATIENCE_SECONDS, self._ends_at - time.monotonic())
                if news := self.read(arrived):
                    yield news
                elif not arrived and not self.is_complete:
                    self._check_time()
                    yield []
            if self._leases is not None and self.question.retain is not None:
                self.lease = await self._leases.outcome(self.tenant.name, self.tickets[0].request.name)
        finally:
            self.close()

    def read(self, arrived: Arrived) -> Deltas:
        return [(ticket.number, delta) for ticket, update in arrived if (delta := self._delta(ticket, update))]

    def _delta(self, ticket: PendingRequest, update: Update) -> Delta | None:
        """None: nothing can be shown yet."""
        answer, ending = self.answers[ticket.number], ""
        if isinstance(update, tuple):
            delta = NOTHING if answer.ending or self.question.is_prompt_alone else answer.feed(update)
        else:
            if isinstance(update, EngineAway):
                raise unavailable(update)
            self._check(update)
            delta, ending = self._fed(answer, ticket.number, update), update.ending
        if self._on_answer is not None and not delta.is_empty:
            self._said.append(delta)
        if answer.ending:
            self.is_complete = all(one.ending for one in self.answers)
            if not ending:
                self._client.cancel([ticket])
        return None if delta.is_empty else delta

    def _fed(self, answer: Answer, number: int, update: RequestUpdate) -> Delta:
        if answer.ending:
            return NOTHING
        if update.prompt_logprobs:
            self.prompt_logprobs[number // self.question.samples] = update.prompt_logprobs
        if self.question.is_prompt_alone:
            return answer.feed((), (), "length" if update.ending else "")
        return answer.feed(update.tokens, update.logprobs, update.ending)

    def _check(self, update: RequestUpdate) -> None:
        """Raises if the engine refused the request, or ended it before it was complete."""
        self._is_refused = bool(update.refusal)
        if update.is_queue_full:
            raise ApiError(429, update.refusal, "queue_full", retry_seconds=self._allowances.retry_seconds)
        if update.refusal:
            raise ApiError(400, update.refusal, "refused")
        if update.ending == ABORTED:
            raise ApiError(410, "the call was aborted by another call: it has no complete answer", "aborted")
        if update.ending == "cancelled":
            message = "the request was ended before it was complete: send it again"
            raise ApiError(503, message, "ended_early", retry_seconds=1)

    def _check_time(self) -> None:
        if time.monotonic() >= self._ends_at:
            raise ApiError(
                504, f"the answer was not complete after {self._seconds:g} s: ask for fewer tokens", "timeout"
            )

    def close(self) -> None:
        """Cancels requests that have not ended. The tenant gets back the tokens that were not used: all of them, if the
        engine was not available or refused the call before any of it ran."""
        if not self._is_open:
            return
        self._is_open = False
        if self.is_complete and self._on_answer is not None and self.question.spoken is not None:
            self._on_answer(self.question.spoken, join_deltas(self._said), self.tenant)
        self.updates.close()
        self._client.cancel(self.tickets)
        has_started = any(ticket.hit_tokens is not None for ticket in self.tickets)
        is_taken = self.tickets and (has_started or not self._is_refused)
        promised = self.question.samples * sum(self.question.max_tokens) if is_taken else self.question.tokens
        self._allowances.leave(self.tenant, self.question.request_count, promised - self.output_tokens)

    def record(self) -> dict[str, Any]:
        """For the log: numbers only."""
        firsts = [ticket.first_at - ticket.sent_at for ticket in self.tickets if ticket.first_at is not None]
        return {
            "call": self.id,
            "prompt_tokens": self.question.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "first_token_seconds": round(min(firsts), 4) if firsts else None,
            "finish": [answer.ending or None for answer in self.answers],
        }
