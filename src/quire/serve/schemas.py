"""What clients may send: OpenAI's fields that Quire honours, and a few of its own. Others are refused by name.

A list is read up to its first error and an object has few fields: the errors reported for any body are bounded.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.config import JsonDict

from quire.serve import fields
from quire.text.conversation import MOST_LEVELS, is_deeper, why_no_message, why_no_part

MOST_CHOICES = 16
MOST_STOPS = 16
MOST_TOOLS = 128
MOST_MESSAGES = 4096
MOST_PROMPTS = 64
MOST_FIELDS = 64
MOST_BIASES = 1024
MOST_CHOICE_TEXTS = 1024
MOST_STOP_IDS = 4
LARGEST_SEED = (1 << 63) - 1
LARGEST_PRIORITY = (1 << 31) - 1

LARGEST_TOKEN = (1 << 31) - 1
TokenId = Annotated[int, Field(ge=0, le=LARGEST_TOKEN)]
StopText = Annotated[str, Field(min_length=1, max_length=256)]
Stop = StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS, fail_fast=True)] | None
BiasedToken = Annotated[str, Field(pattern="^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2)] | None
GrammarText = Annotated[str, Field(min_length=1)]
Trigger = Annotated[str, Field(min_length=1, max_length=256)]
ToolName = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,128}$")]


def _at_most(value: Any, most: int) -> Any:
    if isinstance(value, dict) and len(value) > most:
        raise ValueError(f"an object of {len(value):,} fields: give at most {most:,}")
    return value


Few = BeforeValidator(lambda value: _at_most(value, MOST_FIELDS))
FewBiases = BeforeValidator(lambda value: _at_most(value, MOST_BIASES))


@cache
def _names_of(form: type[BaseModel]) -> frozenset[str]:
    """Of the fields that clients may send."""
    return frozenset(field.alias or name for name, field in form.model_fields.items())


class Body(BaseModel):
    """An object that clients send. Unknown fields are refused, unless they have a neutral value (`serve/fields.py`)."""

    model_config = ConfigDict(extra="forbid")
    neutral: ClassVar[fields.Neutral] = {}
    place: ClassVar[str] = ""
    """Where it lies in the body, for the names of ignored fields: `messages.`, for one."""

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: Any) -> Any:
        return fields.without_neutral(_at_most(value, MOST_FIELDS), _names_of(cls), cls.neutral, cls.place)


# ── the form of an answer ────────────────────────────────────────────────


def _flat_enough(value: Any) -> Any:
    if is_deeper(value, MOST_LEVELS):
        raise ValueError(f"it is nested deeper than {MOST_LEVELS} levels: flatten it")
    return value


FlatEnough = BeforeValidator(_flat_enough)
Schema = Annotated[
    dict[str, Any],
    FlatEnough,
    WithJsonSchema({"type": "object", "enum": [{"type": "object", "properties": {}}]}),
]
"""Any JSON schema; what is documented is the simplest one."""


class JsonSchema(Body):
    name: ToolName
    description: str | None = None
    schema_: Annotated[Schema, Field(alias="schema")]
    strict: bool | None = None


class AsText(Body):
    type: Literal["text"]


class AsObject(Body):
    type: Literal["json_object"]


class AsSchema(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class Structure(Body):
    """A tag in the text of an answer, and the schema of what it encloses."""

    begin: Annotated[str, Field(min_length=1, max_length=256)]
    schema_: Annotated[Schema, Field(alias="schema")]
    end: Annotated[str, Field(min_length=1, max_length=256)]


class AsTags(Body):
    """Tags as vLLM has them: text that contains a trigger goes on as one of the structures."""

    type: Literal["structural_tag"]
    structures: Annotated[list[Structure], Field(min_length=1, max_length=MOST_TOOLS, fail_fast=True)]
    triggers: Annotated[list[Trigger], Field(min_length=1, max_length=MOST_TOOLS, fail_fast=True)]


Choices = Annotated[list[GrammarText], Field(min_length=1, max_length=MOST_CHOICE_TEXTS, fail_fast=True)]


class StructuredOutputs(Body):
    """vLLM's field of this name; give one of them."""

    neutral, place = fields.STRUCTURED, "structured_outputs."
    json_: Annotated[Schema | GrammarText | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: GrammarText | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None
    structural_tag: GrammarText | None = None


SessionName = Annotated[str, Field(pattern="^[A-Za-z0-9._:@-]{1,128}$")]
LeaseSeconds = Annotated[float, Field(gt=0, le=1e9)]


class RetainBody(Body):
    """Prompt and answer are leased when the answer is complete."""

    seconds: LeaseSeconds
    session: SessionName | None = Field(None, description="The lease that moves along; default: the prompt's own.")


class ForkBody(Body):
    """An earlier answer of the same key, which this one continues (docs/forks.md)."""

    id: Annotated[str, Field(min_length=1, max_length=128)]
    at: Annotated[int, Field(ge=1, le=1 << 30)] | None = Field(
        None, description="Tokens of its prompt and output to continue from; default: all that it has now."
    )
    index: Annotated[int, Field(ge=0, le=1 << 16)] | None = Field(None, description="Of its choice; default 0.")


class CacheControl(Body):
    """Anthropic's mark of what to keep: the whole turn is leased for this time."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: Annotated[str, Field(max_length=64)] | None = Field(None, description="Not looked at.")


class Asked(Body):
    """What every call that generates may say about itself."""

    model: str
    stream: bool | None = None
    seed: Annotated[int, Field(ge=-LARGEST_SEED, le=LARGEST_SEED)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    user: Annotated[str, Field(max_length=512)] | None = Field(None, description="For your own books; not looked at.")
    response_format: Annotated[AsText | AsObject | AsSchema | AsTags, Field(discriminator="type")] | None = None
    structured_outputs: StructuredOutputs | None = Field(None, description="vLLM's: one grammar for the answer.")
    guided_json: Schema | GrammarText | None = Field(None, description="vLLM's earlier name of a JSON schema.")
    guided_regex: GrammarText | None = None
    guided_choice: Choices | None = None
    guided_grammar: GrammarText | None = Field(None, description="In Lark's notation or GBNF.")
    regex: GrammarText | None = Field(None, description="SGLang's.")
    ebnf: GrammarText | None = Field(None, description="SGLang's: in Lark's notation or GBNF.")
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="vLLM's: log-probabilities of the prompt's tokens, from the second on."
    )
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MOST_STOP_IDS, fail_fast=True)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1 << 20)] | None = Field(None, description="0 and -1 keep all tokens.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="Quire's own.")
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = Field(None, description="Quire's own.")
    min_tokens: Annotated[int, Field(ge=0, le=1 << 30)] | None = Field(None, description="Quire's own.")
    ignore_eos: bool | None = Field(None, description="Quire's own: go on past the end of text.")
    priority: Annotated[int, Field(ge=-LARGEST_PRIORITY, le=LARGEST_PRIORITY)] | None = Field(
        None, description="Quire's own: greater is admitted first, among the requests of one key (default 0)."
    )
    retain: RetainBody | None = Field(None, description="Quire's own: lease prompt and answer (docs/leases.md).")


class Sampled(Asked):
    """How tokens are chosen; the same for chats and completions."""

    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    fork_from: ForkBody | None = Field(None, description="Quire's own: continue another answer (docs/forks.md).")
    stop: Stop = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    logit_bias: Annotated[dict[BiasedToken, Bias], Field(max_length=MOST_BIASES), FewBiases] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def has_grammar(self) -> bool:
        """Some field says what the answer looks like: reading it takes longer."""
        given = (self.response_format, self.structured_outputs, self.guided_json, self.guided_regex)
        return any(one is not None for one in (*given, self.guided_choice, self.guided_grammar, self.regex, self.ebnf))


class StreamOptions(Body):
    neutral, place = fields.STREAM_OPTIONS, "stream_options."
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(None, description="Each chunk has the usage so far, as at vLLM.")


# ── chats ────────────────────────────────────────────────────────────────


def _text_alone(value: Any) -> Any:
    if why := why_no_part(value):
        raise ValueError(why)
    return value


class TextPart(Body):
    neutral, place = fields.PART, "messages.content."
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


Part = Annotated[TextPart, BeforeValidator(_text_alone)]


class CalledFunction(Body):
    name: ToolName
    arguments: str


class CallMade(Body):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


HAS_CONTENT: JsonDict = {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}}
HAS_CALLS: JsonDict = {
    "required": ["tool_calls"],
    "properties": {"role": {"const": "assistant"}, "tool_calls": {"type": "array", "minItems": 1}},
}


class Said(Body):
    """A message of the conversation. Only an assistant's may have calls instead of content."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [HAS_CONTENT, HAS_CALLS]})
    neutral, place = fields.MESSAGE, "messages."
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Field(min_length=1, fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[CallMade], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = Field(None, description="Another name of reasoning_content.")
    cache_control: CacheControl | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Said:
        if why := why_no_message(self.role, self.content is not None, bool(self.tool_calls)):
            raise ValueError(why)
        return self


class Function(Body):
    name: ToolName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: Function
    cache_control: CacheControl | None = None


class NamedFunction(Body):
    name: ToolName


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MOST_TOOLS, fail_fast=True)]


