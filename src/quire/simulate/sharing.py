"""Made-up traces about what prompts share with earlier ones, each from a seed.

nested     four levels, each drawn by a Zipf law: system prompt ▸ tools ▸ document ▸ question
sessions   many conversations; requests come one at a time, the sessions in turn or in random order
waves      many conversations that all return at once for their next turn
history    one conversation, sent again with a little more each time; some requests go back and branch off
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quire.simulate.tokens import Recipe, seed_of
from quire.simulate.traces import Asked

Random = np.random.Generator
Piece = tuple[int, int, int]
"""Seed, first position, tokens."""
LEVELS = ((4, 500, 900), (5, 600, 1400), (10, 1200, 2600), (12, 30, 120))
"""Of `nested`: children of each node, and the least and most tokens of one."""
TURNS = 5
"""Of each session of `sessions` and `waves`."""
WAVE_SECONDS, WAVE_SPREAD = 300.0, 0.1
OPENING, WORDS, ANSWER = (2000, 4000), (60, 200), (12, 40)
"""Of a session: least and most tokens of its first prompt, of what each later turn adds, and of an answer."""
EDITS, RETURNS = 0.1, 0.06
"""Of `history`: fractions of requests that change an earlier turn, and that continue from the end of another branch."""
HISTORY_OPENING, HISTORY_WORDS = 3000, (40, 260)


def _between(random: Random, bounds: tuple[int, int]) -> int:
    return int(random.integers(bounds[0], bounds[1] + 1))


def zipf(random: Random, count: int) -> int:
    """A place from 0 on; the k-th has a probability proportional to 1 ÷ k."""
    weights = 1 / np.arange(1, count + 1)
    return int(random.choice(count, p=weights / weights.sum()))


def nested(count: int, random: Random) -> list[Asked]:
    """Two requests a second; the shorter the common path of two of them, the shorter their common prefix."""
    sizes: dict[tuple[int, ...], int] = {}
    requests: list[Asked] = []
    seconds = 0.0
    for number in range(count):
        path: tuple[int, ...] = ()
        pieces: list[Piece] = []
        for children, least, most in LEVELS:
            path = (*path, zipf(random, children))
            if path not in sizes:
                sizes[path] = _between(random, (least, most))
            pieces.append((seed_of(f"node {path}"), 0, sizes[path]))
        requests.append(Asked(f"n{number}", Recipe.of(pieces), _between(random, ANSWER), seconds))
        seconds += float(random.exponential(0.5))
    return requests


@dataclass(slots=True)
class Talk:
    """A conversation that is being written: what was said so far."""

    name: str
    pieces: list[Piece] = field(default_factory=list)
    turns: int = 0

    def say(self, tokens: int, answer: int, seconds: float, after: int | None) -> Asked:
        """The next turn: everything before, and `tokens` tokens more."""
        name = f"{self.name}t{self.turns}"
        self.pieces.append((seed_of(f"words {name}"), 0, tokens))
        recipe = Recipe.of(self.pieces)
        self.pieces.append((seed_of(name), recipe.tokens, answer))
        self.turns += 1
        return Asked(name, recipe, answer, seconds, after)


def _turn(talk: Talk, random: Random, seconds: float, after: int | None) -> Asked:
    words = _between(random, WORDS) if talk.turns else _between(random, OPENING)
    return talk.say(words, _between(random, ANSWER), seconds, after)


def _rounds(count: int, random: Random, is_shuffled: bool) -> list[tuple[int, int]]:
    """(round, session), as many rounds as there are turns; in turn, or each round in an order of its own."""
    sessions = -(-count // TURNS)
    orders = [random.permutation(sessions) if is_shuffled else np.arange(sessions) for _ in range(TURNS)]
    return [(turn, int(one)) for turn, order in enumerate(orders) for one in order][:count]


def sessions(count: int, random: Random) -> list[Asked]:
    """Each request comes when the one before it has its answer. Half of all seeds keep one order in every round."""
    talks: dict[int, Talk] = {}
    requests: list[Asked] = []
    for place, (_, number) in enumerate(_rounds(count, random, is_shuffled=bool(random.integers(2)))):
        talk = talks.setdefault(number, Talk(f"s{number}"))
        requests.append(_turn(talk, random, float(random.exponential(0.05)), place - 1 if place else None))
    return requests


def waves(count: int, random: Random) -> list[Asked]:
    """All sessions come within a tenth of a second, in another order each time, and again five minutes later."""
    talks: dict[int, Talk] = {}
    order = _rounds(count, random, is_shuffled=True)
    arrivals = sorted((turn * WAVE_SECONDS + WAVE_SPREAD * float(random.random()), turn) for turn, _ in order)
    return [
        _turn(talks.setdefault(number, Talk(f"w{number}")), random, seconds, None)
        for (_, number), (seconds, _) in zip(order, arrivals, strict=True)
    ]


def history(count: int, random: Random) -> list[Asked]:
    """One user, who waits for each answer. An edit goes back one to eight turns and says something else there."""
    talk, ends = Talk("h"), list[list[Piece]]()
    requests: list[Asked] = []
    for place in range(count):
        if len(talk.pieces) > 2 and random.random() < EDITS:
            ends.append(list(talk.pieces))
            turns = min(int(random.integers(1, 9)), len(talk.pieces) // 2 - 1)
            del talk.pieces[-2 * turns :]
        elif ends and random.random() < RETURNS:
            other = int(random.integers(len(ends)))
            ends[other], talk.pieces = talk.pieces, ends[other]
        words = _between(random, HISTORY_WORDS) if place else HISTORY_OPENING
        seconds, after = float(random.exponential(2.0)), place - 1 if place else None
        requests.append(talk.say(words, _between(random, ANSWER), seconds, after))
    return requests
