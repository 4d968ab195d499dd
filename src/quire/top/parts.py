"""The parts of the screen: each is made of one view of the document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from quire.core.units import format_bytes
from quire.explain.bars import cells
from quire.inspect.document import Json

BLOCKS = "█▓▒░▚▞▤▥"
"""Of kinds, in their order; so that a bar can be read without colours."""
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")
FREE = "·"
BAR_CELLS = 48
NARROW = ((150, ("tenant", "reused", "computed", "likely")), (100, ("limit", "memory")))
"""Columns that a terminal narrower than this has no room for."""
NAME_LETTERS = 14
"""Of a request's name on a narrow terminal: its beginning and its end."""
GOOD, BAD = "green", "bold white on red"


def shown(text: Any) -> str:
    """Text of a server as a terminal may have it: clients choose names, and could send its commands in them."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def status(document: Json) -> list[RenderableType]:
    """One line; below it, in red, what is wrong."""
    view = document["status"]
    waiting = ", ".join(f"{count:,} {code}" for code, count in view["waiting_by"].items())
    step = view["step_milliseconds"]
    facts = [
        shown(document["model"]),
        view["state"],
        f"{view['running']:,} running",
        f"{view['waiting']:,} waiting" + (f" ({waiting})" if waiting else ""),
        f"step {view['steps']:,}" + ("" if step is None else f", {step:g} ms"),
        f"audit {view['audit']}",
        *([f"{view['restarts']:,} restarts"] if view["restarts"] else []),
    ]
    line = Text(" · ".join(facts), style="bold")
    line.highlight_words([view["state"]], GOOD if view["state"] in ("ready", "recorded") else BAD)
    reasons = [view["reason"], view["audit_error"]]
    return [line, *(Text(f" {shown(reason)} ", style=BAD) for reason in reasons if reason)]


def memory(document: Json) -> list[RenderableType]:
    """The pool: a bar of each stage by kind, and the pages of each kind by state."""
    stages = [] if document["pool"] is None else document["pool"]["stages"]
    found: list[RenderableType] = [_sizes(document["memory"])]
    found += [_bar(stage, len(stages) > 1) for stage in stages]
    rows = [_kind(place, kind, stage, len(stages) > 1) for stage in stages for place, kind in enumerate(stage["kinds"])]
    return [*found, *_table(("", "kind", "sheets", "memory", "used", "cached", "leased", "free pages"), rows, left=2)]


def block(place: int) -> str:
    return BLOCKS[place % len(BLOCKS)]


def _sizes(view: Json) -> Text:
    pool = view["pool"]
    states = () if pool is None else ("used", "cached", "leased", "free")
    parts = [f"pool {format_bytes(view['pool_bytes'])}", *(f"{state} {format_bytes(pool[state])}" for state in states)]
    resident = view["resident_bytes"]
    return Text(" · ".join([*parts, *([] if resident is None else [f"engine's process {format_bytes(resident)}"])]))


def _bar(stage: Json, is_named: bool) -> Text:
    sizes = [kind["sheets"] for kind in stage["kinds"]]
    bar = Text(f"stage {stage['stage']} " if is_named else "")
    counts = cells([*sizes, stage["free_sheets"]], BAR_CELLS)
    for place, count in enumerate(counts[:-1]):
        bar.append(block(place) * count, COLOURS[place % len(COLOURS)])
    return bar.append(FREE * counts[-1]).append(f" {stage['free_sheets']:,} of {stage['sheets']:,} sheets free")


def _kind(place: int, kind: Json, stage: Json, is_named: bool) -> tuple[str, ...]:
    name = kind["kind"] + (f" (stage {stage['stage']})" if is_named else "")
    pages = (f"{kind[state + '_pages']:,}" for state in ("used", "cached", "leased", "free"))
    return block(place), name, f"{kind['sheets']:,}", format_bytes(kind["sheets"] * stage["sheet_bytes"]), *pages


def requests(document: Json, most_rows: int | None, width: int) -> list[RenderableType]:
    """`most_rows` None: all of them. On a narrow terminal columns are left out, so that reasons can be read."""
    view = document["requests"]
    if view is None:
        return []
    without = [name for least, names in NARROW if width < least for name in names]
    rows = [_request(row, view, bool(without)) for row in _rows(view["table"], most_rows)]
    head = ("request", "tenant", "state", "prompt", "reused", "computed", "output", "likely", "limit", "memory")
    left = len(view["table"]["name"]) - len(rows)
    others = view["others"]
    notes = [f"… and {left:,} more"] if left else []
    if others["running"] or others["waiting"]:
        size = format_bytes(others["size_bytes"])
        notes.append(f"other tenants: {others['running']:,} running, {others['waiting']:,} waiting, {size}")
    why = ("starts within", "waits because")
    table = _table((*head, *why), rows, left=3, has_text=True, without=without)
    return [*(table or [Text("no requests", style="dim")]), *(Text(note, style="dim") for note in notes)]


def _request(row: Json, view: Json, is_narrow: bool) -> tuple[str, ...]:
    """A request that runs has no reason, and starts no more."""
    texts = view["reasons"]["text"]
    waits = row["reason"] < len(texts)
    tokens = (row["prompt"], row["found"] + row["loaded"], row["computed"], row["known"] - row["prompt"])
    preempted = f"(preempted {row['preemptions']:,}×)" if row["preemptions"] else ""
    name = row["name"]
    if is_narrow and len(name) > NAME_LETTERS:
        name = f"{name[: NAME_LETTERS - 5]}…{name[-4:]}"
    return (
        name,
        row["tenant"],
        view["states"][row["state"]],
        *(f"{count:,}" for count in (*tokens, row["likely"], row["limit"])),
        format_bytes(row["bytes"]),
        f"{row['at_most_steps']:,} steps" if waits else "",
        " ".join(filter(None, (texts[row["reason"]] if waits else "", preempted))),
    )


def reuse(document: Json) -> list[RenderableType]:
    """Since the engine started; for a key that is no admin's, of its latest lookups."""
    view = document["reuse"]
    if view is None or not view["prompt_tokens"]:
        return []
    found, asked = view["found_tokens"], view["prompt_tokens"]
    lookups = ", ".join(f"{count:,} {shown(name)}" for name, count in view["results"].items() if count)
    lines = [f"reuse: {found:,} of {asked:,} prompt tokens found ({found / asked:.0%}); lookups: {lookups}"]
    if missed := ", ".join(f"{count:,} {name}" for name, count in view["missed"].items() if count):
        lines.append(f"computed again by cause: {missed}")
    return [Text(line) for line in lines]


