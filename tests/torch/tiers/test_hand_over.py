"""Prompts computed by one engine, gone on from by another: other pages, other ranks, the same tokens."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from forked_peer import ForkedPeer
from handed import DecodeSide, PrefillSide, prompt_of
from quire import LLM, Tiers
from quire.core.errors import InputError
from quire.core.events import Event, LoadFailed, LoadFinished
from quire.options.peer import Peer, Role
from quire.plan.plan import Plan
from real_server import Proxy
from tiny_models import Service, plan_of

pytestmark = pytest.mark.servers

MODELS = {"gemma3_text": "full and window", "lfm2": "full and state", "deepseek_v3": "latent", "llama": "full"}
OUTPUTS = 5
LENGTHS = (33, 40, 64, 65, 80)
ABORTS = int(os.environ.get("QUIRE_PEER_ABORTS", "20"))
KILLS = int(os.environ.get("QUIRE_PEER_KILLS", "2"))


def plan(name: str, page: int, ranks: int = 1) -> Plan:
    return plan_of(name, batch_tokens=32, pages={"": page}, ranks=ranks)


def undisturbed(name: str, prompts: list[np.ndarray]) -> list[list[int]]:
    service = Service(name, plan(name, 16))
    streams = service.send(prompts, OUTPUTS)
    service.engine.drain()
    return [stream.tokens().tolist() for stream in streams]


@pytest.mark.parametrize(
    ("name", "here", "there", "ranks"),
    [
        *((name, 16, 32, 2) for name in ("gemma3_text", "lfm2")),
        *((name, 32, 16, 1) for name in ("lfm2", "deepseek_v3")),
        *(pytest.param(name, 16, 32, 2, marks=pytest.mark.soak) for name in ("deepseek_v3", "llama")),
        *(pytest.param(name, 32, 16, 1, marks=pytest.mark.soak) for name in ("gemma3_text", "llama")),
    ],
)
def test_tokens_after_a_hand_over_are_those_of_an_undisturbed_run(name: str, here: int, there: int, ranks: int) -> None:
    prompts = [prompt_of(length, length) for length in LENGTHS]
    with PrefillSide(name, plan(name, here)).running() as prefill:
        decode = DecodeSide(name, plan(name, there, ranks), prefill.server.port)
        for prompt, tokens in zip(prompts, undisturbed(name, prompts), strict=True):
            assert decode.ask(f"{len(prompt)}", prompt, OUTPUTS) == tokens
            unit = max(here, there)
            assert decode.loaded() == [(len(prompt) - 1) // unit * unit]
        assert decode.tier.can_read
        assert not decode.tier.counters["failures"]
        assert not decode.tier.counters["bytes_written"]
        decode.check_nothing_is_held()
        decode.close()
    prefill.check_nothing_is_held()


@pytest.mark.parametrize("mood", ["silent", "nonsense"])
def test_a_peer_that_falls_silent_or_mad_in_the_middle_of_a_transfer_costs_nothing_but_time(mood: str) -> None:
    """It is asked, offers, and then the line between the engines changes; afterwards it is used again."""
    name, prompts = "gemma3_text", [prompt_of(70, seed) for seed in range(3)]
    first, second, third = undisturbed(name, prompts)
    with PrefillSide(name, plan(name, 16)).running() as prefill:
        proxy = Proxy(prefill.server.port)
        decode = DecodeSide(name, plan(name, 32), proxy.port, frame_seconds=2.0)
        assert decode.ask("first", prompts[0], OUTPUTS) == first
        begin = decode.stack.begin
        decode.stack.begin = lambda load: (setattr(proxy, "mood", mood), begin(load))[1]  # type: ignore[method-assign]
        assert decode.ask("second", prompts[1], OUTPUTS) == second
        assert not decode.tier.can_read
        assert decode.loaded() == [64]
        decode.stack.begin = begin  # type: ignore[method-assign]
        proxy.mood = "honest"
        decode.tier.mend()
        assert decode.ask("third", prompts[2], OUTPUTS) == third
        assert decode.loaded() == [64]
        decode.check_nothing_is_held()
        decode.close()
        proxy.close()
    prefill.check_nothing_is_held()


def test_an_engine_with_other_weights_or_another_secret_is_not_used_and_says_why() -> None:
    name, prompt = "llama", prompt_of(70)
    (tokens,) = undisturbed(name, [prompt])
    with PrefillSide(name, plan(name, 16)).running() as prefill:
        for reason, given in {
            "another model": {"weights": "others"},
            "give both the same --peer-secret": {"secret": b"a secret of others"},
        }.items():
            decode = DecodeSide(name, plan(name, 16), prefill.server.port, **given)  # type: ignore[arg-type]
            assert reason in decode.tier.reason
            assert decode.ask("alone", prompt, OUTPUTS) == tokens
            assert decode.loaded() == []
            decode.close()
        assert not prefill.server.counters["asked"]


HYBRIDS = ("gemma3_text", "lfm2")
KILLED = HYBRIDS if KILLS > 10 else HYBRIDS[1:]
"""A process that forks takes seconds to start."""


def told(decode: DecodeSide, what: type[Event]) -> int:
    return sum(isinstance(event, what) for event in decode.events)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.001)


def reached(counters: Counter[str], name: str, more: int) -> Callable[[], bool]:
    goal = counters[name] + more
    return lambda: counters[name] >= goal


class Crowd:
    """Requests that come four at a time. Each has a scope of its own, so that none finds what another one brought."""

    def __init__(self, name: str, decode: DecodeSide, random: Random) -> None:
        self._decode, self._random = decode, random
        self._prompts = [prompt_of(length, length) for length in random.sample(range(40, 88), 8)]
        self._expected = undisturbed(name, self._prompts)
        self._came: dict[str, tuple[int, float, float]] = {}
        """Which prompt, since when, and after which part of a usual life it is aborted."""
        self._seconds = [1.0]
        self.sent = self.aborted = self.finished = 0

    def turn(self, with_aborts: bool, at_once: int = 4) -> None:
        while len(self._came) < at_once:
            self._send(with_aborts)
        self._decode.turn()
        usual = float(np.median(self._seconds))
        for request, (place, since, until) in list(self._came.items()):
            stream, lived = self._decode.streams.get(request), time.monotonic() - since
            if stream is not None and stream.ended is not None:
                assert stream.tokens().tolist() == self._expected[place], f"prompt {place}"
                self._seconds.append(lived)
                self.finished += 1
                del self._came[request]
            elif lived >= until * usual:
                self._decode.cancel(request)
                self.aborted += 1
                del self._came[request]

    def _send(self, with_aborts: bool) -> None:
        self.sent += 1
        place, request = self.sent % len(self._prompts), f"request {self.sent}"
        until = 1.2 * self._random.random() if with_aborts and self.sent > 8 else float("inf")
        self._came[request] = (place, time.monotonic(), until)
        self._decode.send(request, self._prompts[place], OUTPUTS, scope=request)

    def run(self, lives: float) -> None:
        """For so many usual lives of a request."""
        end = time.monotonic() + lives * float(np.median(self._seconds))
        while time.monotonic() < end:
            self.turn(with_aborts=False)

    def end(self) -> None:
        while self._came:
            self.turn(False, at_once=0)


@pytest.mark.parametrize("name", HYBRIDS)
def test_requests_aborted_at_random_moments_leave_nothing_behind_on_either_side(name: str) -> None:
    """While they are sent, computed there, fetched, loaded or answered."""
    with PrefillSide(name, plan(name, 16)).running() as prefill:
        decode = DecodeSide(name, plan(name, 32, ranks=2), prefill.server.port)
        crowd = Crowd(name, decode, Random(ABORTS))
        while crowd.aborted < ABORTS:
            crowd.turn(with_aborts=True)
        crowd.end()
        loaded, counters = told(decode, LoadFinished), decode.hand_over.counters
        decode.check_nothing_is_held()
        decode.close()
    prefill.check_nothing_is_held()
    print(f"{name}: {crowd.aborted} aborted, {crowd.finished} finished, {dict(counters)}, {loaded} loaded")
    assert counters["handed"] >= loaded > crowd.finished // 2
    assert not counters["lost"]


@pytest.mark.parametrize("name", KILLED)
def test_a_prefill_engine_killed_at_random_moments_loses_no_request(name: str) -> None:
    """What it had begun is computed here; when it is back, it is asked again."""
    random, port = Random(KILLS), free_port()
    with ForkedPeer("prefill", name, 16, port) as peer:
        peer.start()
        decode = DecodeSide(name, plan(name, 32, ranks=2), port)
        crowd = Crowd(name, decode, random)
        while crowd.finished < 8:
            crowd.turn(with_aborts=False)
        for _ in range(KILLS):
            crowd.run(2 * random.random())
            peer.kill()
            crowd.end()
            peer.start()
            until(lambda: decode.stack.find([], lambda _: ()).units > 0 or decode.tier.can_read)  # in its own time
        crowd.turn(with_aborts=False)
        crowd.end()
    loaded, failed, counters = told(decode, LoadFinished), told(decode, LoadFailed), decode.hand_over.counters
    decode.check_nothing_is_held()
    decode.close()
    print(
        f"{name}: {KILLS} killed, {crowd.finished} finished, {dict(counters)}, {loaded} loaded, {failed} loads failed"
    )
    assert crowd.finished == crowd.sent
    assert counters["lost"] + failed > KILLS // 4
    assert counters["handed"] >= loaded > 0


def test_a_decode_engine_killed_at_random_moments_leaves_nothing_held_for_it() -> None:
    name, random = "gemma3_text", Random(KILLS)
    with PrefillSide(name, plan(name, 16)).running() as prefill:
        counters = prefill.server.counters
        with ForkedPeer("decode", name, 32, prefill.server.port) as peer:
            for kill in range(KILLS):
                peer.start()
                until(reached(counters, ("asked", "offered", "fetched")[kill % 3], random.randrange(1, 4)))
                time.sleep(random.random() * 0.05)
                peer.kill()
            until(lambda: not prefill.server.connections)
    print(f"decode: {KILLS} killed, {dict(counters)}")
    assert counters["asked"] >= counters["offered"] > 0
    assert not counters["failed"]
    prefill.check_nothing_is_held()


@pytest.mark.story
@pytest.mark.parametrize("role", Role)
def test_a_library_whose_loop_turns_only_when_asked_takes_no_peer(role: Role) -> None:
    with pytest.raises(InputError, match="use quire serve --role"):
        LLM(tiers=Tiers(peer=Peer(role=role, host="127.0.0.1", port=9000, secret=Path("secret"))))
