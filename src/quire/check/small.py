"""Small systems whose every schedule is explored: at most 12 sheets and some for leases, 3 requests, 3 kinds, pages of
1 or 2 tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from quire.check.definitions import DEFINITIONS
from quire.check.scripts import script_for
from quire.core.memory import Follows, Memory, Part
from quire.core.request import Request, Retain
from quire.core.rules import Policy, Rules
from quire.kinds import KINDS, Keeps
from quire.models.shape import Layer, ModelShape
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings

NEVER = 1e9
"""Seconds: leases end by release."""


@dataclass(frozen=True, slots=True)
class Small:
    """A system and the requests that come to it: (tokens of the prompt, outputs, priority)."""

    name: str
    kinds: tuple[tuple[str, int], ...]
    """And how many heads each has: kinds with more heads get fewer pages in a sheet."""
    sheets: int
    requests: tuple[tuple[str, int, int], ...]
    """A prompt's letters are its tokens: prompts with the same first letters share a prefix. One that begins with a
    number continues what that request was asked and generated; 0@4 is a fork after 4 tokens of the first request."""
    page_tokens: int = 1
    lookahead: int = 0
    batch_tokens: int = 2
    rows: int = 2
    overlap: int = 2
    stages: int = 1
    """Of a pipeline, each with layers of its own and as many sheets."""
    stored: int = 0
    """Units of every prompt that a tier can bring; 0: there is no tier."""
    aborts: bool = True
    evicts: bool = False
    """The prefix index may forget everything, and pages may be compacted, between any two steps."""
    leases: int = 0
    """Sheets for leases. If there are any, every request asks for a lease of what it leaves, which may end any time."""
    are_branches: bool = False
    """Every request keeps its prompt's end for others."""
    typical_output: float = 1.0
    policy: Policy = Policy.PRIORITY
    tenants: tuple[str, ...] = ("", "blue")
    """They send requests in turn."""

    def plan(self) -> Plan:
        parts = {heads: (Part("key", heads, 128, follows=Follows.KV, replicated=True),) for _, heads in self.kinds}
        memories = (Memory.of(kind, parts[heads], DEFINITIONS[kind].small) for kind, heads in self.kinds)
        layers = tuple(Layer((memory,)) for memory in memories)
        length = max(request.limit for request in self.work())
        has_pages = any(KINDS[kind].keeps is not Keeps.STATE for kind, _ in self.kinds)
        settings = Settings(
            max_length=length,
            max_requests=self.rows,
            batch_tokens=self.batch_tokens,
            page_tokens={"": self.page_tokens} if has_pages else {},
            match_unit_tokens=self.page_tokens,
            speculative_tokens=self.lookahead,
            pipeline_parallel=self.stages,
        )
        model = ModelShape("small", "check", layers, max_length=length, weights_known=False)
        plan = make_plan(model, settings, Budget(sheets=(self.sheets,)))
        return replace(plan, stages=tuple(replace(stage, lease_sheets=self.leases) for stage in plan.stages))

    def parent(self, number: int) -> str | None:
        """The request that this one is a fork of."""
        prompt = self.requests[number][0]
        return f"r{prompt[0]}" if "@" in prompt else None

    def rules(self) -> Rules:
        return Rules(policy=self.policy)

    def work(self) -> list[Request]:
        requests: list[Request] = []
        for number, (prompt, outputs, priority) in enumerate(self.requests):
            before = requests[int(prompt[0])] if prompt[0].isdigit() else None
            tokens = [ord(letter) for letter in prompt]
            if before is not None and "@" in prompt:
                tokens = script_for(before).tokens[: int(prompt[2:])].tolist()
            elif before is not None:
                tokens = [*script_for(before).tokens[: before.limit].tolist(), *tokens[1:]]
            request = Request(f"r{number}", np.array(tokens, dtype=np.int32), outputs, priority)
            request = replace(request, is_branch=self.are_branches)
            retain = Retain(NEVER) if self.leases else None
            requests.append(replace(request, tenant=self.tenants[number % len(self.tenants)], retain=retain))
        return requests


