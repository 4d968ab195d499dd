"""What crosses between the HTTP process and the engine's: frozen values, pickled.

    HTTP ── Submit, Cancel, Explain, DropCache ──▶ engine
    HTTP ◀── Ready | Failed, then a Beat per step (and now and then while idle), Reply ── engine

A beat carries what a whole step yielded, so that a step costs one message however many requests it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.core.events import RequestEvent
from quire.core.logprobs import Logprob
from quire.core.reasons import Explanation
from quire.core.request import Request
from quire.core.rules import Rules
from quire.core.tier import TierStatus
from quire.engine.status import Status


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """All that an engine's process needs to know to boot."""

    folder: str
    plan: Mapping[str, Any]
    """As JSON (`quire.plan.file.encode`): the HTTP process has made it, shown it and admits by it."""
    dtype: str
    rules: Rules
    device: str = "cpu"
    is_compiled: bool = False
    """On a GPU: by torch.compile."""
    is_deterministic: bool = False
    threads: int | None = None
    freeze_file: str | None = None
    """For drills: while this file exists, the runner stands still."""
    tiers: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `quire.build.tiers.Tiers`, connectors by name."""
    draft: str | None = None
    """The folder of a draft model."""
    record: str | None = None
    """A file for all that the engine is given; a numbered one beside it each time it is started again."""


@dataclass(frozen=True, slots=True)
class Submit:
    requests: tuple[Request, ...]


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


Order = Submit | Cancel | Explain | DropCache


@dataclass(frozen=True, slots=True)
class Ready:
    """Weights are loaded; from here on beats come."""

    tiers: tuple[str, ...] = ()
    """A line for each: what it holds, or why it is not in use."""
    started: tuple[str, ...] = ()
    """On a GPU: how decode steps run, who runs each kind, then what its memory went to."""
    kernels: tuple[str, ...] = ()
    """The second of these alone."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It could not boot, and why; the process ends."""

    message: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Came:
    """What is new about one request since the beat before."""

    name: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    """One for each token, or none if nobody asked."""
    hit_tokens: int | None = None
    """Of the prompt, found in the cache; told when it is let in for the first time."""
    ending: str = ""
    refusal: str = ""
    """Why it was not accepted; then nothing else comes."""
    is_queue_full: bool = False


@dataclass(frozen=True, slots=True)
class Beat:
    steps: int
    """Settled so far: progress is when this grows, or when there is nothing to do."""
    is_idle: bool
    came: tuple[Came, ...] = ()
    status: Status | None = None
    resident_bytes: int = 0
    tiers: tuple[TierStatus, ...] = ()
    handed: Mapping[str, int] = field(default_factory=dict)
    """Hand-overs by how they ended, and `waiting`; empty without a peer."""
    books: str = ""
    """What the audit found wrong; empty: the books balance."""


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of one request: the explanation while it waits or runs, and its latest events."""

    name: str
    explanation: Explanation | None
    """None: it has ended."""
    events: tuple[RequestEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    number: int
    value: Any


Message = Ready | Failed | Beat | Reply
