"""Reads one process's share of a checkpoint folder: of each tensor only the part that the process has.

    stored tensor ──▶ rows or columns of it ──▶ parameter
    stored tensors, e.g. of each expert ──▶ their parts, merged as transformers does it ──▶ parameter
                                       └──▶ merged whole, then cut, where parts cannot be merged alone

No process ever holds more than its share and one tensor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from transformers.core_model_loading import Concatenate, MergeModulelist

from quire.core.errors import ModelError
from quire.models.quantisation import section_in
from quire.worker.model.model import NAME
from quire.worker.model.own_attention import allow, stated_type
from quire.worker.ranks.cuts import Cut
from quire.worker.ranks.member import Member
from quire.worker.ranks.shared import SharedModel, share_model
from quire.worker.weights.loading import require_all
from quire.worker.weights.merging import Source, sources_of
from quire.worker.weights.slices import StoredTensors
from quire.worker.weights.write import Advance


def read_share(
    folder: Path,
    member: Member,
    layers: range,
    dtype: torch.dtype,
    layer_outputs: int | None = None,
    *,
    advance: Advance | None = None,
    device: torch.device | None = None,
) -> Any:
    """A model with one process's share of the weights, connected to the others. The split was proved before."""
    _require_plain(folder)
    config = read_configuration(folder)
    made = share_model(config, member, layers, dtype, layer_outputs)
    with StoredTensors(folder) as stored:
        Reader(folder, made, stored, dtype, device).read(advance)
    if device is not None:
        made.model.to(device)  # buffers
    return made.model


def read_configuration(folder: Path) -> Any:
    """With the architectures of the folder."""
    allow(stated_type(folder), NAME)
    return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def _require_plain(folder: Path) -> None:
    if section_in(folder) is not None:
        raise ModelError(f"{folder} has quantised weights, which no rank can take a part of yet: run it on one device")


class Reader:
    def __init__(
        self, folder: Path, made: SharedModel, stored: StoredTensors, dtype: torch.dtype, device: torch.device | None
    ) -> None:
        self._folder, self._made, self._stored, self._device = folder, made, stored, device
        self._shapes = {name: tuple(one.shape) for name, one in made.whole.state_dict(keep_vars=True).items()}
        self._own_shapes = {name: tuple(one.shape) for name, one in made.model.state_dict(keep_vars=True).items()}
        self._groups = {name: names for names in made.tensors() for name in names}
        """By each of its names: all names of a tensor that this process has a part of."""
        self._plan: dict[str, torch.dtype] = made.whole._get_dtype_plan(dtype)
        self._filled: set[str] = set()

    def read(self, advance: Advance | None) -> None:
        sources = sources_of(self._made.whole, self._stored.names())
        total, done = sum(map(self._size, sources)), 0
        for source in sources:
            self._fill(source)
            done += self._size(source)
            if advance:
                advance(done, total)
        missing = [names[0] for names in self._groups.values() if names[0] not in self._filled]
        parameters = dict(self._made.whole.named_parameters(remove_duplicate=False))
        require_all(self._folder, "has no weights for", sorted(set(missing) & parameters.keys()))

    def _size(self, source: Source) -> int:
        return sum(self._stored[name].nbytes for names in source.names.values() for name in names)

    def _fill(self, source: Source) -> None:
        wanted = [target for target in source.targets if target in self._groups]
        if not wanted:
            return
        if source.converter is None:
            ((name,),) = source.names.values()
            self._take(wanted[0], self._stored[name])
            return
        parts = self._merged_parts(source) if source.targets == tuple(wanted) else None
        if parts is not None:
            for target, part in parts.items():
                self._put(target, part)
            return
        whole = {pattern: [self._stored[name][...] for name in names] for pattern, names in source.names.items()}
        for target, tensor in source.convert(self._made.whole, whole).items():
            if target in wanted:
                self._take(target, tensor)

    def _take(self, target: str, tensor: Any) -> None:
        """Cuts this process's part of a whole tensor."""
        if tuple(tensor.shape) != self._shapes[target]:
            problem = f"has weights of another shape ({tuple(tensor.shape)}, not {self._shapes[target]}) for"
            require_all(self._folder, problem, [target])
        self._put(target, self._made.table.part(self._groups[target][0], tensor, self._made.rank))

    def _put(self, target: str, part: torch.Tensor) -> None:
        names = self._groups[target]
        self._made.put(names, part, self._device, self._dtype_of(names[0]))
        self._filled.add(names[0])

    def _dtype_of(self, name: str) -> torch.dtype | None:
        """Parameters that transformers keeps in another data type. None: that of the model."""
        return next(
            (dtype for pattern, dtype in self._plan.items() if re.search(pattern.replace("*", ".*"), name)), None
        )

    def _merged_parts(self, source: Source) -> dict[str, torch.Tensor] | None:
        """Merged from parts of what is stored, if each stored tensor is cut alike. None: merge the whole."""
        if len(source.targets) > 1 or not _is_stacked(source.converter.operations):
            return None
        target, names = source.targets[0], source.names
        cut = self._made.table.cuts.get(target)
        inner = _inner_cut(cut, len(names), self._shapes[target], source.converter.operations)
        if inner is None or target in self._made.table.first_only:
            return None
        read = {pattern: [inner.of(self._stored[name]) for name in own] for pattern, own in names.items()}
        merged = source.convert(self._made.whole, read)
        if tuple(merged[target].shape) != (expected := self._own_shapes[target]):
            problem = (
                f"has weights of another shape ({tuple(merged[target].shape)}, not {expected}) for this rank's part of"
            )
            require_all(self._folder, problem, [target])
        return merged


def _is_stacked(operations: Sequence[Any]) -> bool:
    """Whether experts are stacked, and then joined along one axis: what is cut from each is cut from all."""
    return [type(one) for one in operations] in ([MergeModulelist], [MergeModulelist, Concatenate])


def _inner_cut(cut: Cut | None, patterns: int, shape: Sequence[int], operations: Sequence[Any]) -> Cut | None:
    """The cut of each expert's tensors that yields a cut of the merged ones, whose first axis counts experts."""
    if cut is None or not cut.axis or cut.missing or len(cut.ranges) not in (1, patterns):
        return None
    joined = operations[1].dim if len(operations) > 1 else None
    if joined != cut.axis:
        return Cut(cut.axis - 1, cut.ranges)
    size = shape[cut.axis] // patterns
    each = {tuple(place - nth * size for place in one) for nth, one in enumerate(cut.ranges)}
    return Cut(cut.axis - 1, (each.pop(),)) if len(cut.ranges) == patterns and len(each) == 1 else None  # type: ignore[arg-type]
