"""Checks the engine's guarantees: random systems on the real engine, each guarantee checked after every step.

The last line is the verdict: clean, a violation with the command that repeats it, or what the run did not reach.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

from quire.cli.text import heading, table
from quire.core.errors import InputError
from quire.kinds import KINDS

if TYPE_CHECKING:
    from quire.check.campaign import Campaign
    from quire.check.explore import Explored

STEPS = 20_000
ALL = "all"
UNHEARD = {"exhaustive": ("steps", "seed", "episode_seed"), "episode_seed": ("steps", "seed")}
"""By option: other options that have no effect with it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, help="engine steps to take (default 20,000)")
    parser.add_argument("--seed", type=int, help="random seed of the systems (default 0)")
    parser.add_argument("--episode-seed", type=int, metavar="X", help="repeat the one episode that a violation names")
    parser.add_argument(
        "--mutate",
        metavar="NAME",
        help="plant a known bug, which the run must find; list prints the names, all tries each",
    )
    parser.add_argument(
        "--exhaustive", action="store_true", help="try every schedule of a list of small systems instead of random ones"
    )
    parser.add_argument(
        "--seconds", type=float, metavar="N", help="with --exhaustive: stop after N seconds (default: run to the end)"
    )
    parser.add_argument(
        "--processes", type=int, metavar="P", help="with --exhaustive: number of parallel processes (default 1)"
    )
    parser.add_argument("--counts", action="store_true", help="also print how often each event was exercised")
    parser.add_argument("--json", action="store_true", help="print the verdict and counts as JSON")


def run(options: argparse.Namespace) -> None:
    from quire.check.mutations import MUTATIONS, planted

    _refuse_unheard(options)
    _refuse_nothing(options)
    if options.mutate == "list":
        table(("mutation", "the bug"), [(name, one.description) for name, one in MUTATIONS.items()], left=(0, 1))
        return
    if options.mutate is not None and options.mutate not in (*MUTATIONS, ALL):
        raise InputError(f"no mutation is called {options.mutate!r}: --mutate list names all {len(MUTATIONS)}")
    if options.mutate == ALL:
        _hunt(options)
        return
    if options.exhaustive:
        _explore(options)
        return
    options.steps, options.seed = options.steps or STEPS, options.seed or 0
    with planted(options.mutate) if options.mutate else nullcontext():
        campaign = _campaign(options)
    options.exit_code = 0 if _has_survived(campaign, options) or campaign.is_clean else 1
    if options.json:
        json.dump(_document(campaign, options), sys.stdout, indent=1)
        print()
    else:
        _report(campaign, options)


def _refuse_unheard(options: argparse.Namespace) -> None:
    """Refuses options that would have no effect with the others."""
    given = {name for name in ("steps", "seed", "episode_seed", "seconds", "processes") if _is_given(options, name)}
    if options.mutate == ALL and (options.exhaustive or options.episode_seed is not None):
        raise InputError("--mutate all looks for each bug in random runs: leave --exhaustive and --episode-seed out")
    for name, others in UNHEARD.items():
        if _is_given(options, name) and (unheard := given.intersection(others)):
            raise InputError(f"{_option(min(unheard))} changes nothing with {_option(name)}: leave one of them out")
    if not options.exhaustive and (alone := given & {"seconds", "processes"}):
        raise InputError(f"{_option(min(alone))} goes with --exhaustive: give both, or leave it out")


def _is_given(options: argparse.Namespace, name: str) -> bool:
    value = getattr(options, name)
    return value is not None and value is not False


def _refuse_nothing(options: argparse.Namespace) -> None:
    for name in ("steps", "processes"):
        if (number := getattr(options, name)) is not None and number < 1:
            raise InputError(f"{_option(name)} of less than 1 checks nothing: give at least 1")
    if options.seconds is not None and not options.seconds > 0:
        raise InputError(f"--seconds {options.seconds:g} checks nothing: give more than 0, or leave it out")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _hunt(options: argparse.Namespace) -> None:
    """Plants one bug after another, and looks for each from scratch."""
    from quire.check.hunt import hunt
    from quire.check.mutations import MUTATIONS

    found: dict[str, int | None] = {}
    for name in MUTATIONS:
        campaign = hunt(name, options.steps or STEPS, options.seed or 0)
        found[name] = None if campaign.failure is None else campaign.failure.episode_seed
        if not options.json:
            outcome = "survived" if campaign.failure is None else f"episode {found[name]}"
            print(f"{name:<32} {campaign.coverage.steps:>8,} steps  {outcome}", flush=True)
    survived = [name for name, episode in found.items() if episode is None]
    options.exit_code = 1 if survived else 0
    if options.json:
        json.dump(found, sys.stdout, indent=1)
        print()
    else:
        print(f"survived: {', '.join(survived)}" if survived else f"found: all {len(found)} planted bugs")


