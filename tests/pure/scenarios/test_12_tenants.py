"""Tenants: what one scope computed is not found by another, wherever it lies."""

from __future__ import annotations

from scenes import PAGE, World, own_tokens, paged_plan

from quire.core.events import LoadFinished, LoadStarted, RequestAdmitted
from quire.core.request import Ending, Request
from quire.prefix.keys import keys_of

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
    """A tier that has all whole pages of the prompt in the first scope, and engines with an empty device."""
    foreign, own = (World(paged_plan(200), load_seconds=0.0) for _ in range(2))
    for world in (foreign, own):
        world.tier.known.update(keys_of(world.engine.scheduler.reuse.root_of("one"), PROMPT, PAGE))
        assert len(world.tier.known) == 12
    admitted(foreign, "b", "two")
    assert not foreign.told(LoadStarted)
    admitted(own, "c", "one")
    (load,) = [event for event in own.events if isinstance(event, LoadFinished)]
    assert load.tokens == 192
