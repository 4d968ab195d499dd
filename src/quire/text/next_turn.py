"""What the next turn of a conversation begins with, as the chat template writes it.

    now     prompt ─ <think> … </think> answer          what the engine has computed
    next    prompt ─ answer ─ <user>                    a template may drop the reasoning when the user speaks again,
    or      prompt ─ <think> … </think> call ─ <tool>   and keep it while tools are called

Both ways to continue are rendered with two texts each: what these have in common does not depend on what will be said.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.core.errors import InputError
from quire.core.request import Tokens
from quire.core.search import greatest
from quire.text.answer import Delta
from quire.text.dialects.calls import Tool
from quire.text.prompts import Prompts
from quire.text.templates import Message

SAID = ("a", "\n0")
"""Two contents of the message that follows, alike in nothing."""
THOUGHT, ANSWER = "quokka numbat", "bilby"
"""Of answers that are rendered to learn how a template writes them."""
MOST_AHEAD = 8
"""Tokens that every answer is assumed to begin with, at most."""
REMEMBERED = 256
"""Switches of templates for which the place where the next turn differs is remembered."""
Switches = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """A conversation that is answered: its messages, and the prompt made of them."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    switches: Switches
    text: str
    prompt: Tokens


@dataclass(frozen=True, slots=True, eq=False)
class NextTurn:
    """How the conversation goes on after an answer."""

    now: Tokens
    """Prompt and answer."""
    recurring: tuple[int, ...]
    """How many of them the next turn begins with, for each way to continue."""
    nexts: tuple[Tokens, ...]
    """What the next turn begins with, for each way to continue."""


