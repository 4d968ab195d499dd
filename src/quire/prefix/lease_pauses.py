"""How long sessions usually pause: a lease that is away longer than it takes to return need not stay in the pool."""

from __future__ import annotations

DECAY = 0.5
"""Weight of earlier pauses relative to the latest one."""


class Pauses:
    """Pauses by lease; those of a new one are taken from its owner's other leases."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        """By lease: when its session's last request ended."""
        self._usual: dict[str, float] = {}
        self._usual_of: dict[str, float] = {}
        """By owner."""

    def begin(self, lease: str, now: float) -> None:
        self._since[lease] = now

    def end(self, lease: str, owner: str, now: float) -> None:
        """A request of its session has come."""
        if lease in self._since:
            seconds = now - self._since.pop(lease)
            self._usual[lease] = _mixed(self._usual.get(lease), seconds)
            self._usual_of[owner] = _mixed(self._usual_of.get(owner), seconds)

    def usual(self, lease: str, owner: str) -> float | None:
        """None: no pause was seen yet."""
        return self._usual.get(lease, self._usual_of.get(owner))

    def forget(self, lease: str) -> None:
        self._since.pop(lease, None)
        self._usual.pop(lease, None)


def _mixed(before: float | None, latest: float) -> float:
    return latest if before is None else DECAY * before + (1 - DECAY) * latest
