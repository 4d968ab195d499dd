"""Which calls there were, and whose: other tenants may not ask about them."""

from __future__ import annotations

from collections import OrderedDict

from quire.serve.keys import Tenant

CALLS_REMEMBERED = 4096


class CallRegistry:
    """The latest calls. Its questions are awaited, because another process may have the answers."""

    def __init__(self, most_calls: int = CALLS_REMEMBERED) -> None:
        self._most_calls = most_calls
        self._calls: OrderedDict[str, tuple[str, str, tuple[str, ...]]] = OrderedDict()
        """By call: its tenant, its request id (which the client may have given), the engine's names of its requests."""

    def note(self, call: str, tenant: Tenant, request_id: str, names: tuple[str, ...]) -> None:
        self._calls[call] = (tenant.name, request_id, names)
        if len(self._calls) > self._most_calls:
            self._calls.popitem(last=False)

    async def names_of(self, call: str, tenant: Tenant) -> tuple[str, ...]:
        """The engine's names of a call's requests, by the answer's id, by one of these names (that one alone) or by the
        request's own id (of the latest call that had it); none if it is unknown or another tenant's."""
        one = self._calls.get(call.rpartition("-")[0])
        if one is not None and call in one[2]:
            return (call,) if one[0] == tenant.name or tenant.is_admin else ()
        found = self._calls.get(call.replace("_", "-").rpartition("-")[2])
        calls = reversed(self._calls.values()) if found is None else [found]
        for owner, request_id, names in calls:
            if (owner == tenant.name or tenant.is_admin) and (found is not None or request_id == call):
                return names
        return ()

    async def names_of_tenant(self, tenant: Tenant) -> set[str]:
        """The engine's names of all requests of a tenant's latest calls."""
        return {name for owner, _, names in self._calls.values() if owner == tenant.name for name in names}
