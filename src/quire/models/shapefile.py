"""A ModelShape as JSON, short enough to write by hand for a model that nobody has heard of.

    {"quire_shape": 1, "name": "odd", "max_length": 131072, "layers": [
        {"count": 19, "kind": "full", "kv_heads": 8, "head_dim": 128},
        {"count": 18, "kind": "window", "window": 1024, "kv_heads": 8, "head_dim": 128},
        {"kind": "indexed", "top_tokens": 2048, "rank": 512, "rope": 64, "indexer": 128},
        {"kind": "state", "bytes": 2146304}, {"kind": "none"}, {"shares_with": 3}]}

`parts` instead of the short sizes, and `memories` instead of one `kind`, say everything there is to say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from quire.core.dtypes import DType, parse_dtype
from quire.core.errors import InputError, ModelError
from quire.core.memory import Follows, Memory, Part
from quire.models.fields import MOST_LAYERS, Fields, shown
from quire.models.memories import Heads, index_part, indexed, key_value_parts, latent_parts
from quire.models.ropes import stretched_length
from quire.models.shape import Experts, Layer, ModelShape, Rope

VERSION = 1
HAND_WRITTEN = "hand-written"
_SIZES = ("hidden_size", "intermediate_size", "query_heads", "vocab_size", "embedding_bytes", "head_bytes")
_EXPERTS = {"experts": "count", "experts_per_token": "per_token", "expert_width": "width", "expert_inner": "inner"}
_WEIGHTS = ("weight_bytes", "replicated_weight_bytes", "expert_weight_bytes")
_NUMBERS_OF_KIND = {
    "full": (), "window": ("window",), "chunked": ("chunk",), "sink": ("sinks", "window"), "latent": (), "state": (),
    "cross": ("encoder_tokens",), "indexed": ("top_tokens",),
}  # fmt: skip


def shape_from_json(config: Mapping[str, object]) -> ModelShape:
    fields = Fields(config, "the shape file", {})
    version = fields.integer("quire_shape")
    if version != VERSION:
        raise ModelError(f"quire_shape is {version}: this version of Quire reads {VERSION}, write the file anew")
    layers, drafts = _layers(fields, "layers"), _layers(fields, "draft_layers")
    if not layers:
        raise fields.missing("layers", 'describe at least one layer, for example {"kind": "full", ...}')
    _check_sharing(layers, "layers", layers)
    _check_sharing(drafts, "draft_layers", layers)
    sizes = {name: fields.integer(name, absent=0, minimum=0) for name in _SIZES}
    experts = Experts(**{own: fields.integer(name, absent=0, minimum=0) for name, own in _EXPERTS.items()})
    ropes = tuple(_rope(_entry(item, f"ropes[{i}]")) for i, item in enumerate(fields.items("ropes") or ()))
    weighed = any(layer.weight_bytes or layer.replicated_weight_bytes for layer in layers)
    shape = ModelShape(
        name=_text(fields, "name", "unnamed"), family=_text(fields, "family", HAND_WRITTEN), layers=layers,
        draft_layers=drafts, max_length=fields.optional_integer("max_length"),
        stretched_length=stretched_length(ropes), ropes=ropes, experts=experts,
        weights_known=fields.flag("weights_known", absent=weighed or sizes["embedding_bytes"] > 0),
        notes=tuple(str(note) for note in fields.items("notes") or ()), **sizes,
    )  # fmt: skip
    _refuse_unknown(fields)
    return shape


def _text(fields: Fields, name: str, absent: str) -> str:
    text = fields.text(name)
    return absent if text is None else text


def _rope(entry: Fields) -> Rope:
    sort, factor = entry.text("sort"), entry.raw("factor")
    if sort not in ("longrope", "dynamic"):
        raise entry.wrong("sort", sort, "choose longrope or dynamic")
    if factor is not None and (
        isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf
    ):
        raise entry.wrong("factor", factor, "it must be a number above 0")
    rope = Rope(
        sort, entry.integer("original_tokens", minimum=0), entry.text("layers") or "", 1.0 if factor is None else factor
    )
    _refuse_unknown(entry)
    return rope


def _layers(fields: Fields, name: str) -> tuple[Layer, ...]:
    found: list[Layer] = []
    for i, item in enumerate(fields.items(name) or ()):
        entry = _entry(item, f"{fields.prefix}{name}[{i}]")
        count = entry.integer("count", absent=1, maximum=MOST_LAYERS)
        found.extend([_layer(entry)] * count)
        _refuse_unknown(entry)
        if len(found) > MOST_LAYERS:
            raise ModelError(f"{name} describes {len(found):,} layers: {MOST_LAYERS:,} are the most")
    return tuple(found)


def _entry(item: object, where: str) -> Fields:
    if not isinstance(item, Mapping):
        raise ModelError(f"{where} is {shown(item)}: it must be an object of fields")
    return Fields(item, "the shape file", {}, f"{where}.")


def _layer(entry: Fields) -> Layer:
    shares = entry.optional_integer("shares_with", minimum=0)
    weights = entry.integer("weight_bytes", absent=0, minimum=0)
    replicated = entry.integer("replicated_weight_bytes", absent=0, minimum=0)
    experts = entry.integer("expert_weight_bytes", absent=0, minimum=0, maximum=weights)
    several = entry.items("memories")
    stated = [name for name in ("shares_with", "memories", "kind") if entry.raw(name) is not None]
    if len(stated) != 1:
        given = " and ".join(stated) or "nothing"
        raise ModelError(f"{entry.prefix[:-1]} has {given}: give one of kind, memories or shares_with")
    if several is not None:
        memories = tuple(_listed(item, f"{entry.prefix}memories[{i}]") for i, item in enumerate(several))
    elif shares is not None or entry.text("kind") == "none":
        memories = ()
    else:
        memories = (_memory(entry),)
    return Layer(memories, shares, weights, replicated, experts)


def _listed(item: object, where: str) -> Memory:
    entry = _entry(item, where)
    memory = _memory(entry)
    _refuse_unknown(entry)
    return memory


def _memory(entry: Fields) -> Memory:
    kind = entry.text("kind")
    if kind not in _NUMBERS_OF_KIND:
        raise entry.wrong("kind", kind, f"choose one of {', '.join(_NUMBERS_OF_KIND)}")
    numbers: dict[str, Any] = {name: entry.integer(name) for name in _NUMBERS_OF_KIND[kind]}
    numbers |= {
        "tokens_per_state": entry.integer("tokens_per_state", absent=1),
        "rewinds": entry.flag("rewinds", absent=True),
        "purpose": entry.text("purpose") or _PURPOSES.get(kind, "attention"),
    }
    return Memory.of(kind, _parts(entry, kind), numbers)


def _parts(entry: Fields, kind: str) -> tuple[Part, ...]:
    listed = entry.items("parts")
    if listed is not None:
        if not listed:
            raise entry.wrong("parts", listed, "list at least one part")
        return tuple(_part(_entry(item, f"{entry.prefix}parts[{i}]")) for i, item in enumerate(listed))
    return _PARTS.get(kind, _key_value)(entry)


def _key_value(entry: Fields) -> tuple[Part, ...]:
    heads, dim = entry.integer("kv_heads"), entry.integer("head_dim")
    return key_value_parts(Heads(heads, heads, dim, entry.integer("value_dim", absent=dim), "kv_heads"))


def _rows(entry: Fields) -> tuple[Part, ...]:
    rank, rope = entry.integer("rank"), entry.integer("rope", absent=0, minimum=0)
    return tuple(part for part in latent_parts(rank, rope) if part.width)


def _latent(entry: Fields) -> tuple[Part, ...]:
    width = entry.optional_integer("indexer")
    return _rows(entry) + (() if width is None else (index_part(width),))


def _indexed(entry: Fields) -> tuple[Part, ...]:
    return indexed(_rows(entry), entry.integer("top_tokens"), entry.optional_integer("indexer")).parts


def _state(entry: Fields) -> tuple[Part, ...]:
    """Ranks can divide a state only along heads: without them each keeps all of it."""
    size, heads = entry.integer("bytes"), entry.optional_integer("heads")
    if size % (heads or 1):
        raise ModelError(f"{entry.prefix}bytes {size} does not divide by heads {heads}: give a multiple of it")
    width = size // (heads or 1)
    return (Part("state", heads or 1, width, DType.INT8, replicated=heads is None, origin=f"bytes {size}"),)


_PARTS = {"latent": _latent, "indexed": _indexed, "state": _state}
"""How the parts of a kind are written in short; those of the others are keys and values."""
_PURPOSES = {"state": "state"}


def _part(entry: Fields) -> Part:
    name = entry.text("name")
    if not name:
        raise entry.missing("name", 'name the tensor, for example "key"')
    follows = entry.text("follows") or Follows.NOTHING.value
    if follows not in {f.value for f in Follows}:
        raise entry.wrong("follows", follows, f"choose one of {', '.join(f.value for f in Follows)}")
    part = Part(
        name, entry.integer("heads"), entry.integer("width"), _dtype(entry), Follows(follows),
        entry.flag("replicated"), entry.integer("scale_bytes", absent=0, minimum=0), entry.text("origin") or "",
    )  # fmt: skip
    _refuse_unknown(entry)
    return part


def _dtype(entry: Fields) -> DType:
    try:
        return parse_dtype(entry.text("dtype") or "bf16", f"{entry.prefix}dtype")
    except InputError as error:
        raise ModelError(str(error)) from None


def _refuse_unknown(entry: Fields) -> None:
    for name in entry.unread():
        known = ", ".join(sorted(entry.read))
        raise ModelError(f"{entry.prefix}{name} is not known here: remove it or choose one of {known}")


def _check_sharing(layers: tuple[Layer, ...], name: str, targets: tuple[Layer, ...]) -> None:
    for i, layer in enumerate(layers):
        target = layer.shares_with
        if target is None:
            continue
        if target >= len(targets) or not targets[target].memories:
            why = f"there are {len(targets)} layers" if target >= len(targets) else "that layer keeps nothing itself"
            raise ModelError(f"{name}: layer {i} shares_with {target}: {why}, name a layer with a memory of its own")


def shape_to_json(shape: ModelShape) -> dict[str, object]:
    """Everything, with equal neighbours counted; `shape_from_json` gives back an equal shape."""
    head: dict[str, object] = {"quire_shape": VERSION, "name": shape.name, "family": shape.family}
    if shape.max_length is not None:
        head["max_length"] = shape.max_length
    head |= {name: getattr(shape, name) for name in _SIZES if getattr(shape, name)}
    head |= {name: size for name, own in _EXPERTS.items() if (size := getattr(shape.experts, own))}
    head |= {"weights_known": shape.weights_known, "layers": _runs(shape.layers)}
    if shape.draft_layers:
        head["draft_layers"] = _runs(shape.draft_layers)
    if shape.ropes:
        head["ropes"] = [_rope_json(rope) for rope in shape.ropes]
    return head | ({"notes": list(shape.notes)} if shape.notes else {})


def _rope_json(rope: Rope) -> dict[str, object]:
    entry: dict[str, object] = {"sort": rope.sort, "original_tokens": rope.original_tokens}
    return (
        entry | ({"layers": rope.layers} if rope.layers else {}) | ({"factor": rope.factor} if rope.factor != 1 else {})
    )


def _runs(layers: tuple[Layer, ...]) -> list[dict[str, object]]:
    """Neighbours are equal when they print alike: origins count too."""
    runs = [list(same) for _, same in groupby(layers, key=repr)]
    return [({"count": len(run)} if len(run) > 1 else {}) | _layer_json(run[0]) for run in runs]


def _layer_json(layer: Layer) -> dict[str, object]:
    if layer.shares_with is not None:
        entry: dict[str, object] = {"shares_with": layer.shares_with}
    elif len(layer.memories) == 1:
        entry = _memory_json(layer.memories[0])
    else:
        entry = {"memories": [_memory_json(one) for one in layer.memories]} if layer.memories else {"kind": "none"}
    return entry | {name: size for name in _WEIGHTS if (size := getattr(layer, name))}


def _memory_json(memory: Memory) -> dict[str, object]:
    entry: dict[str, object] = {"kind": memory.kind}
    entry |= {name: memory.number(name) for name in _NUMBERS_OF_KIND[memory.kind]}
    if memory.tokens_per_state != 1:
        entry["tokens_per_state"] = memory.tokens_per_state
    if not memory.rewinds:
        entry["rewinds"] = False
    if memory.purpose != _PURPOSES.get(memory.kind, "attention"):
        entry["purpose"] = memory.purpose
    return entry | {"parts": [_part_json(part) for part in memory.parts]}


def _part_json(part: Part) -> dict[str, object]:
    entry: dict[str, object] = {"name": part.name, "heads": part.heads, "width": part.width, "dtype": part.dtype.value}
    if part.follows is not Follows.NOTHING:
        entry["follows"] = part.follows.value
    rest = {"replicated": part.replicated, "scale_bytes": part.scale_bytes, "origin": part.origin}
    return entry | {name: value for name, value in rest.items() if value}
