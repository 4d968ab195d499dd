"""Records what an engine was given, and plays it back to any step. The engine depends on nothing else.

    first line   the plan, the rules, the overlap
    then         one line per call: submit, cancel, step (the clock's readings, the runner's tokens, the tier's answers,
                 what it takes in, what a drafter guessed)

A step's line also has a checksum of the batch that was launched: a replay that goes another way says where.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import IO, Any

import numpy as np

from quire.core.drafting import Drafter
from quire.core.errors import InputError, QuireError
from quire.core.events import Listener
from quire.core.request import GREEDY, Request, Tokens
from quire.core.rules import Policy, Rules
from quire.core.sampling import Sampling
from quire.core.step import Runner, Step, StepResult
from quire.core.tier import Answer, Ends, Found, Keeper, Load, Place, Tier
from quire.engine.engine import Engine, Stream
from quire.plan.file import decode, encode
from quire.plan.plan import Plan

FORMAT = 2
Line = dict[str, Any]
WITHOUT_DRAFTS = Sampling(logprobs=0)
"""Stands for any sampling that allows none: all that a replay must know of it."""


class RecordingEngine(Engine):
    """An engine that writes down everything it is given. Everything else about it is the same."""

    def __init__(
        self,
        file: IO[str],
        plan: Plan,
        runner: Runner,
        *,
        rules: Rules | None = None,
        tier: Tier | None = None,
        keeper: Keeper | None = None,
        drafter: Drafter | None = None,
        overlap: int = 2,
        clock: Callable[[], float],
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._file = file
        self._inputs: Line = {}
        self._is_stepping = False
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
        )

    def _note(self, what: str, value: float) -> float:
        self._inputs.setdefault(what, []).append(value)
        return value

    def _write(self, line: Line) -> None:
        self._file.write(json.dumps(line) + "\n")

    def submit(self, request: Request) -> Stream:
        fields = {name: getattr(request, name) for name in request.__dataclass_fields__ if name != "sampling"}
        drafts = request.sampling.allows_drafts
        self._write({"submit": {**fields, "prompt": request.prompt.tolist()}, "drafts": drafts})
        return super().submit(request)

    def cancel(self, name: str) -> None:
        super().cancel(name)
        if not self._is_stepping:  # within a step it follows from what the step was given
            self._write({"cancel": name, "inputs": dict(self._inputs)})
            self._inputs.clear()

    def fail(self, row: int, why: str) -> None:
        self._inputs.setdefault("failures", []).append([row, why])
        super().fail(row, why)

    def step(self) -> bool:
        self._is_stepping = True
        goes_on = super().step()
        self._is_stepping = False
        self._write({"step": dict(self._inputs)})
        self._inputs.clear()
        return goes_on


class _RecordedRunner:
    def __init__(self, runner: Runner, inputs: Line) -> None:
        self._runner, self._inputs = runner, inputs

    def launch(self, step: Step) -> None:
        self._inputs["batch"] = checksum(step)
        self._runner.launch(step)

    def collect(self) -> StepResult:
        result = self._runner.collect()
        self._inputs["tokens"] = result.tokens.tolist()
        if result.counts is not None:
            self._inputs["counts"] = result.counts.tolist()
        return result


class _RecordedDrafter:
    def __init__(self, drafter: Drafter, inputs: Line) -> None:
        self._drafter, self._inputs = drafter, inputs
        self.enter, self.extend = drafter.enter, drafter.extend

    def propose(self, row: int, count: int) -> Tokens:
        drafts = self._drafter.propose(row, count)
        self._inputs.setdefault("drafts", []).append(drafts.tolist())
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
        self._inputs.setdefault("answers", []).append([astuple(one) for one in answers])
        return answers


class _RecordedKeeper:
    def __init__(self, keeper: Keeper, inputs: Line) -> None:
        self._keeper, self._inputs = keeper, inputs

    def renew(self, names: Sequence[bytes]) -> list[int]:
        lacking = self._keeper.renew(names)
        self._inputs.setdefault("lacking", []).append(lacking)
        return lacking

    def accept(self, name: bytes, size_bytes: int) -> Place | None:
        place = self._keeper.accept(name, size_bytes)
        self._inputs.setdefault("places", []).append(place and astuple(place))
        return place

    def seconds_to_load(self, size_bytes: int) -> float | None:
        seconds = self._keeper.seconds_to_load(size_bytes)
        self._inputs.setdefault("seconds_to_load", []).append(seconds)
        return seconds


def checksum(step: Step) -> int:
    """Of who computes what in a step, and of all that is done before it."""
    total = 0
    for array in (step.rows, step.starts, step.counts, *(part for copy in step.copies for part in copy[2:])):
        total = zlib.crc32(np.ascontiguousarray(array).tobytes(), total)
    stores = [
        (one.place, one.after, [(stage, kind, pages.tolist()) for stage, kind, pages in one.pages])
        for one in step.stores
    ]
    return zlib.crc32(repr((step.loads, stores)).encode(), total)


class Diverged(QuireError):
    """A replay did something else than what was recorded: another version, or a bug."""


class _Played:
    """Runner, tier, keeper, drafter and clock of a replay: they say again what they said."""

    def __init__(self) -> None:
        self.line: Line = {}
        self._numbers: list[int] = []

    def launch(self, step: Step) -> None:
        if self.line.get("batch") != checksum(step):
            raise Diverged(f"step {step.number} is not the one that was recorded")
        self._numbers.append(step.number)

    def collect(self) -> StepResult:
        counts = np.array(self.line["counts"], dtype=np.int64) if "counts" in self.line else None
        return StepResult(self._numbers.pop(0), np.array(self.line["tokens"], dtype=np.int64), counts)

    def enter(self, row: int, tokens: Tokens) -> None: ...

    def extend(self, row: int, tokens: Tokens) -> None: ...

    def propose(self, row: int, count: int) -> Tokens:
        del row, count
        return np.array(self.line["drafts"].pop(0), dtype=np.int32)

    def clock(self) -> float:
        return float(self.line["clock"].pop(0))

    def find(self, keys: Sequence[bytes], ends: Ends) -> Found:
        del keys, ends
        return Found(*self.line["found"].pop(0))

    def begin(self, load: Load) -> None: ...

    def cancel(self, number: int) -> None: ...

    def answers(self) -> Sequence[Answer]:
        return [Answer(*one) for one in self.line["answers"].pop(0)]

    def renew(self, names: Sequence[bytes]) -> list[int]:
        del names
        return list(self.line["lacking"].pop(0))

    def accept(self, name: bytes, size_bytes: int) -> Place | None:
        del name, size_bytes
        place = self.line["places"].pop(0)
        return place and Place(place[0], tuple(place[1]))

    def seconds_to_load(self, size_bytes: int) -> float | None:
        del size_bytes
        seconds: float | None = self.line["seconds_to_load"].pop(0)
        return seconds


def replay(path: Path, to_step: int | None = None, listeners: Sequence[Listener] = ()) -> Engine:
    """The engine as it was when `to_step` steps had been launched, or at the recording's end."""
    lines = _lines(path)
    head = next(lines, {})
    if head.get("quire_recording") != FORMAT:
        raise InputError(f"{path} is not a recording of format {FORMAT}: record one with RecordingEngine")
    rules = Rules(**{**head["rules"], "policy": Policy(head["rules"]["policy"])})
    played = _Played()
    engine = Engine(
        decode(head["plan"]),
        played,
        rules=rules,
        tier=played if head["tier"] else None,
        keeper=played if head["keeper"] else None,
        drafter=played if head.get("drafter") else None,
        overlap=head["overlap"],
        clock=played.clock,
        pause=lambda: None,
        listeners=listeners,
    )
    for line in lines:
        if to_step is not None and engine.scheduler.steps >= to_step:
            break
        _play(engine, played, line)
    return engine


def _play(engine: Engine, played: _Played, line: Line) -> None:
    if "submit" in line:
        fields = line["submit"]
        tokens = np.array(fields["prompt"], dtype=np.int32)
        sampling = GREEDY if line.get("drafts", True) else WITHOUT_DRAFTS
        stops = tuple(fields["stop_tokens"])
        request = Request(**{**fields, "prompt": tokens, "stop_tokens": stops, "sampling": sampling})
        with contextlib.suppress(QuireError):  # it was refused then as well
            engine.submit(request)
    elif "cancel" in line:
        played.line = line["inputs"]
        engine.cancel(line["cancel"])
    else:
        played.line = line["step"]
        for failure in line["step"].get("failures", ()):
            engine.fail(*failure)
        engine.step()


def _lines(path: Path) -> Iterator[Line]:
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            for line in file:
                yield json.loads(line)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a recording: {error}") from error
