"""Which requests can be forked, and the tokens that a fork continues.

    parent   ├─── prompt ───┼── outputs ──▶ …       at = 7: the fork has the parent's first 7 tokens as its prompt,
    fork     └───────── 7 ─────┴─▶ its own          shares their pages, and samples its 8th token itself

A fork is a request of its own: it is accepted with its whole length, because its parent may leave. What it shares is
found in the prefix index; here the parent, if it runs, is made to keep a boundary where the fork begins.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quire.core.errors import InputError
from quire.core.events import Event, RequestEnded
from quire.core.request import Tokens
from quire.engine.engine import Engine, Stream
from quire.engine.history import REQUESTS_REMEMBERED
from quire.prefix.points import RequestForked

TOKENS_REMEMBERED = 1 << 22
"""Most tokens of ended requests that are remembered (16 MiB); the newest request is remembered whatever its length."""
NOT_FOUND, OUT_OF_RANGE = "fork_not_found", "fork_out_of_range"


class ForkRefused(InputError):
    """A fork of a request that is not known, or at a token that does not exist."""

    def __init__(self, message: str, code: str, numbers: Mapping[str, int]) -> None:
        super().__init__(message)
        self.code, self.numbers = code, dict(numbers)


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """A request that has ended."""

    prompt: Tokens
    outputs: Tokens
    owner: tuple[str, str]
    """Tenant and scope."""

    @property
    def tokens(self) -> int:
        return len(self.prompt) + len(self.outputs)


class Forks:
    """Remembers the tokens of requests: of all that run or wait, and of the latest that ended."""

    def __init__(
        self, engine: Engine, most_requests: int = REQUESTS_REMEMBERED, most_tokens: int = TOKENS_REMEMBERED
    ) -> None:
        self._engine = engine
        self._most_requests, self._most_tokens = most_requests, most_tokens
        self._streams: dict[str, Stream] = {}
        """Requests that had not ended when they were last looked at."""
        self._ended: list[str] = []
        """Those of them that have ended since."""
        self._past: OrderedDict[str, Past] = OrderedDict()
        self._tokens = 0
        """Of all in `_past`."""
        engine.scheduler.events.subscribe(self._on_event)

    def note(self, stream: Stream) -> Stream:
        """A request was accepted: it can be forked from now on."""
        self._settle()
        self._streams[stream.request.name] = stream
        return stream

    def tokens(self, name: str, at: int | None = None, tenant: str = "", scope: str = "") -> Tokens:
        """The first `at` tokens of a request, for a fork to continue; None: all that it has now. A running request
        keeps a boundary there if it can. Raises ForkRefused."""
        self._settle()
        if at is None and name in self._engine.scheduler.rows.row_of:
            self._engine.settle()
            self._settle()
        prompt, outputs = self._known(name, tenant, scope)
        size = len(prompt) + len(outputs)
        at = size if at is None else at
        if not 1 <= at <= size:
            raise ForkRefused(
                f"the fork is at token {at:,}, and request {name} has {size:,} ({len(prompt):,} of its prompt, "
                f"{len(outputs):,} generated): give at between 1 and {size:,}",
                OUT_OF_RANGE,
                {"at": at, "tokens": size, "prompt_tokens": len(prompt), "generated_tokens": len(outputs)},
            )
        self._branch_off(name, at)
        return prompt[:at] if at <= len(prompt) else np.concatenate([prompt, outputs[: at - len(prompt)]])

    def numbers(self, beginning: str, tenant: str = "", scope: str = "") -> list[int]:
        """Numbers that follow this beginning in names of requests that can be forked."""
        self._settle()
        running = ((name, (one.request.tenant, one.request.scope)) for name, one in self._streams.items())
        ended = ((name, one.owner) for name, one in self._past.items())
        own = (name for name, owner in (*running, *ended) if owner == (tenant, scope) and name.startswith(beginning))
        return sorted({int(rest) for name in own if (rest := name.removeprefix(beginning)).isdecimal()})

    def _known(self, name: str, tenant: str, scope: str) -> tuple[Tokens, Tokens]:
        """Prompt and outputs so far. Requests of others are as unknown as those that never were."""
        stream, past = self._streams.get(name), self._past.get(name)
        if stream is not None and (stream.request.tenant, stream.request.scope) == (tenant, scope):
            return stream.request.prompt, stream.tokens()
        if past is not None and past.owner == (tenant, scope):
            return past.prompt, past.outputs
        raise ForkRefused(
            f"no request {name[:64]} of this key runs or is remembered (the latest {self._most_requests:,} that ended, "
            f"with {self._most_tokens:,} tokens together): fork a newer one, or send its tokens as a prompt",
            NOT_FOUND,
            {"requests_remembered": self._most_requests, "tokens_remembered": self._most_tokens},
        )

    def _branch_off(self, name: str, at: int) -> None:
        """The fork computes its last token itself, to sample from: the boundary is before it."""
        scheduler = self._engine.scheduler
        row = scheduler.rows.row_of.get(name)
        if row is not None and at > 1:
            scheduler.reuse.branch_off(row, scheduler.running.tickets[row], at - 1)
        scheduler.events.publish(RequestForked(scheduler.steps, name, at))

    # ── what is remembered ────────────────────────────────────────────────

    def _on_event(self, event: Event) -> None:
        if isinstance(event, RequestEnded) and event.request in self._streams:
            self._ended.append(event.request)

    def _settle(self) -> None:
        """Keeps the tokens of requests that have ended, and forgets the oldest beyond the bounds."""
        for name in self._ended:
            stream = self._streams.pop(name)
            assert stream.ended is not None, "the engine ends a stream with its request"
            request, before = stream.request, self._past.pop(name, None)  # an earlier one may have had this name
            self._tokens -= 0 if before is None else before.tokens
            self._past[name] = one = Past(request.prompt, stream.ended.outputs, (request.tenant, request.scope))
            self._tokens += one.tokens
        self._ended.clear()
        while len(self._past) > self._most_requests or (self._tokens > self._most_tokens and len(self._past) > 1):
            _, oldest = self._past.popitem(last=False)
            self._tokens -= oldest.tokens
