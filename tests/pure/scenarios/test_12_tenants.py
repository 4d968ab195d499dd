"""Tenants: what one scope computed is not found by another, wherever it lies."""

from __future__ import annotations

from scenes import FreeRunner, KeyedTier, World, own_tokens, paged_plan

from quire.core.events import LoadFinished, LoadStarted, RequestAdmitted
from quire.core.request import Ending, Request

PROMPT = own_tokens("secret", 200)


def admitted(world: World, name: str, scope: str) -> tuple[int, str]:
    """Tokens found on the device, and why not if none were."""
    stream = world.submit(Request(name, PROMPT, 5, scope=scope))
    world.run(100)
    assert stream.ending is Ending.LENGTH
    (event,) = [one for one in world.events if (type(one), getattr(one, "request", "")) == (RequestAdmitted, name)]
    return event.hit_tokens, event.label


def test_a_scope_finds_on_the_device_what_it_computed_itself_and_nothing_else() -> None:
    """The same prompt under two scopes: no hit, and the miss says that it is the scope; then under the first one again:
    all whole pages before the last token."""
    world = World(paged_plan(200))
    assert admitted(world, "a", "one") == (0, "no_overlap")
    assert admitted(world, "b", "two") == (0, "scope")
    assert admitted(world, "c", "one") == (192, "")


def test_a_scope_is_brought_from_the_tier_what_it_stored_itself_and_nothing_else() -> None:
    """A tier that keeps everything it was ever asked for, and engines that begin with an empty device."""
    tier = KeyedTier(seconds=0.0)
    stored = World(paged_plan(200), FreeRunner(), tier)
    admitted(stored, "a", "one")
    tier.known.update(key for keys in tier.asked for key in keys)
    assert len(tier.known) == 12
    foreign, own = (World(paged_plan(200), FreeRunner(), tier) for _ in range(2))
    admitted(foreign, "b", "two")
    assert not foreign.told(LoadStarted)
    admitted(own, "c", "one")
    (load,) = [event for event in own.events if isinstance(event, LoadFinished)]
    assert load.tokens == 192
