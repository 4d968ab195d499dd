"""Records in a real server, on good days and bad: the service goes on, nothing wrong is served, and it comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from quire.check.host import evict_unpinned
from quire.core.connector import Layout, TierFailed
from quire.core.errors import InputError
from quire.core.events import LoadFinished
from quire.movers.remote import RemoteStore
from real_server import Proxy, certificate, server
from tiered import MODELS, TieredService
from tiny_models import PAGE, plan_of

LAYOUT, OTHER = (Layout(letter * 64, 16, 1000, 100, "[]") for letter in "ab")
NAME = b"u" + bytes(32)
DATA = bytes(range(250)) * 4
PROMPT = np.random.default_rng(1).integers(3, 97, 4 * PAGE + 3).astype(np.int32)
MODEL, OUTPUTS = "gemma3_text", 4


@pytest.fixture(scope="module")
def valkey() -> Iterator[Any]:
    with server() as running:
        yield running


@pytest.fixture
def client(valkey: Any) -> Iterator[redis.Redis]:
    with redis.Redis(port=valkey.port) as client:
        client.flushall()
        yield client


def url(valkey: Any) -> str:
    return f"redis://127.0.0.1:{valkey.port}"


def registered(address: str, layout: Layout = LAYOUT) -> RemoteStore:
    store = RemoteStore(address, lookup_seconds=0.5, transfer_seconds=0.5)
    store.register(layout)
    return store


def read(store: RemoteStore, size: int = len(DATA)) -> bytes | None:
    back = bytearray(size)
    return bytes(back) if store.read(NAME, [memoryview(back)[:600], memoryview(back)[600:]]) else None


def test_engines_that_share_a_server_find_each_others_records_and_no_foreign_ones(
    valkey: Any, client: redis.Redis
) -> None:
    one, other, foreign = registered(url(valkey)), registered(url(valkey)), registered(url(valkey), OTHER)
    assert one.has([NAME]) == [False]
    one.write(NAME, [memoryview(DATA)])
    assert other.has([NAME, b"x"]) == [True, False]
    assert read(other) == DATA
    assert foreign.has([NAME]) == [False]
    assert read(foreign) is None
    (key,) = client.keys()
    assert LAYOUT.fingerprint[:32] in key.decode()
    one.drop(NAME)
    assert read(other) is None
    for store in (one, other, foreign):
        store.close()


def test_what_is_forgotten_is_gone_from_the_server_and_nothing_else_is(valkey: Any, client: redis.Redis) -> None:
    ours, others = registered(url(valkey)), registered(url(valkey), OTHER)
    names = [b"u" + bytes([scope]) * 8 + bytes([place]) * 24 for scope in (1, 2) for place in range(3)]
    for store in (ours, others):
        for name in names:
            store.write(name, [memoryview(b"data")])
    ours.forget(bytes([1]) * 8)
    assert ours.has(names) == [False] * 3 + [True] * 3
    ours.forget(b"")
    assert ours.has(names) == [False] * 6
    assert others.has(names) == [True] * 6
    assert len(client.keys()) == 6
    for store in (ours, others):
        store.close()


def test_what_others_left_under_our_name_is_dropped(valkey: Any, client: redis.Redis) -> None:
    """Nonsense, a record cut short, one with a wrong byte, one of another layout."""
    store, foreign = registered(url(valkey)), registered(url(valkey), OTHER)
    store.write(NAME, [memoryview(DATA)])
    (key,) = client.keys()
    whole = client.get(key)
    foreign.write(NAME, [memoryview(DATA)])
    (foreign_key,) = set(client.keys()) - {key}
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    for nonsense in (b"", b"hello", whole[:-1], whole + b"x", bytes(flipped), client.get(foreign_key)):
        client.set(key, nonsense)
        assert read(store) is None, nonsense[:20]
        assert not client.exists(key)
    store.close()
    foreign.close()


@pytest.mark.story
def test_something_large_under_our_name_is_not_read_whole(valkey: Any, client: redis.Redis) -> None:
    """The server sends no more of it than a record has, and it is dropped."""
    store, large_bytes = registered(url(valkey)), 8 << 20
    store.write(NAME, [memoryview(DATA)])
    (key,) = client.keys()
    client.set(key, client.get(key) + bytes(large_bytes))
    before = client.info("stats")["total_net_output_bytes"]
    assert read(store) is None
    assert client.info("stats")["total_net_output_bytes"] - before < large_bytes // 8
    assert not client.exists(key)
    store.close()


def test_an_address_that_is_none_is_refused_without_its_password() -> None:
    with pytest.raises(InputError, match="begin with redis://") as refused:
        RemoteStore("http://me:secret@host")
    assert "secret" not in str(refused.value)
    with pytest.raises(InputError, match="an address without a scheme is no server's: begin with redis://"):
        RemoteStore("secret")
    store = RemoteStore("redis://me:secret@127.0.0.1:1")
    with pytest.raises(TierFailed, match=r"redis://127\.0\.0\.1:1 cannot be reached") as failed:
        store.register(LAYOUT)
    assert "secret" not in str(failed.value)
    store.close()


def test_a_password_is_needed_where_the_server_wants_one() -> None:
    with server() as guarded:
        with redis.Redis(port=guarded.port) as client:
            client.config_set("requirepass", "sesame")
        for wrong in (f"redis://127.0.0.1:{guarded.port}", f"redis://:wrong@127.0.0.1:{guarded.port}"):
            with pytest.raises(TierFailed, match="Authentication"):
                registered(wrong)
        store = registered(f"redis://:sesame@127.0.0.1:{guarded.port}")
        store.write(NAME, [memoryview(DATA)])
        assert read(store) == DATA
        store.close()


def test_tls_is_spoken_to_servers_whose_certificate_is_trusted_and_to_no_others(
    valkey: Any, client: redis.Redis, tmp_path: Path
) -> None:
    assert client.ping()
    own = certificate(tmp_path)
    proxy = Proxy(valkey.port, own)
    address = f"rediss://127.0.0.1:{proxy.port}"
    with pytest.raises(TierFailed, match=r"(?i)certificate"):
        registered(address)
    store = registered(f"{address}?ssl_ca_certs={own}")
    store.write(NAME, [memoryview(DATA)])
    assert read(store) == DATA
    store.close()
    proxy.close()


# ── the whole way, on a model ─────────────────────────────────────────────


class Day:
    """A service on a server behind a proxy; its tier is mended when the test says so, not by the clock."""

    def __init__(self, address: str) -> None:
        self.store = RemoteStore(address, lookup_seconds=1.5, transfer_seconds=1.5)  # a busy machine may need 0.3
        self.service = TieredService(MODEL, plan_of(MODEL, batch_tokens=32), [self.store])
        (self.tier,) = self.service.stack.tiers
        self.asked = 0

    def ask(self, scope: str = "") -> list[int]:
        """The same prompt once more; nothing of it is in the pool or in host memory any more."""
        self.asked += 1
        tokens = self.service.ask(PROMPT, OUTPUTS, f"ask {self.asked} ", scope).tokens().tolist()
        self.service.stack.flush()
        self.forget()
        return tokens

    def forget(self) -> None:
        self.service.drop_cache()
        cache = self.service.stack.held.cache
        evict_unpinned(cache)
        assert cache.free_blocks == cache.blocks

    def loaded(self) -> list[int]:
        loaded = self.service.tokens(LoadFinished)
        self.service.events.clear()
        return loaded

    def close(self) -> None:
        assert not self.service.stack.loads._open
        assert self.service.stack.held.cache.free_blocks == self.service.stack.held.cache.blocks
        self.service.stack.close()


@pytest.mark.parametrize("name", MODELS)
def test_an_engine_goes_on_from_what_another_one_computed(valkey: Any, client: redis.Redis, name: str) -> None:
    stores = [RemoteStore(url(valkey), lookup_seconds=2, transfer_seconds=5) for _ in range(2)]
    first, second = (TieredService(name, plan_of(name, batch_tokens=32), [store]) for store in stores)
    cold = first.ask(PROMPT, OUTPUTS, "cold ").tokens().tolist()
    first.stack.flush()
    assert client.dbsize() > 0
    assert second.ask(PROMPT, OUTPUTS, "warm ").tokens().tolist() == cold
    assert second.tokens(LoadFinished) == [4 * PAGE]
    assert second.ask(PROMPT, OUTPUTS, "other scope ", scope="tenant").tokens().tolist() == cold
    assert second.tokens(LoadFinished) == [4 * PAGE]
    for service in (first, second):
        service.stack.close()


@pytest.mark.parametrize("mood", ["silent", "nonsense"])
def test_a_server_that_is_slow_or_mad_is_left_alone_until_it_is_well(
    valkey: Any, client: redis.Redis, mood: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It falls ill between two requests, and in the middle of a load; each time the request computes its tokens."""
    client.flushall()
    proxy = Proxy(valkey.port)
    day = Day(proxy.url)
    cold = day.ask()
    assert day.ask() == cold
    assert day.loaded() == [4 * PAGE]
    with caplog.at_level("WARNING", "quire.tiers"):
        proxy.mood = mood
        assert day.ask() == cold
        assert day.ask() == cold
    assert not day.tier.can_read
    assert day.loaded() == []
    assert len([line for line in caplog.messages if line.startswith("tier remote: cannot")]) == 1
    proxy.mood = "honest"
    day.tier.mend()
    assert day.ask() == cold
    assert day.loaded() == [4 * PAGE]
    find = day.service.stack.find
    day.service.stack.find = lambda keys, ends: (find(keys, ends), setattr(proxy, "mood", mood))[0]  # type: ignore[method-assign]
    assert day.ask() == cold
    assert day.service.reasons() == ["a record is gone"]
    assert day.loaded() == []
    day.close()
    proxy.close()


