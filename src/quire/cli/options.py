"""The options that shape memory, the same in every command that plans."""

from __future__ import annotations

import argparse
from types import MappingProxyType

from quire.cli.flags import add_flags, reading
from quire.core.errors import InputError
from quire.fetch.find import DEFAULT_MODEL
from quire.options.run import PACKED_WEIGHTS, WEIGHT_DTYPES
from quire.options.texts import bytes_or_zero, dtype_among, names_of, parse_bytes, parse_tokens, positive, whole
from quire.plan.settings import KV_DTYPES, LARGEST_MATCH_UNIT, STATE_DTYPES


def seed(text: str) -> int:
    return positive(text, least=0)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(whole(item) for item in text.split(","))


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
    parser.add_argument(
        "model", metavar="MODEL", help=f"catalogue name, folder, file ({files}) or hub id (org/name[@revision])"
    )
    add_memory_shape_options(parser)
    parser.add_argument(
        "--dtype",
        type=reading(dtype_among("--dtype", WEIGHT_DTYPES)),
        metavar="DTYPE",
        help=f"data type of the weights: {names_of(WEIGHT_DTYPES)} (default: the checkpoint's; fp32 on a CPU)",
    )
    parser.add_argument(
        "--weights",
        choices=PACKED_WEIGHTS,
        help=f"plan with matrices quantised at load: {', '.join(PACKED_WEIGHTS)} (default: as they are)",
    )
    add_ignore_option(parser)


def add_run_model_argument(parser: argparse.ArgumentParser) -> None:
    """For commands that run the model: it must have weights."""
    where = f"checkpoint folder, GGUF file, or hub id: org/name[@revision][:FILE.gguf] (default: {DEFAULT_MODEL})"
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
    """`runs`: for a command that runs what it plans, so that --device says where."""
    group = parser.add_argument_group("memory (default: this machine's)")
    if runs:
        add_flags({"device": group})
    else:
        group.add_argument(
            "--device", help="plan for this accelerator: h200, h100, rtx-4090, …; cpu: this machine's main memory"
        )
    _add_memory_options(group)
    _add_limit_options(parser.add_argument_group("limits"))
    layout = parser.add_argument_group("layout")
    if runs:
        add_flags({"layout": layout})
    else:
        layout.add_argument(
            "--kv-dtype",
            type=reading(dtype_among("--kv-dtype", KV_DTYPES)),
            metavar="DTYPE",
            help=f"data type of the KV cache: {names_of(KV_DTYPES)} (default bf16; as the weights on a CPU)",
        )
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
    add_lease_memory_option(group)
    group.add_argument(
        "--host-memory", type=size, metavar="BYTES", help="cache prefixes in this much host memory, for example 4GiB"
    )
    group.add_argument(
        "--host-block",
        type=reading(positive),
        metavar="N",
        help="block size of the host cache in tokens (default: one match unit)",
    )


def add_lease_memory_option(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    group.add_argument(
        "--lease-memory",
        type=reading(bytes_or_zero),
        metavar="BYTES",
        help="part of the KV pool for leased prefixes (default: half of what the longest request leaves; 0: none)",
    )


def _add_limit_options(group: argparse._ArgumentGroup) -> None:
    number, tokens = reading(whole), reading(parse_tokens)
    length = reading(_length_or_auto)
    group.add_argument(
        "--max-length",
        type=length,
        metavar="N|auto",
        help="longest request in tokens, prompt and output (default auto: the longest that fits)",
    )
    group.add_argument(
        "--max-requests",
        type=number,
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
        type=number,
        default=0,
        metavar="K",
        help="draft tokens per step, for speculative decoding (default 0: off)",
    )


def _add_layout_options(group: argparse._ArgumentGroup) -> None:
    number = reading(whole)
    group.add_argument(
        "--state-dtype",
        type=reading(dtype_among("--state-dtype", STATE_DTYPES)),
        metavar="DTYPE",
        help=f"data type of recurrent states: {names_of(STATE_DTYPES)} (default: the model's)",
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
        type=number,
        default=LARGEST_MATCH_UNIT,
        metavar="N",
        help=f"largest unit of prefix reuse in tokens (default {LARGEST_MATCH_UNIT})",
    )
    group.add_argument(
        "--reserved-pages",
        type=number,
        default=0,
        metavar="N",
        help="pages of each kind reserved for the attention backend (default 0)",
    )
    add_rank_options(group)


def add_rank_options(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    number = reading(whole)
    group.add_argument(
        "--tensor-parallel", type=number, default=1, metavar="N", help="tensor-parallel ranks in each stage (default 1)"
    )
    group.add_argument("--pipeline-parallel", type=number, default=1, metavar="N", help="pipeline stages (default 1)")
    group.add_argument(
        "--stage-layers", type=reading(_numbers), metavar="N,N…", help="number of layers in each stage (default: even)"
    )
