"""Headers that say how much of its limits a key has left, as OpenAI's clients read them. A key without gets none."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.serve.allowance import Allowances, AllowanceView
from quire.serve.keys import Tenant


class RateLimitHeaders:
    """Adds the headers when an answer starts: a call that is complete has given back what it did not use."""

    def __init__(self, app: ASGIApp, allowances: Allowances) -> None:
        self._app, self._allowances = app, allowances

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = await self._limits(scope["state"]["tenant"])
                encoded = [(name.encode(), value.encode()) for name, value in more.items()]
                message = {**message, "headers": [*message.get("headers", []), *encoded]}
            await send(message)

        await self._app(scope, receive, with_headers)

    async def _limits(self, tenant: Tenant) -> dict[str, str]:
        return rate_limits(await self._allowances.view(tenant), tenant)


def rate_limits(allowances: AllowanceView, tenant: Tenant) -> dict[str, str]:
    """Requests are limited at once, tokens by the minute; `reset`: in how many seconds all of them are there again."""
    found: dict[str, str] = {}
    if tenant.most_requests is not None:
        running = allowances.requests.get(tenant.name, 0)
        seconds = allowances.retry_seconds * running
        found |= _headers("requests", tenant.most_requests, tenant.most_requests - running, seconds)
    left, most = allowances.tokens_left(tenant), tenant.tokens_per_minute
    if left is not None and most is not None:
        found |= _headers("tokens", most, int(left), round((most - left) * 60 / most))
    return found


def _headers(what: str, most: int, left: int, reset_seconds: int) -> dict[str, str]:
    values = {"limit": str(most), "remaining": str(left), "reset": f"{reset_seconds}s"}
    return {f"x-ratelimit-{name}-{what}": value for name, value in values.items()}
