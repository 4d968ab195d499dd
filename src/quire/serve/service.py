"""The server's parts, composed: what every route uses."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request

from quire.options.dialects import ToolDialect
from quire.plan.file import fingerprint
from quire.plan.plan import Plan
from quire.planner.document import document
from quire.serve.allowance import Allowances
from quire.serve.calls import Call
from quire.serve.client import EngineClient
from quire.serve.errors import ApiError, dumps
from quire.serve.keys import KeyRing, Tenant
from quire.serve.lease_register import LeaseRegister
from quire.serve.metrics import Metrics
from quire.serve.questions import BodyReader
from quire.serve.responses.store import ResponseStore
from quire.serve.settings import ServeSettings
from quire.serve.turns import Read, Turns
from quire.text.question import Question
from quire.text.spelling import Spelling
from quire.text.tokenizer import Tokenizer

CALLS_REMEMBERED = 4096
"""Calls that are remembered with their tenants: other tenants may not ask about them."""
SMALL_BYTES = 16_384
"""Bodies up to this size are read at once, larger ones in a thread."""


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
        dialect: ToolDialect | None = None,
    ) -> None:
        """`dialect`: how the model writes tool calls; None: as its chat template says."""
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
            dialect=dialect,
            lease_seconds=settings.lease_seconds,
        )
        self.spelling = Spelling(self.tokenizer)
        self.allowances = Allowances(plan.max_requests + settings.queue)
        self.responses = ResponseStore(settings.store_bytes)
        self.is_draining = False
        self.metrics = Metrics(plan, client, lambda: self.is_draining)
        self.metrics.stored_bytes.set_function(lambda: self.responses.bytes)
        self.metrics.stored_responses.set_function(lambda: self.responses.responses)
        self.leases = LeaseRegister(client)
        self.metrics.registry.register(self.leases)
        self._identity = {"model": self.model, "system_fingerprint": "fp_" + fingerprint(plan)[:12]}
        self.plan_json = dumps(document(plan) | {"planned_for": planned_for})
        self._calls: OrderedDict[str, tuple[str, str, tuple[str, ...]]] = OrderedDict()
        """By call: its tenant, its request id (which the client may have given), the engine's names of its requests."""
        self._turns = Turns()

    async def read(self, read: Callable[[], Read], tenant: Tenant, body_bytes: int, has_grammar: bool = False) -> Read:
        """Long bodies and grammars are read in a thread, one after another, with tenants taking turns."""
        if body_bytes <= SMALL_BYTES and not has_grammar:
            return read()
        return await self._turns.read(read, tenant.name)

    async def open_call(self, read: Callable[[], Question], request: Request, has_grammar: bool = False) -> Call:
        """`read`: makes the question of the request's body."""
        tenant, size = request.state.tenant, len(await request.body())
        question = await self.read(read, tenant, size, has_grammar)
        return self.begin(question, tenant, request.state.request_id)

    def begin(self, question: Question, tenant: Tenant, request_id: str) -> Call:
        if self.is_draining:
            raise ApiError(
                503, "the server is about to stop: send the request to another one", "draining", retry_seconds=1
            )
        question = question.within(self.allowances.room(tenant))
        call = Call(
            question,
            tenant,
            self.client,
            self.allowances,
            self.tokenizer,
            seconds=self.settings.request_seconds,
            request_id=request_id,
            leases=self.leases,
        )
        names = tuple(ticket.request.name for ticket in call.tickets)
        self._calls[call.id] = (tenant.name, request_id, names)
        if len(self._calls) > CALLS_REMEMBERED:
            self._calls.popitem(last=False)
        return call

    def head(self, prefix: str, call: Call) -> dict[str, str]:
        """What every piece of an answer begins with."""
        return {"id": f"{prefix}-{call.id}", **self._identity}

    def names_of(self, call: str, tenant: Tenant) -> tuple[str, ...]:
        """The engine's names of a call's requests, by the answer's id or by the request's own (then of the latest call
        that had it); none if it is unknown or another tenant's."""
        found = self._calls.get(call.replace("_", "-").rpartition("-")[2])
        calls = reversed(self._calls.values()) if found is None else [found]
        for owner, request_id, names in calls:
            if (owner == tenant.name or tenant.is_admin) and (found is not None or request_id == call):
                return names
        return ()

    def names_of_tenant(self, tenant: Tenant) -> set[str]:
        """The engine's names of all requests of a tenant's latest calls."""
        return {name for owner, _, names in self._calls.values() if owner == tenant.name for name in names}


def _vocabulary_tokens(folder: Path, tokenizer: Tokenizer) -> int:
    """How many tokens the model has columns for."""
    config = json.loads((folder / "config.json").read_text())
    found = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    return int(found or tokenizer.vocab_size)
