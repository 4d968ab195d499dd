"""From a client's body to a question, or to a refusal that names the field. Refused calls do not reach the engine.

body ─▶ prompts (`text/prompts.py`) ─▶ grammar, tried (`trial.py`) ─▶ lengths (`limits.py`) ─▶ sampling ─▶ Question
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.core.request import Tokens
from quire.core.sampling import SEED_BITS, SMALLEST_TEMPERATURE, Grammar, Sampling
from quire.options.dialects import ToolDialect
from quire.plan.plan import Plan
from quire.serve.errors import ApiError, naming_field
from quire.serve.fields import note_ignored
from quire.serve.forking import Forked
from quire.serve.limits import Limits
from quire.serve.retention import retain_of
from quire.serve.schemas import Body, ChatBody, CompletionBody, Said, Sampled, Tool
from quire.serve.structured import limited, wanted_grammar
from quire.serve.trial import Trial
from quire.text.next_turn import Ahead, Spoken
from quire.text.prompts import Prompts
from quire.text.question import Question
from quire.text.tokenizer import Tokenizer
from quire.text.tools import NO_TOOLS, ToolUse

_LOG = logging.getLogger("quire.text")
DEFAULT_COMPLETION_TOKENS = 16
LOOK_CHARACTERS = 65_536
"""Characters of a long text that are encoded first: if these alone are far too long, the rest is not encoded."""


@dataclass(frozen=True, slots=True)
class FieldNames:
    """What a protocol calls the fields of a chat, for errors that name them."""

    prompt: str = "messages"
    limit: str = "max_tokens"
    format: str = "response_format"


CHAT_NAMES = FieldNames()


class BodyReader:
    def __init__(
        self,
        tokenizer: Tokenizer,
        plan: Plan,
        model: str,
        vocabulary_tokens: int,
        *,
        aliases: Sequence[str] = (),
        dialect: ToolDialect | None = None,
        lease_seconds: float = math.inf,
        has_next_turn: bool = False,
    ) -> None:
        """`aliases`: other names of the model that clients may send. `dialect`: how the model writes tool calls; None:
        as its chat template says. `lease_seconds`: of the longest lease. `has_next_turn`: questions say how their
        conversations will go on."""
        self._lease_seconds = lease_seconds
        self.model, self.prompts = model, Prompts(tokenizer, vocabulary_tokens, dialect)
        self._models = (model, *aliases)
        self._limits, self._trial = Limits(plan), Trial(tokenizer)
        self.ahead = Ahead(self.prompts, has_next_turn, _LOG.warning)

    def chat(
        self,
        body: ChatBody,
        names: FieldNames = CHAT_NAMES,
        *,
        may_shorten: bool = False,
        forked: Forked | None = None,
    ) -> Question:
        """`names`: of the fields that the client sent. `may_shorten`: an answer longer than what fits after the prompt
        is requested, at most; not refused. `forked`: what it continues, instead of messages."""
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", "invalid_value", "top_logprobs")
        text, prompt, tools = self.conversation(body, names, forked)
        spoken = self._spoken(body, text, prompt, tools)
        grammar = self._grammar(body, tools, names.format)
        asked, limit = body.max_tokens, names.limit
        if body.max_completion_tokens:
            asked, limit = body.max_completion_tokens, "max_completion_tokens"
        if may_shorten and asked is not None:
            asked = min(asked, self._limits.room(len(prompt)))
        most = self._limits.output_tokens(len(prompt), asked, names.prompt, limit)
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return Question(
            (prompt,),
            (text,),
            (most,),
            self._sampling(body, grammar, logprobs, body.prompt_logprobs),
            body.n or 1,
            tools=tools,
            reasoning=self.prompts.reasoning if grammar is None else None,
            priority=body.priority or 0,
            is_length_open=asked is None,
            stop_tokens=self._stop_tokens(body),
            retain=retain_of(body, body.n or 1, self._lease_seconds),
            spoken=spoken,
            points=() if spoken is None else self.ahead.points(spoken),
            fork=None if forked is None else forked.fork,
        )

    def _spoken(self, body: ChatBody, text: str, prompt: Tokens, tools: ToolUse) -> Spoken | None:
        """The conversation as its next turn will be rendered; None: it has none that could be expected."""
        if not self.ahead.is_on or not body.messages or (body.n or 1) > 1 or body.continue_final_message:
            return None
        messages = tuple(_message(one) for one in body.messages)
        return Spoken(messages, tuple(tools.tools), self._switches(body), text, prompt)

    def require_room(self, prompt: Tokens, field: str) -> None:
        """Raises if a request with this prompt could never run."""
        self._limits.output_tokens(len(prompt), 1, field, "max_tokens")

    def conversation(
        self, body: ChatBody, names: FieldNames = CHAT_NAMES, forked: Forked | None = None
    ) -> tuple[str, Tokens, ToolUse]:
        """The conversation as text and as tokens, and the tools that it mentions."""
        self.require_model(body.model)
        if names is CHAT_NAMES:
            _require_one_beginning(body, forked)
        with naming_field("tools"):
            choice = body.tool_choice.model_dump() if isinstance(body.tool_choice, Body) else body.tool_choice
            tools = self.prompts.tool_use(tools_of(body.tools), choice, body.parallel_tool_calls is not False)
        if forked is not None:
            return self.prompts.tokenizer.decode(forked.tokens.tolist()), forked.tokens, tools
        continues = bool(body.continue_final_message)
        text = self.render(body.messages, tools.tools, self._switches(body), field=names.prompt, continues=continues)
        return text, self._known(self.encode(text, False, names.prompt), names.prompt), tools

    def completion(self, body: CompletionBody, forked: Forked | None = None) -> Question:
        self.require_model(body.model)
        if body.stream and body.echo and body.logprobs is not None and (body.n or 1) > 1:
            message = "echo with logprobs of several choices cannot be streamed: leave n or stream out"
            raise ApiError(400, message, "unsupported_field", "n")
        prompts, texts = zip(*self._prompts(body, forked), strict=True)
        default = [min(DEFAULT_COMPLETION_TOKENS, self._limits.room(len(prompt))) for prompt in prompts]
        if body.max_tokens is not None:
            default = [body.max_tokens or 1] * len(prompts)  # the one token of an answer of 0 is left out of it
        lengths = ((len(prompt), most) for prompt, most in zip(prompts, default, strict=True))
        most = tuple(self._limits.output_tokens(*one, "prompt", "max_tokens") for one in lengths)
        return Question(
            prompts,
            texts,
            most,
            self._sampling(body, self._grammar(body, NO_TOOLS), body.logprobs, _of_prompt(body)),
            body.n or 1,
            priority=body.priority or 0,
            stop_tokens=self._stop_tokens(body),
            is_prompt_alone=body.max_tokens == 0,
            retain=retain_of(body, len(prompts) * (body.n or 1), self._lease_seconds),
            fork=None if forked is None else forked.fork,
        )

    def require_model(self, name: str) -> None:
        if name not in self._models:
            message = f"the model {name[:64]!r} is not here: this server has {self.model}"
            raise ApiError(404, message, "model_not_found", "model")

    def render(
        self,
        messages: Sequence[Said],
        tools: Sequence[Mapping[str, Any]],
        switches: Mapping[str, Any] | None = None,
        *,
        field: str = "messages",
        continues: bool = False,
    ) -> str:
        if not self.prompts.tokenizer.has_chat_template:
            raise ApiError(400, "the model has no chat template: use /v1/completions", "unsupported_field", field)
        with naming_field(field):
            return self.prompts.render([_message(one) for one in messages], tools, switches, continues)

    def encode(self, text: str, add_special_tokens: bool, field: str) -> Tokens:
        """`field`: as the client sent it."""
        with naming_field(field):
            if len(text) > LOOK_CHARACTERS:
                beginning = self.prompts.encode(text[:LOOK_CHARACTERS], add_special_tokens)
                self._limits.require_beginning(len(beginning), field)
            return self.prompts.encode(text, add_special_tokens)

    def prompt_tokens(self, prompt: str | Sequence[int]) -> Tokens:
        return self._prompt(prompt)[0]

    def _prompts(self, body: CompletionBody, forked: Forked | None) -> list[tuple[Tokens, str]]:
        """With a fork: each prompt follows the tokens that it continues, or these are all."""
        if forked is None:
            if not body.prompt:
                given = "missing: give it" if body.prompt is None else '"": give at least 1 character'
                raise ApiError(400, f"prompt is {given}", "invalid_value", "prompt")
            return [self._prompt(one) for one in _prompts(body.prompt)]
        begun, text = forked.tokens, self.prompts.tokenizer.decode(forked.tokens.tolist())
        if not body.prompt:
            return [(begun, text)]
        more = [self._prompt(one, adds_special_tokens=False) for one in _prompts(body.prompt)]
        return [(np.concatenate([begun, tokens]), text + said) for tokens, said in more]

    def _prompt(self, prompt: str | Sequence[int], adds_special_tokens: bool = True) -> tuple[Tokens, str]:
        if isinstance(prompt, str):
            return self._known(self.encode(prompt, adds_special_tokens, "prompt"), "prompt"), prompt
        self._limits.require_beginning(len(prompt), "prompt")  # before time is spent on each token
        return self._known(prompt, "prompt"), self.prompts.tokenizer.decode(prompt)

    def _known(self, prompt: Sequence[int] | Tokens, field: str) -> Tokens:
        with naming_field(field):
            return self.prompts.known(prompt)

    def _switches(self, body: ChatBody) -> dict[str, Any]:
        """For the template: what the body names, and what follows from `reasoning_effort`."""
        effort = body.reasoning_effort
        known = {} if effort is None else self.prompts.effort_switches(effort)
        if effort is not None and not known:
            note_ignored("reasoning_effort")
        if body.add_generation_prompt and body.continue_final_message:
            message = (
                "continue_final_message begins no new message: leave add_generation_prompt out, or set it to false"
            )
            raise ApiError(400, message, "invalid_value", "add_generation_prompt")
        if body.add_generation_prompt is not None:
            known = {**known, "add_generation_prompt": body.add_generation_prompt}
        return {**known, **(body.chat_template_kwargs or {})}

    def _stop_tokens(self, body: Sampled) -> tuple[int, ...]:
        with naming_field("stop_token_ids"):
            return tuple(self.prompts.known(body.stop_token_ids).tolist()) if body.stop_token_ids else ()

    def _sampling(
        self, body: Sampled, grammar: Grammar | None, logprobs: int | None, prompt_logprobs: int | None
    ) -> Sampling:
        if body.stream and body.prompt_logprobs is not None:
            message = "prompt_logprobs cannot be streamed: leave it or stream out"
            raise ApiError(400, message, "unsupported_field", "prompt_logprobs")
        with naming_field(None):
            sampling = _sampling_of(body, grammar, logprobs, prompt_logprobs)
        with naming_field("logit_bias"):
            sampling.require_known_biases(self.prompts.vocabulary_tokens)
        return sampling

    def _grammar(self, body: Sampled, tools: ToolUse, name: str = CHAT_NAMES.format) -> Grammar | None:
        """Compiled first in a separate process: the engine gets no grammar that is invalid or takes too long. `name`:
        the client's name of response_format."""
        with naming_field("tool_choice"):
            tools.require_known()
        with naming_field("tools", "invalid_schema"):
            required = tools.grammar(self.prompts.tokenizer.added_tokens)
        wanted = wanted_grammar(body, name)
        if required is not None and wanted is not None:
            message = f"a required tool call with {wanted.field} is not supported: leave one of them out"
            raise ApiError(400, message, "unsupported_field", wanted.field)
        if required is not None:
            wanted = limited(required, "tools")
        if wanted is None:
            return None
        with naming_field(wanted.field, "invalid_schema"):
            self._trial.compile(wanted.grammar)
        return wanted.grammar


