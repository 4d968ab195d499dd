"""`fork_from` of a body: which tokens it continues, as the engine says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.core.request import Tokens
from quire.forks.forks import NOT_FOUND
from quire.serve.away import EngineAway
from quire.serve.calls import unavailable
from quire.serve.engine_forks import FORK_SECONDS, ForkQuestion
from quire.serve.errors import ApiError
from quire.serve.keys import Tenant
from quire.serve.schemas import ForkBody
from quire.text.question import Fork

if TYPE_CHECKING:
    from quire.serve.service import Service


@dataclass(frozen=True, slots=True, eq=False)
class Forked:
    """What a body continues."""

    fork: Fork
    tokens: Tokens


async def forked_by(asked: ForkBody | None, service: Service, tenant: Tenant) -> Forked | None:
    """None: the body is not a fork. Raises what the engine refuses. An answer's id names its call, after a prefix for
    its form; requests are named by call and choice."""
    if asked is None:
        return None
    call = asked.id.rpartition("-")[2]
    question = ForkQuestion(call, asked.index or 0, asked.at, tenant.name, tenant.scope)
    try:
        reply = await service.client.fork(question, FORK_SECONDS)
    except EngineAway as error:
        raise unavailable(error) from None
    if reply.problem:
        message = reply.problem.replace(question.name, asked.id)
        status = 404 if reply.code == NOT_FOUND else 400
        raise ApiError(status, message, reply.code, f"fork_from.{reply.param}", numbers=reply.numbers)
    return Forked(Fork(asked.id, len(reply.tokens)), reply.tokens)
