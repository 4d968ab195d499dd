"""Fair shares: how many tokens each tenant was served, divided by its weight. The least served tenant goes next.

A tenant that returns is raised to the least served of the active tenants: it gets no credit for its time without any.
"""

from __future__ import annotations


class Shares:
    """Counts the tokens served to each tenant."""

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}
        """By tenant, as its latest request says."""
        self._served: dict[str, float] = {}
        self._requests: dict[str, int] = {}
        """Accepted and unfinished requests, by active tenant."""

    def weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    def served(self, tenant: str) -> float:
        return self._served.get(tenant, 0.0)

    def enter(self, tenant: str, weight: float) -> None:
        """One more request of a tenant was accepted."""
        self._weights[tenant] = weight
        if tenant not in self._requests:
            level = min((self._served[other] for other in self._requests), default=self.served(tenant))
            self._served[tenant] = max(self.served(tenant), level)
        self._requests[tenant] = self._requests.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        self._requests[tenant] -= 1
        if not self._requests[tenant]:
            del self._requests[tenant]

    def rows(self, count: int) -> dict[str, float]:
        """The share of each active tenant in `count` rows: one, and its part of the others by weight."""
        part = max(0, count - len(self._requests)) / sum(map(self.weight, self._requests))
        return {tenant: 1 + part * self.weight(tenant) for tenant in self._requests}

    def charge(self, tenant: str, tokens: int) -> None:
        self._served[tenant] = self.served(tenant) + tokens / self.weight(tenant)
