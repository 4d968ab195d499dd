"""A plan as a page of its own: one HTML file with drawings, without scripts, that asks for nothing else.

Bars are SVG, whose widths are attributes: the page's policy allows one style, named by its hash, and no other.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from quire.core.units import format_bytes

Json = dict[str, Any]
COLOURS = ("#3b6fb6", "#c9702b", "#3f8f5b", "#8f5bb0", "#b8485c", "#7d7a2c", "#2f8f99", "#7c6552")
STYLE = (
    ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}"
    "body{max-width:62rem;margin:2rem auto;padding:0 1rem}h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:2rem}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}caption{text-align:left}"
    "th,td{text-align:left;font-weight:400;padding:.2rem 1.2rem .2rem 0;border-bottom:1px solid #8886}"
    "thead th{font-size:.85rem}.n{text-align:right}svg{display:block;width:100%;height:1.4rem;margin:.4rem 0}"
    ".no{color:light-dark(#b3261e,#ffb4ab);font-weight:600}"
)
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"


def plan_page(data: Json) -> str:
    """`data`: the plan's document (docs/plan.md)."""
    title = f"The plan of {data['model']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>For {escape(data['planned_for'])}. {_verdict(data)}</p>",
        *_ledger(data),
        *_pages(data),
        *_lengths(data),
        *(_ranks(data) if len(data["ranks"]) > 1 else ()),
        *_notes(data),
        f"<p>Fingerprint {escape(data['fingerprint'][:16])}…</p>",
    ]
    return _html(title, "\n".join(parts))


def _html(title: str, body: str) -> str:
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><main>\n{body}\n</main></body></html>\n'


def _verdict(data: Json) -> str:
    if not data["fits"]:
        return f'<strong class="no">It does not fit: {escape(data["problem"])}</strong>'
    return f"Requests of up to {data['max_length']:,} tokens, prompt and output together, are admitted."


def _ledger(data: Json) -> Iterable[str]:
    lines = data["ledger"]
    total = sum(line["bytes"] for line in lines)
    yield "<h2>Memory of one device</h2>"
    yield _bar([(line["name"], line["bytes"]) for line in lines], f"Planned: {format_bytes(total)}")
    rows = [
        (
            line["name"],
            format_bytes(line["bytes"]),
            f"{line['bytes'] / total:.1%}" if total else "–",
            line["basis"],
            line["detail"],
        )
        for line in lines
    ]
    yield _table(("use", "memory", "share", "basis", ""), rows, numbers=(1, 2))


def _pages(data: Json) -> Iterable[str]:
    sheet = format_bytes(data["sheet_bytes"])
    yield "<h2>Pages</h2>"
    yield f"<p>The pool has {data['sheets']:,} sheets of {sheet}. A sheet holds pages of one kind at a time.</p>"
    rows = [
        (
            kind["name"],
            f"{kind['layers']:,}",
            f"{kind['page_tokens']:,}",
            format_bytes(kind["page_bytes"]),
            f"{kind['pages_per_sheet']:,}",
        )
        for kind in data["kinds"]
    ]
    head = ("kind", "layers", "tokens in a page", "page", "pages in a sheet")
    yield _table(head, rows, numbers=(1, 2, 3, 4))


def _lengths(data: Json) -> Iterable[str]:
    held = data["concurrency"]
    if not held:
        return
    yield "<h2>Requests at once</h2>"
    kinds = [kind["name"] for kind in data["kinds"]]
    rows = [
        (
            f"{int(length):,}",
            f"{count:,}",
            f"{data['concurrency_with_prefill'][length]:,}",
            "–" if data["waste"][length] is None else f"{data['waste'][length]:.2%}",
            *(f"{data['demand'][length][name]:,}" for name in kinds),
        )
        for length, count in held.items()
    ]
    head = ("tokens of each", "in decode", "next to a prompt", "waste", *(f"pages of {name}" for name in kinds))
    yield _table(head, rows, numbers=range(len(head)))


def _ranks(data: Json) -> Iterable[str]:
    yield "<h2>Devices</h2>"
    rows = [
        (
            str(rank["rank"]),
            str(rank["stage"]),
            f"{rank['first_layer']} – {rank['first_layer'] + rank['layers'] - 1}",
            f"{rank['sheets']:,}",
            format_bytes(rank["pool_bytes"]),
        )
        for rank in data["ranks"]
    ]
    yield _table(("rank", "stage", "layers", "sheets", "pool"), rows, numbers=(3, 4))


def _notes(data: Json) -> Iterable[str]:
    if data["notes"]:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in data["notes"]) + "</ul>"


def _bar(parts: Sequence[tuple[str, int]], title: str) -> str:
    """Parts of a whole, in order; the table below has the same numbers."""
    total, left, drawn = sum(size for _, size in parts), 0, []
    for place, (name, size) in enumerate(parts):
        if size:
            text = f"<title>{escape(name)}: {format_bytes(size)}</title>"
            begin, width = 1000 * left / total, 1000 * size / total
            colour = COLOURS[place % len(COLOURS)]
            drawn.append(f'<rect x="{begin:.2f}" width="{width:.2f}" height="20" fill="{colour}">{text}</rect>')
        left += size
    label = escape(f"{title}. " + ", ".join(f"{name} {format_bytes(size)}" for name, size in parts))
    return (
        f'<svg viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" aria-label="{label}">{"".join(drawn)}</svg>'
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[int]) -> str:
    right = set(numbers)

    def cells(row: Sequence[str], tag: str, more: str = "") -> str:
        return "".join(
            f"<{tag}{more}{' class=n' if place in right else ''}>{escape(cell)}</{tag}>"
            for place, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{cells(head, 'th', ' scope=col')}</tr></thead><tbody>{body}</tbody></table>"