def _require_one_beginning(body: ChatBody, forked: Forked | None) -> None:
    """Messages, or what a fork continues."""
    if forked is None and not body.messages:
        given = "[]: give at least 1 item" if "messages" in body.model_fields_set else "missing: give it"
        raise ApiError(400, f"messages is {given}", "invalid_value", "messages")
    if forked is not None and body.messages:
        message = "fork_from continues another answer: leave messages out, or give an empty list"
        raise ApiError(400, message, "invalid_value", "fork_from")


def _of_prompt(body: CompletionBody) -> int | None:
    """An echo of the prompt has log-probabilities if the answer has them."""
    return body.logprobs if body.echo and body.logprobs is not None else body.prompt_logprobs


def _message(said: Said) -> dict[str, Any]:
    """With reasoning under the name that templates read."""
    message = said.model_dump(exclude_none=True, exclude={"cache_control"})
    if isinstance(said.content, list):
        message["content"] = [part.model_dump(exclude={"cache_control"}) for part in said.content]
    reasoning = message.pop("reasoning", None)
    return message if reasoning is None else {"reasoning_content": reasoning, **message}


def tools_of(tools: Sequence[Tool] | None) -> tuple[Mapping[str, Any], ...]:
    return tuple(tool.model_dump(exclude_none=True, exclude={"cache_control"}) for tool in tools or ())


def _sampling_of(body: Sampled, grammar: Grammar | None, logprobs: int | None, prompt_logprobs: int | None) -> Sampling:
    return Sampling(
        temperature=_temperature(body.temperature),
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        logit_bias=tuple((int(token), bias) for token, bias in (body.logit_bias or {}).items()),
        seed=None if body.seed is None else body.seed % (1 << SEED_BITS),
        stop=body.stops,
        ignore_eos=bool(body.ignore_eos),
        min_tokens=body.min_tokens or 0,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
    )


def _temperature(given: float | None) -> float:
    """OpenAI's default is 1. A value too small to divide by in 32 bits becomes 0: the most likely token."""
    return 1.0 if given is None else given if given >= SMALLEST_TEMPERATURE else 0.0


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[Any]:
    """One text or one list of tokens, or several of either."""
    return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else list(prompt)
