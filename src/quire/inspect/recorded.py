"""The inspector over a recording: the document as it was after any step, made by the same functions as a server's.

A first replay notes how many steps there are and when something happened to a request. After that one engine is played
forward; to go back, the recording is played again from its beginning.
"""

from __future__ import annotations

from pathlib import Path

from quire.core.errors import InputError
from quire.core.events import (
    Event,
    LoadFailed,
    RequestAdmitted,
    RequestEvent,
    RequestPreempted,
    RequestRefused,
    RequestWaits,
)
from quire.engine.engine import Engine
from quire.inspect.detail import request_document, request_view, sheet_document, sheet_view
from quire.inspect.document import Json, ServerView, Subject, document
from quire.inspect.look import look
from quire.inspect.what_if import MOST_LENGTH, MOST_POOL_BYTES, what_if_document
from quire.models.shape import ModelShape
from quire.planner.whatif import REFERENCE_LENGTHS
from quire.recording.replay import Player

MOST_MOMENTS = 10_000
_MOMENTS = (RequestPreempted, LoadFailed, RequestRefused)


class Moments:
    """When requests were preempted, refused or admitted after a wait; listens to a replay's events."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str, str]] = []
        """(step whose document shows it, event, request)."""
        self._waits: set[str] = set()

    def __call__(self, event: Event) -> None:
        if not isinstance(event, RequestEvent) or len(self.found) >= MOST_MOMENTS:
            return
        if isinstance(event, RequestWaits):
            self._waits.add(event.request)
        is_end = isinstance(event, RequestAdmitted) and event.request in self._waits
        if is_end:
            self._waits.discard(event.request)
        if is_end or isinstance(event, _MOMENTS):
            self.found.append((event.step + 1, event.name, event.request))
        if isinstance(event, RequestPreempted):
            self._waits.add(event.request)


class Recorded:
    """Documents of one recording."""

    def __init__(self, path: Path, source: str = "recording", model: ModelShape | None = None) -> None:
        """`model`: what was simulated, for questions that change its pages."""
        self._path, self._source, self._model = path, source, model
        moments = Moments()
        first = Player(path, [moments])
        self._begun_at: float | None = None
        while first.play():
            if self._begun_at is None and first.when is not None:
                self._begun_at = first.when.begin
        self.steps = first.engine.scheduler.steps
        found = [(min(step, self.steps), what, request) for step, what, request in moments.found]
        step, what, request = zip(*found, strict=True) if found else ((), (), ())
        self._about = {
            "steps": self.steps,
            "moments": {"step": list(step), "what": list(what), "request": list(request)},
        }
        self._player = Player(path, say=_in_silence)
        self._subject = Subject.of(first.engine.scheduler.plan)

    def at(self, step: int | None = None) -> Json:
        """The document after this many launched steps; None: at the end."""
        engine, when = self._engine_at(step)
        scheduler = engine.scheduler
        waiting: dict[str, int] = {}
        for one in scheduler.queue:
            waiting[one.reason.code.value] = waiting.get(one.reason.code.value, 0) + 1
        about = ServerView(
            self._source,
            "recorded",
            f"a {self._source} of {self.steps:,} steps",
            steps=scheduler.steps,
            running=len(scheduler.running),
            waiting=waiting,
        )
        at = 0.0 if self._begun_at is None else when - self._begun_at
        return document(self._subject, about, look(engine, at, when)) | {"recording": self._about}

    def request(self, name: str, step: int | None = None) -> Json | None:
        """None: the engine had no event of it."""
        found = request_view(self._engine_at(step)[0], name)
        return None if found is None else request_document(found)

    def sheet(self, stage: int, sheet: int, step: int | None = None) -> Json | None:
        found = sheet_view(self._engine_at(step)[0], stage, sheet)
        return None if found is None else sheet_document(found)

    def what_if(self, length: int | None = None, pool_bytes: int | None = None) -> Json:
        for name, number, most in (("length", length, MOST_LENGTH), ("pool_bytes", pool_bytes, MOST_POOL_BYTES)):
            if number is not None and not 1 <= number <= most:
                raise InputError(f"{name} is {number:,}: give a number from 1 to {most:,}")
        plan = self._subject.plan
        return what_if_document(plan, min(length or REFERENCE_LENGTHS[0], plan.max_length), pool_bytes, self._model)

    def _engine_at(self, step: int | None) -> tuple[Engine, float]:
        """And the recorded clock then."""
        step = self.steps if step is None else step
        if not 0 <= step <= self.steps:
            raise InputError(f"{self._path} has no step {step:,}: choose one from 0 to {self.steps:,}")
        if step < self._player.engine.scheduler.steps:
            self._player = Player(self._path, say=_in_silence)
        self._player.play_to(step)
        when = self._player.when
        return self._player.engine, (self._begun_at or 0.0) if when is None else when.end


def _in_silence(_text: str) -> None:
    """The first replay has said where the recording ends."""
