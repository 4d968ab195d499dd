"""Messages between the hub and its fronts: frozen values, pickled.

front ── Started | StartFailed, then notices (ForEngine, Left, NotedCall, Kept, Beat, Closed) and questions ──▶ hub
front ◀── FrontSetup, then EngineState, EngineTick, Lost, Drain, End, and questions ── hub
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.core import Metric

from quire.core.request import Request
from quire.serve.away import EngineAway
from quire.serve.engine_forks import ForkQuestion
from quire.serve.engine_leases import LeaseQuestion
from quire.serve.engine_views import ViewQuestion
from quire.serve.keys import Tenant
from quire.serve.messages import Command, EngineSetup
from quire.serve.responses.store import Stored
from quire.serve.settings import ServeSettings


@dataclass(frozen=True, slots=True)
class FrontSetup:
    """All that a front needs to start."""

    number: int
    """From 1."""
    engine: EngineSetup
    settings: ServeSettings
    """With this front's part of what is divided."""
    planned_for: str


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the engine's process does, and which one it is."""

    life: int
    """Counts its processes. A command for an earlier one is not passed on."""
    has_process: bool
    is_ready: bool
    restarts: int
    steps: int
    seconds_since: float | None
    """Since its last progress."""
    last_words: str = ""
    """How the last engine that died ended."""
    lost: str = ""
    """The rank that the latest process that died had lost."""


# ── notices of a front ───────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Started:
    """The front can take connections."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    message: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class ForEngine:
    life: int
    command: Command


@dataclass(frozen=True, slots=True)
class Left:
    """A call has ended."""

    grant: int
    unused_tokens: int


@dataclass(frozen=True, slots=True)
class NotedCall:
    call: str
    tenant: Tenant
    request_id: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A response to store."""

    tenant: Tenant
    response: str
    entry: Stored


@dataclass(frozen=True, slots=True)
class Beat:
    """Every second: the event loop runs, and these requests have not ended."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """Connections have ended."""

    connections: int


# ── questions of a front ─────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Enter:
    """Answered with `Allowances.retry_seconds`, or refused with the error that the client gets."""

    grant: int
    """The front's number for it."""
    tenant: Tenant
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ViewAllowance:
    tenant: Tenant


@dataclass(frozen=True, slots=True)
class Allowance:
    """The answer: what a tenant uses of its limits."""

    requests: Mapping[str, int]
    retry_seconds: int
    left: float | None

    def tokens_left(self, tenant: Tenant) -> float | None:
        del tenant
        return self.left


@dataclass(frozen=True, slots=True)
class NamesOf:
    call: str
    tenant: Tenant


@dataclass(frozen=True, slots=True)
class NamesOfTenant:
    tenant: Tenant


@dataclass(frozen=True, slots=True)
class FetchResponses:
    """Answered with those that are stored, by id."""

    tenant: Tenant
    responses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoveResponse:
    tenant: Tenant
    response: str


@dataclass(frozen=True, slots=True)
class AskEngine:
    """`Explain` or `DropCache`, under a number of the hub's."""

    names: tuple[str, ...] | None
    """None: the cache of a scope is dropped."""
    scope: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class AskHubLeases:
    """Asked of the engine by the hub, which counts the answers of all fronts."""

    question: LeaseQuestion


@dataclass(frozen=True, slots=True)
class AskHubFork:
    """Asked of the engine by the hub."""

    question: ForkQuestion


@dataclass(frozen=True, slots=True)
class AskHubRoom:
    """Asked of the engine by the hub; answered with `Room`."""

    request: Request


@dataclass(frozen=True, slots=True)
class AskHubView:
    """Asked of the engine by the hub; answered with `Seen`, or as `ViewQuestion` is."""

    question: ViewQuestion
    seconds: float


@dataclass(frozen=True, slots=True)
class AskState:
    """Answered with `EngineState`."""


@dataclass(frozen=True, slots=True)
class AllMetrics:
    """Of all processes, as text."""


# ── questions that the hub passes on to all fronts ───────────────────────


@dataclass(frozen=True, slots=True)
class AbortRequests:
    """Answered with the output tokens of those that were ended."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StatesOf:
    """Answered with what is known of those that have not ended."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OwnMetrics:
    """Answered with `FrontFigures`."""


@dataclass(frozen=True, slots=True)
class FrontFigures:
    families: tuple[Metric, ...]
    open_requests: int


# ── notices of the hub ───────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Lost:
    """Requests that could not be passed on to the engine."""

    names: tuple[str, ...]
    error: EngineAway


@dataclass(frozen=True, slots=True)
class Drain:
    """New calls are refused."""


@dataclass(frozen=True, slots=True)
class End:
    """Calls in progress end with an error, and the front ends."""
