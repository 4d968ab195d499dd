"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.serve.body_route import BodyRoute
from quire.serve.calls import Arrived, Call, Deltas
from quire.serve.errors import ApiError, internal_error, json_response
from quire.serve.forking import forked_by
from quire.serve.formats import ChatFormat, CompletionFormat, Extras, Format
from quire.serve.pending import PendingRequest, Update
from quire.serve.protocol import BodyWriter
from quire.serve.schemas import ChatBody, CompletionBody, Sampled
from quire.serve.service import Service
from quire.serve.streams import ClientLeft, ClientWatch, EventStream, Piece
from quire.text.answer import Delta, join_deltas

router = APIRouter(route_class=BodyRoute)
CLIENT_LEFT = 499
"""A status for the log only: the client has left."""
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {}, "text/event-stream": {}}, "description": "An answer, whole or in pieces"}
}


@router.post("/v1/chat/completions", responses=ANSWERS)
async def chat(body: ChatBody, request: Request) -> Response:
    service: Service = request.app.state.service
    forked = await forked_by(body.fork_from, service, request.state.tenant)
    has_grammar = body.has_grammar or bool(body.tools)
    call = await service.open_call(lambda: service.reader.chat(body, forked=forked), request, has_grammar)
    extras = _extras(body, bool(body.logprobs))
    form = ChatFormat(call, service.head("chatcmpl", call), service.spelling, extras)
    return await answer(request, bool(body.stream), form)


@router.post("/v1/completions", responses=ANSWERS)
async def complete(body: CompletionBody, request: Request) -> Response:
    service: Service = request.app.state.service
    forked = await forked_by(body.fork_from, service, request.state.tenant)
    call = await service.open_call(lambda: service.reader.completion(body, forked), request, body.has_grammar)
    echoes = [text for text in call.question.texts for _ in range(call.question.samples)] if body.echo else []
    extras = _extras(body, body.logprobs is not None)
    form = CompletionFormat(call, service.head("cmpl", call), service.spelling, extras, echoes=echoes)
    return await answer(request, bool(body.stream), form)


def _extras(body: Sampled, has_logprobs: bool) -> Extras:
    options = body.stream_options
    usage = options is not None and bool(options.include_usage)
    running = options is not None and bool(options.continuous_usage_stats)
    return Extras(has_logprobs, usage, running, body.prompt_logprobs is not None)


async def answer(request: Request, streams: bool, form: Format) -> Response:
    """The answer to a call, in this form. Errors before the first token have a status of their own; later ones are the
    stream's last event."""
    service: Service = request.app.state.service
    reply = _Reply(form.call, form, request.state.record, service.settings.log_text)
    watch, is_stream = ClientWatch(request.receive), False
    try:
        if not streams:
            return await watch.unless_it_leaves(reply.whole())
        updates = reply.call.deltas()
        first = await watch.unless_it_leaves(anext(updates))
        is_stream = True
        return EventStream(reply.pieces(first, updates), reply.attach, watch)
    except ClientLeft:
        reply.left()
        return Response(status_code=CLIENT_LEFT)
    finally:
        if not is_stream:  # else the stream ends it
            watch.end()


@dataclass(slots=True)
class _Reply:
    """One call, its form, and its line in the log."""

    call: Call
    form: Format
    record: dict[str, Any]
    log_text: bool
    texts: dict[int, str] = field(default_factory=dict)
    """By choice, if they are logged."""
    begun: set[int] = field(default_factory=set)
    """Choices of which something was written."""
    has_ended: bool = False
    """The end was written."""

    async def whole(self) -> Response:
        pieces: list[list[Delta]] = [[] for _ in self.call.answers]
        try:
            async for updates in self.call.deltas():
                for index, delta in updates:
                    pieces[index].append(delta)
        finally:
            answers = [join_deltas(one) for one in pieces]
            self._note([answer.text for answer in answers])
        return json_response(self.form.whole(answers))

    async def pieces(self, first: Deltas, updates: AsyncIterator[Deltas]) -> AsyncIterator[Piece]:
        """Those that `attach` does not write: the first, whatever is more than tokens, and what cannot be written at
        once."""
        try:
            yield self._piece(self.form.begin() + self._events(first))
            async for more in updates:
                yield self._piece(self._events(more))
            if not self.has_ended:
                yield self._piece(b"")
        except ApiError as error:
            self.record["error"] = error.code
            yield self.form.failure(error), False
        except Exception:
            self.record["error"] = "internal_error"
            yield self.form.failure(internal_error()), True  # an answer without its end: the connection closes
            raise
        except BaseException:  # the client has left, or the server ends
            self.left()
            raise
        finally:
            self.call.close()
            self._note([self.texts.get(index, "") for index in range(len(self.call.answers))])

    def attach(self, writer: BodyWriter) -> None:
        """From now on, tokens are written as soon as they arrive, without waking the task that reads `pieces`."""
        is_plain = not self.log_text and not self.call.question.is_prompt_alone

        def read(arrived: Arrived) -> bool:
            if not writer.is_open:
                return False
            if is_plain and len(arrived) == 1 and (text := self._text_event(*arrived[0])):
                arrived.clear()
                writer.write(text)
                return True
            return self._read(arrived, writer)

        self.call.updates.reader = read

    def _read(self, arrived: Arrived, writer: BodyWriter) -> bool:
        """Writes it all, if it is tokens; returns whether more tokens may come."""
        for _, update in arrived:
            if not isinstance(update, tuple):
                return False
        news = self.call.read(arrived)
        arrived.clear()
        if news:
            writer.write(self._events(news))
        return not self.call.is_complete

    def _text_event(self, ticket: PendingRequest, update: Update) -> bytes:
        """By a shorter way than `_read`: of one token whose text is all that is new, as most are. Empty, with nothing
        read, if there may be more."""
        index = ticket.number
        if not isinstance(update, tuple) or len(update) != 1 or index not in self.begun:
            return b""
        text = self.call.answers[index].feed_plain(update[0])
        return self.form.text(index, text) if text else b""

    def _piece(self, events: bytes) -> Piece:
        """With the end, if these events are the last."""
        self.has_ended = self.call.is_over
        return (events + self.form.end(), False) if self.has_ended else (events, True)

    def _events(self, updates: Deltas) -> bytes:
        events = []
        for index, delta in updates:
            events.append(self.form.piece(index, delta, index not in self.begun))
            self.begun.add(index)
            if self.log_text:
                self.texts[index] = self.texts.get(index, "") + delta.text
        return b"".join(events) or self.form.keep_alive()

    def left(self) -> None:
        self.call.close()
        self.record["left"] = True
        self.record.update(self.call.record())

    def _note(self, texts: list[str]) -> None:
        self.record.update(self.call.record())
        if self.log_text:
            self.record.update(prompts=list(self.call.question.texts), outputs=texts)
