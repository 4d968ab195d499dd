"""What a connector must do, checked on any of them: the conformance kit behind `quire check-connector`.

Each check is a sentence; it gets a way to make connectors, and raises if the sentence is not true.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from random import Random

from quire.core.connector import Connector, Forgets, Layout

Make = Callable[[Layout], Connector]
"""A registered connector."""
Check = Callable[[Make, Layout], None]
THREADS, RECORDS_EACH = 4, 12
SIZES = (0, 1, 4096, 1 << 20)


def _record(seed: int, size: int = 5000) -> tuple[bytes, bytes]:
    """A name as the engine makes them, any bytes, and data; the same for the same seed in one process."""
    random = Random(f"{os.getpid()} {seed}")
    return random.choice((b"u", b"b")) + random.randbytes(32), random.randbytes(size)


def _read(connector: Connector, name: bytes, size: int) -> bytes | None:
    """In two parts, as blocks of memory lie."""
    back = bytearray(size)
    parts = [memoryview(back)[: size // 3], memoryview(back)[size // 3 :]]
    return bytes(back) if connector.read(name, parts) else None


def _write(connector: Connector, name: bytes, data: bytes) -> None:
    """From blocks of memory that hold something else as soon as it returns."""
    memory, half = bytearray(data), len(data) // 2
    connector.write(name, [memoryview(memory)[:half], memoryview(memory)[half:]])
    memory[:] = bytes(len(data))


def _expect(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise AssertionError(otherwise)


def _comes_back(make: Make, layout: Layout) -> None:
    connector = make(layout)
    for seed, size in enumerate(SIZES):
        name, data = _record(seed, size)
        _write(connector, name, data)
        _expect(_read(connector, name, size) == data, f"{size:,} bytes were written and other bytes came back")


def _is_looked_up(make: Make, layout: Layout) -> None:
    connector = make(layout)
    (there, data), (absent, _) = _record(10), _record(11)
    _write(connector, there, data)
    _expect(connector.has([absent, there, absent]) == [False, True, False], "has() does not answer name by name")
    _expect(connector.has([]) == [], "has() of no names is not an empty list")


def _is_absent(make: Make, layout: Layout) -> None:
    connector = make(layout)
    name, data = _record(20)
    _expect(_read(connector, name, len(data)) is None, "read() of what was never written is not False")
    connector.drop(name)


def _is_dropped(make: Make, layout: Layout) -> None:
    connector = make(layout)
    name, data = _record(30)
    _write(connector, name, data)
    connector.drop(name)
    _expect(connector.has([name]) == [False], "has() finds what was dropped")
    _expect(_read(connector, name, len(data)) is None, "read() brings what was dropped")


def _is_written_twice(make: Make, layout: Layout) -> None:
    connector = make(layout)
    name, data = _record(40)
    for _ in range(2):
        _write(connector, name, data)
    _expect(_read(connector, name, len(data)) == data, "written twice, it does not come back")


def _is_shared(make: Make, layout: Layout) -> None:
    one, other = make(layout), make(layout)
    name, data = _record(50)
    _write(one, name, data)
    again = make(layout)
    one.register(layout)
    for connector in (one, other, again):
        _expect(connector.has([name]) in ([True], [False]), "has() is no list of booleans")
        found = _read(connector, name, len(data))
        _expect(found in (None, data), "another connector of the same layout reads other bytes")
    _expect(_read(one, name, len(data)) == data, "registered again, it has lost what it had")


def _is_of_one_layout(make: Make, layout: Layout) -> None:
    name, data = _record(60)
    _write(make(layout), name, data)
    foreign = make(replace(layout, fingerprint="f" * 64))
    _expect(foreign.has([name]) == [False], "has() finds a record of another layout")
    _expect(_read(foreign, name, len(data)) is None, "read() brings a record of another layout")


def _is_of_one_size(make: Make, layout: Layout) -> None:
    connector = make(layout)
    name, data = _record(70)
    _write(connector, name, data)
    for size in (len(data) - 1, len(data) + 1):
        _expect(_read(connector, name, size) is None, f"{len(data):,} bytes were read as {size:,}")


def _is_used_by_threads(make: Make, layout: Layout) -> None:
    connector = make(layout)

    def work(thread: int) -> None:
        for place in range(RECORDS_EACH):
            name, data = _record(1000 + thread * RECORDS_EACH + place)
            _write(connector, name, data)
            _expect(connector.has([name]) == [True], "has() does not find what its own thread wrote")
            _expect(_read(connector, name, len(data)) == data, "threads get each other's bytes")

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))


CHECKS: dict[str, Check] = {
    "what is written comes back, whatever its size": _comes_back,
    "has() answers for each name, in order": _is_looked_up,
    "what is not there is not there, and may be dropped": _is_absent,
    "what was dropped is gone": _is_dropped,
    "writing a record again does no harm": _is_written_twice,
    "connectors of one layout read the same bytes or none, also when registered again": _is_shared,
    "records of another layout are not there": _is_of_one_layout,
    "a record of another size is not there": _is_of_one_size,
    "threads may use one connector together": _is_used_by_threads,
}


def _is_forgotten(make: Make, layout: Layout) -> None:
    """A connector that does not tell layouts apart is not asked to forget everything: that may be anybody's."""
    connector, foreign = make(layout), make(replace(layout, fingerprint="f" * 64))
    assert isinstance(connector, Forgets), "asked before"
    (one, _), (other, data) = _record(90), _record(91)
    scope = one[1:9]
    dropped, left = [b"u" + one[1:], b"b" + one[1:]], [b"u" + other[1:], b"b" + other[1:]]
    for to, name in [(connector, name) for name in dropped + left] + [(foreign, name) for name in dropped]:
        _write(to, name, data)
    connector.forget(scope)
    _expect(connector.has(dropped) == [False, False], "has() finds what was forgotten")
    _expect(_read(connector, dropped[0], len(data)) is None, "read() brings what was forgotten")
    _expect(connector.has(left) == [True, True], "forget() of one scope took a record of another")
    _expect(foreign.has(dropped) == [True, True], "forget() took a record of another layout")
    connector.forget(b"")
    _expect(connector.has(left) == [False, False], "forget() of the empty scope left a record")
    _expect(foreign.has(dropped) == [True, True], "forget() of the empty scope took a record of another layout")