class AllowedChoice(Body):
    """Only these tools may be called; the prompt describes the others too, so that it stays the same."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Chosen = Annotated[NamedTool | AllowedChoice, Field(discriminator="type")]

HAS_MESSAGES: JsonDict = {"required": ["messages"], "properties": {"messages": {"type": "array", "minItems": 1}}}
HAS_PROMPT: JsonDict = {"required": ["prompt"], "properties": {"prompt": {"type": ["string", "array"]}}}
HAS_FORK: JsonDict = {"required": ["fork_from"], "properties": {"fork_from": {"type": "object"}}}

Messages = Annotated[list[Said], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
Tools = Annotated[list[Tool], Field(min_length=1, max_length=MOST_TOOLS, fail_fast=True)]


class ChatBody(Sampled):
    model_config = ConfigDict(json_schema_extra={"anyOf": [HAS_MESSAGES, HAS_FORK]})
    neutral = fields.CHAT
    messages: Annotated[list[Said], Field(max_length=MOST_MESSAGES, fail_fast=True)] = Field(
        default_factory=list, description="Required, except with fork_from."
    )
    max_tokens: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | Chosen | None = None
    parallel_tool_calls: bool | None = None
    store: Literal[False] | None = Field(None, description="Nothing is stored.")
    metadata: Annotated[dict[str, str], Few] | None = Field(None, description="For your own books; not looked at.")
    service_tier: Literal["auto", "default"] | None = None
    reasoning_effort: Annotated[str, Field(max_length=16)] | None = Field(
        None, description="For templates with this switch; none switches thinking off where the template can."
    )
    add_generation_prompt: bool | None = Field(
        None, description="vLLM's: false for a prompt that ends with the last message; with continue_final_message."
    )
    continue_final_message: bool | None = Field(
        None, description="vLLM's: the answer continues the last message, which is an assistant's."
    )
    chat_template_kwargs: Annotated[dict[str, bool | int | str], Few] | None = Field(
        None, description="Quire's own: switches of the model's chat template, such as enable_thinking."
    )


# ── completions and the rest ─────────────────────────────────────────────

Tokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Text = Annotated[str, Field(min_length=1)]
Several = Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)


def _few_prompts(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MOST_PROMPTS and not isinstance(value[0], int):
        raise ValueError(f"{len(value):,} prompts at once: give at most {MOST_PROMPTS:,}")
    return value


Prompt = str | Tokens | Annotated[list[Text], Several] | Annotated[list[Tokens], Several]


class CompletionBody(Sampled):
    model_config = ConfigDict(json_schema_extra={"anyOf": [HAS_PROMPT, HAS_FORK]})
    neutral = fields.COMPLETION
    prompt: Annotated[Prompt, BeforeValidator(_few_prompts)] | None = Field(
        None, description="Required, except with fork_from: there it follows the tokens that are continued."
    )
    max_tokens: Annotated[int, Field(ge=0, le=1 << 30)] | None = Field(
        None, description="16 unless given; 0 for the log-probabilities of a prompt alone."
    )
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None


class TokenizeBody(Body):
    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = Field(None, description="Also returns each token as the vocabulary writes it.")
