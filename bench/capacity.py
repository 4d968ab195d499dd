"""Waste and capacity of real models in 64 GiB, beside what a peer's planner charges for the same layers.

    python bench/capacity.py            prints the tables (Markdown)
    python bench/capacity.py --write    puts them into docs/capacity.md, between the markers

Exact arithmetic, no timing: every machine prints the same.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from pathlib import Path

from quire.core.dtypes import DType
from quire.core.units import GIB, format_bytes, format_tokens
from quire.models.catalogue import catalogue_entry
from quire.models.read import read_config, read_model
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.planner.document import stage_index_view
from quire.planner.waste import tail_ratio, waste

LENGTHS = (512, 513, 1000, 2048, 5001, 8192, 32_768, 131_072)
POOL = 64 * GIB
BF16_STATES = Settings(state_dtype=DType.BF16)
DOCUMENT = Path(__file__).parent.parent / "docs" / "capacity.md"
BEGIN, END = "<!-- begin: make bench-capacity -->", "<!-- end: make bench-capacity -->"


@dataclass(frozen=True)
class PeerRow:
    """vLLM 0.32.0's planner: 8,192 batched tokens, overlapped steps, prefix caching, blocks of 16 (64 for latents)."""

    length: int
    block_bytes: int
    blocks_per_request: int

    @property
    def requests(self) -> int:
        """One block is reserved."""
        return (POOL // self.block_bytes - 1) // self.blocks_per_request


@dataclass(frozen=True)
class Case:
    model: str
    settings: Settings = field(default_factory=Settings)
    """What the peer's figures were taken with; waste is shown for the defaults."""
    override: tuple[tuple[str, int], ...] = ()
    peer: tuple[PeerRow, ...] = ()


CASES = (
    Case("meta-llama-3.1-8b", peer=(PeerRow(8192, 2_097_152, 512), PeerRow(131_072, 2_097_152, 8192))),
    Case("gemma-2-27b"),
    Case("gemma-3-27b", peer=(PeerRow(8192, 1_310_720, 3590), PeerRow(131_072, 1_310_720, 14_726))),
    Case("gpt-oss-120b", peer=(PeerRow(8192, 589_824, 1025), PeerRow(131_072, 589_824, 9225))),
    Case("llama-4-scout-17b-16e-instruct", peer=(PeerRow(8192, 786_432, 2048),)),
    Case("mistral-7b-v0.1", peer=(PeerRow(8192, 2_097_152, 513), PeerRow(32_768, 2_097_152, 1281))),
    Case("deepseek-v3", peer=(PeerRow(8192, 4_497_408, 128), PeerRow(163_840, 4_497_408, 2560))),
    Case(
        "deepseek-v3.2",
        Settings(kv_dtype=DType.FP8),
        peer=(PeerRow(8192, 3_076_352, 128), PeerRow(163_840, 3_076_352, 2560)),
    ),
    Case("deepseek-v4-pro"),
    Case("qwen3-next-80b-a3b", BF16_STATES, peer=(PeerRow(8192, 13_369_344, 22), PeerRow(262_144, 13_369_344, 488))),
    Case("kimi-linear-48b-a3b"),
    Case(
        "bamba-9b",
        BF16_STATES,
        (("mamba_d_state", 256),),
        peer=(PeerRow(8192, 12_779_520, 28), PeerRow(262_144, 12_779_520, 273)),
    ),
    Case("nvidia-nemotron-3-nano-30b-a3b-bf16"),
)


def plan_case(case: Case, settings: Settings, override: bool) -> Plan:
    if override and case.override:
        model = read_config({**catalogue_entry(case.model).config, **dict(case.override)}, case.model)
    else:
        model = read_model(case.model)
    return make_plan(model, settings, Budget(pool_bytes=POOL))


def waste_row(case: Case) -> list[str]:
    plan = plan_case(case, Settings(), override=False)
    stage = plan.stages[0]
    pages = ", ".join(
        f"{kind.name} {'1 state' if kind.kind.kind == 'state' else kind.page_tokens}" for kind in stage.kinds
    )
    limit = plan.model_max_length or LENGTHS[-1]
    figures = [f"{waste(plan, length):.4f}" if length <= limit else "–" for length in LENGTHS]
    view = stage_index_view(stage).split(",")[0]
    return [case.model, *figures, f"{tail_ratio(stage):.2%}", format_bytes(stage.sheet_bytes), pages, view]


def request_rows(case: Case) -> list[list[str]]:
    """Like for like: the peer's dtypes and geometry where it has figures, Quire's defaults elsewhere."""
    plan = plan_case(case, case.settings, override=True)
    lengths = dict.fromkeys((8192, min(131_072, plan.max_length)))
    rows = case.peer or tuple(PeerRow(length, 0, 0) for length in lengths)
    lines = []
    for row in rows:
        held, beside = (bound.concurrency(plan, row.length, with_prefill=chunk) for chunk in (False, True))
        peer = row.requests if row.block_bytes else None
        dtypes = f"KV {plan.kv_dtype}" + (f", state {plan.state_dtype}" if plan.state_dtype else "")
        ratio = f"{held / peer:.2f}×" if peer else "–"
        shown = str(peer) if peer is not None else "–"
        lines.append([case.model, dtypes, format_tokens(row.length), str(held), str(beside), shown, ratio])
    return lines


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def longest_by_batch_tokens() -> list[list[str]]:
    """Gemma-3-27B in 8 GiB. The peer: vLLM 0.32.0's planner, steps one after another and overlapped."""
    model, budget = read_model("gemma-3-27b"), Budget(pool_bytes=8 * GIB)
    peer = {512: (95_520, 92_448), 2048: (86_304, 74_016), 8192: (49_440, 14_960), 16_384: (14_960, 14_960)}
    rows = []
    for tokens, figures in peer.items():
        plan = make_plan(model, replace(Settings(), batch_tokens=tokens), budget)
        rows.append([f"{tokens:,}", f"{plan.max_length:,}", *(f"{figure:,}" for figure in figures)])
    return rows


def tables() -> str:
    waste_head = ["model", *(f"{length:,}" for length in LENGTHS), "tails", "sheet", "page (tokens)", "index view"]
    request_head = [
        "model",
        "dtypes",
        "length",
        "Quire",
        "Quire, with an 8,192-token chunk",
        "vLLM 0.32.0",
        "Quire ÷ vLLM",
    ]
    return "\n\n".join(
        [
            "### Waste: bytes taken ÷ bytes needed",
            markdown(waste_head, [waste_row(case) for case in CASES]),
            "### Requests that fit together in 64 GiB",
            markdown(request_head, [row for case in CASES for row in request_rows(case)]),
            "### Longest length of Gemma-3-27B in 8 GiB",
            markdown(["batch tokens", "Quire", "vLLM 0.32.0", "vLLM 0.32.0, overlapped"], longest_by_batch_tokens()),
        ]
    )


def with_tables(text: str) -> str:
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"update {DOCUMENT.name}")
    if parser.parse_args().write:
        DOCUMENT.write_text(with_tables(DOCUMENT.read_text()))
    print(tables())


if __name__ == "__main__":
    main()
