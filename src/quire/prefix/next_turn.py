"""What the index keeps when a turn of a conversation has ended, and what it evicts first.

    now     ├──────── recurs ────────┼──── beyond ────┤      prompt and answer
    next    ├──────── recurs ────────┼── new ──▶             as the chat template writes them as history
                                     ◆ stays                  beyond is evicted first, and found until then

A template may write the answer in two ways, depending on who speaks next: then there are two places, and both stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.core.request import Tokens
from quire.prefix.forecast import Origin
from quire.prefix.index import PrefixIndex
from quire.prefix.keys import keys_of
from quire.prefix.nodes import Chain


class TurnKept(NamedTuple):
    """What was done about a turn that ended."""

    recurs: int
    """Tokens of it that the next turn has too."""
    gap: int
    """The most of them, over all ways to continue, that lie after the last boundary that the cache has: they are
    computed again."""
    beyond: int
    """Tokens that are evicted first from now on."""


def end_turn(index: PrefixIndex, root: bytes, now: Tokens, recurring: Sequence[int]) -> TurnKept:
    """A turn ended with the tokens `now`. `recurring`: how many of them the next turn begins with, for each way to
    continue."""
    if index.disabled:
        return TurnKept(0, 0, 0)
    keys, gaps = keys_of(root, now, index.unit), []
    for tokens in recurring:
        hit = index.find(keys, root, now, tokens)
        gaps.append(tokens - hit.tokens)
        if hit.tokens:
            _refresh(index, hit.chain)
    most = max(recurring, default=len(now))
    beyond = _demote(index, index.find(keys, root, now, len(now)).chain, most)
    return TurnKept(most, max(gaps, default=0), beyond)


def _refresh(index: PrefixIndex, chain: Chain) -> None:
    """A boundary is used by the turn that follows, however many turns have ended further on."""
    nodes, end = index.nodes, chain.item(-1)
    if not index.coverage.has_boundaries:
        demoted = chain[nodes.origin[chain] == Origin.BEYOND]
        nodes.origin[demoted], nodes.used[demoted] = Origin.TURN, index.eviction.tick()
        if not nodes.children[end]:
            index.eviction.push(end)
        return
    origin = Origin(nodes.origin.item(end))
    stays = Origin.TURN if origin in (Origin.PASSED, Origin.BEYOND) else origin
    index.eviction.promote(chain)
    index.eviction.describe(chain, stays, nodes.line.item(end))


def _demote(index: PrefixIndex, chain: Chain, recurs: int) -> int:
    """What lies after `recurs` tokens is evicted before everything else, unless other requests use it too."""
    nodes = index.nodes
    own = (nodes.tokens[chain] > recurs) & (nodes.children[chain] <= 1) & (nodes.uses[chain] == 0)
    own &= (nodes.leased[chain] == 0) & (nodes.awaited[chain] == 0)
    others = (~own).nonzero()[0]
    first = others.item(-1) + 1 if len(others) else 0
    beyond = chain[first:]
    if not len(beyond):
        return 0
    nodes.origin[beyond], nodes.used[beyond] = Origin.BEYOND, 0.0
    ranked = nodes.is_boundary[beyond] > 0
    ranked[-1] = True
    for node in beyond[ranked].tolist():
        index.eviction.push(node)
    return nodes.tokens.item(chain.item(-1)) - (nodes.tokens.item(chain.item(first - 1)) if first else 0)


def drop_between(index: PrefixIndex, root: bytes, tokens: Tokens, begin: int) -> None:
    """Drops boundaries after `begin` and before the last that these tokens have: those of chunks on the way to it."""
    if index.disabled or not index.coverage.has_boundaries:
        return
    hit = index.find(keys_of(root, tokens, index.unit), root, tokens, len(tokens))
    if not hit.tokens:
        return
    nodes, inner = index.nodes, hit.chain[:-1]
    is_own = (nodes.tokens[inner] > begin) & (nodes.is_boundary[inner] > 0) & (nodes.children[inner] <= 1)
    is_own &= (nodes.uses[inner] <= 1) & (nodes.lease_ends[inner] == 0) & (nodes.origin[inner] != Origin.JUNCTION)
    for node in inner[is_own].tolist():
        index.boundaries.drop(node)
