"""Connects a rank's share of a model to the others: what its modules compute in part becomes whole.

All of it are hooks of modules, which survive that weights are fused and laid out anew.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional

from quire.worker.model.collective import Collective
from quire.worker.ranks.table import SplitTable, normalised_width


def connect(model: Any, table: SplitTable, collective: Collective) -> None:
    """Hooks of the same modules run in the same order on all ranks."""
    if collective.ranks == 1:
        return
    for path in table.added:
        model.get_submodule(path).register_forward_hook(partial(_add, collective))
    for path in table.norms:
        model.get_submodule(path).register_forward_hook(partial(_normalise, collective))
    for path in table.single if collective.rank else ():
        model.get_submodule(path).register_forward_hook(_nothing)
    embedding, head = (model.get_submodule(path) for path in (table.embedding, table.head))
    cut = table.cuts[f"{table.embedding}.weight"]
    embedding.num_embeddings = head.out_features = cut.size
    embedding.padding_idx = None  # the number of a token, which is another here
    embedding.register_forward_pre_hook(partial(_own_tokens, collective.rank * cut.size, cut.size))
    embedding.register_forward_hook(partial(_add_rows, collective))
    head.register_forward_hook(partial(_gather, collective, table.vocabulary))


def _add(collective: Collective, _module: Any, _given: Any, found: Any) -> Any:
    """The first of several results is the sum."""
    if isinstance(found, tuple):
        return _add(collective, None, None, found[0]), *found[1:]
    total = found.contiguous()
    collective.add(total)
    return total


def _nothing(_module: Any, _given: Any, found: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(found)


def _normalise(collective: Collective, norm: Any, given: tuple[torch.Tensor, ...], found: torch.Tensor) -> torch.Tensor:
    """A norm by the root of the mean square, which was that of this rank's numbers alone."""
    numbers = given[0].float()
    if len(given) > 1 and not getattr(norm, "norm_before_gate", False):
        numbers = numbers * functional.silu(given[1].float())
    epsilon = getattr(norm, "variance_epsilon", None) or norm.eps
    groups = numbers.view(*numbers.shape[:-1], -1, normalised_width(norm))
    own = groups.square().mean(-1, keepdim=True)
    whole = own.clone()
    collective.add(whole)
    factor = torch.sqrt((own + epsilon) / (whole / collective.ranks + epsilon))
    scaled: torch.Tensor = found.view(groups.shape) * factor
    return scaled.view(found.shape).to(found.dtype)


def _own_tokens(begin: int, size: int, module: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Tokens of other ranks are looked up as the first one, and their rows cleared."""
    local = given[0] - begin
    module.quire_foreign = (local < 0) | (local >= size)
    return local.masked_fill(module.quire_foreign, 0), *given[1:]


def _add_rows(collective: Collective, module: Any, _given: Any, found: torch.Tensor) -> torch.Tensor:
    rows = found.masked_fill(module.quire_foreign[..., None], 0).contiguous()
    module.quire_foreign = None
    collective.add(rows)
    return rows


def _gather(collective: Collective, vocabulary: int, _module: Any, _given: Any, found: torch.Tensor) -> torch.Tensor:
    """All logits on the first rank, and on the others their own."""
    return collective.gather(found)[..., :vocabulary]
