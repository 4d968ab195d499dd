"""A front's view of what all fronts share: allowances, stored responses, calls. The hub has them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from quire.serve.allowance import Allowances, AllowanceView, about_to_stop, room_of
from quire.serve.errors import ApiError
from quire.serve.fronts.channel import Channel
from quire.serve.fronts.messages import (
    Allowance,
    Enter,
    FetchResponses,
    Kept,
    Left,
    NamesOf,
    NamesOfTenant,
    NotedCall,
    RemoveResponse,
    ViewAllowance,
)
from quire.serve.keys import Tenant
from quire.serve.registry import CallRegistry
from quire.serve.responses.store import Json, ResponseStore, Stored, stored
from quire.serve.service import Shared
from quire.serve.settings import ServeSettings
from quire.text.question import Question

UNLIMITED = Allowance({}, 1, None)


def hub_shares(channel: Channel, settings: ServeSettings) -> Shared:
    """Kept by the hub."""
    return Shared(HubAllowances(channel), HubStore(channel, settings.store_bytes), HubRegistry(channel))


class HubAllowances(Allowances):
    def __init__(self, channel: Channel) -> None:
        super().__init__(0)
        self._channel = channel
        self._numbers = itertools.count()

    @asynccontextmanager
    async def admitting(self, tenant: Tenant, question: Question) -> AsyncIterator[tuple[Question, Allowances]]:
        """The hub has counted the call before it begins. A call that does not enter here is given back."""
        if self.is_draining:
            raise about_to_stop()
        fitting, grant = await self._granted(tenant, question)
        try:
            yield fitting, grant
        finally:
            if not grant.is_used:
                grant.leave(tenant, fitting.request_count, fitting.tokens)

    async def _granted(self, tenant: Tenant, question: Question) -> tuple[Question, Grant]:
        """Another front may take tokens between the two questions: then the answer becomes shorter still."""
        fitting = await self._fitting(tenant, question)
        while True:
            try:
                return fitting, await self._enter(tenant, fitting)
            except ApiError:
                shorter = await self._fitting(tenant, question)
                if shorter.tokens >= fitting.tokens:
                    raise
                fitting = shorter

    async def _fitting(self, tenant: Tenant, question: Question) -> Question:
        if not question.is_length_open:
            return question
        view = UNLIMITED if tenant.tokens_per_minute is None else await self.view(tenant)
        return question.within(room_of(view, tenant))

    async def _enter(self, tenant: Tenant, question: Question) -> Grant:
        number = next(self._numbers)
        asking = asyncio.ensure_future(
            self._channel.ask(Enter(number, tenant, question.request_count, question.tokens))
        )
        try:
            return Grant(self._channel, number, await asyncio.shield(asking))
        except asyncio.CancelledError:  # the hub may have counted it all the same

            def give_back(asked: asyncio.Future[Any]) -> None:
                if not asked.cancelled() and asked.exception() is None:
                    self._channel.send(Left(number, question.tokens))

            asking.add_done_callback(give_back)
            raise

    async def view(self, tenant: Tenant) -> AllowanceView:
        if tenant.most_requests is None and tenant.tokens_per_minute is None:
            return UNLIMITED
        view: Allowance = await self._channel.ask(ViewAllowance(tenant))
        return view


class Grant(Allowances):
    """The allowance of one call, which the hub has counted."""

    def __init__(self, channel: Channel, number: int, retry_seconds: int) -> None:
        super().__init__(0)
        self._channel, self._number, self._retry_seconds = channel, number, retry_seconds
        self.is_used = False

    def enter(self, tenant: Tenant, requests: int, tokens: int) -> None:
        del tenant, requests, tokens
        assert not self.is_used
        self.is_used = True

    def leave(self, tenant: Tenant, requests: int, unused_tokens: int) -> None:
        del tenant, requests
        self._channel.send(Left(self._number, unused_tokens))

    @property
    def retry_seconds(self) -> int:
        return self._retry_seconds


class HubStore(ResponseStore):
    def __init__(self, channel: Channel, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._channel = channel

    def keep(self, tenant: Tenant, response: Json, items: Sequence[Json]) -> None:
        self._channel.send(Kept(tenant, response["id"], stored(response, items)))

    async def fetch(self, tenant: Tenant, responses: Sequence[str]) -> ResponseStore:
        if not responses:
            return ResponseStore(0)
        found: dict[str, Stored] = await self._channel.ask(FetchResponses(tenant, tuple(responses)))
        fetched = ResponseStore(sum(entry.size for entry in found.values()))
        for response, entry in found.items():
            fetched.put(tenant, response, entry)
        return fetched

    async def remove(self, tenant: Tenant, response: str) -> None:
        await self._channel.ask(RemoveResponse(tenant, response))


class HubRegistry(CallRegistry):
    def __init__(self, channel: Channel) -> None:
        super().__init__(0)
        self._channel = channel

    def note(self, call: str, tenant: Tenant, request_id: str, names: tuple[str, ...]) -> None:
        self._channel.send(NotedCall(call, tenant, request_id, names))

    async def names_of(self, call: str, tenant: Tenant) -> tuple[str, ...]:
        names: tuple[str, ...] = await self._channel.ask(NamesOf(call, tenant))
        return names

    async def names_of_tenant(self, tenant: Tenant) -> set[str]:
        names: set[str] = await self._channel.ask(NamesOfTenant(tenant))
        return names
