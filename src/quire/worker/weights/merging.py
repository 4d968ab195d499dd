"""Names of a checkpoint's parameters → parameters of transformers' model, for packed weights.

transformers renames the keys of a checkpoint, and merges some: experts are stored one by one, and lie in one parameter
of three dimensions. Its own rules are applied here to codes and to scales, each as if it were the weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from quire.core.errors import ModelError
from quire.worker.weights.formats.stored import Readers
from quire.worker.weights.packed import PackedWeight

JOINING = (Chunk, Concatenate, MergeModulelist)
"""Operations that move whole rows, if they work on the outputs."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Parameters of a checkpoint that become one or more parameters of the model together."""

    targets: tuple[str, ...]
    converter: Any = None
    """None: the weight is taken as it is."""
    names: dict[str, list[str]] = field(default_factory=dict)
    """By the converter's pattern that they match."""

    @property
    def moves_rows(self) -> bool:
        """Whether its weights can stay packed."""
        return self.converter is None or _moves_rows(self.converter.operations)

    def packed(self, model: Any, readers: Readers) -> dict[str, PackedWeight] | None:
        """By target. None: the operations or the weights' layouts do not allow it."""
        read = {pattern: [readers[name]() for name in names] for pattern, names in self.names.items()}
        if not self.moves_rows:
            return None
        if self.converter is None:
            return {self.targets[0]: next(iter(read.values()))[0]}
        weights = [weight for some in read.values() for weight in some]
        if any(weight.shape[-2] % weight.rows for weight in weights):
            read = {pattern: [weight.by_rows() for weight in some] for pattern, some in read.items()}
        layouts = {weight.layout for some in read.values() for weight in some}
        return _converted(self, model, read) if len(layouts) == 1 else None

    def dense(self, model: Any, readers: Readers) -> dict[str, torch.Tensor]:
        """The same, dequantised."""
        read = {pattern: [readers[name]().dequantised() for name in names] for pattern, names in self.names.items()}
        return {self.targets[0]: next(iter(read.values()))[0]} if self.converter is None else self.convert(model, read)

    def convert(self, model: Any, tensors: dict[str, list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        converter = deepcopy(self.converter)
        converter.collected_tensors.update(tensors)
        try:
            found = converter.convert(self.targets[0], model=model, config=model.config)
        except (RuntimeError, IndexError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ModelError(f"the packed parts of {self.targets[0]} do not fit each other: {reason}") from None
        return {name: value[0] if isinstance(value, list) else value for name, value in found.items()}


def sources_of(model: Any, names: Sequence[str]) -> list[Source]:
    """Parameters that the model has no place for are left out, as transformers does."""
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    state, prefix, found = model.state_dict(), model.base_model_prefix, dict[str, Source]()
    for name in sorted(names, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, state)
        if target not in state and name in state:
            target, pattern = rename_source_key(name, [], [], prefix, state)
        if target in state:
            converter = None if pattern is None else by_pattern[pattern]
            source = found.setdefault(target, Source(_targets(target, converter), converter))
            source.names.setdefault(pattern or name, []).append(name)
    return list(found.values())


def _targets(first: str, converter: Any) -> tuple[str, ...]:
    """All parameters that a converter makes, from the name of the first."""
    patterns = [] if converter is None else converter.target_patterns
    return (first, *(first.replace(patterns[0], pattern) for pattern in patterns[1:]))


def _moves_rows(operations: Sequence[Any]) -> bool:
    dimensions = 2
    for operation in operations:
        if type(operation) not in JOINING:
            return False
        if isinstance(operation, MergeModulelist):
            dimensions += 1
        elif operation.dim != dimensions - 2:
            return False
    return True


def _converted(source: Source, model: Any, read: dict[str, list[PackedWeight]]) -> dict[str, PackedWeight] | None:
    """Each tensor of the weights converted as if it were the weight. Orders are equal for all rows, or there is no
    common one."""
    first = next(iter(read.values()))[0]
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name in first.tensors:
        given = {pattern: [_rows(name, weight) for weight in some] for pattern, some in read.items()}
        for target, tensor in source.convert(model, given).items():
            parts.setdefault(target, {})[name] = tensor
    for own in parts.values():
        if "order" in own:
            order = own["order"]
            if not order.equal(order[..., :1, :].expand(order.shape)):
                return None
            own["order"] = order[..., 0, :]
    return {target: first.having(own) for target, own in parts.items()}


def _rows(name: str, weight: PackedWeight) -> torch.Tensor:
    tensor = weight.tensors[name]
    return tensor[..., None, :] if name == "order" else tensor
