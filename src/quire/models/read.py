"""The way in: a file, a folder or a catalogue name becomes a ModelShape."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from quire.core.dtypes import DType
from quire.core.errors import ModelError
from quire.models.blueprint import Block, Blueprint, Family, Weights
from quire.models.families import ARCHITECTURES, FAMILIES, TEXT_PARTS
from quire.models.families.feedforward import CHOSEN_EXPERTS, EXPERTS
from quire.models.fields import Fields, shown, whole_number
from quire.models.neutral import refuse_unknown_memory
from quire.models.precision import Precision, read_precision
from quire.models.ropes import read_ropes, stretched_length
from quire.models.shape import NO_EXPERTS, Experts, Layer, ModelShape
from quire.models.stored_bits import with_stored_bits
from quire.models.weight_layout import WeightFormat, panel_bytes

LARGEST_FILE = 64 << 20
_TEXT_ONLY = "text part only: the vision tower's weights are not counted"
_OUTER_FIELDS = (
    "tie_word_embeddings", "quantization_config", "compression_config", "quantization", "dtype", "torch_dtype",
    "expert_dtype",
)  # fmt: skip


def read_model(
    source: str, *, ignore_fields: Collection[str] = (), weight_format: WeightFormat | None = None
) -> ModelShape:
    """An existing file or folder, else a catalogue name. `weight_format`: how its weights will be stored; none: as the
    checkpoint has them."""
    from quire.models.catalogue import find_entry

    path = Path(source)
    if source.strip() and _exists(path):
        return _read_path(path, ignore_fields, weight_format)
    if source.startswith((".", "/", "~")) or source.endswith(".json"):
        raise ModelError(f"{shown(source)}: there is no such file or folder")
    entry = find_entry(source)
    if entry is not None:
        shape = read_config(entry.config, entry.name, ignore_fields, weight_format)
        return replace(shape, notes=(*shape.notes, *_renamed(source, entry.name)))
    raise _unknown(source)


def _renamed(source: str, name: str) -> tuple[str, ...]:
    """Another name for the same shape, or one that may exist on the hub too, is said aloud."""
    from quire.models.catalogue import plain_name

    if plain_name(source) != name:
        return (f"{source} has the shape of {name}: planned as the catalogue has it",)
    return (f"{source}: as the catalogue has it, the hub was not asked",) if "/" in source else ()


def read_config(
    config: Mapping[str, object],
    name: str,
    ignore_fields: Collection[str] = (),
    weight_format: WeightFormat | None = None,
) -> ModelShape:
    """A `config.json` that is already in memory."""
    if not isinstance(config, Mapping):
        raise ModelError(f"{name}: a configuration is an object of fields, this is {shown(config)}")
    text, notes = _text_part(config)
    for field in ignore_fields:
        if field not in text:
            raise ModelError(f"{name} has no field {field!r} to ignore: check its spelling")
    text = {field: value for field, value in text.items() if field not in ignore_fields}
    text = text if weight_format is None else {**text, "dtype": weight_format.dtype.value}
    family = _family(text, config)
    fields = Fields(text, family.model_type, family.defaults)
    fields.raw("model_type", "architectures")
    blueprint = family.read(fields)
    experts = _experts(fields, blueprint)
    ropes = read_ropes(fields, blueprint.max_length)
    precision = read_precision(fields, weight_format or WeightFormat(DType.FP32, on_cpu=False))
    if weight_format is not None and weight_format.has_panels:
        precision = replace(precision, has_panels=True)
    refuse_unknown_memory(fields)
    if weight_format is not None:
        notes += _of_weights(weight_format, fields.section("quantization_config") is not None)
    shape = _shape(name, family.model_type, blueprint, precision, (*notes, *fields.notes))
    return replace(shape, experts=experts, ropes=ropes, stretched_length=stretched_length(ropes))


def _of_weights(held: WeightFormat, is_quantised: bool) -> tuple[str, ...]:
    """One sentence about how weights are counted; none where it is as the checkpoint has them."""
    anew = ", laid out anew, a tied head a second time" if held.has_panels else ""
    if is_quantised or held.packed is not None:
        packed = f"in {held.packed}" if held.packed else "in their few bits"
        tiles = ", laid out for its products" if held.has_planes else ""
        return (f"quantised weights are counted {packed}{tiles}, the rest in {held.dtype.value}{anew}",)
    return (f"weights are counted as a CPU holds them: in {held.dtype.value}{anew}",) if held.on_cpu else ()


def _experts(fields: Fields, blueprint: Blueprint) -> Experts:
    weights = max(block.weights.experts for block in blueprint.blocks)
    if not weights:
        return NO_EXPERTS
    count, chosen = _stated(fields, EXPERTS), _stated(fields, CHOSEN_EXPERTS)
    if not chosen:
        fields.notes.append(
            f"{CHOSEN_EXPERTS[0]} absent: steps are counted without what experts take, and read them all"
        )
    latent = fields.optional_integer("moe_latent_size") if "moe_latent_size" in fields.read else None
    width = latent or blueprint.hidden_size
    return Experts(count, chosen, width, weights // (3 * width * count) if count else 0)


def _stated(fields: Fields, names: Sequence[str]) -> int:
    """Of some models layer by layer: then the most. Where absent, the family's default, which was noted, or 0."""
    value = fields.raw(*names)
    if value is None:
        return next((fields.defaults[name] for name in names if name in fields.defaults), 0)
    several = value if isinstance(value, list) and value else [value]
    return max(whole_number(one, fields.spelling(*names), minimum=0) for one in several)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _read_path(path: Path, ignore_fields: Collection[str], weight_format: WeightFormat | None) -> ModelShape:
    from quire.models.shapefile import shape_from_json

    file = path / "config.json" if path.is_dir() else path
    config = with_stored_bits(path, _load(file)) if path.is_dir() else _load(file)
    if "quire_shape" in config:
        shape = shape_from_json(config)
        if weight_format is None or not shape.weights_known:
            return shape
        return replace(shape, notes=(*shape.notes, f"{file.name} states the size of its weights: it stays as it is"))
    name = path.resolve().name if path.is_dir() else file.stem
    return read_config(config, file.resolve().parent.name if name == "config" else name, ignore_fields, weight_format)


