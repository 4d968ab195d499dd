"""Sizes and lengths as people write them."""

from __future__ import annotations

import pytest

from quire.core.dtypes import DType, parse_dtype
from quire.core.errors import InputError
from quire.core.units import GIB, format_bytes, format_tokens
from quire.options.texts import parse_bytes, parse_tokens


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * GIB),
        ("80 gib", 80 * GIB),
        ("80GB", 80 * 10**9),
        ("1_000", 1000),
        ("64.68GiB", int(64.68 * GIB)),
        ("7B", 7),
    ],
)
def test_bytes_are_read_in_binary_and_decimal_units(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1.2.3GiB", "80 elephants", "0", "0.2", "nan", "1e9"])
def test_nonsense_sizes_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match="is not a size in bytes"):
        parse_bytes(text)


def test_lengths_are_quoted_in_units_of_1024() -> None:
    assert parse_tokens("128k") == 131_072
    assert parse_tokens("1m") == 1 << 20
    assert format_tokens(131_072) == "128k"
    assert format_tokens(5001) == "5,001"


def test_bytes_are_written_in_binary_units() -> None:
    assert format_bytes(64 * GIB) == "64.00 GiB"
    assert format_bytes(512) == "512 B"
    assert format_bytes(-2 * GIB) == "-2.00 GiB"


def test_dtypes_are_read_in_the_spelling_of_configurations() -> None:
    assert parse_dtype("torch.bfloat16") is DType.BF16
    assert parse_dtype("FP8") is DType.FP8
    with pytest.raises(InputError, match="choose one of"):
        parse_dtype("int3")
