"""The server's parts, put together: what every route reaches for."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from quire.plan.file import fingerprint
from quire.plan.plan import Plan
from quire.planner.document import document
from quire.serve.allowance import Allowances
from quire.serve.asking import Asked, Asking
from quire.serve.calls import Call
from quire.serve.client import EngineClient
from quire.serve.errors import ApiError, dumps
from quire.serve.formats import Words
from quire.serve.keys import KeyRing, Tenant
from quire.serve.metrics import Metrics
from quire.serve.settings import ServeSettings
from quire.serve.turns import Read, Turns
from quire.text.tokenizer import Tokenizer

CALLS_REMEMBERED = 4096
"""Whose they were, so that nobody else asks about them."""
SMALL_BYTES = 16_384
"""Bodies up to this size are read at once; longer ones in a thread beside."""


class Service:
    def __init__(
        self, plan: Plan, folder: Path, settings: ServeSettings, ring: KeyRing, client: EngineClient, planned_for: str
    ) -> None:
        self.plan, self.settings, self.ring, self.client = plan, settings, ring, client
        self.tokenizer = Tokenizer.load(folder)
        self.model = settings.model_name or folder.name
        self.asking = Asking(self.tokenizer, plan, self.model, _vocabulary_tokens(folder, self.tokenizer))
        self.words = Words(self.tokenizer)
        self.allowances = Allowances(plan.max_requests + settings.queue)
        self.is_draining = False
        self.metrics = Metrics(plan, client, lambda: self.is_draining)
        self.fingerprint = "fp_" + fingerprint(plan)[:12]
        self.plan_json = dumps(document(plan) | {"planned_for": planned_for})
        self._calls: OrderedDict[str, tuple[str, str, tuple[str, ...]]] = OrderedDict()
        """By call: its tenant, the id that its client may have given, the engine's names of its requests."""
        self._turns = Turns()

    async def ask(self, read: Callable[[], Read], tenant: Tenant, body_bytes: int, has_grammar: bool = False) -> Read:
        """Long bodies and grammars are read beside the event loop, one after another, tenants in turn."""
        if body_bytes <= SMALL_BYTES and not has_grammar:
            return read()
        return await self._turns.read(read, tenant.name)

    def begin(self, asked: Asked, tenant: Tenant, request_id: str, has_length: bool = True) -> Call:
        """`has_length`: somebody named the length of outputs; else they fit what the tenant may have now."""
        if self.is_draining:
            raise ApiError(
                503, "the server is about to stop: send the request to another one", "draining", retry_seconds=1
            )
        asked = asked if has_length else asked.within(self.allowances.room(tenant))
        call = Call(asked, tenant, self.client, self.allowances, self.tokenizer, self.settings.request_seconds)
        names = tuple(choice.ticket.request.name for choice in call.choices)
        self._calls[call.id] = (tenant.name, request_id, names)
        if len(self._calls) > CALLS_REMEMBERED:
            self._calls.popitem(last=False)
        return call

    def names_of(self, call: str, tenant: Tenant) -> tuple[str, ...]:
        """The engine's names of a call's requests, by the answer's id or by the request's own (then of the latest call
        that had it); none if it is not here or somebody else's."""
        found = self._calls.get(call.partition("-")[2] or call)
        mine = reversed(self._calls.values()) if found is None else [found]
        for owner, request_id, names in mine:
            if (owner == tenant.name or tenant.is_admin) and (found is not None or request_id == call):
                return names
        return ()


def _vocabulary_tokens(folder: Path, tokenizer: Tokenizer) -> int:
    """Tokens that the model has columns for."""
    config = json.loads((folder / "config.json").read_text())
    found = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    return int(found or tokenizer.vocab_size)
