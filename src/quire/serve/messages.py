"""Messages between the HTTP process and the engine's: frozen values, pickled.

    HTTP ── Submit, Cancel, Explain, DropCache, AskLeases, AskFork, AskRoom, AskView, EndTurn, WarmUp ──▶ engine
    HTTP ◀── Ready | Failed, then a EngineTick per step (and now and then while idle), Reply ── engine

A tick contains the results of a whole step, so that a step costs one message however many requests it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from quire.core.events import RequestEvent
from quire.core.logprobs import Logprob
from quire.core.request import Request
from quire.core.sampling import Sampling
from quire.explain.explanation import Explanation
from quire.explain.status import Status
from quire.options.run import RunOptions
from quire.serve.engine_forks import ForkQuestion
from quire.serve.engine_leases import LeaseQuestion
from quire.serve.engine_views import ViewQuestion
from quire.tiers.status import TierStatus
from quire.traces.traced import Parent, RequestTrace
from quire.warm.work import TurnEnd, Warm


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """All that an engine's process needs to boot."""

    folder: Path
    plan: Mapping[str, Any]
    """As JSON (`quire.plan.file.encode`): the HTTP process has made it, shown it and admits by it."""
    options: RunOptions
    """For the device that was chosen; connectors by name."""
    freeze_file: Path | None = None
    """For drills: while this file exists, the runner stops."""
    log_format: str = "auto"
    log_level: str = "info"
    step_seconds: float = 30.0
    """In which each rank confirms a step."""
    has_fronts: bool = False
    """Several processes speak HTTP: a tick has a part for each."""
    has_spans: bool = False
    """Calls may ask for the phases of their requests."""


@dataclass(frozen=True, slots=True)
class Submit:
    requests: tuple[Request, ...]
    front: int = 0
    """The process that asks; 0: the only one."""
    span: Parent | None = None
    """What the phases of these requests belong to. None: they are not traced."""

    def __reduce__(self) -> tuple[Callable[..., Submit], tuple[Any, ...]]:
        """There is one for each call: as plain values its requests are pickled in a third of the time."""
        return _submit, ([_values_of(one) for one in self.requests], self.front, self.span)


_FIELDS = [one.name for one in fields(Request) if one.name != "sampling"]
_request_fields = attrgetter(*_FIELDS)
_sampling_fields = attrgetter(*(one.name for one in fields(Sampling)))


def _values_of(request: Request) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return _request_fields(request), _sampling_fields(request.sampling)


def _submit(requests: Iterable[tuple[tuple[Any, ...], tuple[Any, ...]]], front: int, span: Parent | None) -> Submit:
    made = (Request(**dict(zip(_FIELDS, own, strict=True)), sampling=Sampling(*chosen)) for own, chosen in requests)
    return Submit(tuple(made), front, span)


@dataclass(frozen=True, slots=True)
class Cancel:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explain:
    number: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DropCache:
    number: int
    scope: str | None
    """None: everything."""


@dataclass(frozen=True, slots=True)
class CancelFront:
    """All requests of a front that has died."""

    front: int


@dataclass(frozen=True, slots=True)
class AskLeases:
    number: int
    question: LeaseQuestion


@dataclass(frozen=True, slots=True)
class AskFork:
    number: int
    question: ForkQuestion


@dataclass(frozen=True, slots=True)
class AskRoom:
    """What would happen to this request if it came now; answered with `Room`."""

    number: int
    request: Request


@dataclass(frozen=True, slots=True)
class AskView:
    """Somebody looks at the inspector."""

    number: int
    question: ViewQuestion


@dataclass(frozen=True, slots=True, eq=False)
class EndTurn:
    """A turn of a conversation has ended."""

    turn: TurnEnd


@dataclass(frozen=True, slots=True, eq=False)
class WarmUp:
    """A client announces a prompt."""

    warm: Warm


Command = (
    Submit | Cancel | CancelFront | Explain | DropCache | AskLeases | AskFork | AskRoom | AskView | EndTurn | WarmUp
)


@dataclass(frozen=True, slots=True)
class Ready:
    """Weights are loaded; ticks follow."""

    tiers: tuple[str, ...] = ()
    """A line for each: what it holds, or why it is not in use."""
    started: tuple[str, ...] = ()
    """On a GPU: how decode steps run, which backend runs each kind, then what its memory is used for."""
    steps: str = ""
    """Only the first of these: how decode steps run."""
    kernels: tuple[str, ...] = ()
    """Only the second of these: the backend of each kind."""
    ranks: tuple[int, ...] = ()
    """Processes of the model's other ranks on this machine."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine could not boot, and why; the process ends."""

    message: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class RankLost:
    """A rank of the model has ended, or does not answer; the engine's process ends."""

    why: str


ABORTED = "aborted"
"""The ending of a request that another call has ended."""


@dataclass(frozen=True, slots=True)
class RequestUpdate:
    """Changes of one request since the previous tick."""

    name: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    """One for each token, or none if they were not requested."""
    prompt_logprobs: tuple[Logprob, ...] = ()
    """With the first tokens, if requested: one for each token of the prompt, from the second on."""
    hit_tokens: int | None = None
    """Tokens of the prompt found in the cache; reported at its first admission."""
    ending: str = ""
    refusal: str = ""
    """Why it was not accepted; then no update follows."""
    is_queue_full: bool = False

    def __reduce__(self) -> tuple[type[RequestUpdate], tuple[Any, ...]]:
        """With log-probabilities there is one for each token: as a call with arguments they are pickled in a quarter of
        the time."""
        given = (self.name, self.tokens, self.logprobs, self.prompt_logprobs, self.hit_tokens)
        return RequestUpdate, (*given, self.ending, self.refusal, self.is_queue_full)


@dataclass(frozen=True, slots=True)
class RequestState:
    """How far a request is, as far as the engine reported it."""

    hit_tokens: int | None
    output_tokens: int


@dataclass(frozen=True, slots=True)
class EngineTick:
    steps: int
    """Steps settled so far: there is progress if this grows, or if there is nothing to do."""
    is_idle: bool
    tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By request, of those that have nothing else to report: most rows of most steps."""
    updates: tuple[RequestUpdate, ...] = ()
    """Of the others."""
    status: Status | None = None
    resident_bytes: int = 0
    tiers: tuple[TierStatus, ...] = ()
    handed: Mapping[str, int] = field(default_factory=dict)
    """Hand-overs by how they ended, and `waiting`; empty without a peer."""
    books: str = ""
    """What the last audit found wrong; empty: the books balance."""
    is_audited: bool = False
    """The last audit came after the last step."""
    audit_step: int | None = None
    """Steps launched before the last audit; None: there was none."""
    traces: tuple[RequestTrace, ...] = ()
    """Traced requests that have ended."""


@dataclass(frozen=True, slots=True)
class RoutedTick:
    """A tick without updates; those of each front are a pickled tick of their own."""

    tick: EngineTick
    parts: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class RequestReport:
    """What is known about one request: the explanation while it waits or runs, and its latest events."""

    name: str
    explanation: Explanation | None
    """None: it has ended."""
    events: tuple[RequestEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    number: int
    value: Any


Message = Ready | Failed | RankLost | EngineTick | RoutedTick | Reply
