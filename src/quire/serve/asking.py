"""From a client's body to requests that the engine takes: tokens, sampling, limits. Everything is refused here or not.

Whether a request can ever run is decided by the plan's own bound, before the engine hears of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quire.core.errors import InputError
from quire.core.request import Tokens
from quire.core.sampling import SEED_BITS, SMALLEST_TEMPERATURE, Grammar, GrammarSort, Sampling
from quire.core.sentences import sheets_short
from quire.core.vocabulary import known_prompt, require_known_biases
from quire.plan import bound
from quire.plan.plan import Plan
from quire.plan.tightest import tightest
from quire.serve.errors import ApiError
from quire.serve.schemas import (
    MOST_LEVELS,
    AsSchema,
    ChatBody,
    CompletionBody,
    NamedTool,
    Said,
    Sampled,
    Tool,
    is_deeper,
)
from quire.serve.trial import Trial
from quire.text.reasoning import marks_reasoning
from quire.text.tokenizer import Tokenizer
from quire.text.tools import call_schema, instructions

DEFAULT_COMPLETION_TOKENS = 16
LOOK_CHARACTERS = 65_536
"""Of a long text so much is read first: if that alone is far too long, the rest need not be read."""
MOST_SCHEMA_CHARACTERS = 65_536
ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What a call comes to."""

    prompts: tuple[Tokens, ...]
    texts: tuple[str, ...]
    """Of the prompts, as they were read."""
    max_tokens: tuple[int, ...]
    """For each prompt."""
    sampling: Sampling
    choices: int
    """For each prompt."""
    tools: tuple[Mapping[str, Any], ...] = ()
    must_call: bool = False
    one_call: bool = False
    has_reasoning: bool = False

    @property
    def requests(self) -> int:
        return len(self.prompts) * self.choices

    @property
    def tokens(self) -> int:
        """Prompts and the longest outputs together: what is charged beforehand."""
        pairs = zip(self.prompts, self.max_tokens, strict=True)
        return self.choices * sum(len(prompt) + most for prompt, most in pairs)

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)

    def within(self, limit: int | None) -> Asked:
        """The same with outputs so short that all together have `limit` tokens, or a single token each."""
        if limit is None or self.tokens <= limit:
            return self
        room = max(1, (limit // self.choices - self.prompt_tokens) // len(self.prompts))
        return replace(self, max_tokens=tuple(min(most, room) for most in self.max_tokens))


class Asking:
    def __init__(self, tokenizer: Tokenizer, plan: Plan, model: str, vocabulary_tokens: int) -> None:
        self.tokenizer, self.plan, self.model = tokenizer, plan, model
        self.vocabulary_tokens = vocabulary_tokens
        self._trial = Trial(tokenizer)
        template = tokenizer.template.text if tokenizer.template else ""
        self._template_has_tools = "tools" in template
        self._has_reasoning = marks_reasoning(template)

    def chat(self, body: ChatBody) -> Asked:
        self.check_model(body.model)
        tools = tools_of(body.tools)
        if body.tool_choice not in (None, "none", "auto") and not tools:
            raise ApiError(
                400, "tool_choice asks for a call and there are no tools: give tools", "invalid_value", "tools"
            )
        text = self.render(body.messages, tools if body.tool_choice != "none" else (), body.chat_template_kwargs or {})
        prompt = self._known(self.encode(text, False, "messages"), "messages")
        grammar = self._grammar(body, tools)
        limit = "max_completion_tokens" if body.max_completion_tokens else "max_tokens"
        most = self._output_tokens(prompt, body.max_completion_tokens or body.max_tokens, "messages", limit)
        sampling = self._sampling(body, grammar, (body.top_logprobs or 0) if body.logprobs else None)
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", "invalid_value", "top_logprobs")
        return Asked(
            (prompt,),
            (text,),
            (most,),
            sampling,
            body.n or 1,
            tools if body.tool_choice != "none" else (),
            _is_calling(body),
            body.parallel_tool_calls is False,
            self._has_reasoning and not grammar,
        )

    def completion(self, body: CompletionBody) -> Asked:
        self.check_model(body.model)
        if body.echo and body.logprobs is not None:
            message = "echo beside logprobs is not supported: leave one of them out"
            raise ApiError(400, message, "unsupported_field", "echo")
        prompts, texts = zip(*(self._prompt(one) for one in _prompts(body.prompt)), strict=True)
        most = body.max_tokens or DEFAULT_COMPLETION_TOKENS
        room = [max(1, self.plan.max_length - len(prompt)) for prompt in prompts]
        wanted = [body.max_tokens or min(most, left) for left in room]
        tokens = tuple(self._output_tokens(*one, "prompt") for one in zip(prompts, wanted, strict=True))
        return Asked(prompts, texts, tokens, self._sampling(body, None, body.logprobs), body.n or 1)

    def check_model(self, name: str) -> None:
        if name != self.model:
            message = f"the model {name[:64]!r} is not here: this server has {self.model}"
            raise ApiError(404, message, "model_not_found", "model")

    # ── text to tokens ────────────────────────────────────────────────────

    def render(self, messages: Sequence[Said], tools: Sequence[Mapping[str, Any]], switches: Mapping[str, Any]) -> str:
        """The conversation as the model's template writes it; tools are explained in words if it has no place for
        them."""
        if self.tokenizer.template is None:
            raise ApiError(400, "the model has no chat template: use /v1/completions", "unsupported_field", "messages")
        said = [_message(message) for message in messages]
        if tools and not self._template_has_tools:
            said = _with_system(said, instructions(tools))
        known = {name: value for name, value in switches.items() if name not in ("messages", "tools")}
        try:
            return self.tokenizer.template.render(said, list(tools) or None, **known)
        except (InputError, TypeError) as error:
            raise ApiError(400, str(error), "invalid_value", "messages") from None

    def encode(self, text: str, add_special_tokens: bool, field: str) -> Tokens:
        """`field`: as the client sent it."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            message = f"character {error.start + 1:,} is half of a surrogate pair: send whole characters"
            raise ApiError(400, message, "invalid_value", field) from None
        if len(text) > LOOK_CHARACTERS:
            least = len(self.tokenizer.encode(text[:LOOK_CHARACTERS], add_special_tokens))
            if least > 2 * self.plan.max_length:
                raise self._too_long(field, least)
        return np.array(self.tokenizer.encode(text, add_special_tokens), dtype=np.int32)

    def _prompt(self, prompt: str | Sequence[int]) -> tuple[Tokens, str]:
        if isinstance(prompt, str):
            return self._known(self.encode(prompt, True, "prompt"), "prompt"), prompt
        return self._known(prompt, "prompt"), self.tokenizer.decode(prompt)

    def _known(self, prompt: Sequence[int] | Tokens, field: str) -> Tokens:
        if not len(prompt):
            raise ApiError(400, "the prompt has 0 tokens: give at least 1", "invalid_value", field)
        try:
            return known_prompt(prompt, self.vocabulary_tokens)
        except InputError as error:
            raise ApiError(400, str(error), "invalid_value", field) from None

    # ── limits ────────────────────────────────────────────────────────────

    def _output_tokens(self, prompt: Tokens, asked: int | None, field: str, limit: str = "max_tokens") -> int:
        """What was asked for, or all that is left; never more than can ever fit."""
        most = asked or max(1, self.plan.max_length - len(prompt))
        if not bound.admits(self.plan, len(prompt) + most):
            raise self._too_long(field, len(prompt), most, limit)
        return most

    def _too_long(self, field: str, prompt: int, output: int | None = None, limit: str = "") -> ApiError:
        """`field` and `limit`: as the client calls its prompt and its output. `output` none: the prompt was not read
        to its end."""
        longest = self.plan.max_length
        tight = tightest(self.plan, prompt + (output or 1))
        size = f"at least {prompt:,} tokens of {field}" if output is None else f"{prompt:,} tokens of {field}"
        more = "" if output is None else f" and {output:,} of output"
        lower = f" or lower {limit} to {longest - prompt:,}" if prompt < longest else ""
        message = (
            f"this model's maximum context length is {longest:,} tokens here, and this is {size}{more}: "
            f"{sheets_short(tight.numbers)}shorten the {field}{lower}"
        )
        numbers = {"prompt_tokens": prompt, "max_length": longest}
        numbers |= {"sheets_needed": tight.needed, "sheets": tight.sheets}
        numbers |= {} if output is None else {"max_tokens": output}
        return ApiError(400, message, "context_length_exceeded", field, numbers=numbers)

    # ── sampling ──────────────────────────────────────────────────────────

    def _sampling(self, body: Sampled, grammar: Grammar | None, logprobs: int | None) -> Sampling:
        biases = tuple((int(token), bias) for token, bias in (body.logit_bias or {}).items())
        try:
            sampling = Sampling(
                temperature=_temperature(body.temperature),
                top_p=1.0 if body.top_p is None else body.top_p,
                top_k=body.top_k or 0,
                min_p=body.min_p or 0.0,
                presence_penalty=body.presence_penalty or 0.0,
                frequency_penalty=body.frequency_penalty or 0.0,
                repetition_penalty=body.repetition_penalty or 1.0,
                logit_bias=biases,
                seed=None if body.seed is None else body.seed % (1 << SEED_BITS),
                stop=body.stops,
                ignore_eos=bool(body.ignore_eos),
                min_tokens=body.min_tokens or 0,
                logprobs=logprobs,
                grammar=grammar,
            )
        except InputError as error:
            raise ApiError(400, str(error), "invalid_value") from None
        try:
            require_known_biases(sampling, self.vocabulary_tokens)
        except InputError as error:
            raise ApiError(400, str(error), "invalid_value", "logit_bias") from None
        return sampling

    def _grammar(self, body: ChatBody, tools: Sequence[Mapping[str, Any]]) -> Grammar | None:
        """Tried once, so that a schema which cannot be used is refused before it reaches the engine."""
        schema = self._schema(body, tools)
        if schema is None:
            return None
        field = "tools" if _is_calling(body) else "response_format"
        if len(schema) > MOST_SCHEMA_CHARACTERS:
            size = f"the schema has {len(schema):,} characters, {MOST_SCHEMA_CHARACTERS:,} may be: simplify it"
            raise ApiError(400, size, "invalid_schema", field)
        grammar = Grammar(GrammarSort.JSON, schema)
        try:
            self._trial.compile(grammar)
        except InputError as error:
            raise ApiError(400, str(error), "invalid_schema", field) from None
        return grammar

    def _schema(self, body: ChatBody, tools: Sequence[Mapping[str, Any]]) -> str | None:
        wanted = body.response_format
        is_plain = wanted is None or wanted.type == "text"
        if _is_calling(body):
            if not is_plain:
                message = "a required tool call beside a response_format is not supported: leave one of them out"
                raise ApiError(400, message, "unsupported_field", "response_format")
            only = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
            try:
                return call_schema(tools, only)
            except InputError as error:
                raise ApiError(400, str(error), "invalid_value", "tool_choice") from None
        if is_plain:
            return None
        return json.dumps(wanted.json_schema.schema_) if isinstance(wanted, AsSchema) else ANY_OBJECT


def _is_calling(body: ChatBody) -> bool:
    """The answer has to be a call of a tool."""
    return body.tool_choice == "required" or isinstance(body.tool_choice, NamedTool)


def _temperature(given: float | None) -> float:
    """OpenAI's default is 1. Below what 32 bits can divide by, the most likely token is the limit anyway."""
    return 1.0 if given is None else given if given >= SMALLEST_TEMPERATURE else 0.0


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[Any]:
    """One text or one list of tokens, or several of either."""
    return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else list(prompt)


def _message(message: Said) -> dict[str, Any]:
    """As templates read it: text as text, arguments of calls as objects where they are JSON that is not too deep."""
    said: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": message.text}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if getattr(message, name) is not None:
            said[name] = getattr(message, name)
    if message.tool_calls:
        said["tool_calls"] = [_call(call.model_dump()) for call in message.tool_calls]
    return said


def _call(call: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments = json.loads(call["function"]["arguments"])
    except (ValueError, RecursionError):
        return call
    if is_deeper(arguments, MOST_LEVELS):
        return call
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _with_system(said: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """A conversation whose system message says this too."""
    if said and said[0]["role"] == "system":
        return [{**said[0], "content": f"{said[0]['content']}\n\n{text}"}, *said[1:]]
    return [{"role": "system", "content": text}, *said]


def tools_of(tools: Sequence[Tool] | None) -> tuple[Mapping[str, Any], ...]:
    return tuple(tool.model_dump(exclude_none=True) for tool in tools or ())
