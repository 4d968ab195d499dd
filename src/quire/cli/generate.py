"""Answers one prompt with a model on this machine. Only the answer is printed to standard output.

Without MODEL the default model is used: smollm2-135m-instruct, downloaded once. If the answer must be shorter than
--max-tokens, a warning is printed to standard error. Exit 3: the plan, or the prompt, does not fit.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from quire.cli import options as common
from quire.cli.flags import add_draft_flags, add_flags, reading, run_options
from quire.core.errors import InputError, NeverFits
from quire.core.events import RequestEnded, TokensDrafted
from quire.core.sampling import Sampling
from quire.core.units import format_bytes, format_count
from quire.options.texts import parse_bytes, parse_tokens, positive

if TYPE_CHECKING:
    from quire.llm import LLM, Prompt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", metavar="TEXT", help="prompt text (required); - reads standard input")
    add_model_arguments(parser)
    parser.add_argument(
        "--n",
        type=reading(positive),
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
        type=reading(positive),
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
        type=reading(parse_tokens),
        metavar="N",
        help="longest request in tokens, for example 8k (default: the longest that fits)",
    )
    add_flags({"device": parser})
    parser.add_argument(
        "--pool",
        type=reading(parse_bytes),
        metavar="BYTES",
        help="size of the KV pool (default: what is left of the memory)",
    )
    common.add_lease_memory_option(parser)
    add_flags({"layout": parser})
    common.add_rank_options(parser.add_argument_group("several devices (default: one)"))
    guess = "draft up to K tokens a step by n-gram lookup; answers stay the same (default 0: off)"
    parser.add_argument("--speculative-tokens", type=int, default=0, metavar="K", help=guess)
    add_draft_flags(parser)
    tiers = parser.add_argument_group("caches of prefixes outside the pool (default: none)")
    add_flags({"host": tiers, "stores": tiers})
    if stats:
        parser.add_argument("--stats", action="store_true", help="the plan and how fast it was, on standard error")


def run(options: argparse.Namespace) -> None:
    prompt = sys.stdin.read().removesuffix("\n") if options.prompt == "-" else options.prompt  # echo adds a newline
    if prompt is None:
        raise InputError(_without_prompt(options.model))
    if not prompt:
        raise InputError("the prompt is empty: give some text")
    sampling_of(options)  # so that errors are reported before anything is loaded
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


def _without_prompt(model: str | None) -> str:
    """A question in the model's place was probably meant as the prompt."""
    if model is not None and (" " in model.strip() or model.endswith("?")):
        return f"the prompt is missing: did you mean quire generate --prompt {shlex.quote(model)}?"
    return 'the prompt is missing: give --prompt "…", or --prompt - to read standard input'


def _pieces(llm: LLM, prompt: str, options: argparse.Namespace) -> Iterator[str]:
    """One answer as it is generated, several when all are complete."""
    sampling, length, raw = sampling_of(options), options.max_tokens, options.raw
    if options.n == 1:
        yield from llm.stream(prompt, sampling, max_tokens=length, raw=raw)
    else:
        answers = llm.generate(prompt, sampling, max_tokens=length, raw=raw, n=options.n)
        yield "\n\n".join(answer.text for answer in answers)


def start(options: argparse.Namespace) -> LLM:
    from quire.cli.fetch import Bar
    from quire.cli.plan_arguments import stages_of
    from quire.llm import LLM
    from quire.plan.settings import Budget, Settings

    settings = Settings(
        max_length=options.max_length,
        max_requests=16,
        batch_tokens=2048,
        speculative_tokens=options.speculative_tokens,
        lease_bytes=options.lease_memory,
        tensor_parallel=options.tensor_parallel,
        pipeline_parallel=stages_of(options),
        stage_layers=options.stage_layers,
    )
    budget = Budget(pool_bytes=options.pool) if options.pool else None
    progress = Bar(hidden=("load", "digest"))
    llm = LLM(options.model, settings=settings, budget=budget, options=run_options(options), progress=progress)
    for line in llm.parts.tiers:
        print(line, file=sys.stderr)
    if not llm.parts.report.has_recordings:
        print(f"quire: {llm.parts.report.steps}", file=sys.stderr)
    return llm


def _fix(llm: LLM) -> str:
    """What a longer prompt needs: nothing raises the model's own limit."""
    own = llm.plan.model_max_length
    if own is not None and llm.plan.max_length >= own:
        return "shorten it: the model itself supports no more"
    is_asked = llm.plan.max_length == llm.plan.requested_max_length
    return f"shorten it, or raise {'--max-length' if is_asked else '--pool'}"


def fitting(llm: LLM, prompt: Prompt, max_tokens: int, raw: bool = False) -> int:
    """Tokens that the answer can have: as many as requested, or fewer, reported in one line. Raises if none."""
    tokens, length = llm.count(prompt, raw=raw), llm.plan.max_length
    if tokens >= length:
        raise NeverFits(
            f"a prompt of {tokens:,} tokens can never run: the longest request, with its answer, has {length:,}; "
            f"{_fix(llm)}"
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
    """Prints the plan, the speed, and how many draft tokens were accepted."""
    plan, sums = llm.plan, llm.engine.counters.sums
    stage = plan.bottleneck
    outputs = sums[RequestEnded, "outputs"]
    kinds = ", ".join(f"{kind.name} {len(kind.layers)} layers in pages of {kind.page_tokens}" for kind in stage.kinds)
    after = "" if first is None else f"; the first after {first:.2f} s"
    lines = [
        f"plan: {plan.model}, {kinds}; {format_count(stage.sheets, 'sheet')} of {format_bytes(stage.sheet_bytes)}",
        f"      longest request {plan.max_length:,} tokens, {plan.bytes_per_token:,.0f} B a token, KV {plan.kv_dtype}",
        f"speed: {outputs} tokens in {seconds:.2f} s, {outputs / seconds:.1f} a second{after}",
    ]
    lines += [*llm.parts.report.lines(), llm.parts.phases.line()]
    if plan.lookahead:
        drafted, accepted = (sums[TokensDrafted, name] for name in ("drafted", "accepted"))
        share = f", {accepted / drafted:.0%}" if drafted else ""
        lines.append(f"draft tokens: {accepted} of {drafted} accepted{share}, in {llm.engine.scheduler.steps} steps")
    print(*lines, sep="\n", file=sys.stderr)
