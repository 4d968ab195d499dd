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
        help=f"data type of the weights: {names} (default: the checkpoint's; fp32 on a CPU)",
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
        help="ignore this unknown configuration field, because it does not affect memory (may be repeated)",
    )


def add_memory_shape_options(parser: argparse.ArgumentParser, runs: bool = False) -> None:
    """`runs`: of a command that runs what it plans, so --device says where."""
    group = parser.add_argument_group("memory (default: this machine's)")
    if runs:
        add_device_options(group)
    else:
        group.add_argument(
            "--device", help="plan for this accelerator: h200, h100, rtx-4090, …; cpu: this machine's main memory"
        )
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
    group.add_argument("--memory", type=size, metavar="BYTES", help="memory of one device, for example 80GiB")
    part = "fraction of device memory that Quire may use (default 0.92; 0.5 of main memory on a CPU)"
    group.add_argument("--memory-fraction", type=float, metavar="F", help=part)
    group.add_argument(
        "--pool",
        type=size,
        metavar="BYTES",
        help="size of the KV pool of each rank, for example 64.68GiB (default: what is left)",
    )
    group.add_argument(
        "--sheets",
        type=reading(_numbers),
        metavar="N[,N…]",
        help="size of the KV pool in sheets, for each pipeline stage",
    )
    group.add_argument(
        "--host-memory", type=size, metavar="BYTES", help="cache prefixes in this much host memory, for example 4GiB"
    )
    group.add_argument(
        "--host-block",
        type=reading(positive),
        metavar="N",
        help="block size of the host cache in tokens (default: one match unit)",
    )


def add_device_options(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    group.add_argument(
        "--device",
        choices=DEVICES,
        default="auto",
        help="device to run the model on (default auto: the GPU if there is one, else the CPU)",
    )
    group.add_argument(
        "--compile",
        action="store_true",
        help="compile layers with torch.compile: faster decode, adds seconds to startup (GPU only)",
    )
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="make outputs independent of batching: slower, implies --compile (GPU only)",
    )


def _add_limit_options(group: argparse._ArgumentGroup) -> None:
    whole, tokens = reading(_whole), reading(parse_tokens)
    length = reading(_length_or_auto)
    group.add_argument(
        "--max-length",
        type=length,
        metavar="N|auto",
        help="longest request in tokens, prompt and output (default auto: the longest that fits)",
    )
    group.add_argument(
        "--max-requests",
        type=whole,
        default=256,
        metavar="N",
        help="maximum concurrent requests (batch slots; default 256)",
    )
    group.add_argument(
        "--batch-tokens",
        type=tokens,
        default=8192,
        metavar="N",
        help="maximum tokens computed in one step (default 8192)",
    )
    group.add_argument(
        "--speculative-tokens",
        type=whole,
        default=0,
        metavar="K",
        help="draft tokens per step, for speculative decoding (default 0: off)",
    )


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
        help=f"data type of the KV cache: {names} (default {default})",
    )


def _add_layout_options(group: argparse._ArgumentGroup) -> None:
    whole = reading(_whole)
    state_dtypes = ", ".join(dtype.value for dtype in STATE_DTYPES)
    group.add_argument(
        "--state-dtype",
        type=_one_of("--state-dtype", STATE_DTYPES),
        metavar="DTYPE",
        help=f"data type of recurrent states: {state_dtypes} (default: the model's)",
    )
    group.add_argument(
        "--page-tokens",
        type=reading(_page_tokens),
        default=MappingProxyType({}),
        metavar="N|KIND=N,…",
        help="page size of each kind in tokens (default: the size that wastes least)",
    )
    group.add_argument(
        "--match-unit",
        type=whole,
        default=LARGEST_MATCH_UNIT,
        metavar="N",
        help=f"largest unit of prefix reuse in tokens (default {LARGEST_MATCH_UNIT})",
    )
    group.add_argument(
        "--reserved-pages",
        type=whole,
        default=0,
        metavar="N",
        help="pages of each kind reserved for the attention backend (default 0)",
    )
    group.add_argument(
        "--tensor-parallel", type=whole, default=1, metavar="N", help="tensor-parallel ranks in each stage (default 1)"
    )
    group.add_argument("--pipeline-parallel", type=whole, default=1, metavar="N", help="pipeline stages (default 1)")
    group.add_argument(
        "--stage-layers", type=reading(_numbers), metavar="N,N…", help="number of layers in each stage (default: even)"
    )


def add_draft_options(parser: argparse.ArgumentParser) -> None:
    """Of commands that plan for a draft model, or run one."""
    group = parser.add_argument_group(
        "speculative decoding with a draft model (default: off, or n-gram lookup with --speculative-tokens)"
    )
    group.add_argument(
        "--draft-model", metavar="MODEL", help="smaller model with the same tokenizer that drafts tokens"
    )
    group.add_argument(
        "--draft-tokens",
        type=reading(positive),
        metavar="K",
        help=f"maximum draft tokens per step (default {DRAFT_TOKENS})",
    )


def add_tier_options(parser: argparse.ArgumentParser) -> None:
    """Of commands that run a model: where prefixes live beyond the pool."""
    group = parser.add_argument_group("caches of prefixes outside the pool (default: none)")
    group.add_argument(
        "--host-memory",
        type=reading(parse_bytes),
        metavar="BYTES",
        help="cache prefixes in this much host memory, for example 4GiB",
    )
    add_store_options(group)


def add_store_options(group: argparse._ArgumentGroup) -> None:
    """The tiers beside host memory."""
    group.add_argument(
        "--disk",
        type=reading(_folder_and_quota),
        metavar="DIR[:QUOTA]",
        help="also cache prefixes on disk: directory and optional quota, for example cache:50GiB",
    )
    group.add_argument(
        "--remote", metavar="URL", help="also cache prefixes in a Redis or Valkey server: redis://[user:password@]host"
    )
    group.add_argument(
        "--connector",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="also cache prefixes through your own connector class (docs/tiers.md; may be repeated)",
    )


def _folder_and_quota(text: str) -> tuple[Path, int | None]:
    """`DIR`, or `DIR:QUOTA` where what follows the last colon is a size."""
    folder, colon, quota = text.rpartition(":")
    if not colon:
        return Path(text), None
    if not folder:
        raise InputError(f"{text!r} names no folder: write DIR or DIR:50GiB")
    return Path(folder), parse_bytes(quota)
