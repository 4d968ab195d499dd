"""Bytes and tokens, read from and written for people."""

from __future__ import annotations

import re
from fractions import Fraction

from quire.core.errors import InputError

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

LARGEST = 1 << 60
_BYTE_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
}  # fmt: skip
_TOKEN_UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}
_NUMBER = re.compile(r"^\s*([0-9][0-9_,]*(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)\s*$")


def counted(number: int, noun: str) -> str:
    """`1 sheet`, `1,024 sheets`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _scaled(text: str, units: dict[str, int], what: str, example: str) -> int:
    match = _NUMBER.match(text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in units:
        raise InputError(f"{text!r} is not {what}: write it like {example}")
    digits = match.group(1).replace(",", "").replace("_", "")
    value = Fraction(digits) * units[unit]
    if value < 1 or value > LARGEST:
        raise InputError(f"{text!r} is not {what}: it must be at least 1 and at most {LARGEST:,}")
    return int(value)


def parse_bytes(text: str) -> int:
    """`80GiB` is 80·2³⁰, `80GB` is 80·10⁹, a bare number is bytes."""
    return _scaled(text, _BYTE_UNITS, "a size in bytes", "64.68GiB, 80GB or 8589934592")


def parse_tokens(text: str) -> int:
    """`128k` is 131,072 tokens, the way context lengths are quoted; a bare number is tokens, and whole."""
    if text.strip().replace(".", "", 1).isdecimal() and "." in text:
        raise InputError(f"{text!r} is not a number of tokens: it must be whole")
    return _scaled(text, _TOKEN_UNITS, "a number of tokens", "32768, 128k or 1m")


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
