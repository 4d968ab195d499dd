"""Conversations under templates that drop reasoning: what the next turn finds, and how soon its first token comes.

    python bench/turns.py [--turns 20] [--style qwen] [--style harmony] [--thought 120]

The default model on this CPU, with two chat templates that drop reasoning when the user speaks again and keep it while
tools are called (bench/thinking_templates.py). Answers are given, not sampled: each is computed as if it had been
generated, so that all ways compare the same tokens. Three ways, turn by turn in one run:

off            --next-turn off: nothing is known about the next turn
no pause       the next turn follows at once: boundaries are kept where they were known
pause          the engine has time before the next turn, and computes what it will begin with

*recurs* are tokens that a prompt and the turn before, as it was generated, begin with; *known* those that were known to
come when that turn ended. A hit ends with a match unit where every layer has full attention. Tokens are sums over all
turns but the first, times are medians over them; *session* is what the cache holds of the conversation afterwards:
what stays, of all that is there (the rest is evicted first).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.core.request import Request, Tokens
from quire.core.units import MIB
from quire.engine.engine import Engine
from quire.explain.events import reused_tokens
from quire.fetch.default import fetch_default
from quire.llm import LLM
from quire.plan.settings import Budget, Settings
from quire.prefix.forecast import Origin
from quire.prefix.keys import scope_of
from quire.text.answer import Delta
from quire.text.dialects.calls import ToolCall
from quire.text.next_turn import Ahead, NextTurn, Spoken, common_tokens
from quire.text.prompts import Prompts
from quire.text.templates import ChatTemplate
from quire.text.tokenizer import Tokenizer
from quire.warm.work import TurnEnd, WarmWork, warm_work
from thinking_templates import TEMPLATES, TOOL, written

WAYS = ("off", "no pause", "pause")
POOL = Budget(pool_bytes=1 << 30)
LIMIT_SECONDS = 0.1
"""Of a chunk, as the default of --warm-milliseconds."""
WORDS = ("the", "quick", "brown", "fox", "sees", "a", "lazy", "dog", "near", "the", "old", "river", "and", "wonders")


@dataclass(frozen=True, slots=True)
class Measured:
    """One turn under one way."""

    prompt: int
    found: int
    recurs: int
    known: int
    seconds: float
    """To the first token."""


class Session:
    """One conversation under one way."""

    def __init__(self, way: str, prompts: Prompts, engine: Engine, work: WarmWork, scope: str) -> None:
        self.way, self._prompts, self._engine, self._work, self._scope = way, prompts, engine, work, scope
        self._ahead = Ahead(prompts, way != "off", print)
        self._messages: list[dict[str, Any]] = []
        self._before: NextTurn | None = None
        self._now: Tokens = np.empty(0, dtype=np.int32)
        self.turns: list[Measured] = []

    def speak(self, message: dict[str, Any], said: dict[str, Any], raw: str) -> None:
        """`raw`: what the model writes; `said`: the message that the client makes of it."""
        self._messages.append(message)
        text = self._prompts.render(self._messages, (TOOL,))
        prompt = self._prompts.encode(text, False)
        spoken = Spoken(tuple(self._messages), (TOOL,), None, text, prompt)
        points = self._ahead.points(spoken)
        found, seconds = self._first_token(prompt, points)
        outputs = self._prompts.encode(raw, False)
        self._run(Request("answer", np.concatenate([prompt, outputs]), 1, scope=self._scope))
        known = max((common_tokens(prompt, one) for one in self._before.nexts), default=0) if self._before else 0
        self.turns.append(Measured(len(prompt), found, common_tokens(prompt, self._now), known, seconds))
        self._now = np.concatenate([prompt, outputs])
        self._messages.append(said)
        self._end(spoken, said, outputs)

    def _first_token(self, prompt: Tokens, points: tuple[int, ...]) -> tuple[int, float]:
        begin = time.perf_counter()
        stream = self._engine.submit(Request("turn", prompt, 8, scope=self._scope, points=points))
        while not len(stream.tokens()):
            self._engine.step()
        seconds = time.perf_counter() - begin
        self._engine.drain()
        hits = [reused_tokens(event) for event in self._engine.history.of("turn")]
        return [hit for hit in hits if hit is not None][-1], seconds

    def _run(self, request: Request) -> None:
        self._engine.submit(request)
        self._engine.drain()

    def _end(self, spoken: Spoken, said: dict[str, Any], outputs: Tokens) -> None:
        calls = tuple(
            ToolCall(one["function"]["name"], one["function"]["arguments"], id=one["id"])
            for one in said.get("tool_calls", ())
        )
        answer = Delta(said["content"], said["reasoning_content"], calls, tuple(outputs.tolist()), ending="stop")
        self._before = self._ahead.after(spoken, answer)
        if self._before is None:
            return
        turn = self._before
        self._work.end_turn(TurnEnd(turn.now, turn.recurring, turn.nexts, self._scope))
        while self.way == "pause" and self._work.step():
            pass

    def cached_bytes(self, even_beyond: bool) -> int:
        """What the cache holds of this session after its last turn. `even_beyond`: also what it evicts first."""
        reuse = self._engine.scheduler.reuse
        scope, nodes = scope_of(reuse.root_of(self._scope)), reuse.index.nodes
        own = np.array([node for key, node in nodes.items() if key.startswith(scope)], dtype=np.int64)
        own = own if even_beyond else own[nodes.origin[own] != Origin.BEYOND]
        return sum(
            len(np.unique(kept.pages[own][kept.present[own]])) * kind.page_bytes
            for memory in reuse.memories
            for kept, kind in zip(memory.kept, memory.stage.kinds, strict=True)
        )


def script_of(turn: int, style: str, has_tools: bool, thought_words: int) -> tuple[dict[str, Any], dict[str, Any], str]:
    random = np.random.default_rng(turn)
    thought, said = (" ".join(random.choice(WORDS, size)) for size in (thought_words, 24))
    is_call, is_result = has_tools and turn % 3 == 1, has_tools and turn % 3 == 2
    message: dict[str, Any] = {"role": "user", "content": f"{turn}: {' '.join(random.choice(WORDS, 20))}?"}
    if is_result:
        message = {"role": "tool", "content": "found " + said, "tool_call_id": f"call-{turn - 1}", "name": "look"}
    arguments = {"bird": "emu", "n": turn}
    answer: dict[str, Any] = {"role": "assistant", "content": "" if is_call else said, "reasoning_content": thought}
    if is_call:
        function = {"name": "look", "arguments": json.dumps(arguments)}
        answer["tool_calls"] = [{"id": f"call-{turn}", "type": "function", "function": function}]
    return message, answer, written(style, thought, answer["content"], arguments if is_call else None)


def run(llm: LLM, style: str, has_tools: bool, turns: int, thought_words: int) -> dict[str, Session]:
    """In scopes of their own: no way finds what another one computed."""
    own = llm.tokenizer
    tokenizer = Tokenizer(own.inner, own.eos_token_ids, ChatTemplate(TEMPLATES[style], {}))
    prompts = Prompts(tokenizer, llm.parts.vocabulary_tokens)
    sessions = {way: Session(way, prompts, llm.engine, warm_work(llm.engine, LIMIT_SECONDS), way) for way in WAYS}
    for turn in range(turns):
        for session in sessions.values():
            session.speak(*script_of(turn, style, has_tools, thought_words))
    return sessions


def report(style: str, has_tools: bool, sessions: dict[str, Session]) -> None:
    print(f"\n{style}, {'with' if has_tools else 'without'} tools: {len(sessions['off'].turns)} turns")
    print(f"{'way':10} {'prompts':>9} {'found':>9} {'recurs':>9} {'known':>9}  session, MiB {'first token':>13}")
    for way, session in sessions.items():
        later = session.turns[1:]
        sums = [sum(getattr(turn, what) for turn in later) for what in ("prompt", "found", "recurs", "known")]
        milliseconds = 1000 * statistics.median(turn.seconds for turn in later)
        numbers = " ".join(f"{number:9,}" for number in sums)
        stays, whole = (session.cached_bytes(even_beyond) / MIB for even_beyond in (False, True))
        print(f"{way:10} {numbers} {stays:5.1f} of {whole:5.1f} {milliseconds:10.0f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--style", action="append", choices=["qwen", "harmony"])
    parser.add_argument("--thought", type=int, default=120, help="words of reasoning in each answer (default 120)")
    given = parser.parse_args()
    fetch_default()
    for style in given.style or ("qwen", "harmony"):
        for has_tools in (False, True):
            settings = Settings(max_requests=4, batch_tokens=512)
            with LLM(settings=settings, budget=POOL, next_turn="off") as llm:
                report(style, has_tools, run(llm, style, has_tools, given.turns, given.thought))


if __name__ == "__main__":
    main()
