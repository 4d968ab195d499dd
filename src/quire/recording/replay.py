"""Plays back what `quire.recording.recorder` wrote, up to any step: runner, tier and clock repeat their answers."""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quire.core.errors import InputError, QuireError
from quire.core.events import Listener
from quire.core.request import Request, Retain, Tokens
from quire.core.rules import Policy, Rules
from quire.core.sampling import Grammar, Sampling
from quire.core.step import Ints, Step, StepResult
from quire.core.tier import Answer, Ends, Found, Load, Place
from quire.engine.engine import Engine
from quire.plan.file import decode
from quire.prefix.leases import LeaseTerms
from quire.recording.answers import decode_answer
from quire.recording.recorder import FORMAT, Line, checksum
from quire.warm.actions import perform

LONGEST_LINE = 1 << 26
"""Characters. A short file may unpack to a line without an end."""


class Diverged(QuireError):
    """A replay differs from its recording: another version of Quire, or a bug."""


class _RaisedAgain(Exception):
    """Stands for the exception that the runner raised during the recording."""


@dataclass(frozen=True, slots=True)
class Interval:
    """When something that was recorded happened, in seconds of the recorded clock."""

    begin: float
    end: float
    is_step: bool
    """An iteration of the engine's loop; else a call, which takes no time."""


Watch = Callable[[Engine, Interval], None]


class _Played:
    """Runner, tier, keeper, drafter and clock of a replay: they repeat their recorded answers."""

    def __init__(self) -> None:
        self.line: Line = {}
        self._numbers: list[int] = []

    def _next(self, what: str) -> Any:
        if not self.line.get(what):
            raise Diverged(f"{what}: more is asked for than was recorded")
        return self.line[what].pop(0)

    def _raise_again(self, where: str) -> None:
        raised = self.line.get("raised", ("", ""))
        if raised[0] == where:
            raise _RaisedAgain(raised[1])

    def launch(self, step: Step) -> None:
        if self.line.get("batch") != checksum(step):
            raise Diverged(f"step {step.number} is not the one that was recorded")
        self._raise_again("launch")
        self._numbers.append(step.number)

    def collect(self) -> StepResult:
        self._raise_again("collect")
        if "tokens" not in self.line:
            raise Diverged("tokens: more is asked for than was recorded")
        counts = np.array(self.line["counts"], dtype=np.int64) if "counts" in self.line else None
        return StepResult(self._numbers.pop(0), np.array(self.line["tokens"], dtype=np.int64), counts)

    def enter(self, row: int, tokens: Tokens, scope: str) -> None: ...

    def extend(self, rows: Ints, tokens: Tokens) -> None: ...

    def propose(self, rows: Ints, counts: Ints, step_tokens: int) -> Mapping[int, Tokens]:
        del counts, step_tokens
        drafts = {place: np.array(self._next("drafts"), dtype=np.int32) for place in range(len(rows))}
        return {place: tokens for place, tokens in drafts.items() if len(tokens)}

    def clock(self) -> float:
        return float(self._next("clock"))

    def find(self, keys: Sequence[bytes], ends: Ends) -> Found:
        del keys, ends
        return Found(*self._next("found"))

    def begin(self, load: Load) -> None: ...

    def cancel(self, number: int) -> None: ...

    def answers(self) -> Sequence[Answer]:
        return [decode_answer(one) for one in self._next("answers")]

    def renew(self, names: Sequence[bytes]) -> list[int]:
        del names
        return list(self._next("lacking"))

    def accept(self, name: bytes, size_bytes: int) -> Place | None:
        del name, size_bytes
        place = self._next("places")
        return place and Place(place[0], tuple(place[1]))

    def give_up(self, number: int) -> None: ...

    def forget(self, scope: bytes) -> None: ...

    def seconds_to_load(self, size_bytes: int) -> float | None:
        del size_bytes
        seconds: float | None = self._next("seconds_to_load")
        return seconds


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


class Player:
    """Plays a recording call by call, and step by step."""

    def __init__(self, path: Path, listeners: Sequence[Listener] = (), say: Callable[[str], None] = _to_stderr) -> None:
        """`say`: called with where a truncated recording ends."""
        self._lines = _lines(path, say)
        head = next(self._lines, {})
        if head.get("quire_recording") != FORMAT:
            raise InputError(f"{path} is not a recording of format {FORMAT}: record one with quire serve --record")
        try:
            rules = Rules(**{**head["rules"], "policy": Policy(head["rules"]["policy"])})
            plan = decode(head["plan"])
            overlap, *has = (head[name] for name in ("overlap", "tier", "keeper", "drafter"))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path} is damaged in line 1 ({error!r}): copy it again") from None
        self._played = played = _Played()
        self.when: Interval | None = None
        """Of the last call or iteration that was played; None: none was."""
        self.engine = Engine(
            plan,
            played,
            rules=rules,
            tier=played if has[0] else None,
            keeper=played if has[1] else None,
            drafter=played if has[2] else None,
            overlap=overlap,
            clock=played.clock,
            pause=lambda: None,
            listeners=listeners,
        )

    def play(self) -> bool:
        """The next call or iteration. False: the recording is over."""
        line = next(self._lines, None)
        if line is None:
            return False
        self._played.line = line.get("inputs", {})
        self.when = _interval(line, 0.0 if self.when is None else self.when.end)
        _play(self.engine, line)
        return True

    def play_to(self, step: int) -> bool:
        """Until this many steps are launched. False: the recording has fewer."""
        while self.engine.scheduler.steps < step and self.play():
            pass
        return self.engine.scheduler.steps >= step


