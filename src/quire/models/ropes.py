"""Which rotary frequencies of a configuration depend on how long a sequence is: `longrope` and `dynamic`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.models.fields import Fields
from quire.models.shape import Rope

LONGROPE_NAMES = {"phi3": ("longrope", "su", "yarn")}
"""By family, where releases have other names for it."""
ORIGINAL_TOKENS = {"phi3": 4096}
"""By family: where its configuration class has a default of its own."""


def read_ropes(fields: Fields, max_length: int | None) -> tuple[Rope, ...]:
    """Of all layers, or of each type of layers that has its own parameters."""
    given = fields.raw("rope_scaling") or fields.raw("rope_parameters")
    if not isinstance(given, Mapping):
        return ()
    nested = {name: own for name, own in sorted(given.items()) if isinstance(own, Mapping)}
    found = (_rope(fields, own, name, max_length) for name, own in (nested or {"": given}).items())
    return tuple(rope for rope in found if rope is not None)


def _rope(fields: Fields, given: Mapping[str, object], layers: str, max_length: int | None) -> Rope | None:
    sort = given.get("rope_type", given.get("type"))
    if sort in LONGROPE_NAMES.get(fields.family, ("longrope",)):
        own = given.get("original_max_position_embeddings")
        outer = None if layers else fields.optional_integer("original_max_position_embeddings")
        return Rope("longrope", _whole(outer, ORIGINAL_TOKENS.get(fields.family), own, max_length), layers)
    if isinstance(sort, str) and "dynamic" in sort and not given.get("alpha"):
        factor = given.get("factor")
        return Rope("dynamic", _whole(max_length), layers, factor if isinstance(factor, int | float) else 1.0)
    return None


def _whole(*values: object) -> int:
    return next((value for value in values if isinstance(value, int) and value > 0), 0)


def stretched_length(ropes: Sequence[Rope]) -> int | None:
    """The longest length that may be asked for; None: some layers have frequencies that cannot be stretched."""
    if not ropes or any(rope.sort != "dynamic" for rope in ropes):
        return None
    return min(int(rope.original_tokens * max(1.0, rope.factor)) for rope in ropes)
