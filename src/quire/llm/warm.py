"""Runs warm work of an `LLM`, which has no loop of its own."""

from __future__ import annotations

import threading
import time

from quire.core.request import Tokens
from quire.llm.turn import whole_turn
from quire.warm.work import PrefixWarmed, WarmWork, announced


def warm_up(work: WarmWork, lock: threading.Lock, tokens: Tokens | None, seconds: float) -> int:
    """Until all is computed, `seconds` are over or a request is there. `tokens`: computed too. Returns how many were
    computed."""
    before, ends_at = _computed(work), time.monotonic() + seconds
    if tokens is not None:
        with whole_turn(lock):
            work.add(announced(tokens))
    is_left = True
    while is_left and time.monotonic() < ends_at:
        with whole_turn(lock):
            is_left = work.may_go_on() and work.step()
    return _computed(work) - before


def _computed(work: WarmWork) -> int:
    return work.engine.counters.sums[PrefixWarmed, "tokens"]
