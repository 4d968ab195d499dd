"""One call of the API, from what was asked to its last token: submits, reads, and cancels what nobody waits for."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from quire.core.request import MOST_STOP_TOKENS, Request
from quire.serve.allowance import Allowances
from quire.serve.answers import Choice, Delta
from quire.serve.asking import Asked
from quire.serve.client import EngineAway, EngineClient, Mailbox
from quire.serve.errors import ApiError
from quire.serve.keys import Tenant
from quire.serve.messages import Came
from quire.text.tokenizer import Tokenizer

PATIENCE_SECONDS = 10.0
"""After so long without anything new, whoever waits is told that the call is still there."""
RESTART_SECONDS = 10
"""What Retry-After says while the engine starts."""
Deltas = list[tuple[Choice, Delta]]


def gone(error: EngineAway) -> ApiError:
    return ApiError(503, str(error), error.code, retry_seconds=RESTART_SECONDS)


class Call:
    def __init__(
        self,
        asked: Asked,
        tenant: Tenant,
        client: EngineClient,
        allowances: Allowances,
        tokenizer: Tokenizer,
        seconds: float,
    ) -> None:
        """Counts the call in and submits it; raises what keeps it from being accepted."""
        self.id = secrets.token_hex(12)
        self.asked, self.tenant = asked, tenant
        self._client, self._allowances = client, allowances
        self._ends_at = time.monotonic() + seconds
        self._seconds = seconds
        self._mailbox = Mailbox()
        requests = self._requests(tokenizer)
        allowances.enter(tenant, asked.requests, asked.tokens)
        self._is_open = True
        self._is_let_in = self._is_refused = False
        self.choices: list[Choice] = []
        try:
            tickets = client.submit(requests, self._mailbox)
        except EngineAway as error:
            self.close()
            raise gone(error) from None
        texts = [text for text in asked.texts for _ in range(asked.choices)]
        pairs = enumerate(zip(tickets, texts, strict=True))
        self.choices = [Choice(index, ticket, asked, text, tokenizer) for index, (ticket, text) in pairs]
        self._by_name = {choice.ticket.request.name: choice for choice in self.choices}

    def _requests(self, tokenizer: Tokenizer) -> list[Request]:
        asked = self.asked
        stops = () if asked.sampling.ignore_eos else tuple(tokenizer.eos_token_ids)[:MOST_STOP_TOKENS]
        return [
            Request(
                f"{self.id}-{place * asked.choices + sample}",
                prompt,
                asked.max_tokens[place],
                stop_tokens=stops,
                scope=self.tenant.scope,
                tenant=self.tenant.name,
                sampling=asked.sampling.with_seed(sample),
            )
            for place, prompt in enumerate(asked.prompts)
            for sample in range(asked.choices)
        ]

    async def deltas(self) -> AsyncIterator[Deltas]:
        """What is new, as it comes; an empty list where nothing came for long. Leaving early cancels the rest."""
        try:
            while any(choice.finish_reason is None for choice in self.choices):
                try:
                    async with asyncio.timeout(min(PATIENCE_SECONDS, self._ends_at - time.monotonic())):
                        came = await self._mailbox.take()
                except TimeoutError:
                    self._check_time()
                    yield []
                    continue
                if news := self._read(came):
                    yield news
        finally:
            self.close()

    def _read(self, came: list[tuple[Any, Came | EngineAway]]) -> Deltas:
        news = []
        self._is_let_in |= any(isinstance(one, Came) and one.hit_tokens is not None for _, one in came)
        for ticket, one in came:
            choice = self._by_name[ticket.request.name]
            if isinstance(one, EngineAway):
                raise gone(one)
            self._check(one)
            if choice.finish_reason is not None:
                continue
            delta = choice.feed(one)
            if choice.finish_reason is not None and not one.ending:
                self._client.cancel([ticket])
            if not delta.is_empty:
                news.append((choice, delta))
        return news

    def _check(self, came: Came) -> None:
        """What the engine refused, or ended for another reason than that it is complete."""
        self._is_refused = bool(came.refusal)
        if came.is_queue_full:
            raise ApiError(429, came.refusal, "queue_full", retry_seconds=self._allowances.retry_seconds)
        if came.refusal:
            raise ApiError(400, came.refusal, "refused")
        if came.ending in ("cancelled", "deadline"):
            message = "the request was ended before it was complete: send it again"
            raise ApiError(503, message, "ended_early", retry_seconds=1)

    def _check_time(self) -> None:
        if time.monotonic() >= self._ends_at:
            raise ApiError(
                504, f"the answer was not complete after {self._seconds:g} s: ask for fewer tokens", "timeout"
            )

    def close(self) -> None:
        """Whatever is still under way is cancelled; the tenant gets back what was not used: all, if the engine was not
        there or refused it before any of it ran."""
        if not self._is_open:
            return
        self._is_open = False
        self._client.cancel([choice.ticket for choice in self.choices])
        is_taken = self.choices and (self._is_let_in or not self._is_refused)
        promised = self.asked.choices * sum(self.asked.max_tokens) if is_taken else self.asked.tokens
        unused = promised - sum(choice.output_tokens for choice in self.choices)
        self._allowances.leave(self.tenant, self.asked.requests, unused)

    def record(self) -> dict[str, Any]:
        """For the log: numbers alone."""
        tickets = [choice.ticket for choice in self.choices]
        firsts = [ticket.first_at - ticket.sent_at for ticket in tickets if ticket.first_at is not None]
        return {
            "call": self.id,
            "prompt_tokens": self.asked.prompt_tokens,
            "cached_tokens": sum(choice.hit_tokens for choice in self.choices[:: self.asked.choices]),
            "output_tokens": sum(choice.output_tokens for choice in self.choices),
            "first_token_seconds": round(min(firsts), 4) if firsts else None,
            "finish": [choice.finish_reason for choice in self.choices],
        }
