"""The latest events of each request, and totals for metrics: two listeners."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque

from quire.core.events import Event, RequestEvent, counted_fields

REQUESTS_REMEMBERED = 4096
EVENTS_PER_REQUEST = 32


class History:
    """The latest events of the latest requests."""

    def __init__(self) -> None:
        self._events: OrderedDict[str, deque[RequestEvent]] = OrderedDict()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the requests that are kept; the one with the latest event is the last."""
        return tuple(self._events)

    def __call__(self, event: Event) -> None:
        if not isinstance(event, RequestEvent):
            return
        events = self._events.get(event.request)
        if events is None:
            events = self._events[event.request] = deque(maxlen=EVENTS_PER_REQUEST)
            if len(self._events) > REQUESTS_REMEMBERED:
                self._events.popitem(last=False)
        self._events.move_to_end(event.request)
        events.append(event)

    def of(self, request: str) -> tuple[RequestEvent, ...]:
        """The latest events of a request, the oldest first; none if the request is unknown or no longer kept."""
        return tuple(self._events.get(request, ()))


class Counters:
    """Totals for metrics: how often each event happened, and the sums of its counts."""

    def __init__(self) -> None:
        self._times: dict[type[Event], dict[str, int]] = {}
        """By event, then by label."""
        self._sums: dict[type[Event], dict[str, int]] = {}
        """By event, then by the name of a count."""

    def __call__(self, event: Event) -> None:
        kind, label = type(event), event.label
        if kind not in self._times:
            self._times[kind], self._sums[kind] = {}, dict.fromkeys(counted_fields(kind), 0)
        times, sums = self._times[kind], self._sums[kind]
        times[label] = times.get(label, 0) + 1
        for name in sums:
            sums[name] += getattr(event, name)

    @property
    def events(self) -> Counter[tuple[type[Event], str]]:
        """By event and label."""
        return Counter({(kind, label): n for kind, times in self._times.items() for label, n in times.items()})

    @property
    def sums(self) -> Counter[tuple[type[Event], str]]:
        """By event and the name of a count."""
        return Counter({(kind, name): total for kind, sums in self._sums.items() for name, total in sums.items()})
