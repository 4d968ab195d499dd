"""What an engine's loop does about hand-over: nothing without a peer, and it wakes for what comes from threads."""

from __future__ import annotations

from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
import pytest

from quire.build.peers import AttachedTiers, attach_tiers, loop_hooks
from quire.core.errors import InputError
from quire.core.request import Request
from quire.engine.engine import Engine
from quire.handover.hooks import HandOverHooks
from quire.handover.wakeup import Wakeup
from quire.options.peer import Peer, Role
from quire.options.tiers import Tiers
from quire.plan.records import Records
from quire.tiers.stack import Stack
from scenes_of_tiers import LAYOUT, Bytes, CheckingRunner, small_plan

PLAN = small_plan(["full", "window"])


def attached(wakeup: Wakeup) -> tuple[Stack, Engine]:
    memory = Bytes(64, Records(PLAN).block_bytes)
    stack = Stack(Records(PLAN), memory, [], LAYOUT, wake=wakeup.notify)
    return stack, Engine(PLAN, CheckingRunner(PLAN, stack, memory), tier=stack, keeper=stack)


def test_a_record_that_comes_after_the_last_step_wakes_the_loop(tmp_path: Path) -> None:
    """A thread follows copies alongside the steps: an idle loop must not sleep on."""
    (tmp_path / "secret").write_bytes(b"known to two of us")
    wakeup, peer = Wakeup(), Peer(role=Role.PREFILL, host="127.0.0.1", port=0, secret=tmp_path / "secret")
    stack, engine = attached(wakeup)
    hooks = loop_hooks(engine, PLAN, AttachedTiers(stack, None, HandOverHooks(wakeup)), peer, "tiny")
    assert hooks.wakeup is wakeup
    assert hooks.counters() == {"waiting": 0}
    place = stack.accept(b"record", 100)
    assert place is not None
    assert not wait([wakeup.fileno()], 0)
    stack.follow(lambda: 0.001, stored=[place.number])
    assert wait([wakeup.fileno()], 20)
    assert stack.held.hold([b"record"])
    assert hooks.turn() == []
    assert not wait([wakeup.fileno()], 0), "a turn clears it"
    hooks.close()
    stack.close()


def test_without_a_peer_every_request_is_submitted_here() -> None:
    hooks = HandOverHooks()
    stack, engine = attached(Wakeup())
    request = Request("r", np.arange(9, dtype=np.int32), 3)
    assert not hooks.take(engine, request)
    assert (hooks.turn(), hooks.is_waiting("r"), hooks.counters()) == ([], False, {})
    stack.close()


def test_a_model_whose_prefixes_are_never_reused_takes_no_peer(tmp_path: Path) -> None:
    """Refused before host memory is allocated."""
    tiers = Tiers(1 << 60, peer=Peer(role=Role.PREFILL, host="127.0.0.1", port=0, secret=tmp_path))
    with pytest.raises(InputError, match=r"handed over: .* depends on more than the tokens; leave --role out"):
        attach_tiers(small_plan(["full", "cross"]), None, tiers, "tiny")  # type: ignore[arg-type]
