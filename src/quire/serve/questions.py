"""From a client's body to a question, or to a refusal that names the field. Refused calls do not reach the engine.

body ─▶ prompts (`text/prompts.py`) ─▶ grammar, tried (`trial.py`) ─▶ lengths (`limits.py`) ─▶ sampling ─▶ Question
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quire.core.request import Tokens
from quire.core.sampling import SEED_BITS, SMALLEST_TEMPERATURE, Grammar, GrammarSort, Sampling
from quire.plan.plan import Plan
from quire.serve.errors import ApiError, naming_field
from quire.serve.limits import Limits
from quire.serve.schemas import AsSchema, AsText, ChatBody, CompletionBody, NamedTool, Said, Sampled, Tool
from quire.serve.trial import Trial
from quire.text.prompts import Prompts
from quire.text.question import Question
from quire.text.tokenizer import Tokenizer
from quire.text.tools import ToolUse, tool_use

DEFAULT_COMPLETION_TOKENS = 16
LOOK_CHARACTERS = 65_536
"""Characters of a long text that are encoded first: if these alone are far too long, the rest is not encoded."""
MOST_SCHEMA_CHARACTERS = 65_536
ANY_OBJECT = '{"type": "object"}'


class BodyReader:
    def __init__(self, tokenizer: Tokenizer, plan: Plan, model: str, vocabulary_tokens: int) -> None:
        self.model, self.prompts = model, Prompts(tokenizer, vocabulary_tokens)
        self._limits, self._trial = Limits(plan), Trial(tokenizer)

    def chat(self, body: ChatBody) -> Question:
        self.require_model(body.model)
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", "invalid_value", "top_logprobs")
        with naming_field("tools"):
            choice = body.tool_choice.model_dump() if isinstance(body.tool_choice, NamedTool) else body.tool_choice
            tools = tool_use(tools_of(body.tools), choice, body.parallel_tool_calls is not False)
        text = self.render(body.messages, tools.tools, body.chat_template_kwargs)
        prompt = self._known(self.encode(text, False, "messages"), "messages")
        grammar = self._grammar(body, tools)
        asked, limit = body.max_tokens, "max_tokens"
        if body.max_completion_tokens:
            asked, limit = body.max_completion_tokens, "max_completion_tokens"
        most = self._limits.output_tokens(len(prompt), asked, "messages", limit)
        sampling = self._sampling(body, grammar, (body.top_logprobs or 0) if body.logprobs else None)
        return Question(
            (prompt,),
            (text,),
            (most,),
            sampling,
            body.n or 1,
            tools=tools,
            has_reasoning=self.prompts.has_reasoning and grammar is None,
            priority=body.priority or 0,
            is_length_open=asked is None,
        )

    def completion(self, body: CompletionBody) -> Question:
        self.require_model(body.model)
        if body.echo and body.logprobs is not None:
            message = "echo with logprobs is not supported: leave one of them out"
            raise ApiError(400, message, "unsupported_field", "echo")
        prompts, texts = zip(*(self._prompt(one) for one in _prompts(body.prompt)), strict=True)
        default = [min(DEFAULT_COMPLETION_TOKENS, self._limits.room(len(prompt))) for prompt in prompts]
        lengths = ((len(prompt), body.max_tokens or most) for prompt, most in zip(prompts, default, strict=True))
        most = tuple(self._limits.output_tokens(*one, "prompt", "max_tokens") for one in lengths)
        sampling = self._sampling(body, None, body.logprobs)
        return Question(prompts, texts, most, sampling, body.n or 1, priority=body.priority or 0)

    def require_model(self, name: str) -> None:
        if name != self.model:
            message = f"the model {name[:64]!r} is not here: this server has {self.model}"
            raise ApiError(404, message, "model_not_found", "model")

    def render(
        self, messages: Sequence[Said], tools: Sequence[Mapping[str, Any]], switches: Mapping[str, Any] | None = None
    ) -> str:
        if not self.prompts.tokenizer.has_chat_template:
            raise ApiError(400, "the model has no chat template: use /v1/completions", "unsupported_field", "messages")
        with naming_field("messages"):
            return self.prompts.render([one.model_dump(exclude_none=True) for one in messages], tools, switches)

    def encode(self, text: str, add_special_tokens: bool, field: str) -> Tokens:
        """`field`: as the client sent it."""
        with naming_field(field):
            if len(text) > LOOK_CHARACTERS:
                beginning = self.prompts.encode(text[:LOOK_CHARACTERS], add_special_tokens)
                self._limits.require_beginning(len(beginning), field)
            return self.prompts.encode(text, add_special_tokens)

    def _prompt(self, prompt: str | Sequence[int]) -> tuple[Tokens, str]:
        if isinstance(prompt, str):
            return self._known(self.encode(prompt, True, "prompt"), "prompt"), prompt
        return self._known(prompt, "prompt"), self.prompts.tokenizer.decode(prompt)

    def _known(self, prompt: Sequence[int] | Tokens, field: str) -> Tokens:
        with naming_field(field):
            return self.prompts.known(prompt)

    def _sampling(self, body: Sampled, grammar: Grammar | None, logprobs: int | None) -> Sampling:
        with naming_field(None):
            sampling = _sampling_of(body, grammar, logprobs)
        with naming_field("logit_bias"):
            sampling.require_known_biases(self.prompts.vocabulary_tokens)
        return sampling

    def _grammar(self, body: ChatBody, tools: ToolUse) -> Grammar | None:
        """Compiled first in a separate process: the engine gets no schema that is invalid or takes too long."""
        with naming_field("tool_choice"):
            schema = tools.schema()
        wanted = None if isinstance(body.response_format, AsText) else body.response_format
        if schema is not None and wanted is not None:
            message = "a required tool call with a response_format is not supported: leave one of them out"
            raise ApiError(400, message, "unsupported_field", "response_format")
        field = "response_format" if schema is None else "tools"
        if wanted is not None:
            schema = json.dumps(wanted.json_schema.schema_) if isinstance(wanted, AsSchema) else ANY_OBJECT
        if schema is None:
            return None
        if len(schema) > MOST_SCHEMA_CHARACTERS:
            size = f"the schema has {len(schema):,} characters, {MOST_SCHEMA_CHARACTERS:,} may be: simplify it"
            raise ApiError(400, size, "invalid_schema", field)
        grammar = Grammar(GrammarSort.JSON, schema)
        with naming_field(field, "invalid_schema"):
            self._trial.compile(grammar)
        return grammar


def tools_of(tools: Sequence[Tool] | None) -> tuple[Mapping[str, Any], ...]:
    return tuple(tool.model_dump(exclude_none=True) for tool in tools or ())


def _sampling_of(body: Sampled, grammar: Grammar | None, logprobs: int | None) -> Sampling:
    return Sampling(
        temperature=_temperature(body.temperature),
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
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
        grammar=grammar,
    )


def _temperature(given: float | None) -> float:
    """OpenAI's default is 1. A value too small to divide by in 32 bits becomes 0: the most likely token."""
    return 1.0 if given is None else given if given >= SMALLEST_TEMPERATURE else 0.0


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[Any]:
    """One text or one list of tokens, or several of either."""
    return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else list(prompt)
