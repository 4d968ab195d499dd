"""The body of a call: OpenAI's fields that Quire honours or can ignore without a different answer, and Quire's own."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from quire.serve.responses.items import HOSTED, Items
from quire.serve.schemas import MOST_TOOLS, Asked, AsObject, AsText, Body, Few, Function, JsonSchema, NamedFunction

LOGPROBS = "message.output_text.logprobs"
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""Only the first adds anything: reasoning is returned as text, and the others belong to tools that are refused."""
TOOL_INSTEAD = {
    "custom": "declare a function with one text parameter",
    "namespace": "list its functions in tools",
}
"""By type of a tool, or of a tool_choice, that only others have: what to do without it. Others run on the server."""


def _function_alone(value: Any, *others: str) -> Any:
    sort = value.get("type") if isinstance(value, dict) else None
    if isinstance(sort, str) and sort not in ("function", *others):
        raise ValueError(f"the type {sort[:40]!r} is not supported: {TOOL_INSTEAD.get(sort, HOSTED)}")
    return value


def _foreground(value: Any) -> Any:
    if value is True:
        raise ValueError("a response ends with its connection: leave it out, and stream a long answer")
    return value


class FunctionTool(Function):
    type: Literal["function"]


class ChosenFunction(NamedFunction):
    type: Literal["function"]


class AllowedFunctions(Body):
    """Only these tools may be called; the prompt describes the others too."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[Annotated[ChosenFunction, BeforeValidator(_function_alone)]],
        Field(min_length=1, max_length=MOST_TOOLS, fail_fast=True),
    ]


class FlatSchema(JsonSchema):
    type: Literal["json_schema"]


class TextOptions(Body):
    format: Annotated[AsText | AsObject | FlatSchema, Field(discriminator="type")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = Field(None, description="Not looked at.")


class ReasoningOptions(Body):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = Field(None, description="Not looked at.")
    generate_summary: Literal["auto", "concise", "detailed"] | None = Field(None, description="Not looked at.")


class ResponseStreamOptions(Body):
    include_obfuscation: bool | None = Field(None, description="Not looked at: events are never padded.")


Tools = Annotated[
    list[Annotated[FunctionTool, BeforeValidator(_function_alone)]], Field(max_length=MOST_TOOLS, fail_fast=True)
]
Chosen = Annotated[ChosenFunction | AllowedFunctions, Field(discriminator="type")]
Choice = (
    Literal["none", "auto", "required"]
    | Annotated[Chosen, BeforeValidator(lambda value: _function_alone(value, "allowed_tools"))]
)
Note = Annotated[str, Field(max_length=512)]


class ResponseBody(Asked):
    input: str | Items
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    stream_options: ResponseStreamOptions | None = None
    tools: Tools | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: Annotated[list[Include], Field(max_length=16, fail_fast=True)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    store: bool | None = Field(None, description="Keep the response in memory; true unless the server keeps none.")
    previous_response_id: Annotated[str, Field(max_length=128)] | None = None
    metadata: Annotated[dict[str, str], Few] | None = Field(None, description="Returned; not looked at.")
    client_metadata: Annotated[dict[str, str], Few] | None = Field(None, description="Not looked at.")
    safety_identifier: Note | None = Field(None, description="Returned; not looked at.")
    prompt_cache_key: Note | None = Field(None, description="Returned; not looked at: every prefix is cached.")
    service_tier: Literal["auto", "default"] | None = None
    truncation: Literal["disabled"] | None = None
    background: Annotated[Literal[False] | None, BeforeValidator(_foreground)] = None
    chat_template_kwargs: Annotated[dict[str, bool | int | str], Few] | None = Field(
        None, description="Quire's own: switches of the model's chat template, such as enable_thinking."
    )

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())
