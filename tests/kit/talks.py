"""Conversations of many turns on an engine whose runner checks every read, with answers that are written beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from byte_tokenizer import byte_tokenizer
from quire.check.scripts import Script, _mix
from quire.check.shadow import ShadowRunner
from quire.core.events import RequestAdmitted
from quire.core.request import Request, Tokens
from quire.core.sampling import Sampling
from quire.engine.engine import Engine
from quire.plan.plan import Plan
from quire.text.answer import Delta
from quire.text.next_turn import Ahead, NextTurn, Spoken, common_tokens
from quire.text.prompts import Prompts
from quire.text.question import Question
from quire.text.tools import tool_use
from quire.warm.pace import FixedPace
from quire.warm.work import TurnEnd, WarmWork
from thinking_templates import MARKS, TEMPLATES, TOOL, written


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A turn as it went: tokens of its prompt, of what it found, and of what recurred."""

    prompt: int
    found: int
    recurs: int
    """Tokens that its prompt and the turn before, as it was generated, begin with."""
    expected: int
    """Tokens of its prompt that were known to come when the turn before ended."""


class Talk:
    """One conversation."""

    def __init__(
        self,
        style: str,
        plan: Plan,
        is_idle_between: bool,
        is_on: bool = True,
        make: Callable[..., Engine] = Engine,
    ) -> None:
        """`is_idle_between`: the engine has time between turns."""
        self.style, self.is_idle_between = style, is_idle_between
        self.turns: list[Turn] = []
        self.prompts = prompts_of(style)
        self.said: list[str] = []
        self.ahead = Ahead(self.prompts, is_on, self.said.append)
        self.runner = ShadowRunner()
        self._found = 0
        self.engine = make(plan, self.runner, listeners=(self._listen,))
        self.runner.attach(self.engine.scheduler)
        self.work = WarmWork(self.engine, FixedPace(48))
        self.messages: list[dict[str, Any]] = []
        self._before: NextTurn | None = None
        self._now: Tokens = np.empty(0, dtype=np.int32)
        listen = self.engine.submit

        def submit(request: Request) -> Any:
            self.runner.scripts.setdefault(request.name, script(request.prompt, request.scope, request.max_tokens))
            if request.name == "warm work":
                self.runner.scripts[request.name] = script(request.prompt, request.scope, request.max_tokens)
            return listen(request)

        self.engine.submit = submit  # type: ignore[method-assign]

    def _listen(self, event: object) -> None:
        if isinstance(event, RequestAdmitted) and event.request != "warm work":
            self._found = event.hit_tokens

    def speak(self, message: dict[str, Any], thought: str, said: str, call: dict[str, Any] | None = None) -> Turn:
        """One turn: a message of a user or of a tool, and what the model writes."""
        self.messages.append(message)
        tools = (TOOL,)
        text = self.prompts.render(self.messages, tools)
        prompt = self.prompts.known(self.prompts.encode(text, False))
        spoken = Spoken(tuple(self.messages), tools, None, text, prompt)
        outputs = self.prompts.encode(written(self.style, thought, said, call), False)
        name = f"turn {len(self.turns)}"
        self.runner.scripts[name] = script(np.concatenate([prompt, outputs]), "", 1)
        self.work.give_way()
        self.engine.submit(Request(name, prompt, len(outputs), points=self.ahead.points(spoken)))
        while name in self.engine.streams:
            self.work.step()
        answer = self._read(text, outputs)
        expected = max((common_tokens(prompt, one) for one in self._before.nexts), default=0) if self._before else 0
        turn = Turn(len(prompt), self._found, common_tokens(prompt, self._now), expected)
        self.turns.append(turn)
        self._end(spoken, answer)
        return turn

    def _read(self, text: str, outputs: Tokens) -> Delta:
        use = tool_use((TOOL,), "auto", True, self.prompts.dialect)
        empty = np.zeros(1, dtype=np.int32)
        question = Question((empty,), (text,), (1,), Sampling(), tools=use, reasoning=self.prompts.reasoning)
        (reader,) = question.answers(self.prompts.tokenizer)
        return reader.feed(outputs.tolist(), (), "stop")

    def _end(self, spoken: Spoken, answer: Delta) -> None:
        said: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.tool_calls:
            said |= {"tool_calls": [one.message_part for one in answer.tool_calls]}
        self.messages.append(said | {"reasoning_content": answer.reasoning} if answer.reasoning else said)
        turn = self._before = self.ahead.after(spoken, answer)
        self._now = np.concatenate([spoken.prompt, np.array(answer.tokens, dtype=np.int32)])
        if turn is not None:
            self.work.end_turn(TurnEnd(turn.now, turn.recurring, turn.nexts))
        if self.is_idle_between:
            self.idle()

    def idle(self) -> None:
        while self.work.step():
            pass


def prompts_of(style: str) -> Prompts:
    tokenizer = byte_tokenizer(MARKS, TEMPLATES[style])
    return Prompts(tokenizer, tokenizer.vocab_size)


def script(tokens: Tokens, scope: str, more: int) -> Script:
    """These tokens and, for those that a sampler would draw after them, zeros."""
    all_tokens = [*tokens.tolist(), *([0] * more)]
    digest, digests = _mix(0, int.from_bytes(scope.encode())), []
    for token in all_tokens:
        digest = _mix(digest, token)
        digests.append(digest)
    return Script(np.array(all_tokens, dtype=np.int64), np.array(digests, dtype=np.int64), 0)
