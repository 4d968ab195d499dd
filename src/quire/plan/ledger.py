"""Every byte of a device, line by line. Weights and tables are computed; activations and graphs are estimates."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.units import MIB, ceil_div
from quire.models.shape import Experts, ModelShape
from quire.plan.plan import KindPlan, LedgerLine
from quire.plan.settings import Budget
from quire.plan.shares import StageShare

TABLE_ENTRY_BYTES = 4
BUFFERS = 2
"""Steps overlap: while one runs, the next one's tables and inputs are being filled."""
LOGITS_AT_ONCE = {True: 1 << 25, False: 1 << 19}
"""Logits that a sampler processes at once: on an accelerator limited by memory, on a CPU by its cache."""
SEEN_BYTES = 5
"""Per request and token of the vocabulary: how often it was generated, and whether the prompt contains it."""
LOGITS_BYTES = 8
"""Per logit, in fp32: the model's, and the one after penalties."""
DRAWING_BYTES = {True: 28, False: 52}
"""Per logit that is processed: a copy, scaled, its probability, and cumulative probabilities in fp64 with their inputs.
A CPU sorts all of them in the worst case."""
COPIES_FOR_EXPERTS = 4
"""Of an expert's input: the input, the output, the output weighted, and that in the order of tokens. Or before that, in
addition to the input, between its matrices: both halves, one of them after the activation, and their product."""
GRAPHS_BYTES, GRAPH_BYTES, WORKSPACE_BYTES = 53 * MIB, 36 * MIB, 1100 * MIB
"""Of all recordings, of each in addition, and of driver and libraries: measured on an H200 (docs/performance.md)."""
GRAPH_LOGIT_BYTES, KEPT_LOGIT_BYTES = 2, 10
"""For each request and token of the vocabulary: what recordings share, and what the sampler and libraries keep."""
HOST_WORKSPACE_BYTES = 64 * MIB


def usable_bytes(budget: Budget) -> int | None:
    """Bytes that Quire may use of one device; None when no memory was given."""
    return None if budget.memory_bytes is None else int(budget.memory_bytes * budget.memory_fraction)


def weight_line(model: ModelShape, share: StageShare, stage: int, stages: int, ranks: int) -> LedgerLine:
    """Weights on the fullest rank of a stage: its layers, the embedding on the first stage, the head on the last."""
    layers = sum(ceil_div(layer.weight_bytes, ranks) + layer.replicated_weight_bytes for layer in share.layers)
    ends = model.embedding_bytes if stage == 0 else 0
    if stage == stages - 1:
        # A tied head shares the embedding's bytes only if both are on one stage.
        ends += model.head_bytes or (model.embedding_bytes if stages > 1 else 0)
    if not model.weights_known:
        return LedgerLine("weights", 0, "computed", "the shape says nothing of weights")
    detail = f"{len(share.layers)} layers" + (f", an even share of {ranks} ranks" if ranks > 1 else "")
    return LedgerLine("weights", layers + ceil_div(ends, ranks), "computed", detail)


def activation_line(
    model: ModelShape, batch_tokens: int, max_requests: int, ahead: int, ranks: int, is_accelerator: bool
) -> LedgerLine:
    """The greater of two phases: a few live tensors per token of the step (with experts, some for each expert of the
    token), then, when those are free again, sampling from logits. In addition, tables of the tokens that penalised
    requests have seen. Logits for prompt log-probabilities are computed in pieces that take no more."""
    live = 6 * model.hidden_size + 2 * ceil_div(model.intermediate_size, ranks)
    per_token = 2 * (live + _expert_numbers(model.experts, ranks))
    vocabulary, places = ceil_div(model.vocab_size, ranks), min(max_requests * (1 + ahead), batch_tokens)
    step = max(batch_tokens * per_token, _drawing_bytes(places, vocabulary, is_accelerator))
    seen = SEEN_BYTES * max_requests * vocabulary
    return LedgerLine("activations", step + seen, "estimated", f"{batch_tokens:,} tokens a step")


def _expert_numbers(experts: Experts, ranks: int) -> int:
    """The most numbers that the experts of one token keep live."""
    inner = experts.width + COPIES_FOR_EXPERTS * ceil_div(experts.inner, ranks)
    return experts.per_token * max(COPIES_FOR_EXPERTS * experts.width, inner)


def _drawing_bytes(places: int, vocabulary: int, is_accelerator: bool) -> int:
    """If every row is penalised and samples from all its tokens: two sets of logits, and some of them processed."""
    at_once = LOGITS_AT_ONCE[is_accelerator] // max(1, vocabulary)
    return vocabulary * (LOGITS_BYTES * places + DRAWING_BYTES[is_accelerator] * min(places, max(1, at_once)))


def recorded_rows(most: int) -> tuple[int, ...]:
    """For how many rows decode steps are recorded: 1, 2, 4, 8, then half-way steps too: 16, 24, 32, 48, …, up to
    `most`."""
    powers = [1 << power for power in range(most.bit_length())]
    halves = [power + power // 2 for power in powers if power >= 16]
    return tuple(sorted({count for count in (*powers, *halves) if count < most} | {most}))


def runtime_lines(is_accelerator: bool, draft_bytes: int, rows: int, vocabulary: int) -> tuple[LedgerLine, ...]:
    if not is_accelerator:  # drafts are looked up in host memory: here the pool's
        drafts = (LedgerLine("drafts", draft_bytes, "exact"),) if draft_bytes else ()
        return (LedgerLine("workspace", HOST_WORKSPACE_BYTES, "estimated"), *drafts)
    logits, recordings = rows * vocabulary, 2 * len(recorded_rows(rows))
    graphs = GRAPHS_BYTES + GRAPH_BYTES * recordings + GRAPH_LOGIT_BYTES * logits
    workspace = LedgerLine("workspace", WORKSPACE_BYTES + KEPT_LOGIT_BYTES * logits, "estimated")
    return LedgerLine("graphs", graphs, "estimated", f"{recordings} recordings"), workspace


def table_line(kinds: Sequence[KindPlan], length: int, chunk: int, ahead: int, max_requests: int) -> LedgerLine:
    """One row of page addresses per request and group, as wide as the kind's peak at `length`."""
    row = sum(k.groups * k.kind.peak(length, min(chunk, length), ahead, k.page_tokens) for k in kinds) if length else 0
    size = BUFFERS * TABLE_ENTRY_BYTES * max_requests * row
    return LedgerLine("tables", size, "computed", f"{max_requests:,} rows of {row:,} pages")


def staging_line(kinds: Sequence[KindPlan], batch_tokens: int, max_requests: int, passed: int) -> LedgerLine:
    """Inputs of a step: token id, position and a slot per group for each token; a few words per request. On a pipeline
    also `passed` numbers per token: hidden states, received for one step while those of another are passed on."""
    groups = sum(kind.groups for kind in kinds)
    size = BUFFERS * (batch_tokens * (4 + 8 + 4 * groups + 2 * passed) + max_requests * 64)
    return LedgerLine("staging", size, "computed", "inputs of two steps" + (", with hidden states" if passed else ""))
