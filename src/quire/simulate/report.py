"""What a replay showed, as plain numbers: virtual time only, so that equal inputs give equal bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quire.prefix.gap import CAUSES
from quire.simulate.replay import Played

PERCENTILES = (50, 95, 99)
DIGITS = 9
"""After the point, in JSON: a nanosecond."""
TIER_FIELDS = (
    "loads_done",
    "loads_failed",
    "loads_gone",
    "loads_late",
    "loaded_tokens",
    "loaded_bytes",
    "stored_records",
    "stored_bytes",
    "not_stored",
    "outages",
)

Floats = npt.NDArray[np.float64]


def report(played: Played) -> dict[str, Any]:
    recorder, requests = played.recorder, played.trace.requests
    accepted = np.flatnonzero(~np.isnan(recorder.arrived))
    prompts = sum(requests[place].recipe.tokens for place in accepted.tolist())
    return {
        "requests": len(requests),
        "finished": len(accepted),
        "refused": played.refused,
        "turned_away": played.turned_away,
        "routed": list(played.routed),
        "virtual_seconds": round(played.seconds, DIGITS),
        "busy_share": _share(played.busy_seconds, played.seconds),
        "steps": recorder.steps,
        "tokens_per_step": _share(recorder.step_tokens, recorder.steps),
        "prompt_tokens": prompts,
        "output_tokens": recorder.output_tokens,
        "output_tokens_per_second": _share(recorder.output_tokens, played.seconds),
        "total_tokens_per_second": _share(prompts + recorder.output_tokens, played.seconds),
        "seconds_to_first_token": _percentiles((recorder.first - recorder.arrived)[accepted]),
        "seconds_between_tokens": _percentiles(recorder.gaps[: recorder.gap_count]),
        "hit_rate": _share(int(recorder.hit_tokens[accepted].sum()), prompts),
        "hit_rate_ceiling": _share(played.ceiling_tokens, prompts),
        "hit_rate_shared": _share(played.shared_tokens, prompts),
        "missed": {cause: _share(recorder.missed_tokens(cause), prompts) for cause in CAUSES},
        "match_unit_tokens": played.match_unit_tokens,
        "preemptions": recorder.preemptions,
        "evictions": recorder.evictions,
        "evicted_tokens": recorder.evicted_tokens,
        "tier": None if played.tier is None else {name: played.tier.get(name, 0) for name in TIER_FIELDS},
        "memory": _memory(played),
        "tenants": _tenants(played),
    }


def _share(part: float, whole: float) -> float:
    return round(part / whole, DIGITS) if whole else 0.0


def _percentiles(values: Floats) -> dict[str, float | None]:
    if not len(values):
        return {f"p{one}": None for one in PERCENTILES}
    found = np.percentile(values, PERCENTILES)
    return {f"p{one}": round(float(value), DIGITS) for one, value in zip(PERCENTILES, found, strict=True)}


def _memory(played: Played) -> list[dict[str, Any]]:
    """By stage and kind; bytes are those of one rank."""
    use, lines = played.memory, []
    mean = use.page_seconds / played.seconds if played.seconds else use.page_seconds
    for place, (stage, kind) in enumerate(use.kinds):
        line: dict[str, Any] = {"stage": stage, "kind": kind.name, "page_bytes": kind.page_bytes}
        for who, name in enumerate(("held", "cached")):
            line[f"{name}_peak_pages"] = int(use.peak[who, place])
            line[f"{name}_mean_pages"] = round(float(mean[who, place]), 3)
            line[f"{name}_peak_bytes"] = int(use.peak[who, place]) * kind.page_bytes
            line[f"{name}_mean_bytes"] = round(float(mean[who, place]) * kind.page_bytes)
        lines.append(line)
    return lines


def _tenants(played: Played) -> dict[str, Any]:
    """If there are several tenants: how long each of them waited."""
    recorder = played.recorder
    tenants = np.array([asked.tenant for asked in played.trace.requests])
    names = np.unique(tenants)
    if len(names) < 2:
        return {}
    waits = recorder.first - recorder.arrived
    own = {str(name): waits[(tenants == name) & ~np.isnan(waits)] for name in names}
    return {name: {"finished": len(w), "seconds_to_first_token": _percentiles(w)} for name, w in own.items()}
