"""Limits of each tenant: concurrent requests, and tokens per minute. Checked before anything is sent to the engine."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from quire.serve.errors import ApiError
from quire.serve.keys import Tenant
from quire.text.question import Question

MINUTE = 60.0


class AllowanceView(Protocol):
    """How much of its limits a tenant uses now."""

    @property
    def requests(self) -> Mapping[str, int]: ...
    @property
    def retry_seconds(self) -> int: ...
    def tokens_left(self, tenant: Tenant) -> float | None: ...


def room_of(view: AllowanceView, tenant: Tenant) -> int | None:
    """Tokens that a request may have now; None: no limit."""
    limits = [limit for limit in (tenant.most_tokens, view.tokens_left(tenant)) if limit is not None]
    return int(min(limits)) if limits else None


def about_to_stop() -> ApiError:
    message = "the server is about to stop: send the request to another one"
    return ApiError(503, message, "draining", retry_seconds=1)


class Allowances:
    def __init__(self, most_requests: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most_requests = most_requests
        """Running and waiting, of all tenants together."""
        self._clock = clock
        self.requests: Counter[str] = Counter()
        self._tokens: dict[str, tuple[float, float]] = {}
        """By tenant: tokens left of this minute, and when that was counted."""
        self._ended_at = 0.0
        """When the last request ended; or when the first arrived after a time without any."""
        self._seconds_per_ending = 1.0
        self.is_draining = False
        """No call is admitted any more."""

    @property
    def total(self) -> int:
        return self.requests.total()

    @asynccontextmanager
    async def admitting(self, tenant: Tenant, question: Question) -> AsyncIterator[tuple[Question, Allowances]]:
        """The question, shortened to the tokens that are left if its length is open, and where its call has to enter
        before anything else happens."""
        if self.is_draining:
            raise about_to_stop()
        yield question.within(self.room(tenant)), self

    async def view(self, tenant: Tenant) -> AllowanceView:
        del tenant
        return self

    def enter(self, tenant: Tenant, requests: int, tokens: int) -> None:
        """Raises 429 if there is no room now, 400 if there never will be."""
        self._check_size(tenant, requests, tokens)
        if self.total + requests > self.most_requests:
            waiting = f"{self.total:,} requests run and wait already, {self.most_requests:,} may"
            raise ApiError(429, f"{waiting}: come back later", "queue_full", retry_seconds=self.retry_seconds)
        most = tenant.most_requests
        if most is not None and self.requests[tenant.name] + requests > most:
            message = (
                f"{self.requests[tenant.name]:,} requests of this key are under way, {most:,} may be: wait for one"
            )
            raise ApiError(429, message, "requests_limit", retry_seconds=self.retry_seconds)
        self._spend(tenant, tokens)
        if not self.total:
            self._ended_at = self._clock()
        self.requests[tenant.name] += requests

    def room(self, tenant: Tenant) -> int | None:
        return room_of(self, tenant)

    def leave(self, tenant: Tenant, requests: int, unused_tokens: int) -> None:
        """Requests have ended, in any way; tokens that were requested and not generated are returned."""
        self.requests[tenant.name] -= requests
        if not self.requests[tenant.name]:
            del self.requests[tenant.name]
        if tenant.tokens_per_minute is not None:
            left, at = self._tokens[tenant.name]
            self._tokens[tenant.name] = (min(left + unused_tokens, tenant.tokens_per_minute), at)
        now = self._clock()
        self._seconds_per_ending += ((now - self._ended_at) / requests - self._seconds_per_ending) / 16
        self._ended_at = now

    @property
    def retry_seconds(self) -> int:
        """About when the next request ends, estimated from those before."""
        return max(1, min(60, math.ceil(self._seconds_per_ending)))

    def _check_size(self, tenant: Tenant, requests: int, tokens: int) -> None:
        most = tenant.most_requests
        if requests > min(self.most_requests, most or requests):
            few = min(self.most_requests, most or requests)
            raise ApiError(400, f"{requests:,} choices at once, {few:,} may be: ask for fewer", "requests_limit", "n")
        for limit, name in ((tenant.most_tokens, "a request"), (tenant.tokens_per_minute, "a minute")):
            if limit is not None and tokens > limit:
                message = f"{tokens:,} tokens of prompt and output, this key may have {limit:,} {name}: ask for fewer"
                raise ApiError(400, message, "tokens_limit", "max_tokens")

    def tokens_left(self, tenant: Tenant) -> float | None:
        """Of this minute; they are refilled evenly, second by second. None: no limit."""
        most = tenant.tokens_per_minute
        if most is None:
            return None
        left, at = self._tokens.get(tenant.name, (float(most), self._clock()))
        return min(most, left + most * (self._clock() - at) / MINUTE)

    def _spend(self, tenant: Tenant, tokens: int) -> None:
        most, left = tenant.tokens_per_minute, self.tokens_left(tenant)
        if most is None or left is None:
            return
        if tokens > left:
            seconds = math.ceil((tokens - left) * MINUTE / most)
            message = f"{tokens:,} tokens asked for, {int(left):,} left of {most:,} a minute: come back in {seconds} s"
            raise ApiError(429, message, "tokens_limit", retry_seconds=seconds)
        self._tokens[tenant.name] = (left - tokens, self._clock())
