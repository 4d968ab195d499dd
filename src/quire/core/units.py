"""Bytes and tokens as they are written for people."""

from __future__ import annotations

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40


def format_count(number: int, noun: str) -> str:
    """`1 sheet`, `1,024 sheets`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def format_bytes(size: int) -> str:
    """Three or four significant digits, binary units: `64.68 GiB`."""
    sign, size = ("-", -size) if size < 0 else ("", size)
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{sign}{size / unit:.2f} {name}"
    return f"{sign}{size} B"


def format_tokens(tokens: int) -> str:
    """`128k` where that is exact, digits in groups otherwise."""
    if tokens >= 1 << 20 and tokens % (1 << 20) == 0:
        return f"{tokens >> 20}m"
    if tokens >= 1024 and tokens % 1024 == 0:
        return f"{tokens >> 10:,}k"
    return f"{tokens:,}"


def ceil_div(amount: int, unit: int) -> int:
    return -(-amount // unit)


def round_up(amount: int, unit: int) -> int:
    return ceil_div(amount, unit) * unit
