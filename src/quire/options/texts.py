"""Reads the text of options. Each mistake is an `InputError` that says what may be written."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

from quire.core.dtypes import DType, parse_dtype
from quire.core.errors import InputError
from quire.core.units import GIB, KIB, MIB, TIB

GREATEST_COUNT = 1 << 30
MOST_DIGITS = 18
LARGEST = 1 << 60
_BYTE_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
}  # fmt: skip
_TOKEN_UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}
_NUMBER = re.compile(r"^\s*([0-9][0-9_,]*(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)\s*$")


def whole(text: str) -> int:
    """Also a negative number: the option itself checks its range."""
    number = text.strip().replace("_", "")
    digits = number.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= MOST_DIGITS):
        raise InputError(f"{text!r} is not a whole number of up to {MOST_DIGITS} digits")
    return int(number)


def positive(text: str, least: int = 1) -> int:
    if not least <= whole(text) <= GREATEST_COUNT:
        raise InputError(f"{text!r} is out of range: give {least} to {GREATEST_COUNT:,}")
    return whole(text)


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


def bytes_or_zero(text: str) -> int:
    """A size in bytes; 0 is one too."""
    return 0 if text.strip() == "0" else parse_bytes(text)


def parse_tokens(text: str) -> int:
    """`128k` is 131,072 tokens, the way context lengths are quoted; a bare number is tokens, and whole."""
    if text.strip().replace(".", "", 1).isdecimal() and "." in text:
        raise InputError(f"{text!r} is not a number of tokens: it must be whole")
    return _scaled(text, _TOKEN_UNITS, "a number of tokens", "32768, 128k or 1m")


def names_of(dtypes: Sequence[DType]) -> str:
    return ", ".join(dtype.value for dtype in dtypes)


def dtype_among(option: str, known: Sequence[DType]) -> Callable[[str], DType]:
    """A reader of the data types that an option can have."""

    def read(text: str) -> DType:
        names = names_of(known)
        try:
            dtype = parse_dtype(text)
        except InputError:
            raise InputError(f"{option} {text!r} is not known: choose one of {names}") from None
        if dtype not in known:
            raise InputError(f"{option} {dtype.value} is not one of {names}")
        return dtype

    return read


def folder_and_quota(text: str) -> tuple[Path, int | None]:
    """`DIR`, or `DIR:QUOTA` where what follows the last colon is a size."""
    folder, colon, quota = text.rpartition(":")
    if not colon:
        return Path(text), None
    if not folder:
        raise InputError(f"{text!r} names no folder: write DIR or DIR:50GiB")
    return Path(folder), parse_bytes(quota)
