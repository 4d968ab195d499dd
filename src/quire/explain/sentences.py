"""Renders reasons and explanations in English: for the command line, HTTP answers, error messages and docs.

r7 waits: not enough free KV memory: it and the likely growth of running requests exceed the pool
  full: needs 64 pages; 42 are free, running requests are likely to take 30, 52 are missing; r1 holds 120, r2 holds 64
there is room for it when r2 has ended; it runs within 980 steps, whatever arrives

No other module writes such sentences (except `plan/tightest.py`, for an error that is raised at once), and no code
parses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quire.core.reasons import Reason, WayBack, Why
from quire.core.units import format_bytes
from quire.explain.explanation import ANOTHER, Explanation, KindShort
from quire.plan.tightest import never_fits

NAMED_ENDS = 3
"""Requests named that must have ended; the others are counted."""


def sentence(reason: Reason | None) -> str:
    """Without a capital and a full stop; empty for none."""
    return "" if reason is None else _SENTENCES[reason.code](reason)


def describe(found: Explanation) -> str:
    """An explanation, in several lines."""
    lines = [f"{found.request} {_VERBS[found.status]}: {why(found)}", *map(_kind, found.kinds)]
    if found.status == "waiting":
        lines += [
            *filter(None, (kept(found),)),
            "; ".join(filter(None, (room(found), f"{_soon(found)}, whatever arrives"))),
        ]
    return "\n".join(lines)


def kept(found: Explanation) -> str:
    """What of the pool it may not have; empty for none."""
    if not found.kept_share or found.reason.code is not Why.MEMORY:
        return ""
    return f"{found.kept_share:.0%} of the pool is kept for cached prefixes that other queued requests will use"


def room(found: Explanation) -> str:
    """Which requests must end before there is room for it; empty if none must."""
    names = [name for name in found.after if name != ANOTHER][:NAMED_ENDS]
    more = len(found.after) - len(names)
    names += [f"{more:,} others" if more > 1 else ANOTHER] if more else []
    ended = f"{' and '.join(names)} {'has' if len(found.after) == 1 else 'have'} ended"
    return f"there is room for it when {ended}" if names else ""


def why(found: Explanation) -> str:
    """Only its reason, in one line."""
    return "; ".join(filter(None, (sentence(found.reason), way(found.way_back))))


def way(back: WayBack | None) -> str:
    """How a preempted request gets its KV back."""
    if back is None:
        return ""
    load, compute = (_milliseconds(seconds) for seconds in (back.load_seconds, back.compute_seconds))
    how = "loaded from the tier" if back.is_load else "computed again"
    costs = f"loading {format_bytes(back.size_bytes)} takes {load}, computing them takes {compute}"
    return f"its {back.tokens:,} tokens will be {how}: {costs}"


_VERBS = {"waiting": "waits", "loading": "waits", "running": "runs"}


def _milliseconds(seconds: float | None) -> str:
    return "a time not measured yet" if seconds is None else f"{1e3 * seconds:,.3g} ms"


def _kind(one: KindShort) -> str:
    holders = [f"{name} holds {pages:,}" for name, pages in one.requests]
    holders += [f"{name} {'hold' if name.endswith('s') else 'holds'} {pages:,}" for name, pages in one.others]
    awaited = f", running requests are likely to take {one.awaited_pages:,}" if one.awaited_pages else ""
    short = f", {_are(one.short_pages)} missing" if one.short_pages else ""
    held = ", ".join(holders) or "none is held"
    free = f"{_are(one.free_pages)} free" + (f", {one.evictable_pages:,} evictable" if one.evictable_pages else "")
    needs = f"needs {one.needs_pages:,} page{'' if one.needs_pages == 1 else 's'}"
    return f"  {one.kind}: {needs}; {free}{awaited}{short}; {held}"


def _are(pages: int) -> str:
    return f"{pages:,} {'is' if pages == 1 else 'are'}"


def _soon(found: Explanation) -> str:
    loads = f" and {found.load_seconds:g} s of loads" if found.load_seconds else ""
    return f"it runs within {found.steps:,} steps{loads}" if found.steps else "it runs in the next step"


def _first(reason: Reason) -> str:
    return reason.requests[0]


def _count(reason: Reason, name: str) -> str:
    return f"{int(reason.numbers[name]):,}"


def _in_line(reason: Reason) -> str:
    return f"it is number {_count(reason, 'place')} in line, and {_first(reason)} waits: {sentence(reason.because)}"


def _running(reason: Reason) -> str:
    here = f"{_count(reason, 'hit_tokens')} tokens were reused" if reason.numbers["hit_tokens"] else ""
    there = f"{_count(reason, 'loaded_tokens')} tokens came from a tier" if reason.numbers["loaded_tokens"] else ""
    miss = f" ({sentence(reason.because)})" if reason.because else ""
    found = ", ".join(filter(None, (here, there))) or f"nothing was reused{miss}"
    done = f"{_count(reason, 'computed')} of {_count(reason, 'known')} known tokens computed"
    return f"{done}, {found}, preempted {_count(reason, 'preemptions')} times"


def _load_failed(reason: Reason) -> str:
    return f"its load from a tier failed: {sentence(reason.because)}"


def _tier(reason: Reason) -> str:
    return reason.detail or "the tier reported an error"


_SENTENCES: Mapping[Why, Callable[[Reason], str]] = {
    Why.QUEUED: lambda _: "queued",
    Why.ROWS: lambda one: f"all {_count(one, 'rows')} rows (batch slots) are taken",
    Why.STEP_TOKENS: lambda one: f"requests before it use the step's {_count(one, 'tokens')} tokens",
    Why.PREFIX: lambda one: f"{_first(one)} is computing its prefix",
    Why.MEMORY: lambda _: "not enough free KV memory: it and the likely growth of running requests exceed the pool",
    Why.CACHED_FIRST: lambda _: "requests with more of their prompt in the cache go first",
    Why.FIRST_PAGE: lambda _: "no page is free for its first token",
    Why.MUST_STAY: lambda one: f"preempted {_count(one, 'times')} times, it is resumed when it can stay to its end",
    Why.LEASED: lambda _: "it continues a leased prefix, and there is no room for what it must copy of it, or load",
    Why.PREEMPTED: lambda one: f"preempted: {sentence(one.because)}",
    Why.LOAD_FAILED: _load_failed,
    Why.IN_LINE: _in_line,
    Why.ANOTHER_ENGINE: lambda _: "another engine computes its prompt",
    Why.LOADING: lambda one: f"a tier brings {_count(one, 'tokens')} of its tokens",
    Why.RUNNING: _running,
    Why.NEVER_FITS: never_fits,
    Why.NEEDS_PAGES: lambda one: f"{_first(one)} needs its pages",
    Why.NEEDS_ROW: lambda one: f"{_first(one)} gets its row (batch slot): its tenant has more rows than its share",
    Why.NO_ANSWER: lambda one: f"no answer in {one.numbers['seconds']:g} s",
    Why.TIER: _tier,
    Why.NO_OVERLAP: lambda _: "no cached prompt starts with the same tokens",
    Why.BELOW_UNIT: lambda _: "what it shares with a cached prompt is shorter than the reuse unit",
    Why.TAIL_EVICTED: lambda _: "the window tail at the end of the cached prefix was evicted",
    Why.CHECKPOINT_ABSENT: lambda _: "no state is cached within the shared prefix",
    Why.SCOPE: lambda _: "only another scope has computed a prompt that starts with the same tokens",
    Why.DISABLED: lambda _: "prefix reuse is off",
    Why.PROMPT_LOGPROBS: lambda _: "prompt log-probabilities were asked for, so the whole prompt is computed",
}
