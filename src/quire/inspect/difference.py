"""The difference between two documents, and a document with a difference applied.

{"set": value}                       the value is new, or shorter to repeat than to describe
{"at": [2, 7], "to": [5, 1]}         a list of the same length, with other values at some places
{"at": [0], "by": [difference]}                the same for a list of objects
{"in": {key: difference}, "without": [key]}    an object with other values at some keys

What is equal is left out; the difference of equal documents is None. The page applies the same (`page/document.js`).
"""

from __future__ import annotations

from itertools import compress, count
from operator import ne
from typing import Any

MOST_SHARE = 3
"""A list is repeated if more than 1 ÷ this of its entries have changed."""


def difference(before: Any, after: Any) -> dict[str, Any] | None:
    """None: they are equal."""
    if type(before) is type(after) and before == after:
        return None
    if isinstance(before, dict) and isinstance(after, dict):
        return _of_objects(before, after)
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return _of_lists(before, after)
    return {"set": after}


def applied(before: Any, change: dict[str, Any] | None) -> Any:
    """The later document. Changes neither of the two that are given."""
    if change is None:
        return before
    if "set" in change:
        return change["set"]
    if "to" in change:
        after = list(before)
        for place, value in zip(change["at"], change["to"], strict=True):
            after[place] = value
        return after
    if "by" in change:
        after = list(before)
        for place, part in zip(change["at"], change["by"], strict=True):
            after[place] = applied(after[place], part)
        return after
    gone = set(change.get("without", ()))
    kept = {key: value for key, value in before.items() if key not in gone}
    return kept | {key: applied(before.get(key), part) for key, part in change.get("in", {}).items()}


def _of_objects(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for key, value in after.items():
        part = difference(before[key], value) if key in before else {"set": value}
        if part is not None:
            parts[key] = part
    gone = [key for key in before if key not in after]
    return {**({"in": parts} if parts else {}), **({"without": gone} if gone else {})}


def _of_lists(before: list[Any], after: list[Any]) -> dict[str, Any]:
    places = list(compress(count(), map(ne, before, after)))
    if any(isinstance(after[place], dict) for place in places):
        return {"at": places, "by": [difference(before[place], after[place]) for place in places]}
    if MOST_SHARE * len(places) > len(after):
        return {"set": after}
    return {"at": places, "to": [after[place] for place in places]}
