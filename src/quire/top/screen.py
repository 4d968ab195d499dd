"""The screen of `quire top`: one frame for a pipe, or a new one twice a second until it is interrupted."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from quire.inspect.document import Json
from quire.top import parts
from quire.top.server import NoAnswer, Server

FRAME_SECONDS = 0.5
PIPE_COLUMNS = 1000
"""Lines of a pipe are as long as they need to be."""
LEAST_ROWS = 3
"""Requests that are shown on however small a terminal."""
TABLE_LINES = 6
"""Of the table of requests, besides its rows: an empty line, head, rule, two notes, and a line about the server."""


def frame(document: Json, now: float, most_rows: int | None = None, width: int = PIPE_COLUMNS) -> list[RenderableType]:
    """`now`: Unix time. `most_rows`: requests that are shown; None: all."""
    groups = [
        parts.status(document),
        parts.memory(document),
        parts.requests(document, most_rows, width),
        parts.reuse(document),
        parts.sessions(document, now),
        parts.tiers(document),
    ]
    found: list[RenderableType] = []
    for group in filter(None, groups):
        found += [*([Text("")] if found else []), *group]
    return found


def fitting(document: Json, now: float, console: Console) -> list[RenderableType]:
    """With as many requests as the terminal has lines for."""
    others = console.render_lines(Group(*frame({**document, "requests": None}, now)), pad=False)
    rows = max(LEAST_ROWS, console.height - len(others) - TABLE_LINES)
    return frame(document, now, rows, console.width)


def show_once(server: Server) -> None:
    """As plain text, if standard output is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, color_system=None, width=PIPE_COLUMNS)
    console.print(*frame(server.document(), time.time(), width=console.width), sep="\n")


def watch(server: Server) -> None:
    """Until it is interrupted. A server that stops answering is asked again, and its last frame stays."""
    console = Console(highlight=False)
    document = server.document()
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        trouble, heard = "", time.monotonic()
        while True:
            begun = time.monotonic()
            lost = [lost_line(trouble, begun - heard)] if trouble else []
            live.update(Group(*lost, *fitting(document, time.time(), console)), refresh=True)
            time.sleep(max(0.0, FRAME_SECONDS - (time.monotonic() - begun)))
            try:
                document, trouble, heard = server.document(), "", time.monotonic()
            except NoAnswer as error:
                trouble = str(error)


def lost_line(trouble: str, seconds: float) -> Text:
    return Text(f" {parts.shown(trouble)} What follows is {seconds:,.0f} s old. ", style=parts.BAD)
