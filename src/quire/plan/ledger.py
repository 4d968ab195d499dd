"""Every byte of a device, line by line. Weights and tables are computed; activations and graphs are estimates."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.units import GIB, MIB, ceil_div
from quire.models.shape import ModelShape
from quire.plan.plan import KindPlan, LedgerLine
from quire.plan.shares import StageShare

TABLE_ENTRY_BYTES = 4
BUFFERS = 2
"""Steps overlap: while one runs, the next one's tables and inputs are being filled."""
GRAPH_BYTES = GIB // 2
WORKSPACE_BYTES = 256 * MIB
HOST_WORKSPACE_BYTES = 64 * MIB


def weight_line(model: ModelShape, share: StageShare, stage: int, stages: int, ranks: int) -> LedgerLine:
    """What the busiest rank of a stage loads: its layers, the embedding on the first stage, the head on the last."""
    layers = sum(ceil_div(layer.weight_bytes, ranks) + layer.replicated_weight_bytes for layer in share.layers)
    ends = model.embedding_bytes if stage == 0 else 0
    if stage == stages - 1:
        # A tied head shares the embedding's bytes only where both lie on one stage.
        ends += model.head_bytes or (model.embedding_bytes if stages > 1 else 0)
    if not model.weights_known:
        return LedgerLine("weights", 0, "computed", "the shape says nothing of weights")
    return LedgerLine(
        "weights",
        layers + ceil_div(ends, ranks),
        "computed",
        f"{len(share.layers)} layers" + (f", an even share of {ranks} ranks" if ranks > 1 else ""),
    )


def activation_line(model: ModelShape, batch_tokens: int, max_requests: int, ahead: int, ranks: int) -> LedgerLine:
    """A few live tensors per token of the step, and a row of logits per request and guess. Logits of prompts whose
    log-probabilities are asked for come after those, in pieces that take no more."""
    per_token = 2 * (6 * model.hidden_size + 2 * ceil_div(model.intermediate_size, ranks))
    logits = 4 * min(max_requests * (1 + ahead), batch_tokens) * ceil_div(model.vocab_size, ranks)
    return LedgerLine("activations", batch_tokens * per_token + logits, "estimated", f"{batch_tokens:,} tokens a step")


def runtime_lines(is_accelerator: bool) -> tuple[LedgerLine, ...]:
    if not is_accelerator:
        return (LedgerLine("workspace", HOST_WORKSPACE_BYTES, "estimated"),)
    return (LedgerLine("graphs", GRAPH_BYTES, "estimated"), LedgerLine("workspace", WORKSPACE_BYTES, "estimated"))


def table_line(kinds: Sequence[KindPlan], length: int, chunk: int, ahead: int, max_requests: int) -> LedgerLine:
    """One row of page addresses per request and group, as wide as the kind's peak at `length`."""
    row = sum(k.groups * k.kind.peak(length, min(chunk, length), ahead, k.page_tokens) for k in kinds) if length else 0
    size = BUFFERS * TABLE_ENTRY_BYTES * max_requests * row
    return LedgerLine("tables", size, "computed", f"{max_requests:,} rows of {row:,} pages")


def staging_line(kinds: Sequence[KindPlan], batch_tokens: int, max_requests: int) -> LedgerLine:
    """Inputs of a step: token id, position and a slot per group for each token; a few words per request."""
    groups = sum(kind.groups for kind in kinds)
    size = BUFFERS * (batch_tokens * (4 + 8 + 4 * groups) + max_requests * 64)
    return LedgerLine("staging", size, "computed", "inputs of two steps")