FULL, LATENT, WINDOW, SINK = ("full", 1), ("latent", 1), ("window", 2), ("sink", 2)
CHUNKED, STATE, CROSS = ("chunked", 3), ("state", 3), ("cross", 1)
THREE = (("abcd", 2, 0), ("abe", 2, 1), ("abcf", 2, 0))
"""Three prompts that part at different places; the second is more urgent."""
URGENT = (("abcd", 2, 0), ("abe", 2, 0), ("abcf", 2, 1))
"""The same, and the last goes before the second: priority decides more than who is the elder."""
APART = (("ab", 3, 0), ("cd", 2, 0), ("ef", 2, 1))
GREEDY = ("", "", "blue")
"""One tenant has every row before the other comes."""
LONG = (("abcdef", 2, 0), ("abcd", 3, 1), ("abg", 3, 0))
TURNS = (("ab", 1, 0), ("0c", 1, 1), ("ad", 1, 0))
"""The second continues the first one's turn."""
BRANCHES = (("abcd", 1, 0), ("abcd", 2, 1))
FORK = (("abc", 3, 0), ("0@5", 1, 0))
"""The second continues the first one after its second output."""
FORKS = (("abcd", 2, 0), ("abcd", 2, 1), ("0@5", 1, 0))
FULL_WINDOW_CHUNKED = (FULL, WINDOW, CHUNKED)
FAIR, FIRST = Policy.FAIR, Policy.FIRST_COME

