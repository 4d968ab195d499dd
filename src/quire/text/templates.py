"""Chat templates: jinja2 in a sandbox, with the few names that templates count on."""

from __future__ import annotations

import datetime
import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quire.core.errors import InputError, ModelError

Message = Mapping[str, Any]
MOST_SECONDS = 2.0
"""Processor time of a template for one conversation. The longest ones that a server takes need a hundredth of it."""
OPERATIONS_PER_LOOK = 64
"""How often the time is looked at."""


class _Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Clock(threading.local):
    """Of the template that this thread renders."""

    ends_at = math.inf
    operations = 0


class _TimedEnvironment(ImmutableSandboxedEnvironment):
    """Ends a template that computes for too long. The time is looked at where a template calls or reads something: a
    loop that does neither has at most the sandbox's 100,000 turns."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._clock = _Clock()

    def start(self) -> None:
        self._clock.ends_at, self._clock.operations = time.thread_time() + MOST_SECONDS, 0

    def _count(self) -> None:
        clock = self._clock
        clock.operations += 1
        if clock.operations % OPERATIONS_PER_LOOK == 0 and time.thread_time() > clock.ends_at:
            raise TemplateError(f"it computes for more than {MOST_SECONDS:g} s; send fewer of them, or other tools")

    def call(__self, __context: Any, __obj: Any, *arguments: Any, **named: Any) -> Any:  # noqa: N805 as jinja2 has it
        __self._count()
        return super().call(__context, __obj, *arguments, **named)

    def getattr(self, obj: Any, attribute: str) -> Any:
        self._count()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self._count()
        return super().getitem(obj, argument)


class ChatTemplate:
    def __init__(self, text: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens`: bos_token, eos_token and so on, which templates name."""
        self._environment = environment = _TimedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        self.text = text
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(text)
            self.variables = frozenset(meta.find_undeclared_variables(environment.parse(text)))
            """Names that the template reads, such as messages, tools and enable_thinking."""
        except TemplateError as error:
            raise ModelError(f"the model's chat template cannot be read: {error}") from None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        /,
        add_generation_prompt: bool = True,
        **more: Any,
    ) -> str:
        """The conversation as the model was trained to read it; `more` goes to the template (enable_thinking, ...)."""
        if not messages:
            raise InputError("the conversation has 0 messages: give at least 1")
        own = {"messages": messages, "add_generation_prompt": add_generation_prompt}
        values = {"tools": tools, "documents": None, **self._special_tokens, **more, **own}
        self._environment.start()
        try:
            return self._template.render(values)  # as one mapping: a switch may be called self
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise InputError(f"the model's chat template refuses these {len(messages)} messages: {error}") from None


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    """Unlike jinja2's own, without escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
