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

    @property
    def names(self) -> tuple[str, ...]:
        """Of the requests that are remembered; the one that something happened to latest is the last."""
        return tuple(self._events)

    def __call__(self, event: Event) -> None:
        if not event.request:
            return
        events = self._events.get(event.request)
        if events is None:
            events = self._events[event.request] = deque(maxlen=EVENTS_PER_REQUEST)
            if len(self._events) > REQUESTS_REMEMBERED:
                self._events.popitem(last=False)
        self._events.move_to_end(event.request)
        events.append(event)

    def of(self, request: str) -> tuple[Event, ...]:
        """The latest events of a request, the oldest first; none if it was never here or long ago."""
        return tuple(self._events.get(request, ()))


class Counters:
    """Totals for metrics: how often each thing happened, and the sums of its numbers."""

    def __init__(self) -> None:
        self._totals: dict[What, tuple[dict[str, int], dict[str, int]]] = {}
        """By what: how often for each reason, and sums by the number's name."""

    def __call__(self, event: Event) -> None:
        what, reason = event.what, event.reason
        if what not in self._totals:
            self._totals[what] = {}, {}
        times, sums = self._totals[what]
        if what not in COUNTED_BY_REASON:
            reason = ""
        times[reason] = times.get(reason, 0) + 1
        for name, number in event.numbers.items():
            sums[name] = sums.get(name, 0) + number

    @property
    def events(self) -> Counter[tuple[What, str]]:
        """By what and reason; the reason is empty where it names a request."""
        return Counter({(what, reason): n for what, (times, _) in self._totals.items() for reason, n in times.items()})

    @property
    def sums(self) -> Counter[tuple[What, str]]:
        """By what and the number's name."""
        return Counter({(what, name): n for what, (_, sums) in self._totals.items() for name, n in sums.items()})
