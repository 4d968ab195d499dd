"""Routes for the model's tokens: text to tokens and back, the prompt of a chat, and what the tokenizer is.

Each path has the spelling that clients of other servers use as well, without /v1.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from quire.core.request import Tokens
from quire.serve.body_route import BodyRoute
from quire.serve.errors import ApiError, json_response, naming_field
from quire.serve.questions import tools_of
from quire.serve.schemas import Body, ChatBody, TokenId, TokenizeBody
from quire.serve.service import Service

router = APIRouter(route_class=BodyRoute)


class DetokenizeBody(Body):
    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


def _service(request: Request, model: str | None = None) -> Service:
    """Raises if the client names a model that is not here."""
    service: Service = request.app.state.service
    if model is not None:
        service.reader.require_model(model)
    return service


@router.post("/tokenize", operation_id="tokenize_unversioned")
@router.post("/v1/tokenize", operation_id="tokenize")
async def tokenize(body: TokenizeBody, request: Request) -> Response:
    """The tokens of a prompt, or of the prompt that messages become."""
    service = _service(request, body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "prompt and messages: give one of them", "invalid_value", "prompt")
    tokens = await service.read(lambda: _tokens(body, service), request.state.tenant, len(await request.body()))
    length, numbers = service.plan.max_length, tokens.tolist()
    strings = [service.tokenizer.inner.id_to_token(token) for token in numbers] if body.return_token_strs else None
    head = {"tokens": numbers, "count": len(numbers), "max_length": length, "max_model_len": length}
    return json_response(head | ({} if strings is None else {"token_strs": strings}))


def _tokens(body: TokenizeBody, service: Service) -> Tokens:
    if body.messages is None:
        return service.reader.encode(body.prompt or "", body.add_special_tokens, "prompt")
    text = service.reader.render(body.messages, tools_of(body.tools))
    return service.reader.encode(text, False, "messages")


@router.post("/detokenize", operation_id="detokenize_unversioned")
@router.post("/v1/detokenize", operation_id="detokenize")
async def detokenize(body: DetokenizeBody, request: Request) -> Response:
    """The text of tokens, special tokens included; of as many as a request may have."""
    service = _service(request, body.model)
    count, most = len(body.tokens), service.plan.max_length
    if count > most:
        message = f"tokens has {count:,} numbers, and a request here has at most {most:,} tokens: send fewer at a time"
        raise ApiError(400, message, "invalid_value", "tokens")

    def read() -> str:
        with naming_field("tokens"):
            known = service.reader.prompts.known(body.tokens).tolist() if body.tokens else []
        return service.tokenizer.decode(known, skip_special_tokens=False)

    text = await service.read(read, request.state.tenant, len(await request.body()))
    return json_response({"prompt": text})


@router.post("/v1/chat/completions/render")
async def render(body: ChatBody, request: Request) -> Response:
    """The prompt that a chat becomes, as text and as tokens; nothing is generated."""
    service, size = _service(request), len(await request.body())
    needs_grammar = body.response_format is not None or bool(body.tools)
    question = await service.read(lambda: service.reader.chat(body), request.state.tenant, size, needs_grammar)
    tokens = question.prompts[0].tolist()
    return json_response({"prompt": question.texts[0], "token_ids": tokens, "count": len(tokens)})


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> Response:
    """The special tokens (null: the model has none), the chat template, and how many tokens there are."""
    service = _service(request)
    tokenizer = service.tokenizer
    special: dict[str, Any] = dict(tokenizer.special_tokens)
    ids = {f"{name}_id": token and tokenizer.inner.token_to_id(token) for name, token in special.items()}
    template = tokenizer.template.text if tokenizer.template else None
    sizes = {"vocab_size": tokenizer.vocab_size, "model_max_length": service.plan.max_length}
    return json_response({"model": service.model, **special, **ids, "chat_template": template, **sizes})
