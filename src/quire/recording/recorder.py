"""Records all inputs of an engine, on which alone its behaviour depends. `quire.recording.replay` plays them back.

    first line   the plan, the rules, the overlap
    then         one line per call: submit, cancel, drop_cache, lease, release, step (the clock's readings, the runner's
                 tokens, the tier's answers, records that it accepts, a drafter's tokens, where the runner raised an
                 exception); `at`: what the clock said when it was over, for tools that show time

A step's line also has a checksum of the batch that was launched, so that a replay that diverges reports where. An
iteration of the loop in which there was nothing to do has no line.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import IO, Any

import numpy as np

from quire.core.drafting import Drafter
from quire.core.errors import InputError
from quire.core.events import Listener
from quire.core.failures import RowFailures
from quire.core.request import Request, Tokens
from quire.core.rules import Rules
from quire.core.step import Ints, Runner, Step, StepResult
from quire.core.tier import Answer, Ends, Found, Load, Place, RecordStore, Tier
from quire.engine.engine import Engine, Stream
from quire.plan.file import encode
from quire.plan.plan import Plan
from quire.prefix.leases import LeaseAnswer, LeaseTerms
from quire.recording.answers import encode_answer
from quire.warm.actions import Action

FORMAT = 5
Line = dict[str, Any]
_LOG = logging.getLogger("quire.recording")


def open_recording(path: Path) -> IO[str]:
    """Opens a file that is written line by line, so that a crash loses none, and readable only by its owner, since it
    contains prompts. An existing file is kept: the new one gets a number in its name, which is reported."""
    file = _opened(path)
    if file.name != str(path):
        _LOG.warning("%s is there already and stays: this engine is recorded in %s", path, file.name)
    return file


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        raise InputError(f"cannot record to {path}: recordings are written plain, name one without .gz")
    stem, dot, rest = path.name.partition(".")
    for number in itertools.count(1):
        try:
            path.touch(0o600, exist_ok=False)
            return path.open("w", buffering=1)
        except FileExistsError:
            path = path.with_name(f"{stem}-{number}{dot}{rest}")
        except OSError as error:
            raise InputError(f"cannot record to {path}: {error.strerror or error}") from error
    raise AssertionError("numbers do not end")


def require_recordable(path: Path) -> None:
    """Raises what `open_recording` would, before anything expensive happens, and leaves no file."""
    with _opened(path) as file:
        Path(file.name).unlink()


class RecordingEngine(Engine):
    """An engine that records all its inputs. Everything else about it is the same."""

    def __init__(
        self,
        file: IO[str],
        plan: Plan,
        runner: Runner,
        *,
        rules: Rules | None = None,
        tier: Tier | None = None,
        keeper: RecordStore | None = None,
        drafter: Drafter | None = None,
        overlap: int = 2,
        clock: Callable[[], float] = time.monotonic,
        listeners: Sequence[Listener] = (),
        failures: RowFailures | None = None,
    ) -> None:
        self._file, self._time_now = file, clock
        self._inputs: Line = {}
        self._is_stepping = self._is_noting = False
        rules = rules or Rules()
        head = {"plan": encode(plan), "rules": asdict(rules), "overlap": overlap, "tier": tier is not None}
        others = {"keeper": keeper is not None, "drafter": drafter is not None}
        self._write({"quire_recording": FORMAT, **head, **others})
        super().__init__(
            plan,
            _RecordedRunner(runner, self._inputs),
            rules=rules,
            tier=None if tier is None else _RecordedTier(tier, self._inputs),
            keeper=None if keeper is None else _RecordedKeeper(keeper, self._inputs),
            drafter=None if drafter is None else _RecordedDrafter(drafter, self._inputs),
            overlap=overlap,
            clock=lambda: self._note("clock", clock()),
            listeners=listeners,
            failures=failures,
        )

    def _note(self, what: str, value: float) -> float:
        if self._is_stepping or self._is_noting:  # other readings between steps influence no decision
            self._inputs.setdefault(what, []).append(value)
        return value

    def _write(self, line: Line) -> None:
        """A recording that cannot be continued ends where it is; the engine runs on."""
        if self._file.closed:
            return
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            why = error.strerror or error
            _LOG.warning("%s ends here, and the engine goes on without a recording: %s", self._file.name, why)
            with contextlib.suppress(OSError):  # the rest of the line is tried once more
                self._file.close()

    def _write_inputs(self, line: Line) -> None:
        self._write({**line, "at": self._time_now(), "inputs": self._inputs})
        self._inputs.clear()

    def submit(self, request: Request) -> Stream:
        fields = {name: getattr(request, name) for name in request.__dataclass_fields__}
        retain = None if request.retain is None else asdict(request.retain)
        own = {"prompt": request.prompt.tolist(), "sampling": asdict(request.sampling), "retain": retain}
        self._is_noting = True
        try:
            return super().submit(request)
        finally:  # one that is refused may have ended leases before
            self._is_noting = False
            self._write_inputs({"submit": {**fields, **own}})

    def cancel(self, name: str) -> None:
        super().cancel(name)
        if not self._is_stepping:  # within a step it follows from the step's inputs
            self._write_inputs({"cancel": name})

    def drop_cache(self, scope: str | None = None) -> int:
        units = super().drop_cache(scope)
        if not self._is_stepping:
            self._write_inputs({"drop_cache": scope})
        return units

    def lease(self, terms: LeaseTerms, scope: str, tokens: Tokens, now: float | None = None) -> LeaseAnswer:
        now = self.clock() if now is None else now
        asked = {"terms": {**asdict(terms), "scope": ""}, "scope": scope, "tokens": tokens.tolist(), "now": now}
        try:
            return super().lease(terms, scope, tokens, now)
        finally:  # one that is refused may have ended others before
            self._write_inputs({"lease": asked})

    def release_lease(self, name: str) -> bool:
        is_there = super().release_lease(name)
        self._write_inputs({"release": name})
        return is_there

    def note_action(self, action: Action) -> None:
        """Warm work is about to change the prefix index."""
        self._write_inputs({"action": action})

    def _fail(self, row: int, why: str) -> None:
        self._inputs.setdefault("failures", []).append([row, why])
        super()._fail(row, why)

    def step(self) -> bool:
        """The inputs of a step that raises an exception are written too: they matter most."""
        was_idle, self._is_stepping = self.scheduler.is_idle(), True
        try:
            return super().step()
        finally:
            self._is_stepping = False
            if was_idle:
                self._inputs.clear()
            else:
                self._write_inputs({"step": self.scheduler.steps})

    def close(self) -> None:
        super().close()
        self._file.close()


class _RecordedRunner:
    def __init__(self, runner: Runner, inputs: Line) -> None:
        self._runner, self._inputs = runner, inputs

    def launch(self, step: Step) -> None:
        self._inputs["batch"] = checksum(step)
        with self._noting("launch"):
            self._runner.launch(step)

    def collect(self) -> StepResult:
        with self._noting("collect"):
            result = self._runner.collect()
        self._inputs.pop("counts", None)  # of a result that arrived after its step was abandoned
        self._inputs["tokens"] = result.tokens.tolist()
        if result.counts is not None:
            self._inputs["counts"] = result.counts.tolist()
        return result

    @contextlib.contextmanager
    def _noting(self, where: str) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._inputs["raised"] = [where, repr(error)]
            raise


class _RecordedDrafter:
    def __init__(self, drafter: Drafter, inputs: Line) -> None:
        self._drafter, self._inputs = drafter, inputs
        self.enter, self.extend = drafter.enter, drafter.extend

    def propose(self, rows: Ints, counts: Ints, step_tokens: int) -> Mapping[int, Tokens]:
        drafts = self._drafter.propose(rows, counts, step_tokens)
        each = [drafts[place].tolist() if place in drafts else [] for place in range(len(rows))]
        self._inputs.setdefault("drafts", []).extend(each)
        return drafts


class _RecordedTier:
    def __init__(self, tier: Tier, inputs: Line) -> None:
        self._tier, self._inputs = tier, inputs

    def find(self, keys: Sequence[bytes], ends: Ends) -> Found:
        found = self._tier.find(keys, ends)
        self._inputs.setdefault("found", []).append(found)
        return found

    def begin(self, load: Load) -> None:
        self._tier.begin(load)

    def cancel(self, number: int) -> None:
        self._tier.cancel(number)

    def answers(self) -> Sequence[Answer]:
        answers = self._tier.answers()
        self._inputs.setdefault("answers", []).append([encode_answer(one) for one in answers])
        return answers


class _RecordedKeeper:
    def __init__(self, keeper: RecordStore, inputs: Line) -> None:
        self._keeper, self._inputs = keeper, inputs

    def renew(self, names: Sequence[bytes]) -> list[int]:
        lacking = self._keeper.renew(names)
        self._inputs.setdefault("lacking", []).append(lacking)
        return lacking

    def accept(self, name: bytes, size_bytes: int) -> Place | None:
        place = self._keeper.accept(name, size_bytes)
        self._inputs.setdefault("places", []).append(place and astuple(place))
        return place

    def give_up(self, number: int) -> None:
        self._keeper.give_up(number)

    def forget(self, scope: bytes) -> None:
        self._keeper.forget(scope)

    def seconds_to_load(self, size_bytes: int) -> float | None:
        seconds = self._keeper.seconds_to_load(size_bytes)
        self._inputs.setdefault("seconds_to_load", []).append(seconds)
        return seconds


def checksum(step: Step) -> int:
    """Over the rows and tokens of a step, all that is done before it, and the states that it captures."""
    total = 0
    captures = (np.array([one.entry, one.tokens, one.stage, one.kind, *one.pages]) for one in step.captures)
    copies = (part for copy in step.copies for part in copy[2:])
    for array in (step.rows, step.starts, step.counts, *copies, *captures):
        total = zlib.crc32(np.ascontiguousarray(array).tobytes(), total)
    stores = [
        (one.place, one.after, [(stage, kind, pages.tolist()) for stage, kind, pages in one.pages])
        for one in step.stores
    ]
    return zlib.crc32(repr((step.loads, stores)).encode(), total)
