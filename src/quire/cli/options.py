"""The options that shape memory, the same in every command that plans."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from quire.build.machine import DEVICES
from quire.core.dtypes import DType, parse_dtype
from quire.core.errors import InputError
from quire.core.units import parse_bytes, parse_tokens
from quire.fetch.find import DEFAULT_MODEL
from quire.plan.settings import (
    DRAFT_TOKENS,
    KV_DTYPES,
    LARGEST_MATCH_UNIT,
    STATE_DTYPES,
)

Value = TypeVar("Value")
MOST_REQUESTS = 1 << 30
MOST_DIGITS = 18
WEIGHT_DTYPES = (DType.FP32, DType.BF16, DType.FP16)
RUN_KV_DTYPES = (*WEIGHT_DTYPES, DType.FP8)


def reading(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Our parsers' messages, as argparse wants them."""

    def read(text: str) -> Value:
        try:
            return parse(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def _whole(text: str) -> int:
    """Also a negative one: who takes it says from where on."""
    number = text.strip().replace("_", "")
    digits = number.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= MOST_DIGITS):
        raise InputError(f"{text!r} is not a whole number of up to {MOST_DIGITS} digits")
    return int(number)


def positive(text: str, least: int = 1) -> int:
    if not least <= _whole(text) <= MOST_REQUESTS:
        raise InputError(f"{text!r} is out of range: give {least} to {MOST_REQUESTS:,}")
    return _whole(text)


def seed(text: str) -> int:
    return positive(text, least=0)


def _one_of(option: str, known: Sequence[DType]) -> Callable[[str], DType]:
    def read(text: str) -> DType:
        names = ", ".join(dtype.value for dtype in known)
        try:
            dtype = parse_dtype(text)
        except InputError:
            raise InputError(f"{option} {text!r} is not known: choose one of {names}") from None
        if dtype not in known:
            raise InputError(f"{option} {dtype.value} is not one of {names}")
        return dtype

    return reading(read)


weights_dtype = _one_of("--dtype", WEIGHT_DTYPES)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_whole(item) for item in text.split(","))


def lengths(text: str) -> tuple[int, ...]:
    return tuple(parse_tokens(item) for item in text.split(","))


def _length_or_auto(text: str) -> int | None:
    return None if text == "auto" else parse_tokens(text)


def _page_tokens(text: str) -> MappingProxyType[str, int]:
    """`32`, or by kind: `full=32,window-1024=16`."""
    pages: dict[str, int] = {}
    for item in text.split(","):
        name, given, tokens = item.rpartition("=")
        if given and not name:
            raise InputError(f"{text!r} is not a page size: write 32, or by kind full=32,window=16")
        if name in pages:
            raise InputError(f"{text!r} gives {name or 'one page size'} twice: write 32, or by kind full=32,window=16")
        pages[name] = parse_tokens(tokens)
    return MappingProxyType(pages)


def add_planning_options(parser: argparse.ArgumentParser, shows_saved_plans: bool = False) -> None:
    files = "config.json, GGUF, shape" + (", saved plan" if shows_saved_plans else "")
    parser.add_argument("model", metavar="MODEL", help=f"catalogue name, folder, file ({files}) or hub id")
    add_memory_shape_options(parser)
    names = ", ".join(dtype.value for dtype in WEIGHT_DTYPES)
    parser.add_argument(
        "--dtype",
        type=weights_dtype,
        metavar="DTYPE",
        help=f"of the weights: {names} (default: as the checkpoint has them; fp32 on a CPU)",
    )
    add_ignore_option(parser)


def add_run_model_argument(parser: argparse.ArgumentParser) -> None:
    """Of commands that run what is named: it has weights."""
    where = f"a checkpoint's folder or a GGUF file (default: {DEFAULT_MODEL})"
    parser.add_argument("model", metavar="MODEL", nargs="?", help=where)


def add_ignore_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ignore-field",
        action="append",
        default=[],
        metavar="NAME",
        help="a field of the configuration that you know does not touch memory (may be repeated)",
    )


def add_memory_shape_options(parser: argparse.ArgumentParser, runs: bool = False) -> None:
    """`runs`: of a command that runs what it plans, so --device says where."""
    group = parser.add_argument_group("memory (none given: this machine)")
    if runs:
        add_device_options(group)
    else:
        group.add_argument("--device", help="a known accelerator: h200, h100, rtx-4090 …; cpu: this machine's")
    _add_memory_options(group)
    _add_limit_options(parser.add_argument_group("limits"))
    layout = parser.add_argument_group("layout")
    if runs:
        add_run_kv_dtype_option(layout)
    else:
        _add_kv_dtype_option(layout, KV_DTYPES, "bf16; as the weights on a CPU")
    _add_layout_options(layout)


