"""Keeps and brings back the state of a whole scheduler, in a few microseconds.

All arrays of numbers are moved into one stretch of bytes, once, so that keeping them is one copy. Everything else that
can change (numbers, lists, dictionaries) is found by walking through the objects, and put back in place: objects stay
who they are. Nothing here knows what an attribute means, so nothing can be left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from quire.core.request import Request
from quire.core.step import TableView
from quire.kinds import Kind
from quire.plan.plan import KindPlan, Plan, StagePlan
from quire.scheduler.queue import Ticket

FROZEN = (Plan, StagePlan, KindPlan, Kind, Request, TableView, str, bytes, tuple, type(None))
"""Never change, so nothing in them is kept."""
Kept = tuple[bytes, list[list[Any]], list[Any], list[tuple[Any, ...]]]


class Snapshots:
    def __init__(self, root: object) -> None:
        self.owners = list(_objects(root, set()))
        self._bytes = self._gather()
        self._arrays = {id(v) for owner in self.owners for v in vars(owner).values() if _is_numbers(v)}
        self._numbers: list[tuple[dict[str, Any], list[str]]] = []
        """Of each owner, the attributes that are plain numbers."""
        self._others: list[tuple[object, str]] = []
        """Lists, dictionaries, and arrays that are exchanged rather than written to."""
        for owner in self.owners:
            names = [name for name, value in vars(owner).items() if isinstance(value, int | float)]
            self._numbers.append((vars(owner), names))
            others = [name for name, value in vars(owner).items() if self._may_change(name, value, names)]
            self._others += [(owner, name) for name in others]

    def _may_change(self, name: str, value: object, numbers: list[str]) -> bool:
        is_kept = name in numbers or id(value) in self._arrays
        return not (is_kept or isinstance(value, FROZEN) or _is_object(value) or callable(value))

    def keep(self) -> Kept:
        numbers = [[values[name] for name in names] for values, names in self._numbers]
        others = [_copied(getattr(owner, name)) for owner, name in self._others]
        return self._bytes.tobytes(), numbers, others, [_fields(one) for one in self._waiting()]

    def restore(self, kept: Kept) -> None:
        data, numbers, others, waiting = kept
        self._bytes[:] = np.frombuffer(data, dtype=np.uint8)
        for (values, names), own in zip(self._numbers, numbers, strict=True):
            values.update(zip(names, own, strict=True))
        for (owner, name), value in zip(self._others, others, strict=True):
            _put_back(owner, name, value)
        for one, *fields in waiting:
            for name, value in zip(one.__slots__, fields, strict=True):
                setattr(one, name, list(value) if type(value) is list else value)

    def check_complete(self) -> None:
        """That no array was exchanged for another one behind our back."""
        for owner in self.owners:
            for name, value in vars(owner).items():
                is_seen = id(value) in self._arrays or (owner, name) in self._others
                if isinstance(value, np.ndarray) and not is_seen:
                    raise AssertionError(f"{type(owner).__name__}.{name} is a new array: snapshots do not see it")

    def _waiting(self) -> Iterator[Ticket]:
        """Requests wherever they are: the only objects that come and go."""
        for owner, name in self._others:
            value = getattr(owner, name)
            if isinstance(value, list | dict) and value:
                for one in value.values() if isinstance(value, dict) else value:
                    if type(one) is not Ticket:
                        break
                    yield one

    def _gather(self) -> np.ndarray[Any, Any]:
        """Moves all arrays of numbers into one, and lets their owners look at their part of it."""
        places = [(o, name, v) for o in self.owners for name, v in vars(o).items() if _is_numbers(v)]
        views = [view for owner in self.owners for view in vars(owner).values() if isinstance(view, TableView)]
        places += [(view, "addresses", view.addresses) for view in views]
        room = np.zeros(sum(-(-v.nbytes // 8) * 8 for _, _, v in places), dtype=np.uint8)
        begin = 0
        for owner, name, value in places:
            part = room[begin : begin + value.nbytes].view(value.dtype).reshape(value.shape)
            part[...] = value
            object.__setattr__(owner, name, part)  # a view is frozen: its array lives on, here
            begin += -(-value.nbytes // 8) * 8
        return room


def _is_numbers(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype != object and value.size > 0


def _is_object(value: object) -> bool:
    """Something with attributes of its own, or a list of such things that never changes: both are walked into."""
    if isinstance(value, list) and value and all(map(_is_object, value)):
        return True
    return hasattr(value, "__dict__") and not isinstance(value, FROZEN) and not callable(value)


def _objects(root: object, seen: set[int]) -> Iterator[object]:
    if id(root) in seen or isinstance(root, FROZEN) or callable(root):
        return
    seen.add(id(root))
    if isinstance(root, list):
        for one in root:
            yield from _objects(one, seen)
    elif hasattr(root, "__dict__"):
        yield root
        for value in vars(root).values():
            yield from _objects(value, seen)


def _copied(value: Any) -> Any:
    if type(value) is list:
        return list(value)
    if type(value) is dict:
        return {key: _copied(one) if type(one) in (list, dict) else one for key, one in value.items()}
    return value.copy() if type(value) is np.ndarray else value


def _put_back(owner: object, name: str, value: Any) -> None:
    """Lists and dictionaries keep their identity: some have two owners."""
    if type(value) is list:
        getattr(owner, name)[:] = value
    elif type(value) is dict:
        now = getattr(owner, name)
        now.clear()
        now.update(_copied(value))
    else:
        setattr(owner, name, value.copy() if type(value) is np.ndarray else value)


def _fields(one: Ticket) -> tuple[Any, ...]:
    return (one, *(_copied(getattr(one, name)) for name in one.__slots__))
