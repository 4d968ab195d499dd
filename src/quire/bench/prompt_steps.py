"""Attention of prompts as steps run it: through a backend, layer after layer, step after step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from quire.bench.measure import DEVICE, random_numbers
from quire.core.step import Step, TableView
from quire.models.read import read_config
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.worker.backends.attention import Scores
from quire.worker.backends.batch import make_batch
from quire.worker.backends.choice import Backend
from quire.worker.pages.arena import Arena
from quire.worker.pages.uploads import StagedUpload

QUERY_HEADS, KEY_HEADS, WIDTH = 32, 8, 128
LLAMA_8B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128_256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": QUERY_HEADS,
    "num_key_value_heads": KEY_HEADS, "head_dim": WIDTH, "max_position_embeddings": 131_072,
}  # fmt: skip
PAGE_TOKENS = 16


def step_microseconds(backend: Backend, rows: int, length: int) -> float:
    """Of one layer's attention in prompts' steps of 32 layers, one step behind the other: tables, plans, new keys and
    values and Python are all there."""
    shape = read_config(LLAMA_8B, "Llama-3.1-8B")
    settings = Settings(max_length=rows * length, max_requests=rows, page_tokens={"": PAGE_TOKENS})
    stage = make_plan(shape, settings, Budget(pool_bytes=6 << 30)).require_fit().stages[0]
    arena, each, count = Arena(stage, DEVICE), np.arange(rows), np.full(rows, length)
    pages = np.random.default_rng(0).permutation(rows * length // PAGE_TOKENS)
    table = TableView(stage.addresses(0, pages).reshape(rows, 1, -1), 0)
    step = Step(0, each, 0 * each, count, count > 0, each, np.zeros(rows * length, dtype=np.int32))
    query = random_numbers(rows * length, QUERY_HEADS, WIDTH)
    keys, values = (random_numbers(rows * length, KEY_HEADS, WIDTH) for _ in range(2))
    scores, staged = Scores(WIDTH**-0.5), StagedUpload(DEVICE, 3)

    def run() -> None:
        staged.begin()
        kind = make_batch(step, stage, (table,), DEVICE, [backend.prepare], staged).kinds[0]
        staged.flush()
        for parts in arena.layers.values():
            backend.attend(kind, (parts["key"], parts["value"]), query, (keys, values), scores)

    return wall_microseconds(run) / len(arena.layers)


def wall_microseconds(action: Callable[[], None], times: int = 4) -> float:
    """Of one among several in a row. Two before them do not count: the device is busy when the first begins."""
    for _ in range(2):
        action()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(times):
        action()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * float(begin.elapsed_time(end)) / times