def _campaign(options: argparse.Namespace) -> Campaign:
    from quire.check.campaign import Campaign, run_campaign, run_episode

    if options.episode_seed is None:
        return run_campaign(options.steps, options.seed, _Progress(options.steps))
    campaign = Campaign()
    run_episode(campaign, options.episode_seed)
    return campaign


def _explore(options: argparse.Namespace) -> None:
    from quire.check.exhaustive import explore_all, verdict
    from quire.check.small import SYSTEMS

    def tell(one: Explored) -> None:
        if not options.json:
            state = one.violation or ("complete" if one.is_complete else "not complete")
            print(f"{one.states:>11,} states {one.transitions:>11,} transitions {one.seconds:>7,.1f} s  ", end="")
            print(f"{one.system}: {state}")
            if one.path:
                print(f"            after {', '.join(one.path)}")
            sys.stdout.flush()

    explored = explore_all(SYSTEMS, options.processes or 1, options.seconds or math.inf, tell, options.mutate)
    options.exit_code = 1 if any(one.violation for one in explored) else 0
    if options.json:
        json.dump({"verdict": verdict(explored), "systems": [asdict(one) for one in explored]}, sys.stdout, indent=1)
        print()
    else:
        print(verdict(explored))


class _Progress:
    """A line on standard error, if that is a terminal."""

    def __init__(self, steps: int) -> None:
        self.steps, self.begun, self.told = steps, time.monotonic(), 0.0

    def __call__(self, campaign: Campaign) -> None:
        now = time.monotonic()
        if sys.stderr.isatty() and now - self.told > 0.5:
            done = campaign.coverage.steps
            self.told = now
            print(f"\r{done:,} of {self.steps:,} steps, {done / (now - self.begun):,.0f}/s", end="", file=sys.stderr)
            if done >= self.steps:
                print(file=sys.stderr)


def _report(campaign: Campaign, options: argparse.Namespace) -> None:
    if options.counts:
        heading("How often each was exercised")
        rows = [(name, *("–" if n is None else f"{n:,}" for n in counts)) for name, counts in campaign.coverage.rows()]
        table(("what", *KINDS), rows)
        print()
    if campaign.failure is not None:
        print(f"episode {campaign.failure.episode_seed} broke at its step {campaign.failure.step}; repeat it with")
        print(f"  {_command(campaign, options)}")
    print(_verdict(campaign, options))


def _has_survived(campaign: Campaign, options: argparse.Namespace) -> bool:
    return bool(options.mutate) and campaign.failure is None


def _verdict(campaign: Campaign, options: argparse.Namespace) -> str:
    if _has_survived(campaign, options):
        return f"survived: {options.mutate} was not found in {campaign.coverage.steps:,} steps"
    return campaign.verdict()


def _command(campaign: Campaign, options: argparse.Namespace) -> str:
    assert campaign.failure is not None
    mutation = f" --mutate {options.mutate}" if options.mutate else ""
    return f"quire check --episode-seed {campaign.failure.episode_seed}{mutation}"


def _document(campaign: Campaign, options: argparse.Namespace) -> dict[str, object]:
    failure = campaign.failure
    return {
        "verdict": _verdict(campaign, options),
        "steps": campaign.coverage.steps,
        "episodes": campaign.episodes,
        "seed": options.seed,
        "mutation": options.mutate,
        "violation": None if failure is None else failure.what,
        "repeat": None if failure is None else _command(campaign, options),
        "exercised": {name: dict(zip(KINDS, counts, strict=True)) for name, counts in campaign.coverage.rows()},
        "not_exercised": campaign.coverage.not_exercised(),
    }
