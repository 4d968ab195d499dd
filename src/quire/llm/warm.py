"""Warm work of an `LLM`, which has no loop of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from quire.core.errors import InputError
from quire.core.request import Tokens
from quire.llm.answers import Generation
from quire.llm.turn import whole_turn
from quire.text.next_turn import Ahead
from quire.warm.work import PrefixWarmed, TurnEnd, WarmWork, announced


def warm_up(work: WarmWork | None, lock: threading.Lock, tokens: Tokens | None, seconds: float) -> int:
    """Until all is computed, `seconds` are over or a request is there. `tokens`: computed too. Returns how many were
    computed."""
    if work is None:
        raise InputError("nothing is computed ahead: make the LLM with next_turn='on', for a model with reuse")
    before, ends_at = _computed(work), time.monotonic() + seconds
    if tokens is not None:
        with whole_turn(lock):
            work.add(announced(tokens))
    is_left = True
    while is_left and time.monotonic() < ends_at:
        with whole_turn(lock):
            is_left = work.may_go_on() and work.step()
    return _computed(work) - before


def expect_next(work: WarmWork | None, lock: threading.Lock, ahead: Ahead, generations: Sequence[Generation]) -> None:
    """Keeps what the next turns of these conversations begin with; None: nothing is computed ahead."""
    if work is None:
        return
    for turn in filter(None, (generation.next_turn(ahead) for generation in generations)):
        with whole_turn(lock):
            work.end_turn(TurnEnd(turn.now, turn.recurring, turn.nexts))


def _computed(work: WarmWork) -> int:
    return work.engine.counters.sums[PrefixWarmed, "tokens"]
