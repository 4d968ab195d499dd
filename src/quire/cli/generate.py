"""Answers one prompt with a model on this machine. Only the answer is printed to standard output.

Without MODEL the default model is used: smollm2-135m-instruct, downloaded once. If the answer must be shorter than
--max-tokens, a warning is printed to standard error. Exit 3: the plan, or the prompt, does not fit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from quire.cli import asked
from quire.cli import options as common
from quire.core.errors import InputError, NeverFits
from quire.core.events import RequestEnded, TokensDrafted
from quire.core.sampling import Sampling
from quire.core.units import counted, format_bytes, parse_bytes, parse_tokens

if TYPE_CHECKING:
    from quire.llm import LLM, Prompt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="prompt text; - reads standard input")
    add_model_arguments(parser)
    parser.add_argument(
        "--n",
        type=common.reading(common.positive),
        default=1,
        metavar="N",
        help="number of answers, separated by an empty line; the prompt is computed once (default 1)",
    )
    parser.add_argument(
        "--raw", action="store_true", help="continue the prompt as plain text, without the chat template"
    )


def add_model_arguments(parser: argparse.ArgumentParser, stats: bool = True) -> None:
    common.add_run_model_argument(parser)
    parser.add_argument(
        "--max-tokens",
        type=common.reading(common.positive),
        default=256,
        metavar="N",
        help="maximum tokens of an answer (default 256)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="sampling temperature; 0 takes the most likely token (default 0; the server's default is 1)",
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="sample from the smallest set of most likely tokens whose probabilities sum to P (default 1)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="S", help="random seed, for reproducible sampling (default: a new one)"
    )
    parser.add_argument(
        "--max-length",
        type=common.reading(parse_tokens),
        metavar="N",
        help="longest request in tokens, for example 8k (default: the longest that fits)",
    )
    common.add_device_options(parser)
    parser.add_argument(
        "--pool",
        type=common.reading(parse_bytes),
        metavar="BYTES",
        help="size of the KV pool (default: what is left of the memory)",
    )
    common.add_run_kv_dtype_option(parser)
    guess = "draft up to K tokens a step by n-gram lookup; answers stay the same (default 0: off)"
    parser.add_argument("--speculative-tokens", type=int, default=0, metavar="K", help=guess)
    common.add_draft_options(parser)
    common.add_tier_options(parser)
    if stats:
        parser.add_argument("--stats", action="store_true", help="the plan and how fast it was, on standard error")


def run(options: argparse.Namespace) -> None:
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    if not prompt:
        raise InputError("the prompt is empty: give some text")
    sampling_of(options)  # what is wrong there is told before anything is loaded
    llm = start(options)
    options.max_tokens = fitting(llm, prompt, options.max_tokens, options.raw)
    begin = time.perf_counter()
    first = None
    for piece in _pieces(llm, prompt, options):
        first = first or time.perf_counter() - begin
        print(piece, end="", flush=True)
    print()
    seconds = time.perf_counter() - begin
    llm.close()
    if options.stats:
        report(llm, seconds, first if options.n == 1 else None)


def _pieces(llm: LLM, prompt: str, options: argparse.Namespace) -> Iterator[str]:
    """One answer as it comes, several when they are all there."""
    sampling, length, raw = sampling_of(options), options.max_tokens, options.raw
    if options.n == 1:
        yield from llm.stream(prompt, sampling, max_tokens=length, raw=raw)
    else:
        answers = llm.generate(prompt, sampling, max_tokens=length, raw=raw, n=options.n)
        yield "\n\n".join(answer.text for answer in answers)


def start(options: argparse.Namespace) -> LLM:
    from quire.build.tiers import describe
    from quire.cli.fetch import Bar
    from quire.llm import LLM
    from quire.plan.settings import Budget, Settings

    settings = Settings(
        max_length=options.max_length,
        max_requests=16,
        batch_tokens=2048,
        speculative_tokens=options.speculative_tokens,
    )
    budget = Budget(pool_bytes=options.pool) if options.pool else None
    tiers = asked.tiers_of(options)
    settings = asked.with_draft(options, settings)
    llm = LLM(
        options.model,
        settings=settings,
        budget=budget,
        device=options.device,
        compiled=options.compile,
        deterministic=options.deterministic,
        kv_dtype=options.kv_dtype,
        tiers=tiers,
        draft_model=options.draft_model,
        draft_tokens=options.draft_tokens,
        progress=Bar(hidden=("load", "digest")),
    )
    for line in describe(llm.plan, tiers, llm.parts.stack.tiers) if llm.parts.stack else ():
        print(line, file=sys.stderr)
    if not llm.parts.started.has_recordings:
        print(f"quire: {llm.parts.started.steps}", file=sys.stderr)
    return llm


def fitting(llm: LLM, prompt: Prompt, max_tokens: int, raw: bool = False) -> int:
    """Tokens that the answer can have: as many as were asked for, or fewer, told in one line. Raises if none."""
    tokens, length = llm.count(prompt, raw=raw), llm.plan.max_length
    if tokens >= length:
        raise NeverFits(
            f"a prompt of {tokens:,} tokens can never run: the longest request, with its answer, has {length:,}; "
            "shorten it, or raise --max-length or --pool"
        )
    if tokens + max_tokens > length:
        print(
            f"quire: an answer of {max_tokens:,} tokens does not fit behind this prompt of {tokens:,}, "
            f"the longest request has {length:,}: it is cut to {length - tokens:,}",
            file=sys.stderr,
        )
    return min(max_tokens, length - tokens)


def sampling_of(options: argparse.Namespace) -> Sampling:
    return Sampling(temperature=options.temperature, top_p=options.top_p, seed=options.seed)


def report(llm: LLM, seconds: float, first: float | None) -> None:
    """The plan that it ran under, the speed, and how many draft tokens were accepted."""
    plan, sums = llm.plan, llm.engine.counters.sums
    stage = plan.bottleneck
    outputs = sums[RequestEnded, "outputs"]
    kinds = ", ".join(f"{kind.name} {len(kind.layers)} layers in pages of {kind.page_tokens}" for kind in stage.kinds)
    after = "" if first is None else f"; the first after {first:.2f} s"
    lines = [
        f"plan: {plan.model}, {kinds}; {counted(stage.sheets, 'sheet')} of {format_bytes(stage.sheet_bytes)}",
        f"      longest request {plan.max_length:,} tokens, {plan.bytes_per_token:,.0f} B a token, KV {plan.kv_dtype}",
        f"speed: {outputs} tokens in {seconds:.2f} s, {outputs / seconds:.1f} a second{after}",
    ]
    lines += llm.parts.started.lines()
    if plan.lookahead:
        drafted, accepted = (sums[TokensDrafted, name] for name in ("drafted", "accepted"))
        share = f", {accepted / drafted:.0%}" if drafted else ""
        lines.append(f"draft tokens: {accepted} of {drafted} accepted{share}, in {llm.engine.scheduler.steps} steps")
    print(*lines, sep="\n", file=sys.stderr)
