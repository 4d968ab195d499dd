"""Conversations and texts as the tokens of a prompt, for one model.

messages, tools ─▶ conversation ─▶ chat template ─▶ text ─▶ tokenizer ─▶ tokens that the model has
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.core.errors import InputError
from quire.core.request import Tokens
from quire.options.dialects import ToolDialect
from quire.text.conversation import template_messages, with_system_text, with_system_tools
from quire.text.dialects.calls import Tool
from quire.text.dialects.table import DIALECTS, dialect_of
from quire.text.reasoning import effort_switches
from quire.text.templates import Message
from quire.text.tokenizer import Tokenizer
from quire.text.tools import ToolUse, instructions, tool_use

OURS = ("messages", "tools")
"""Template arguments that a caller's switches cannot replace."""


class Prompts:
    def __init__(self, tokenizer: Tokenizer, vocabulary_tokens: int, dialect: ToolDialect | None = None) -> None:
        """`vocabulary_tokens`: how many tokens the model has columns for. `dialect`: how the model writes tool calls;
        None: as its chat template says."""
        self.tokenizer, self.vocabulary_tokens = tokenizer, vocabulary_tokens
        template = tokenizer.template.text if tokenizer.template else ""
        self._template_has_tools = "tools" in template
        self._has_tools_in_message = "message['tools']" in template
        """The template takes tools as JSON text in the system message (Phi-4-mini)."""
        self.dialect = dialect_of(template) if dialect is None else DIALECTS[dialect]
        self.reasoning = self.dialect.reasoning_in(template)
        """How the template marks reasoning: answers are split at these marks. None: it does not."""

    def tool_use(self, tools: Sequence[Tool], choice: str | Mapping[str, Any] | None, parallel: bool = True) -> ToolUse:
        return tool_use(tools, choice, parallel, self.dialect)

    def effort_switches(self, effort: str) -> dict[str, bool | str]:
        """Switches of the template for an effort of reasoning, as far as it has any."""
        return effort_switches(effort, self.tokenizer.template.variables) if self.tokenizer.template else {}

    @cached_property
    def has_late_system(self) -> bool:
        """The template writes messages of role system also after others, instead of refusing or dropping them."""
        mark = "instructions in the middle"
        roles = (("user", "question"), ("assistant", "answer"), ("user", "question"), ("system", mark))
        try:
            return mark in self.render([{"role": role, "content": content} for role, content in roles])
        except InputError:
            return False

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        switches: Mapping[str, Any] | None = None,
        continues: bool = False,
    ) -> str:
        """The conversation as the model's template writes it. A template without a place for tools gets them explained
        in a system message. `switches` go to the template, such as enable_thinking. `continues`: the text ends within
        the last message, an assistant's, which the answer continues."""
        if self.tokenizer.template is None:
            raise InputError("the model has no chat template: give a plain prompt instead of messages")
        said: Sequence[Message] = template_messages(messages, not self.dialect.has_text_arguments)
        if tools and self._has_tools_in_message:
            said = with_system_tools(said, json.dumps([tool["function"] for tool in tools], ensure_ascii=False))
        elif tools and not self._template_has_tools:
            said = with_system_text(said, instructions(tools, self.dialect))
        known = {name: value for name, value in (switches or {}).items() if name not in OURS}
        text = self.tokenizer.template.render(
            said, list(tools) or None, **{"add_generation_prompt": not continues, **known}
        )
        return _until_last_content(text, said[-1]) if continues else text

    def encode(self, text: str, add_special_tokens: bool = True) -> Tokens:
        """`add_special_tokens`: a chat template writes its own."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"character {error.start + 1:,} is half of a surrogate pair: send whole characters"
            ) from None
        return np.array(self.tokenizer.encode(text, add_special_tokens), dtype=np.int32)

    def known(self, tokens: Sequence[int] | Tokens) -> Tokens:
        """The prompt as requests have it; raises if it is empty or has a token that the model does not have."""
        if not len(tokens):
            raise InputError("the prompt has 0 tokens: give at least 1")
        return known_prompt(tokens, self.vocabulary_tokens)


def _until_last_content(text: str, last: Message) -> str:
    """The rendered conversation up to the end of its last message's content."""
    content = str(last["content"]).strip()
    if last["role"] != "assistant" or not content:
        raise InputError("the last message is to be continued: give it the role assistant and content")
    before, found, _ = text.rpartition(content)
    if not found:
        raise InputError("the chat template does not show the last message as it is: an answer cannot continue it")
    return before + found


def known_prompt(tokens: Sequence[int] | npt.NDArray[np.integer], vocabulary_tokens: int) -> Tokens:
    """A prompt as requests have it: each number is one of the model's tokens."""
    try:
        numbers = np.asarray(tokens)
    except ValueError as error:
        raise InputError(f"the prompt is no list of token numbers: {error}") from error
    if numbers.ndim != 1:
        raise InputError(f"the prompt has {numbers.ndim} dimensions: give each prompt as one list of token numbers")
    is_whole = numbers.dtype.kind in "iu" or all(type(number) is int for number in numbers.tolist())
    if not is_whole:
        raise InputError(f"the prompt has numbers of sort {numbers.dtype}: token numbers are whole")
    beyond = numbers[(numbers < 0) | (numbers >= vocabulary_tokens)]
    if len(beyond):
        raise InputError(f"the prompt has token {beyond[0]}: the model's tokens are 0 to {vocabulary_tokens - 1:,}")
    return numbers.astype(np.int32)