class NextTurns:
    """Renders conversations ahead. Raises InputError if the template refuses."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._known: dict[str, int | None] = {}
        self._lock = threading.Lock()

    # ── before the answer ─────────────────────────────────────────────────

    def points(self, spoken: Spoken) -> tuple[int, ...]:
        """Where the next turn will differ from this one, if that is known now: tokens from the prompt's beginning."""
        if not spoken.messages or spoken.messages[-1].get("role") != "user":
            return ()
        key = json.dumps([spoken.switches, bool(spoken.tools)], sort_keys=True, default=str)
        with self._lock:
            if key not in self._known:
                if len(self._known) >= REMEMBERED:
                    self._known.clear()
                self._known[key] = self._offset(spoken.tools, spoken.switches)
            offset = self._known[key]
        return () if offset is None or len(spoken.prompt) + offset < 1 else (len(spoken.prompt) + offset,)

    def _offset(self, tools: Sequence[Tool], switches: Switches) -> int | None:
        """Tokens from the end of a prompt to where the next turn differs; None: not before the answer's end."""
        asked: list[Message] = [{"role": "user", "content": "emu"}]
        prompt = self._encode(self._prompts.render(asked, tools, switches))
        said = {"role": "assistant", "content": ANSWER, "reasoning_content": THOUGHT, "thinking": THOUGHT}
        later = self._render([*asked, said], _user(SAID[0]), tools, switches)
        after = self._encode(later)
        common = common_tokens(prompt, after)
        if common < len(prompt):
            return common - len(prompt)
        if THOUGHT in later or self._prompts.reasoning is None:
            return None
        thoughtful = self._with_thoughts(asked, tools, switches)
        return min(MOST_AHEAD, max(0, common_tokens(after, thoughtful) - len(prompt)))

    def _with_thoughts(self, asked: list[Message], tools: Sequence[Tool], switches: Switches) -> Tokens:
        """An answer whose reasoning is written: every answer begins as it does. Empty: the template never writes it."""
        call = {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        said |= {"reasoning_content": THOUGHT, "thinking": THOUGHT}
        try:
            text = self._render([*asked, said], _results([call], SAID[0]), tools, switches)
        except InputError:
            text = ""
        return self._encode(text if THOUGHT in text else "")

    # ── after the answer ──────────────────────────────────────────────────

    def after(self, spoken: Spoken, outputs: Sequence[int], answer: Message, reasoning: str = "") -> NextTurn:
        """`answer`: the assistant's message, without its reasoning."""
        now = np.concatenate([spoken.prompt, np.array(outputs, dtype=np.int32)])
        nexts: list[Tokens] = []
        for said in self._answers(spoken.messages, answer, reasoning):
            for following in _followers(answer):
                tokens = self._next(spoken, said, following)
                if len(tokens) and not any(np.array_equal(tokens, other) for other in nexts):
                    nexts.append(tokens)
        return NextTurn(now, tuple(common_tokens(now, one) for one in nexts), tuple(nexts))

    def _answers(self, messages: Sequence[Message], answer: Message, reasoning: str) -> list[Message]:
        """As the client will send it back: with its reasoning or without, as with the answers before; with both if this
        is the first one."""
        thoughtful = {**answer, "reasoning_content": reasoning}
        if not reasoning:
            return [answer]
        before = [bool(one.get("reasoning_content")) for one in messages if one.get("role") == "assistant"]
        return [answer, thoughtful] if not before else [thoughtful if before[-1] else answer]

    def _next(self, spoken: Spoken, answer: Message, following: Sequence[Sequence[Message]]) -> Tokens:
        """What all renderings have in common."""
        history = [*spoken.messages, answer]
        texts = [self._render(history, one, spoken.tools, spoken.switches) for one in following]
        first, *others = [self._encode_after(text, spoken) for text in texts]
        return first[: min(common_tokens(first, other) for other in others)]

    def why_not(self, spoken: Spoken, answer: Message) -> str:
        """Why the template refuses, without any text of the conversation."""
        hidden = [{**one, "content": ANSWER} for one in (*spoken.messages, answer)]
        try:
            for following in _followers(answer):
                self._render(hidden, following[0], spoken.tools, spoken.switches)
        except InputError as error:
            return str(error)
        return f"the chat template refuses a conversation of {len(hidden)} messages"

    def _render(
        self, history: Sequence[Message], following: Sequence[Message], tools: Sequence[Tool], switches: Switches
    ) -> str:
        own = {name: value for name, value in (switches or {}).items() if name != "add_generation_prompt"}
        return self._prompts.render([*history, *following], tools, own)

    def _encode(self, text: str) -> Tokens:
        return self._prompts.encode(text, False)

    def _encode_after(self, text: str, spoken: Spoken) -> Tokens:
        """The tokens of a text that begins as the prompt does: only what follows the last mark that both have is
        encoded. A tokenizer never joins text across one of its marks."""
        same = greatest(0, min(len(text), len(spoken.text)), lambda size: text[:size] == spoken.text[:size])
        cut = max((text.rfind(mark, 0, same) for mark in self._prompts.tokenizer.added_tokens), default=-1)
        if cut <= 0:
            return self._encode(text)
        rest = self._encode(spoken.text[cut:])
        begin = len(spoken.prompt) - len(rest)
        if begin < 0 or not np.array_equal(spoken.prompt[begin:], rest):
            return self._encode(text)
        return np.concatenate([spoken.prompt[:begin], self._encode(text[cut:])])


def _followers(answer: Message) -> Iterable[list[list[Message]]]:
    """For each way to continue: the messages that follow, with different contents."""
    yield [_user(text) for text in SAID]
    if calls := answer.get("tool_calls"):
        yield [_results(calls, text) for text in SAID]


def _user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def _results(calls: Sequence[Mapping[str, Any]], text: str) -> list[Message]:
    return [
        {"role": "tool", "content": text, "tool_call_id": call.get("id"), "name": call["function"]["name"]}
        for call in calls
    ]


def common_tokens(some: Tokens, others: Tokens) -> int:
    """How many tokens both begin with."""
    size = min(len(some), len(others))
    different = (some[:size] != others[:size]).nonzero()[0]
    return int(different[0]) if len(different) else size


class Ahead:
    """The same for servers and libraries: a template that refuses has no effect on answers, and is reported once."""

    def __init__(self, prompts: Prompts, is_on: bool, say: Callable[[str], None]) -> None:
        self.is_on = is_on and prompts.tokenizer.has_chat_template
        self._turns, self._say = NextTurns(prompts), say
        self._has_said = False

    def points(self, spoken: Spoken) -> tuple[int, ...]:
        try:
            return self._turns.points(spoken) if self.is_on else ()
        except InputError as error:
            self._report(str(error))
            return ()

    def after(self, spoken: Spoken, answer: Delta) -> NextTurn | None:
        """None: it is off, or the template cannot say."""
        said: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.tool_calls:
            said["tool_calls"] = [call.message_part for call in answer.tool_calls]
        try:
            return self._turns.after(spoken, answer.tokens, said, answer.reasoning) if self.is_on else None
        except InputError:
            self._report(self._turns.why_not(spoken, said))
            return None

    def _report(self, why: str) -> None:
        if not self._has_said:
            self._has_said = True
            self._say(f"the next turn of a conversation is not known ahead, so nothing is kept for it: {why}")
