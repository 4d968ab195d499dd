"""The split table of a model: which part of each parameter a rank has, and where ranks compute together.

It is derived: the axis on which a parameter of the local model is smaller is the axis that is cut, and a layer whose
input is cut yields a partial sum, which ranks add. `rules.py` has what does not follow from that.

    attention   q, k, v by outputs (heads) ─▶ o by inputs ─▶ add
    MLP         gate, up by outputs ─▶ down by inputs ─▶ add
    experts     the same within each expert; with shared experts ─▶ one add for the block
    norms over all heads                       ─▶ add sums of squares
    embedding, head by vocabulary              ─▶ add; gather logits on the first rank
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from quire.core.errors import ModelError
from quire.worker.ranks.cuts import Cut, cut_parts, cut_vocabulary, own_memory
from quire.worker.ranks.rules import APART, BLOCKS, INTERLEAVED, ONCE, PACKED, ROWS_OF_EXPERTS, SINGLE, TRANSPOSED


@dataclass(frozen=True, slots=True, eq=False)
class SplitTable:
    """Of one rank. Parameters and buffers that are not cut are those of the whole model."""

    cuts: Mapping[str, Cut]
    """By the name of a parameter or buffer."""
    first_only: frozenset[str]
    """Parameters that the first rank has: the others have zeros, because ranks add what these are added to."""
    added: frozenset[str]
    """Modules whose results ranks add."""
    norms: frozenset[str]
    """Norms of which every rank has a part of the numbers."""
    single: frozenset[str]
    """Modules whose results only the first rank may add."""
    embedding: str
    head: str
    vocabulary: int

    def part(self, name: str, whole: Any, rank: int) -> torch.Tensor:
        """A rank's part of a tensor (or of a slice of safetensors), in memory of its own."""
        cut = self.cuts.get(name)
        found = own_memory(whole[...], whole) if cut is None else cut.of(whole)
        return torch.zeros_like(found) if name in self.first_only and rank else found


def split_table(whole: Any, local: Any, rank: int, ranks: int) -> SplitTable:
    """Raises ModelError with the parameter that cannot be cut."""
    _require_same_names(whole, local)
    cuts = dict(_cuts(whole, local, rank, ranks))
    partial = [path for path, module in local.named_modules() if _is_partial(path, module, cuts)]
    embedding, head, tokens = _ends(whole)
    if ranks > 1:
        names = [f"{path}.weight" for path in (embedding, head)]
        names += [f"{head}.bias"] if whole.get_submodule(head).bias is not None else []
        cuts |= dict.fromkeys(names, cut_vocabulary(tokens, rank, ranks))
    added = _added(local, partial)
    first = {name for path in partial for name in _once(local, path, cuts)}
    first |= {
        f"{path}.{name}" for path, module in local.named_modules() for name in ONCE.get(type(module).__name__, ())
    }
    norms = frozenset(path for path, module in local.named_modules() if _is_split_norm(path, module, whole, cuts))
    single = frozenset(path for path, module in _children(local) if module in SINGLE)
    return SplitTable(cuts, frozenset(first), frozenset(added), norms, single, embedding, head, tokens)


def _children(model: Any) -> Iterator[tuple[str, str]]:
    """Path of each module, and its name after its owner's class."""
    for path, module in model.named_modules():
        yield from (((f"{path}.{name}"), f"{type(module).__name__}.{name}") for name, _ in module.named_children())


def _require_same_names(whole: Any, local: Any) -> None:
    differing = sorted(dict(_tensors(whole)).keys() ^ dict(_tensors(local)).keys())
    if differing:
        raise ModelError(
            f"{type(whole).__name__} has other parameters with fewer heads ({differing[0]}), which ranks cannot "
            "divide: choose --tensor-parallel 1"
        )


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _cuts(whole: Any, local: Any, rank: int, ranks: int) -> Iterator[tuple[str, Cut]]:
    smaller = dict(_tensors(local))
    for name, tensor in _tensors(whole):
        own = smaller[name]
        if own.shape == tensor.shape:
            continue
        axes = [axis for axis, size in enumerate(tensor.shape) if own.dim() == tensor.dim() and own.shape[axis] != size]
        cut = None
        if len(axes) == 1:
            sizes, own_sizes = _parts(whole, name, tensor.shape[axes[0]]), _parts(local, name, own.shape[axes[0]])
            cut = cut_parts(axes[0], sizes, own_sizes, rank, ranks)
        if cut is None:
            raise ModelError(
                f"{type(whole).__name__}: nothing here says how {name} {tuple(tensor.shape)} becomes "
                f"{tuple(own.shape)} on one of {ranks} ranks: choose --tensor-parallel 1"
            )
        yield name, cut


