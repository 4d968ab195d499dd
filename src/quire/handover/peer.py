"""The ports of hand-over: one engine computes a prompt (prefill), another continues from it (decode).

    decode engine ── PrefillClient.ask ──▶ wire ──▶ PrefillService.ask ── prefill engine
                                               │ computes the prompt, holds its records in host memory
    a load reads ◀── pieces ── wire ◀──────── Offer, until it is fetched or given up

Neither side needs the other: the decode engine computes a prompt whose hand-over fails or is late.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quire.core.request import Tokens


@dataclass(frozen=True, slots=True)
class Offer:
    """Records of a prompt's first tokens, held in host memory."""

    tokens: int
    records: tuple[tuple[memoryview, ...], ...]
    """Units in order if a kind grows, then the boundary if one does not."""


@dataclass(frozen=True, slots=True)
class PromptReady:
    """The prompt is computed, and its records can be read."""


@dataclass(frozen=True, slots=True)
class PromptRefused:
    """The prefill engine does not hand this prompt over."""

    reason: str


@dataclass(slots=True, eq=False)
class PrefillJob:
    """A prompt that an engine computes for another one."""

    name: str
    scope: str
    prompt: Tokens
    """What is to be handed over, and one token more."""
    seconds: float
    is_over: threading.Event = field(default_factory=threading.Event)
    """There is an answer."""
    answer: Offer | PromptRefused | None = None


class PrefillService(Protocol):
    """Prefill engine's side; called from threads of the wire."""

    @property
    def turned_at(self) -> float:
        """When the engine's loop last ran, by `time.monotonic`."""
        ...

    def ask(self, scope: str, prompt: Tokens, seconds: float) -> PrefillJob: ...

    def give_up(self, job: PrefillJob) -> None:
        """Cancels a job, whatever its state, and releases what it holds."""
        ...


class PrefillClient(Protocol):
    """Decode engine's side: asks the prefill engine for prompts."""

    def boundary(self, prompt_tokens: int) -> int:
        """Tokens of a prompt of this length that the other side could hand over, if known. Changes nothing."""
        ...

    def lacking(self, prompt_tokens: int) -> str:
        """What the other side does not keep of a prompt of this length; empty: nothing."""
        ...

    def ask(
        self, request: str, scope: str, prompt: Tokens, keys: Sequence[bytes], seconds: float
    ) -> PromptReady | PromptRefused:
        """Waits until the prompt's records can be read, or are refused. Raises if the other side is lost."""
        ...

    def release(self, request: str) -> None:
        """Ends the hand-over of a request: its records are not read any more."""
        ...