CHECKS_OF_FORGETTING: dict[str, Check] = {
    "a scope that was forgotten is gone, and nothing else; an empty one is all of the layout": _is_forgotten,
}
"""Of one that can (`forget`)."""


def _knows_nothing(make: Make, layout: Layout) -> None:
    connector = make(layout)
    _expect(connector.has([_record(80)[0], _record(81)[0]]) == [False, False], "has() does not answer name by name")
    _expect(connector.has([]) == [], "has() of no names is not an empty list")


def _brings_nothing(make: Make, layout: Layout) -> None:
    connector = make(layout)
    connector.register(layout)
    for seed, size in enumerate(SIZES):
        name, _ = _record(82 + seed, 0)
        _expect(_read(connector, name, size) is None, "read() of what nobody has is not False")


CHECKS_OF_BRINGING: dict[str, Check] = {
    "has() answers for each name, and knows no record that nobody has": _knows_nothing,
    "what is not there is not brought, also when registered again": _brings_nothing,
}
"""Of one that is only read (`brings_only`): nobody but its owner can put anything there."""


def check_connector(new: Callable[[], Connector], layout: Layout) -> Iterator[tuple[str, str]]:
    """For each sentence: what is wrong; empty: it holds. Whatever a connector raises is told, and the rest goes on."""
    first = new()
    with suppress(Exception):  # told below, of another one
        first.close()
    for sentence, check in _checks_of(first).items():
        made: list[Connector] = []

        def make(own: Layout, made: list[Connector] = made) -> Connector:
            made.append(new())
            made[-1].register(own)
            return made[-1]

        yield sentence, _problem(check, make, layout, made)


def _checks_of(connector: Connector) -> dict[str, Check]:
    if getattr(connector, "brings_only", False):
        return CHECKS_OF_BRINGING
    return CHECKS | CHECKS_OF_FORGETTING if isinstance(connector, Forgets) else CHECKS


def _problem(check: Check, make: Make, layout: Layout, made: Sequence[Connector]) -> str:
    try:
        check(make, layout)
        for connector in made:
            connector.close()
    except Exception as error:
        return f"{error}" if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
    return ""
