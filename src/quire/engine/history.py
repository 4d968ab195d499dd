"""What happened to each request, remembered for a while: a listener among others."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque

from quire.core.events import Event, What

REQUESTS_REMEMBERED = 4096
EVENTS_PER_REQUEST = 32
COUNTED_BY_REASON = (What.ADMITTED, What.ENDED, What.COMPACTED)
"""Whose reasons are a few words that repeat: a miss, an ending, a kind."""


class History:
    def __init__(self) -> None:
        self._events: OrderedDict[str, deque[Event]] = OrderedDict()

    def __call__(self, event: Event) -> None:
        if not event.request:
            return
        events = self._events.get(event.request)
        if events is None:
            events = self._events[event.request] = deque(maxlen=EVENTS_PER_REQUEST)
            if len(self._events) > REQUESTS_REMEMBERED:
                self._events.popitem(last=False)
        events.append(event)

    def of(self, request: str) -> tuple[Event, ...]:
        """The latest events of a request, the oldest first; none if it was never here or long ago."""
        return tuple(self._events.get(request, ()))


class Counters:
    """Totals for metrics: how often each thing happened, and the sums of its numbers."""

    def __init__(self) -> None:
        self.events: Counter[tuple[What, str]] = Counter()
        """By what and reason; the reason is empty where it names a request."""
        self.sums: Counter[tuple[What, str]] = Counter()
        """By what and the number's name."""

    def __call__(self, event: Event) -> None:
        self.events[event.what, event.reason if event.what in COUNTED_BY_REASON else ""] += 1
        for name, number in event.numbers.items():
            self.sums[event.what, name] += number
