"""Requests whose prompts another engine computes first: they wait here, before they are submitted.

    take ──▶ asked, in a thread ──▶ ready ──▶ submitted: its prompt is found in a tier, and loaded as any other
                                └─▶ refused, lost, late ──▶ submitted all the same: its prompt is computed here

The scheduler is not involved. Whatever happens to the other engine, each request taken is returned once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from quire.core.events import (
    Event,
    LoadFailed,
    LoadFinished,
    LoadStarted,
    RequestAdmitted,
    RequestEnded,
    RequestPreempted,
)
from quire.core.request import Request
from quire.engine.engine import Engine
from quire.handover.peer import PrefillClient, PromptReady, PromptRefused
from quire.prefix.keys import keys_of
from quire.tiers.guarded import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, GuardedTier
from quire.tiers.stack import Stack

MOST_AT_ONCE = 32
"""The most prompts that are sent at once; others wait. No prompt takes longer than `seconds`."""
LEAST_SHARE = 0.5
"""The part of a prompt that must be missing here for it to be sent."""
_LOG = logging.getLogger("quire.tiers")


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    request: Request
    until: float


class HandOver:
    def __init__(
        self,
        stack: Stack,
        guard: GuardedTier,
        source: PrefillClient,
        seconds: float,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`guard`: the guard of the tier `source`."""
        self.counters: Counter[str] = Counter()
        """Requests, for metrics: handed, refused, lost, late."""
        self._stack, self._guard, self._source, self._seconds, self._wake = stack, guard, source, seconds, wake
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, "quire-peer")
        self._lock = threading.Lock()
        self._sent: dict[str, Sent] = {}
        self._back: list[Request] = []
        self._admitted: set[str] = set()
        self._loading: set[str] = set()
        self._was_told = ""
        self._ask_at, self._pause = 0.0, FIRST_PAUSE_SECONDS

    def __len__(self) -> int:
        """Requests that wait for the other engine."""
        return len(self._sent)

    def __contains__(self, name: str) -> bool:
        return name in self._sent

    # ── in the engine's thread ────────────────────────────────────────────

    def take(self, engine: Engine, request: Request) -> bool:
        """Whether it waits here now. Not if the other side is lost, or could hand over too little that is missing."""
        if time.monotonic() < self._ask_at or not self._guard.can_read or request.sampling.prompt_logprobs is not None:
            return False
        least = max(1, LEAST_SHARE * len(request.prompt))
        room = self._stack.loads.most_units() * self._stack.unit_tokens
        tokens = min(self._source.boundary(len(request.prompt)), room)
        if tokens < least:
            self._tell(self._source.lacking(len(request.prompt)))
            return False
        reuse = engine.scheduler.reuse
        root = reuse.root_of(request.scope)
        keys = keys_of(root, request.prompt, self._stack.unit_tokens)
        reuse.catch_up()
        known = max(
            reuse.index.find(keys, root, request.prompt).tokens,
            self._stack.find(keys, lambda _: ()).units * reuse.index.unit,
        )
        if tokens - known < least:
            return False
        sent = self._sent[request.name] = Sent(request, time.monotonic() + self._seconds)
        self._threads.submit(self._ask, sent, keys)
        return True

    def turn(self) -> list[Request]:
        """Requests that are to be submitted now."""
        for name in self._admitted - self._loading:
            self._source.release(name)
        self._admitted &= self._loading
        now = time.monotonic()
        with self._lock:
            late = [name for name, sent in self._sent.items() if sent.until <= now]
            back, self._back = self._back + [self._sent.pop(name).request for name in late], []
        for name in late:
            self.counters["late"] += 1
            self._source.release(name)
            self._guard.note_failure("hand over")
        if late:
            self._tell(f"the other engine did not have it within {self._seconds:g} s (--peer-seconds)")
            self._leave_alone(now)
        return back

    def _leave_alone(self, now: float) -> None:
        """Sends no prompts for a time, which doubles until a hand-over succeeds, so that new requests do not wait in
        vain. Prompts that are ready can still be fetched."""
        if now >= self._ask_at:
            self._ask_at = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def cancel(self, name: str) -> None:
        """The request was cancelled, whatever the state of its hand-over."""
        with self._lock:
            self._sent.pop(name, None)
            self._back = [request for request in self._back if request.name != name]
        self._source.release(name)

    def on_event(self, event: Event) -> None:
        """Releases an offer when its request has loaded it, has begun without it, or has ended."""
        if isinstance(event, RequestAdmitted):
            self._admitted.add(event.request)
        elif isinstance(event, LoadStarted):
            self._loading.add(event.request)
        elif isinstance(event, LoadFinished | LoadFailed | RequestPreempted | RequestEnded):
            self._loading.discard(event.request)
            self._admitted.discard(event.request)
            if isinstance(event, LoadFinished | RequestEnded):
                self._source.release(event.request)

    def close(self) -> None:
        for name in list(self._sent):
            self.cancel(name)
        self._threads.shutdown(wait=True, cancel_futures=True)

    # ── in a thread ───────────────────────────────────────────────────────

    def _ask(self, sent: Sent, keys: list[bytes]) -> None:
        request, left = sent.request, sent.until - time.monotonic()
        if self._sent.get(request.name) is not sent:
            return
        answer = self._guard.attempt(
            "hand over", lambda: self._source.ask(request.name, request.scope, request.prompt, keys, left)
        )
        with self._lock:
            is_awaited = self._sent.get(request.name) is sent
            if is_awaited:
                del self._sent[request.name]
                self._back.append(request)
        if not is_awaited:  # it was cancelled, or late
            self._source.release(request.name)
            return
        match answer:
            case None:
                self.counters["lost"] += 1
            case PromptRefused(reason):
                self.counters["refused"] += 1
                self._tell(reason)
            case PromptReady():
                self.counters["handed"] += 1
                self._pause = FIRST_PAUSE_SECONDS
        self._wake()

    def _tell(self, reason: str) -> None:
        """Logs why a prompt is computed here, unless it is the reason logged last."""
        if reason and reason != self._was_told:
            self._was_told = reason
            _LOG.warning("a prompt is computed here: %s", reason)
