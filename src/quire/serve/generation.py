"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.serve.answers import Delta, joined
from quire.serve.asking import Asked
from quire.serve.calls import Call, Deltas
from quire.serve.errors import ApiError, internal_error, json_response
from quire.serve.formats import DONE, STILL_HERE, ChatFormat, CompletionFormat, Format, Head, event
from quire.serve.schemas import ChatBody, CompletionBody, Sampled
from quire.serve.service import Service
from quire.serve.streams import ClientLeft, EventStream, unless_client_leaves

router = APIRouter()
CLIENT_LEFT = 499
"""A status that nobody reads; it is for the log."""
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {}, "text/event-stream": {}}, "description": "An answer, whole or in pieces"}
}


@router.post("/v1/chat/completions", responses=ANSWERS)
async def chat(body: ChatBody, request: Request) -> Response:
    service: Service = request.app.state.service
    needs_grammar = body.response_format is not None or bool(body.tools)
    tenant, size = request.state.tenant, len(await request.body())
    asked = await service.ask(lambda: service.asking.chat(body), tenant, size, needs_grammar)
    has_length = bool(body.max_completion_tokens or body.max_tokens)
    call = service.begin(asked, tenant, request.state.request_id, has_length)
    head = Head(f"chatcmpl-{call.id}", service.model, service.fingerprint)
    form = ChatFormat(head, service.words, bool(body.logprobs), body.wants_usage)
    return await _answer(request, body, _Answering(call, form, request.state.record, service.settings.log_text))


@router.post("/v1/completions", responses=ANSWERS)
async def complete(body: CompletionBody, request: Request) -> Response:
    service: Service = request.app.state.service
    tenant = request.state.tenant
    asked = await service.ask(lambda: service.asking.completion(body), tenant, len(await request.body()))
    call = service.begin(asked, tenant, request.state.request_id)
    head = Head(f"cmpl-{call.id}", service.model, service.fingerprint)
    echoes = {c.index: asked.texts[c.index // asked.choices] for c in call.choices} if body.echo else {}
    form = CompletionFormat(head, service.words, body.logprobs is not None, body.wants_usage, echoes)
    return await _answer(request, body, _Answering(call, form, request.state.record, service.settings.log_text))


async def _answer(request: Request, body: Sampled, answering: _Answering) -> Response:
    """Errors before the first token have a status of their own; later ones are the stream's last event."""
    try:
        if not body.stream:
            return await unless_client_leaves(request.receive, answering.whole())
        news = answering.call.deltas()
        first = await unless_client_leaves(request.receive, anext(news))
        return EventStream(answering.pieces(first, news, body.wants_usage))
    except ClientLeft:
        answering.left()
        return Response(status_code=CLIENT_LEFT)


@dataclass(slots=True)
class _Answering:
    """One call, its form, and its line in the log."""

    call: Call
    form: Format
    record: dict[str, Any]
    log_text: bool

    @property
    def asked(self) -> Asked:
        return self.call.asked

    async def whole(self) -> Response:
        answers: dict[int, list[Delta]] = {choice.index: [] for choice in self.call.choices}
        try:
            async for news in self.call.deltas():
                for choice, delta in news:
                    answers[choice.index].append(delta)
        finally:
            self._note([joined(pieces).content for pieces in answers.values()])
        made = {index: joined(pieces) for index, pieces in answers.items()}
        return json_response(self.form.whole(self.asked, self.call.choices, made))

    async def pieces(self, first: Deltas, news: AsyncIterator[Deltas], with_usage: bool) -> AsyncIterator[bytes]:
        begun: set[int] = set()
        texts = [""] * len(self.call.choices)
        try:
            yield self._chunks(first, begun, texts)
            async for more in news:
                yield self._chunks(more, begun, texts)
            if with_usage:
                yield event(self.form.closing(self.asked, self.call.choices))
            yield DONE
        except ApiError as error:
            self.record["error"] = error.code
            yield event(error.body())
        except Exception:
            self.record["error"] = "internal_error"
            yield event(internal_error().body())
            raise
        except BaseException:  # the client left, or the server ends
            self.left()
            raise
        finally:
            self.call.close()
            self._note(texts)

    def _chunks(self, news: Deltas, begun: set[int], texts: list[str]) -> bytes:
        made = []
        for choice, delta in news:
            made.append(event(self.form.chunk(choice, delta, choice.index not in begun)))
            begun.add(choice.index)
            if self.log_text:
                texts[choice.index] += delta.content
        return b"".join(made) or STILL_HERE

    def left(self) -> None:
        self.call.close()
        self.record["left"] = True
        self.record.update(self.call.record())

    def _note(self, texts: list[str]) -> None:
        self.record.update(self.call.record())
        if self.log_text:
            self.record.update(prompts=list(self.asked.texts), outputs=texts)