SHORT = (
    Small("full, one token at a time, a tier", (FULL,), 6, THREE, rows=3, batch_tokens=1, stored=2, overlap=3),
    Small("full, pages of 2, lookahead 2", (FULL,), 6, LONG, 2, 2, 3, rows=3, stored=1),
    Small("full and cross", (("full", 2), CROSS), 6, (("abc", 2, 0), ("ab", 2, 1), ("abc", 1, 0)), rows=3),
    Small("full and window, a tier", (FULL, WINDOW), 6, THREE, rows=3, stored=2),
    Small("full and chunked, lookahead 1", (FULL, ("chunked", 2)), 6, (("abc", 1, 0), ("ab", 2, 1)), lookahead=1),
    Small("window and sink, a tier", (WINDOW, ("sink", 1)), 5, THREE, rows=3, stored=2),
    Small("latent and window, fair", (LATENT, WINDOW), 6, THREE, rows=3, policy=FAIR),
    Small("full, a row given back", (FULL,), 12, APART, policy=FAIR, tenants=GREEDY),
    Small("window and chunked, pages of 2", (WINDOW, CHUNKED), 4, URGENT, 2, rows=3),
    Small("full and state, a tier", (FULL, STATE), 6, (("abc", 2, 0), ("abd", 1, 1), ("abc", 1, 0)), rows=2, stored=2),
    Small("full and state, lookahead 2", (FULL, STATE), 6, (("ab", 3, 0), ("abc", 3, 1), ("ad", 2, 0)), 1, 2, 3),
    Small("full and window, evicted and compacted", (FULL, WINDOW), 6, THREE, rows=3, evicts=True),
    Small("window and state, evicted and compacted", (WINDOW, STATE), 6, (("abc", 2, 0), ("abd", 1, 1)), evicts=True),
    Small("full, leases", (FULL,), 10, TURNS, leases=5, rows=3, evicts=True),
    Small("full and state, leases", (FULL, STATE), 6, TURNS, leases=3, evicts=True),
    Small("full and state, branches", (FULL, STATE), 5, BRANCHES, 2, are_branches=True, evicts=True),
    Small("full and window, a fork", (FULL, WINDOW), 6, FORK, 2, are_branches=True),
    Small("full and window on two stages", (FULL, WINDOW), 6, THREE, rows=3, stages=2),
)
"""Explored by the tests, within a minute."""
LARGE = (
    Small("full, window, chunked", FULL_WINDOW_CHUNKED, 6, THREE, rows=3, policy=FAIR, stored=2),
    Small("the same, one unit stored", FULL_WINDOW_CHUNKED, 6, THREE, rows=3, policy=FAIR, stored=1),
    Small("the same, one token at a time", FULL_WINDOW_CHUNKED, 6, THREE, 1, 0, 1, rows=3, policy=FAIR, stored=2),
    Small("the same, three tokens at a time", FULL_WINDOW_CHUNKED, 6, THREE, 1, 0, 3, rows=3, policy=FAIR, stored=2),
    Small("the same, lookahead 1", FULL_WINDOW_CHUNKED, 6, THREE, 1, 1, rows=3, policy=FAIR, stored=2),
    Small("the same, three in flight", FULL_WINDOW_CHUNKED, 6, THREE, rows=3, policy=FAIR, overlap=3),
    Small("the same, first come", FULL_WINDOW_CHUNKED, 6, THREE, rows=3, policy=FIRST, stored=2),
    Small("full, a row given back, three in flight", (FULL,), 12, APART, policy=FAIR, tenants=GREEDY, overlap=3),
    Small("latent, window, chunked", (LATENT, WINDOW, CHUNKED), 6, THREE, rows=3, policy=FAIR, stored=3),
    Small("full, sink, chunked", (FULL, SINK, CHUNKED), 6, THREE, rows=3, policy=FAIR, stored=2),
    Small("window, sink, chunked", (WINDOW, SINK, CHUNKED), 6, THREE, rows=3, policy=FAIR, stored=2),
    Small("full, window, state", (FULL, WINDOW, STATE), 6, THREE, rows=3, batch_tokens=1),
    Small("full, window, state, lookahead 1", (FULL, WINDOW, STATE), 6, THREE, 1, 1, rows=2, stored=2),
    Small("latent, sink, state", (LATENT, SINK, STATE), 4, THREE, rows=3, policy=FIRST, stored=1),
    Small("window, chunked, state", (WINDOW, CHUNKED, STATE), 6, THREE, rows=2, stored=2),
    Small("full and state, three turns", (FULL, STATE), 6, THREE, rows=2, stored=2),
    Small("full and state, by priority", (FULL, STATE), 6, URGENT, rows=2, stored=2),
    Small("window and chunked", (WINDOW, CHUNKED), 4, THREE, rows=3),
    Small("full and state, evicted and compacted", (FULL, STATE), 6, THREE, rows=2, evicts=True),
    Small("full and window, leases", (FULL, WINDOW), 11, TURNS, leases=6, evicts=True),
    Small("full, window, state, leases", (FULL, WINDOW, STATE), 6, TURNS, leases=3, evicts=True),
    Small("window, chunked, state, leases", (WINDOW, CHUNKED, STATE), 9, TURNS, leases=5, rows=3, policy=FAIR),
    Small("full and state, leases, a tier", (FULL, STATE), 6, TURNS, leases=3, rows=3, stored=2),
    Small("full and state, branches and a fork", (FULL, STATE), 6, FORKS, 2, are_branches=True, rows=3),
    Small("full, window, state, branches", (FULL, WINDOW, STATE), 7, FORKS, 2, are_branches=True, overlap=3),
    Small("full, pages of 2, leases", (FULL,), 6, TURNS, 2, leases=3, rows=3, batch_tokens=1, overlap=3),
    Small("full and state on two stages, a tier", (FULL, STATE), 6, THREE, rows=3, stages=2, stored=2),
    Small("full and window on two stages, lookahead 1", (FULL, WINDOW), 6, THREE, 1, 1, 4, rows=3, stages=2, stored=2),
    Small("full, window, chunked on three stages", FULL_WINDOW_CHUNKED, 6, THREE, rows=3, overlap=3, stages=3),
)
SYSTEMS = SHORT + LARGE