def _parts(model: Any, name: str, size: int) -> list[int]:
    """Sizes of the parts of a dimension: looked up from the innermost module outwards."""
    path = name.split(".")
    for end in range(len(path) - 1, -1, -1):
        owner = model.get_submodule(".".join(path[:end]))
        if type(owner).__name__ in INTERLEAVED:
            break
        rule = PACKED.get((type(owner).__name__, path[end])) or PACKED.get(("", path[end]))
        if rule is not None and sum(parts := rule(owner, size)) == size:
            return list(parts)
    return [size]


def _is_partial(path: str, module: Any, cuts: Mapping[str, Cut]) -> bool:
    """Whether each rank computes a part of every number of the result."""
    if _has_experts(path, module, cuts):
        return True
    cut, weight = cuts.get(f"{path}.weight"), module._parameters.get("weight")
    if cut is None or weight is None or weight.dim() < 2 or isinstance(module, nn.Conv1d | nn.Embedding):
        return False
    return bool(cut.axis == weight.dim() - 1 - (type(module).__name__ in TRANSPOSED))


def _has_experts(path: str, module: Any, cuts: Mapping[str, Cut]) -> bool:
    """Whether a module has all matrices of experts itself, and their results are its result."""
    if type(module).__name__ in ROWS_OF_EXPERTS:
        return True
    own = [name for name, parameter in module.named_parameters(recurse=False) if parameter.dim() > 2]
    return len(own) > 1 and any(cuts[name].axis for name in (f"{path}.{one}" for one in own) if name in cuts)


def _added(local: Any, partial: list[str]) -> set[str]:
    """A block with experts adds once for all that it computes."""
    blocks = {_block(local, path) for path in partial if _is_of_experts(local.get_submodule(path))}
    blocks = {path for path in blocks if type(local.get_submodule(path)).__name__ not in APART}
    alone = {path for path in partial if not any(path.startswith(f"{block}.") for block in blocks)}
    return blocks | alone


def _is_of_experts(module: Any) -> bool:
    return type(module).__name__ in ROWS_OF_EXPERTS or any(one.dim() > 2 for one in module.parameters(recurse=False))


def _block(local: Any, path: str) -> str:
    block = path.rpartition(".")[0]
    for _ in range(BLOCKS.get(type(local.get_submodule(block)).__name__, 0)):
        block = block.rpartition(".")[0]
    return block


def _once(local: Any, path: str, cuts: Mapping[str, Cut]) -> Iterator[str]:
    """Parameters that are added to a partial sum."""
    for name, _ in local.get_submodule(path).named_parameters(recurse=False):
        if f"{path}.{name}" not in cuts:
            yield f"{path}.{name}"


def _is_split_norm(path: str, module: Any, whole: Any, cuts: Mapping[str, Cut]) -> bool:
    """Whether a rank has only a part of the numbers that are normalised together."""
    weight = module._parameters.get("weight")
    if weight is None or weight.dim() != 1 or f"{path}.weight" not in cuts or "Norm" not in type(module).__name__:
        return False
    if isinstance(module, nn.LayerNorm):
        raise ModelError(f"{type(whole).__name__} has a {type(module).__name__} over all heads ({path}), which ranks "
                         "cannot divide: choose --tensor-parallel 1")  # fmt: skip
    return normalised_width(module) != normalised_width(whole.get_submodule(path))


def normalised_width(norm: Any) -> int:
    """How many numbers have a common root of the mean square."""
    size = norm.weight.numel()
    return int(getattr(norm, "group_size", None) or size // getattr(norm, "n_groups", 1))


def _ends(whole: Any) -> tuple[str, str, int]:
    """Embedding and head, and the tokens that they have in common."""
    paths = {id(module): path for path, module in whole.named_modules()}
    embedding, head = whole.get_input_embeddings(), whole.get_output_embeddings()
    if head is None or embedding.weight.shape[0] != head.weight.shape[0]:
        raise ModelError(f"{type(whole).__name__} has no embedding and head of one vocabulary that ranks could divide: "
                         "choose --tensor-parallel 1")  # fmt: skip
    return paths[id(embedding)], paths[id(head)], int(embedding.weight.shape[0])
