"""Measures this machine's speed with random weights: no checkpoint is needed.

  kernels   Quire's kernels on a GPU, compared with FlashInfer if it is installed
  decode    decode steps of the whole engine, compared with the limit of memory bandwidth
  serve     requests from beginning to end, all at once: the engine, without HTTP

A model is a shape of the catalogue (`quire models`), or a hub id, whose configuration is read. Without one, decode and
serve take those of docs/performance.md on a GPU and a small one on a CPU. Tables go to standard output, progress to
standard error. Exit 2: no GPU for kernels.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from quire.build.machine import chosen_device, machine_of
from quire.cli.flags import reading
from quire.core.dtypes import DType
from quire.core.errors import InputError
from quire.core.sampling import Sampling
from quire.options.run import DEVICES, PACKED_WEIGHTS, RunOptions
from quire.options.texts import parse_tokens, positive

if TYPE_CHECKING:
    from quire.bench.report import Report

BENCHES = {
    "kernels": "measure attention kernels on a GPU, compared with FlashInfer if it is installed",
    "decode": "measure decode steps of the whole engine",
    "serve": "measure whole requests, all sent at once, without HTTP",
}
KERNELS = ("pages", "decode", "fp8", "window", "prefill", "latent", "recurrent", "experts", "packed")
KV_DTYPES = {"bf16": DType.BF16, "fp8": DType.FP8}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    kernels, decode, serve = (
        what.add_parser(name, help=summary, formatter_class=parser.formatter_class, allow_abbrev=False)
        for name, summary in BENCHES.items()
    )
    kernels.add_argument(
        "--tables", nargs="+", choices=KERNELS, default=list(KERNELS), help="kernels to measure (default: all)"
    )
    count, tokens = reading(positive), reading(parse_tokens)
    for command in (decode, serve):
        _add_model_options(command)
    decode.add_argument("--rows", type=count, metavar="N", help="concurrent requests (default 256; 4 on a CPU)")
    decode.add_argument(
        "--length", type=tokens, metavar="N", help="context length of each request (default 1024; 256 on a CPU)"
    )
    decode.add_argument(
        "--deterministic",
        action="store_true",
        help="use the batch-independent kernels of quire serve --deterministic (GPU only)",
    )
    decode.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="sampling temperature (default 0: greedy)"
    )
    decode.add_argument("--top-p", type=float, default=1.0, metavar="P", help="nucleus sampling threshold (default 1)")
    decode.add_argument("--steps", type=count, default=48, metavar="N", help="steps to time, twice (default 48)")
    serve.add_argument(
        "--requests", type=count, metavar="N", help="requests, all sent at once (default 128; 4 on a CPU)"
    )
    serve.add_argument(
        "--prompt", type=tokens, metavar="N", help="prompt tokens of each request (default 512; 32 on a CPU)"
    )
    serve.add_argument(
        "--outputs", type=tokens, metavar="N", help="output tokens of each request (default 128; 16 on a CPU)"
    )
    for command in (kernels, decode, serve):
        command.add_argument("--json", action="store_true", help="print JSON instead of tables")
        command.set_defaults(parser=command)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help="model from the catalogue (quire models), or hub id")
    parser.add_argument("--layers", type=reading(positive), metavar="N", help="use only the first N layers")
    parser.add_argument(
        "--device", choices=DEVICES, default="auto", help="device to measure (default auto: the GPU if there is one)"
    )
    parser.add_argument("--no-compile", action="store_true", help="do not use torch.compile (GPU only)")
    parser.add_argument(
        "--weights",
        choices=PACKED_WEIGHTS,
        help="hold matrices in few bits, as quire serve --weights does (default: in floats; gpt-oss: MXFP4)",
    )
    parser.add_argument(
        "--kv-dtype", choices=KV_DTYPES, default="bf16", help="data type of the KV cache (default bf16; fp32 on a CPU)"
    )


def run(options: argparse.Namespace) -> None:
    report = {"kernels": _kernels, "decode": _decode, "serve": _serve}[options.what](options)
    print(report.json() if options.json else report.text())


def _tell(text: str) -> None:
    print(f"quire bench: {text}", file=sys.stderr, flush=True)


def _kernels(options: argparse.Namespace) -> Report:
    if chosen_device("auto") == "cpu":
        raise InputError(
            "kernels are timed on a GPU, and none answers here: quire bench decode and quire bench serve run on a CPU"
        )
    from quire.bench.kernels import run as bench

    return bench(options.tables, _tell)


def _run_options(parsed: argparse.Namespace, deterministic: bool = False) -> RunOptions:
    """For the device that is measured; raises if there is none. On a GPU, layers are compiled by default."""
    device = chosen_device(parsed.device)
    machine_of(device)
    compiled = device == "cuda" and not parsed.no_compile
    return RunOptions(device=device, compile=compiled, deterministic=deterministic, weights=parsed.weights)


def _decode(options: argparse.Namespace) -> Report:
    run_options = _run_options(options, options.deterministic)
    from quire.bench.decode import CASES, Case
    from quire.bench.decode import run as bench

    cases = CASES[run_options.device]
    if options.model is not None or options.rows or options.length or options.layers:
        rows, length = cases[0].sizes[0]
        size = (options.rows or rows, options.length or length)
        cases = (Case(options.model or cases[0].model, (size,), options.layers),)
    kv_dtype = KV_DTYPES[options.kv_dtype]
    if options.top_p < 1 and not options.temperature:
        raise InputError("--top-p says what rows draw from, and at --temperature 0 none draws: give both")
    sampling = Sampling(temperature=options.temperature, top_p=options.top_p, seed=0)
    return bench(cases, run_options, _tell, kv_dtype=kv_dtype, steps=options.steps, sampling=sampling)


def _serve(options: argparse.Namespace) -> Report:
    run_options = _run_options(options)
    from quire.bench.serve import LOADS, MODELS, Load
    from quire.bench.serve import run as bench

    usual = LOADS[run_options.device]
    load = Load(
        options.requests or usual.requests,
        options.prompt or usual.prompt_tokens,
        options.outputs or usual.output_tokens,
    )
    return bench(
        options.model or MODELS[run_options.device],
        load,
        run_options,
        _tell,
        layers=options.layers,
        kv_dtype=KV_DTYPES[options.kv_dtype],
    )
