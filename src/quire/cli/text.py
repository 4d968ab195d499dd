"""Plain text for terminals: tables, bars, and bold text if the terminal can show it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from quire.explain.bars import cells


def _has_colour() -> bool:
    return (
        sys.stdout is not None
        and sys.stdout.isatty()
        and "NO_COLOR" not in os.environ
        and os.environ.get("TERM") != "dumb"
    )


def bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if _has_colour() else text


def heading(text: str) -> None:
    print(f"\n{bold(text)}")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> None:
    """Columns as wide as they need; numbers to the right, the columns in `left` to the left."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = (c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
        return "  " + "  ".join(padded).rstrip()

    print(bold(line(head)))
    for row in rows:
        print(line(row))


def bar(parts: Sequence[tuple[str, int, str]], width: int = 72) -> None:
    """One line of blocks in proportion, and a legend. Parts: (name, size, block)."""
    total = sum(size for _, size, _ in parts) or 1
    counts = cells([size for _, size, _ in parts], width)
    print("  ┃" + "".join(block * count for (_, _, block), count in zip(parts, counts, strict=True)) + "┃")
    print("   " + "  ".join(f"{block} {name} {size / total:.1%}" for name, size, block in parts if size))