def _add_memory_options(group: argparse._ArgumentGroup) -> None:
    size = reading(parse_bytes)
    group.add_argument("--memory", type=size, metavar="BYTES", help="of one device: 80GiB")
    part = "of it that may be used (default 0.92; 0.5 of this machine's main memory)"
    group.add_argument("--memory-fraction", type=float, metavar="F", help=part)
    group.add_argument("--pool", type=size, metavar="BYTES", help="fix the pool, per rank: 64.68GiB")
    group.add_argument("--sheets", type=reading(_numbers), metavar="N[,N…]", help="fix the pool in sheets, per stage")
    group.add_argument("--host-memory", type=size, metavar="BYTES", help="size a host tier of this budget")
    group.add_argument(
        "--host-block", type=reading(positive), metavar="N", help="tokens of its blocks (default: one match unit)"
    )


def add_device_options(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    group.add_argument(
        "--device", choices=DEVICES, default="auto", help="where the model runs (default auto: a GPU, if there is one)"
    )
    group.add_argument("--compile", action="store_true", help="on a GPU: faster steps, for some seconds at the start")
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="on a GPU: what a request yields does not depend on others (slower; compiles, with or without --compile)",
    )


def _add_limit_options(group: argparse._ArgumentGroup) -> None:
    whole, tokens = reading(_whole), reading(parse_tokens)
    length = reading(_length_or_auto)
    group.add_argument("--max-length", type=length, metavar="N|auto", help="longest request (default auto: what fits)")
    group.add_argument("--max-requests", type=whole, default=256, metavar="N", help="rows of tables (default 256)")
    group.add_argument("--batch-tokens", type=tokens, default=8192, metavar="N", help="tokens a step (default 8192)")
    group.add_argument("--speculative-tokens", type=whole, default=0, metavar="K", help="lookahead (default 0)")


def add_run_kv_dtype_option(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """Of commands that run a model: what can be planned and nothing runs is refused."""
    _add_kv_dtype_option(group, RUN_KV_DTYPES, "as the weights")


def _add_kv_dtype_option(
    group: argparse._ArgumentGroup | argparse.ArgumentParser, known: Sequence[DType], default: str
) -> None:
    names = ", ".join(dtype.value for dtype in known)
    group.add_argument(
        "--kv-dtype",
        type=_one_of("--kv-dtype", known),
        metavar="DTYPE",
        help=f"of keys and values: {names} (default {default})",
    )


def _add_layout_options(group: argparse._ArgumentGroup) -> None:
    whole = reading(_whole)
    state_dtypes = ", ".join(dtype.value for dtype in STATE_DTYPES)
    group.add_argument(
        "--state-dtype",
        type=_one_of("--state-dtype", STATE_DTYPES),
        metavar="DTYPE",
        help=f"{state_dtypes} (default: as the model says)",
    )
    group.add_argument(
        "--page-tokens",
        type=reading(_page_tokens),
        default=MappingProxyType({}),
        metavar="N|KIND=N,…",
        help="force page sizes (default: least waste)",
    )
    group.add_argument(
        "--match-unit",
        type=whole,
        default=LARGEST_MATCH_UNIT,
        metavar="N",
        help=f"tokens per prefix key (default {LARGEST_MATCH_UNIT})",
    )
    group.add_argument(
        "--reserved-pages",
        type=whole,
        default=0,
        metavar="N",
        help="pages of each kind that the backend keeps for itself (default 0)",
    )
    group.add_argument("--tensor-parallel", type=whole, default=1, metavar="N", help="ranks per stage (default 1)")
    group.add_argument("--pipeline-parallel", type=whole, default=1, metavar="N", help="stages (default 1)")
    group.add_argument("--stage-layers", type=reading(_numbers), metavar="N,N…", help="layers of each stage")


def add_draft_options(parser: argparse.ArgumentParser) -> None:
    """Of commands that plan for a draft model, or run one."""
    group = parser.add_argument_group("a draft model (none given: nobody guesses, or n-grams)")
    group.add_argument("--draft-model", metavar="MODEL", help="a smaller model with the same tokenizer guesses tokens")
    group.add_argument(
        "--draft-tokens", type=reading(positive), metavar="K", help=f"how many at most (default {DRAFT_TOKENS})"
    )


def add_tier_options(parser: argparse.ArgumentParser) -> None:
    """Of commands that run a model: where prefixes live beyond the pool."""
    group = parser.add_argument_group("tiers (none given: prefixes live in the pool alone)")
    group.add_argument("--host-memory", type=reading(parse_bytes), metavar="BYTES", help="keep prefixes there: 4GiB")
    add_store_options(group)


def add_store_options(group: argparse._ArgumentGroup) -> None:
    """The tiers beside host memory."""
    group.add_argument(
        "--disk", type=reading(_folder_and_quota), metavar="DIR[:QUOTA]", help="and in files: cache:50GiB"
    )
    group.add_argument("--remote", metavar="URL", help="and in a Redis or Valkey server: redis://[user:password@]host")
    group.add_argument(
        "--connector",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="and in a store of your own (docs/tiers.md)",
    )


def _folder_and_quota(text: str) -> tuple[Path, int | None]:
    """`DIR`, or `DIR:QUOTA` where what follows the last colon is a size."""
    folder, colon, quota = text.rpartition(":")
    if not colon:
        return Path(text), None
    if not folder:
        raise InputError(f"{text!r} names no folder: write DIR or DIR:50GiB")
    return Path(folder), parse_bytes(quota)