def _load(file: Path) -> dict[str, object]:
    if not file.is_file():
        raise ModelError(f"{file}: there is no such file; give a config.json or a folder that holds one")
    try:
        size = file.stat().st_size
        if size > LARGEST_FILE:
            raise ModelError(f"{file}: {size:,} bytes are too many for a configuration; name its config.json")
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{file}: cannot be read ({error.strerror}); check its permissions") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: is not JSON ({str(error).splitlines()[0]}); correct the file") from None
    if not isinstance(value, dict):
        raise ModelError(f"{file}: a configuration is an object of fields, this is {shown(value)}")
    return value


def _unknown(source: str) -> ModelError:
    from quire.models.catalogue import catalogue_names, plain_name

    near = difflib.get_close_matches(plain_name(source), catalogue_names(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    problem = "no such file or catalogue name"
    return ModelError(f"model {shown(source)} is not known ({problem}): {hint}`quire models` lists all names")


def _text_part(config: Mapping[str, object]) -> tuple[Mapping[str, object], list[str]]:
    """The configuration of the language model, and what to tell about the rest."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return config, []
    outer = {name: config[name] for name in _OUTER_FIELDS if config.get(name) is not None}
    return {**outer, **{name: value for name, value in text.items() if value is not None}}, [_TEXT_ONLY]


def _family(text: Mapping[str, object], config: Mapping[str, object]) -> Family:
    stated = text.get("model_type") or config.get("model_type") or _guessed(text, config)
    if not isinstance(stated, str):
        raise ModelError("model_type is missing: add it, it says how the other fields are to be read")
    family = FAMILIES.get(TEXT_PARTS.get(stated, stated))
    if family is None:
        near = difflib.get_close_matches(stated, FAMILIES, n=3)
        known = f"near to it are {', '.join(near)}" if near else f"{len(FAMILIES)} families are known"
        own = "; its own code (auto_map) is never run" if "auto_map" in config else ""
        raise ModelError(f"model_type is {shown(stated)}: no such family ({known}){own}; describe it in a shape file")
    return family


def _guessed(text: Mapping[str, object], config: Mapping[str, object]) -> str | None:
    """Configurations without model_type: by architecture, or state-spaces' own form."""
    for source in (text, config):
        names = source.get("architectures")
        for name in names if isinstance(names, list) else ():
            if name in ARCHITECTURES:
                return ARCHITECTURES[name]
    settings = config.get("ssm_cfg")
    if isinstance(settings, Mapping):
        return "mamba2" if settings.get("layer") == "Mamba2" else "mamba"
    return None


def _shape(name: str, family: str, blueprint: Blueprint, precision: Precision, notes: tuple[str, ...]) -> ModelShape:
    layers = [_layer(block, precision) for block in blueprint.blocks]
    last = blueprint.blocks[-1]
    layers[-1] = _layer(Block(last.memories, last.weights + blueprint.final, last.shares_with), precision)
    table = blueprint.vocab_size * blueprint.embedding_width
    return ModelShape(
        name=name, family=family, layers=tuple(layers),
        draft_layers=tuple(_layer(block, precision) for block in blueprint.drafts),
        max_length=blueprint.max_length, hidden_size=blueprint.hidden_size,
        intermediate_size=blueprint.intermediate_size, query_heads=blueprint.query_heads,
        vocab_size=blueprint.vocab_size,
        embedding_bytes=math.ceil(table * precision.table / 8) + precision.bytes_of(blueprint.more_embeddings),
        head_bytes=_head_bytes(blueprint, precision), notes=notes,
    )  # fmt: skip


def _head_bytes(blueprint: Blueprint, precision: Precision) -> int:
    """A tied head has bytes of its own only where it is kept a second time, in panels or on planes."""
    inputs, outputs = blueprint.embedding_width, blueprint.vocab_size
    if blueprint.tied:
        has_copy = precision.has_panels and precision.table == precision.plain
        return panel_bytes(inputs, outputs) if has_copy else math.ceil(inputs * outputs * precision.tied_head / 8)
    return math.ceil(inputs * outputs * precision.head / 8) + precision.bytes_of(blueprint.head_bias)


def _layer(block: Block, precision: Precision) -> Layer:
    divided, replicated = precision.divided(block.weights), precision.replicated(block.weights)
    experts = precision.divided(Weights(experts=block.weights.experts))
    return Layer(block.memories, block.shares_with, divided, replicated, experts)