def test_a_server_that_is_down_at_the_start_and_restarts_empty_is_used_when_it_is_there() -> None:
    with server() as first:
        port = first.port
    day = Day(f"redis://127.0.0.1:{port}")
    assert not day.tier.can_read
    cold = day.ask()
    with server(port=port) as running:
        assert running.port == port
        day.tier.mend()
        assert day.ask() == cold
        assert day.ask() == cold
        assert day.loaded() == [4 * PAGE]
    assert day.ask() == cold
    assert not day.tier.can_read
    with server(port=port):
        day.tier.mend()
        assert day.ask() == cold
        assert day.loaded() == []
        assert day.ask() == cold
        assert day.loaded() == [4 * PAGE]
    day.close()


def test_a_server_that_is_full_keeps_what_it_has_and_gives_it_back() -> None:
    with server(**{"maxmemory-policy": "noeviction"}) as running, redis.Redis(port=running.port) as client:
        day = Day(url(running))
        cold = day.ask()
        client.config_set("maxmemory", "1mb")
        day.service.ask(PROMPT[::-1].copy(), OUTPUTS, "another ")
        day.service.stack.flush()
        day.forget()
        assert day.tier.can_read
        assert not day.tier.can_write
        day.loaded()
        assert day.ask() == cold
        assert day.loaded() == [4 * PAGE]
        client.config_set("maxmemory", "0")
        day.tier.mend()
        assert day.tier.can_write
        day.close()
