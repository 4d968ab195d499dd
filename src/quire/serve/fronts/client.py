"""A front's side of the engine: the same questions as in one process, sent by way of the hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quire.core.request import Request
from quire.explain.room import Room
from quire.serve.away import EngineStarting
from quire.serve.client import NOT_READY, EngineClient
from quire.serve.engine_forks import ForkQuestion, ForkReply
from quire.serve.engine_leases import LeaseQuestion, LeaseReply
from quire.serve.engine_views import ViewQuestion, ViewReply, WholeView
from quire.serve.fronts.channel import Channel
from quire.serve.fronts.messages import (
    AbortRequests,
    AskEngine,
    AskHubFork,
    AskHubLeases,
    AskHubRoom,
    AskHubView,
    AskState,
    EngineState,
    ForEngine,
    FrontSetup,
    StatesOf,
)
from quire.serve.lease_register import ANSWER_SECONDS, LeaseRegister
from quire.serve.messages import Command, EngineTick, RequestState, Submit
from quire.serve.progress import Progress
from quire.serve.views import Seen

NO_ENGINE = EngineState(0, False, False, 0, 0, None)


class FrontClient(EngineClient):
    def __init__(self, setup: FrontSetup, channel: Channel) -> None:
        super().__init__(setup.engine, Progress(setup.settings.step_seconds), _in_silence)
        self._number, self._channel = setup.number, channel
        self._state = NO_ENGINE

    @property
    def is_ready(self) -> bool:
        return self._state.is_ready

    @property
    def has_process(self) -> bool:
        return self._state.has_process

    # ── what the hub says ─────────────────────────────────────────────────

    def note_state(self, state: EngineState) -> None:
        self._state, self.restarts, self.last_words = state, state.restarts, state.last_words
        if not state.has_process:
            self.progress.engine_is_gone()
            self.end_started(state.lost)
        elif state.is_ready:
            self.progress.reset()
            self.progress.resume(state.steps, state.seconds_since)
            self.submit_again()
        else:
            self.progress.engine_starts()

    async def latest_progress(self) -> Progress:
        self.note_state(await self._channel.ask(AskState()))
        return self.progress

    def note_tick(self, tick: EngineTick) -> None:
        """Of this front's requests, or, without updates, of the engine."""
        self._note_tick(tick)

    # ── what the engine is asked ──────────────────────────────────────────

    def _send(self, command: Command) -> None:  # type: ignore[override]
        if not self.is_ready:
            raise EngineStarting(NOT_READY)
        if isinstance(command, Submit):
            command = replace(command, front=self._number)
        self._channel.send(ForEngine(self._state.life, command))

    async def abort_anywhere(self, names: Sequence[str]) -> dict[str, int]:
        aborted: dict[str, int] = await self._channel.ask(AbortRequests(tuple(names)))
        return aborted

    async def states_of(self, names: Sequence[str]) -> dict[str, RequestState]:
        states: dict[str, RequestState] = await self._channel.ask(StatesOf(tuple(names)))
        return states

    async def own_states(self, names: Sequence[str]) -> dict[str, RequestState]:
        """Of requests of this front."""
        return await super().states_of(names)

    async def explain(self, names: Sequence[str], seconds: float) -> Any:
        return await self._channel.ask(AskEngine(tuple(names), None, seconds))

    async def leases(self, question: LeaseQuestion, seconds: float) -> LeaseReply:
        del seconds  # the hub's own
        reply: LeaseReply = await self._channel.ask(AskHubLeases(question))
        return reply

    async def fork(self, question: ForkQuestion, seconds: float) -> ForkReply:
        del seconds  # the hub's own
        reply: ForkReply = await self._channel.ask(AskHubFork(question))
        return reply

    async def room(self, request: Request, seconds: float) -> Room:
        del seconds  # the hub's own
        found: Room = await self._channel.ask(AskHubRoom(request))
        return found

    async def drop_cache(self, scope: str | None, seconds: float) -> tuple[int, list[str]]:
        units, keeping = await self._channel.ask(AskEngine(None, scope, seconds))
        return units, keeping


class FrontViews:
    """The hub asks the engine, once for all fronts."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def latest(self, patience_seconds: float) -> Seen:
        seen: Seen = await self._channel.ask(AskHubView(WholeView(), patience_seconds))
        return seen

    async def ask(self, question: ViewQuestion, seconds: float) -> ViewReply:
        found: ViewReply = await self._channel.ask(AskHubView(question, seconds))
        return found


class FrontLeases(LeaseRegister):
    """The hub counts leases, and notices those that a restart ended: a front passes questions on."""

    async def ask(self, question: LeaseQuestion) -> LeaseReply:
        return await self._client.leases(question, ANSWER_SECONDS)


def _in_silence(*_: object, **_more: object) -> None:
    """The hub reports what happens to the engine."""
