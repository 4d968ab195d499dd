"""The server's parts, composed: what every route uses."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request

from quire.build.plan import read_shape
from quire.core.errors import QuireError
from quire.inspect.document import Subject
from quire.models.shape import ModelShape
from quire.options.run import DEFAULTS, RunOptions
from quire.plan.plan import Plan
from quire.planner.document import document
from quire.serve.allowance import Allowances
from quire.serve.calls import Call
from quire.serve.client import EngineClient
from quire.serve.errors import dumps
from quire.serve.inspector_limits import OpenStreams, PlannerQuestions
from quire.serve.keys import KeyRing, Tenant
from quire.serve.lease_register import LeaseRegister
from quire.serve.metrics import HttpMetrics
from quire.serve.next_turn import TurnReporter
from quire.serve.questions import BodyReader
from quire.serve.registry import CallRegistry
from quire.serve.responses.store import ResponseStore
from quire.serve.settings import ServeSettings
from quire.serve.turns import Read, Turns
from quire.serve.views import Views
from quire.text.question import Question
from quire.text.spelling import Spelling
from quire.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from quire.serve.spans.spans import CallSpan, Spans


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What all calls of a server share, whichever process answers them."""

    allowances: Allowances
    responses: ResponseStore
    calls: CallRegistry


def own_shares(plan: Plan, settings: ServeSettings) -> Shared:
    """Kept in this process."""
    allowances = Allowances(plan.max_requests + settings.queue)
    return Shared(allowances, ResponseStore(settings.store_bytes), CallRegistry())


class Service:
    def __init__(
        self,
        plan: Plan,
        folder: Path,
        settings: ServeSettings,
        ring: KeyRing,
        client: EngineClient,
        planned_for: str,
        *,
        shared: Shared,
        metrics: HttpMetrics,
        leases: LeaseRegister,
        views: Views,
        options: RunOptions = DEFAULTS,
        spans: Spans | None = None,
    ) -> None:
        """`options`: how the engine runs the model. `spans` None: calls are not traced."""
        self.plan, self.settings, self.ring, self.client = plan, settings, ring, client
        self.tokenizer = Tokenizer.load(folder)
        self.models = settings.model_name or (folder.name,)
        """Names that are accepted; the first is the model's own."""
        self.model, *others = self.models
        vocabulary = _vocabulary_tokens(folder, self.tokenizer)
        self.reader = BodyReader(
            self.tokenizer,
            plan,
            self.model,
            vocabulary,
            aliases=others,
            dialect=options.tool_dialect,
            lease_seconds=settings.lease_seconds,
            has_next_turn=options.has_next_turn,
        )
        self.spelling = Spelling(self.tokenizer)
        self.computes_ahead = options.has_next_turn and not plan.no_reuse_because
        self.turns_ended = TurnReporter(self.reader.ahead, client)
        self.allowances, self.responses, self.calls = shared.allowances, shared.responses, shared.calls
        self.metrics, self.spans = metrics, spans
        self.leases, self.views = leases, views
        self._folder, self._options = folder, options
        self._shape: ModelShape | None = None
        self.subject = Subject.of(plan)
        self.inspector_streams, self.planner_questions = OpenStreams(), PlannerQuestions()
        self._identity = {"model": self.model, "system_fingerprint": "fp_" + self.subject.fingerprint[:12]}
        self.plan_json = dumps(document(plan) | {"planned_for": planned_for})
        self._turns = Turns()

    def shape(self) -> ModelShape | None:
        """The model's, as its weights are held here; None: it is planned together with a draft model's, or has fields
        that only the operator allowed to ignore."""
        if self._shape is None and self._options.draft_path is None:
            with contextlib.suppress(QuireError):
                self._shape = read_shape(self._folder, self._options)
        return self._shape

    @property
    def is_draining(self) -> bool:
        return self.allowances.is_draining

    async def read(self, read: Callable[[], Read], tenant: Tenant, body_bytes: int, has_grammar: bool = False) -> Read:
        """Long bodies and grammars are read in a thread, one after another, with tenants taking turns."""
        return await self._turns.read_body(read, tenant.name, body_bytes, has_grammar)

    async def open_call(self, read: Callable[[], Question], request: Request, has_grammar: bool = False) -> Call:
        """`read`: makes the question of the request's body."""
        tenant, size = request.state.tenant, len(await request.body())
        question = await self.read(read, tenant, size, has_grammar)
        return await self.begin(question, tenant, request.state.request_id, getattr(request.state, "span", None))

    async def begin(self, question: Question, tenant: Tenant, request_id: str, span: CallSpan | None = None) -> Call:
        """`span`: of the call, if it is traced."""
        async with self.allowances.admitting(tenant, question) as (fitting, allowances):
            call = Call(
                fitting,
                tenant,
                self.client,
                allowances,
                self.tokenizer,
                seconds=self.settings.request_seconds,
                request_id=request_id,
                leases=self.leases,
                on_answer=self.turns_ended.end,
                span=None if span is None else span.parent,
            )
        if span is not None:
            span.asks(fitting, self.model, call.id)
        names = tuple(ticket.request.name for ticket in call.tickets)
        self.calls.note(call.id, tenant, request_id, names)
        return call

    def head(self, prefix: str, call: Call) -> dict[str, str]:
        """What every piece of an answer begins with."""
        return {"id": f"{prefix}-{call.id}", **self._identity}


def _vocabulary_tokens(folder: Path, tokenizer: Tokenizer) -> int:
    """How many tokens the model has columns for."""
    config = json.loads((folder / "config.json").read_text())
    found = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    return int(found or tokenizer.vocab_size)