def sessions(document: Json, now: float) -> list[RenderableType]:
    """Leases, with the seconds that they have left; and what tenants have of their shares."""
    view = document["sessions"]
    if view is None:
        return []
    leases = [_lease(row, now) for row in _rows(view["leases"])]
    tenants = [_tenant(row) for row in _rows(view["tenants"])]
    return [
        *_table(("lease", "tenant", "tokens", "memory", "where", "ends in"), leases, left=2),
        *_table(("tenant", "weight", "rows", "share of rows", "waiting", "memory"), tenants, left=1),
    ]


def _lease(row: Json, now: float) -> tuple[str, ...]:
    left = "after its request" if row["until"] is None else f"{max(0.0, row['until'] - now):,.0f} s"
    return row["name"], row["tenant"], f"{row['tokens']:,}", format_bytes(row["bytes"]), row["where"], left


def _tenant(row: Json) -> tuple[str, ...]:
    rows = f"{row['running']:,}", f"{row['share_rows']:g}", f"{row['waiting']:,}"
    return row["name"], f"{row['weight']:g}", *rows, format_bytes(row["bytes"])


def tiers(document: Json) -> list[RenderableType]:
    head = ("tier", "read", "write", "reading", "writing", "bytes read", "bytes written", "hits", "misses", "failures")
    return _table(head, [_tier(row) for row in _rows(document["tiers"])], left=3)


def _tier(row: Json) -> tuple[str, ...]:
    up = ("up" if row[can] else "down" for can in ("can_read", "can_write"))
    flying = (f"{row[way]:,}" for way in ("read_in_flight", "write_in_flight"))
    sizes = (format_bytes(row[way]) for way in ("read_bytes", "write_bytes"))
    return row["name"], *up, *flying, *sizes, *(_count(row[count]) for count in ("hits", "misses", "failures"))


def _count(number: int | None) -> str:
    """None: the key may not see it."""
    return "–" if number is None else f"{number:,}"


def _rows(table: Mapping[str, Sequence[Any]], most: int | None = None) -> list[Json]:
    """A table of columns as rows."""
    count = len(next(iter(table.values())))
    return [{name: column[row] for name, column in table.items()} for row in range(min(count, most or count))]


def _table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int,
    has_text: bool = False,
    without: Sequence[str] = (),
) -> list[RenderableType]:
    """Nothing, if there are no rows. `left`: columns of text, before those of numbers; `has_text`: the last one is text
    too. Columns that are empty are left out, and those in `without`. Each row is one line, however narrow it is."""
    if not rows:
        return []
    columns = [place for place, name in enumerate(head) if name not in without and any(row[place] for row in rows)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for place in columns:
        is_text = place < left or (has_text and place == len(head) - 1)
        least = None if has_text and place == len(head) - 1 else max(len(row[place]) for row in (head, *rows))
        table.add_column(head[place], justify="left" if is_text else "right", no_wrap=True, min_width=least)
    for row in rows:
        table.add_row(*(Text(shown(row[place])) for place in columns))
    return [table]