def replay(
    path: Path,
    to_step: int | None = None,
    listeners: Sequence[Listener] = (),
    say: Callable[[str], None] = _to_stderr,
    watch: Watch | None = None,
) -> Engine:
    """The engine as it was when `to_step` steps had been launched, or at the recording's end. `say`: called with where
    a truncated recording ends. `watch`: called after each call and each iteration of the loop."""
    player = Player(path, listeners, say)
    engine = player.engine
    while not (to_step is not None and 0 <= to_step <= engine.scheduler.steps) and player.play():
        if watch is not None and player.when is not None:
            watch(engine, player.when)
    if to_step is not None and not 0 <= to_step <= engine.scheduler.steps:
        raise InputError(f"{path} has no step {to_step:,}: choose one from 0 to {engine.scheduler.steps:,}")
    return engine


def _interval(line: Line, before: float) -> Interval:
    """Recordings that were made before lines had times have those of steps alone. `before`: the time so far."""
    readings = line.get("inputs", {}).get("clock", [])
    begin, end = (readings[0], readings[-1]) if readings else (before, before)
    end = line.get("at", end)
    return Interval(begin, end, True) if "step" in line else Interval(end, end, False)


def names_of(path: Path, client_id: str) -> list[str]:
    """The engine's names of the requests that a client called so, in the order of their arrival."""
    submitted = (line["submit"] for line in _lines(path, lambda _where: None) if "submit" in line)
    return [one["name"] for one in submitted if one.get("client_id") == client_id]


def _play(engine: Engine, line: Line) -> None:
    if "submit" in line:
        with contextlib.suppress(QuireError):  # it was refused in the recording too
            engine.submit(_request(line["submit"]))
    elif "cancel" in line:
        engine.cancel(line["cancel"])
    elif "drop_cache" in line:
        engine.drop_cache(line["drop_cache"])
    elif "lease" in line:
        asked = line["lease"]
        terms, tokens = LeaseTerms(**{**asked["terms"], "scope": b""}), np.array(asked["tokens"], dtype=np.int32)
        with contextlib.suppress(QuireError):
            engine.lease(terms, asked["scope"], tokens, asked["now"])
    elif "release" in line:
        engine.release_lease(line["release"])
    elif "action" in line:
        perform(engine, line["action"])
    else:
        for failure in line["inputs"].get("failures", ()):
            engine.failures.report(*failure)
        with contextlib.suppress(_RaisedAgain):
            engine.step()


def _request(fields: Line) -> Request:
    sampling = fields["sampling"]
    sampling = Sampling(
        **{
            **sampling,
            "logit_bias": tuple(map(tuple, sampling["logit_bias"])),
            "stop": tuple(sampling["stop"]),
            "grammar": sampling["grammar"] and Grammar(**sampling["grammar"]),
        }
    )
    prompt, stops = np.array(fields["prompt"], dtype=np.int32), tuple(fields["stop_tokens"])
    fields = {**fields, "points": tuple(fields.get("points", ()))}
    retain = Retain(**fields["retain"]) if fields.get("retain") else None
    return Request(**{**fields, "prompt": prompt, "stop_tokens": stops, "sampling": sampling, "retain": retain})


def _lines(path: Path, say: Callable[[str], None]) -> Iterator[Line]:
    number = 0
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), ""), 1):
                parsed = _parsed(line)
                if parsed is not None:
                    yield parsed
                else:
                    say(f"{path} is torn in line {number:,}: it is played up to there")
    except EOFError:
        say(f"{path} is torn behind line {number:,}: it is played up to there")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError, zlib.error) as error:
        raise InputError(f"{path} is not a recording: {error}") from error


def _parsed(line: str) -> Line | None:
    """None: the recording process was ended while it wrote this line, the last one."""
    if len(line) == LONGEST_LINE:
        raise ValueError(f"a line has more than {LONGEST_LINE:,} characters")
    try:
        parsed: Line = json.loads(line)
    except ValueError:
        if line.endswith("\n"):
            raise
        return None
    if not isinstance(parsed, dict):
        raise ValueError("a line is no object")
    return parsed
