"""What the screen shows is what the document says, whatever its size, its state and its names."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from quire.core.rules import Policy, Rules
from quire.engine.engine import Engine
from quire.inspect.document import ServerView, Subject, document
from quire.inspect.look import look
from quire.inspect.reader import Reader
from quire.inspect.views import LeaseView
from quire.tiers.status import TierStatus
from quire.top import parts
from quire.top.screen import fitting, frame, lost_line
from small_engines import engine_for, request, small_plan

NOW = 1_000.0


def busy_engine(requests: int = 6, name: str = "r", **more: Any) -> Engine:
    engine, _ = engine_for(small_plan(["full", "window"], 24, rows=3), rules=Rules(policy=Policy.FAIR))
    for number in range(requests):
        engine.submit(request(f"{name}{number}", 40, 30, shared=20, tenant="alice", **more))
    for _ in range(6):
        engine.step()
    return engine


def shown(engine: Engine | None, reader: Reader | None = None, **more: Any) -> dict[str, Any]:
    plan = small_plan(["full", "window"], 24, rows=3) if engine is None else engine.scheduler.plan
    server = ServerView(**{"source": "server", "state": "ready", "steps": 6, "running": 3, **more})
    return document(Subject.of(plan), server, None if engine is None else look(engine), reader)


def text_of(found: dict[str, Any], columns: int = 1000, **more: Any) -> str:
    file = io.StringIO()
    Console(file=file, width=columns, color_system=None, highlight=False).print(*frame(found, NOW, **more), sep="\n")
    return file.getvalue()


def test_every_request_has_its_numbers_and_its_reason() -> None:
    found = shown(busy_engine())
    table, lines = found["requests"]["table"], text_of(found).splitlines()
    reasons = found["requests"]["reasons"]["text"]
    assert reasons
    for place, name in enumerate(table["name"]):
        (line,) = [one for one in lines if one.startswith(name + " ")]
        outputs = table["known"][place] - table["prompt"][place]
        expected = [table["prompt"][place], table["computed"][place], outputs, table["limit"][place]]
        assert set(map(str, expected)) <= set(line.split())
        assert found["requests"]["states"][table["state"][place]] in line
        waits = table["reason"][place] < len(reasons)
        assert (f"{table['at_most_steps'][place]:,} steps" in line) == waits
        assert not waits or reasons[table["reason"][place]] in line


def test_the_bar_of_the_pool_has_a_block_for_each_kind_and_a_dot_for_what_is_free() -> None:
    found = shown(busy_engine())
    (stage,) = found["pool"]["stages"]
    (bar,) = [line for line in text_of(found).splitlines() if parts.FREE * 3 in line]
    drawn = bar[: parts.BAR_CELLS]
    assert len(drawn.strip()) == parts.BAR_CELLS
    for place, kind in enumerate(stage["kinds"]):
        share = kind["sheets"] / stage["sheets"] * parts.BAR_CELLS
        assert abs(drawn.count(parts.block(place)) - share) <= 1
    assert f"{stage['free_sheets']} of {stage['sheets']} sheets free" in bar


def test_leases_tiers_and_reuse_are_shown_where_there_are_any() -> None:
    engine = busy_engine()
    lease = LeaseView("session-9", "alice", 128, 1 << 20, "pool", NOW + 42)
    moved, seconds, ways = {"read": 1 << 20, "write": 0}, {"read": 0.5, "write": 0.0}, {"read": 1, "write": 0}
    tier = TierStatus("host", True, False, 7, 2, moved, ways, seconds, ways, {})
    server = ServerView("server", "ready", tiers=(tier,))
    text = text_of(document(Subject.of(engine.scheduler.plan), server, replace(look(engine), leases=(lease,))))
    (line,) = [line for line in text.splitlines() if line.startswith("session-9")]
    assert line.split() == ["session-9", "alice", "128", "1.00", "MiB", "pool", "42", "s"]
    (line,) = [line for line in text.splitlines() if line.startswith("host")]
    assert line.split()[:3] == ["host", "up", "down"]
    assert "1.00 MiB" in line
    assert "prompt tokens found" in text
    assert "no_overlap" in text
    empty = text_of(shown(None))
    assert not [word for word in ("lease ", "tier ", "reuse:") if word in empty]


@pytest.mark.parametrize("state", ["starting", "dead", "frozen", "silent", "draining"])
def test_a_state_that_is_not_ready_is_shown_with_its_reason_also_before_any_view(state: str) -> None:
    for engine in (None, busy_engine()):
        lines = text_of(shown(engine, state=state, reason="the engine's process ended: killed")).splitlines()
        assert f" · {state} · " in lines[0]
        assert "the engine's process ended: killed" in lines[1]


def test_names_cannot_command_the_terminal() -> None:
    """Clients choose the names of sessions; an escape sequence in one could rewrite an admin's screen. Rich's own
    markup is text, too."""
    name = "\x1b]0;owned\x07[red]\u202e\x9b2J"
    engine = busy_engine(1, name=name)
    file = io.StringIO()
    Console(file=file, width=300, force_terminal=True).print(*frame(shown(engine, reason=name, state="dead"), NOW))
    text = file.getvalue()
    assert "]0;owned?[red]" in text
    assert not [one for one in ("\x1b]", "\x07", "\u202e", "\x9b") if one in text]


def test_requests_of_others_are_a_sum() -> None:
    engine = busy_engine(2)
    engine.submit(request("hers", 40, 30, tenant="mallory"))
    reader = Reader("alice", {name for name in engine.history.names if name != "hers"})
    text = text_of(shown(engine, reader))
    assert "other tenants: 0 running, 1 waiting" in text
    assert "mallory" not in text
    assert "hers" not in text


@pytest.mark.parametrize("lines", [24, 40, 100])
@pytest.mark.parametrize("columns", [80, 120, 200])
def test_a_frame_fits_the_terminal(lines: int, columns: int) -> None:
    """However many requests there are; what is left out is counted. Below some 24 lines it is cut at the end."""
    found = shown(busy_engine(60))
    console = Console(file=io.StringIO(), width=columns, height=lines, color_system=None)
    with console.capture() as capture:
        console.print(*fitting(found, NOW, console), sep="\n")
    drawn = capture.get().splitlines()
    names = [line for line in drawn if line.startswith("r") and line.split()[0] in found["requests"]["table"]["name"]]
    assert len(drawn) <= lines
    assert max(map(len, drawn)) <= columns
    left = len(found["requests"]["table"]["name"]) - len(names)
    assert (f"… and {left} more" in "\n".join(drawn)) == (left > 0)


def test_what_is_old_says_how_old() -> None:
    assert "What follows is 3 s old." in lost_line("cannot reach http://x: refused.", 3.2).plain


def test_a_pipe_gets_every_request() -> None:
    found = shown(busy_engine(300))
    lines = text_of(found).splitlines()
    assert sum(line.startswith("r") and "steps" in line for line in lines) == found["requests"]["waiting"] == 297
