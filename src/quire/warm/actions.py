"""What warm work does to an engine beyond submitting and cancelling: small changes to the prefix index.

A recording has them too, so that a replay evicts what the engine evicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.core.request import Tokens
from quire.engine.engine import Engine
from quire.prefix.next_turn import TurnKept, drop_between, end_turn

Action = dict[str, Any]
"""As JSON."""


def turn_ended(scope: str, now: Tokens, recurring: Sequence[int]) -> Action:
    return {"do": "turn", "scope": scope, "tokens": now.tolist(), "recurring": list(recurring)}


def chunk_ended(scope: str, tokens: Tokens, begin: int) -> Action:
    return {"do": "chunk", "scope": scope, "tokens": tokens.tolist(), "begin": begin}


def uncounted(name: str) -> Action:
    return {"do": "uncounted", "name": name}


def act(engine: Engine, action: Action) -> TurnKept | None:
    """Does it, and notes it if the engine records its inputs."""
    note = getattr(engine, "note_action", None)
    if note is not None:
        note(action)
    return perform(engine, action)


def perform(engine: Engine, action: Action) -> TurnKept | None:
    scheduler = engine.scheduler
    if action["do"] == "uncounted":
        ticket = scheduler.queue.find(action["name"])
        assert ticket is not None, "it was submitted to an idle engine"
        ticket.is_counted = True  # what it finds says nothing about how soon clients come back
        return None
    scheduler.reuse.catch_up()
    index, root = scheduler.reuse.index, scheduler.reuse.root_of(action["scope"])
    tokens = np.array(action["tokens"], dtype=np.int32)
    if action["do"] == "turn":
        return end_turn(index, root, tokens, action["recurring"])
    drop_between(index, root, tokens, action["begin"])
    return None
