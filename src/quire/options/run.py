"""`RunOptions`: how a model is run. `quire.plan.settings` says how much memory it gets.

    quire serve / generate / chat ──┐
    quire.toml, QUIRE_… ────────────┼──▶ RunOptions ──▶ engine's process ──▶ build ──▶ worker
    LLM(device=…, compile=…) ───────┘    made once, passed whole

A new option is a field here, with its flag, and the line that reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from quire.core.dtypes import DType
from quire.core.errors import InputError
from quire.core.rules import Rules
from quire.options.dialects import TOOL_DIALECTS, ToolDialect
from quire.options.drafts import DRAFT_MEMORY_BYTES, DRAFT_TOKENS, DRAFTS
from quire.options.event_address import EventAddress, event_address
from quire.options.flags import option, part, read_texts
from quire.options.ranks import RankOptions
from quire.options.texts import dtype_among, names_of, parse_bytes, positive
from quire.options.tiers import Tiers

DEVICES = ("auto", "cpu", "cuda")
WEIGHT_DTYPES = (DType.FP32, DType.BF16, DType.FP16)
PACKED_WEIGHTS = ("int8", "int4", "fp8")
RUN_KV_DTYPES = (*WEIGHT_DTYPES, DType.FP8)
WARM_MILLISECONDS = 100
"""About the time between two tokens of an answer on a slow device."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a model is run. Text is read as on the command line: `dtype="bf16"`."""

    device: str = option(
        "auto",
        "device",
        "device to run the model on (default auto: the GPU if there is one, else the CPU)",
        choices=DEVICES,
    )
    compile: bool = option(
        False, "device", "compile layers with torch.compile: faster decode, adds seconds to startup (GPU only)"
    )
    deterministic: bool = option(
        False, "device", "make outputs independent of batching: slower, implies --compile (GPU only)"
    )
    dtype: DType | None = option(
        None,
        "engine",
        f"data type of the weights: {names_of(WEIGHT_DTYPES)} (default: fp32 on a CPU, else bf16)",
        parse=dtype_among("--dtype", WEIGHT_DTYPES),
        metavar="DTYPE",
    )
    weights: str | None = option(
        None,
        "device",
        f"quantise matrices at the first start, and cache them: {', '.join(PACKED_WEIGHTS)} (default: as they are)",
        choices=PACKED_WEIGHTS,
    )
    kv_dtype: DType | None = option(
        None,
        "layout",
        f"data type of the KV cache: {names_of(RUN_KV_DTYPES)} (default as the weights)",
        parse=dtype_among("--kv-dtype", RUN_KV_DTYPES),
        metavar="DTYPE",
        is_in_plan=True,
    )
    threads: int | None = option(
        None, "engine", "CPU threads for torch (default: torch chooses)", parse=positive, metavar="N"
    )
    record: Path | None = option(
        None,
        "engine",
        "record everything the engine is given, prompts included, for quire replay",
        parse=Path,
        metavar="FILE",
    )
    kv_events: EventAddress | None = option(
        None,
        "engine",
        "publish over ZeroMQ which blocks of tokens are cached, for routers; after a comma the address of a socket "
        "that repeats missed events (default: off)",
        parse=event_address,
        metavar="tcp://*:PORT[,tcp://*:PORT]",
    )
    kv_events_topic: str = option(
        "", "engine", "topic of published events, such as kv@POD@MODEL for llm-d (default: empty)", metavar="TOPIC"
    )
    tool_dialect: ToolDialect | None = option(
        None,
        "engine",
        "how the model writes tool calls and reasoning (default: recognised from its chat template)",
        choices=TOOL_DIALECTS,
        parse=ToolDialect,
    )
    next_turn: str = option(
        "on",
        "engine",
        "keep what a conversation's next turn begins with, and compute it while the engine is idle (default on)",
        choices=("on", "off"),
    )
    warm_milliseconds: int = option(
        WARM_MILLISECONDS,
        "engine",
        "longest time in milliseconds that a request waits for a chunk computed while the engine was idle "
        f"(default {WARM_MILLISECONDS})",
        parse=positive,
        metavar="MS",
    )
    draft_model: str | Path | None = option(
        None, "draft", "smaller model with the same tokenizer that drafts tokens", metavar="MODEL"
    )
    draft_tokens: int | None = option(
        None,
        "draft",
        f"maximum draft tokens per step (default {DRAFT_TOKENS})",
        parse=positive,
        metavar="K",
        is_in_plan=True,
    )
    draft: str = option(
        "ngram",
        "draft",
        "where drafts come from without a draft model: ngram, the request's own tokens; suffix, earlier outputs too "
        "(default ngram)",
        choices=DRAFTS,
    )
    draft_memory: int = option(
        DRAFT_MEMORY_BYTES,
        "draft",
        "host memory for the tokens that --draft suffix looks up (default 64MiB)",
        parse=parse_bytes,
        metavar="BYTES",
    )
    ranks: RankOptions = field(default_factory=RankOptions, metadata=part(RankOptions))
    """How the ranks of a model on several processes are started."""
    tiers: Tiers = field(default_factory=Tiers, metadata=part(Tiers))
    """Where prefixes are cached outside the pool."""
    rules: Rules = field(default_factory=Rules)
    """In which order requests are admitted, and how many may wait."""
    overlap: int = 2
    """Steps in flight at most: 1 waits for each result, 2 schedules while one runs. Above 1, a pipeline has at least as
    many as it has stages."""

    def __post_init__(self) -> None:
        read_texts(self)
        if self.device == "cpu":
            self._require_no_gpu_options()
        if self.record is not None and self.tiers.peer is not None:
            raise InputError("a recording does not know what another engine computes: leave --record or --role out")
        if self.kv_events_topic and self.kv_events is None:
            raise InputError("--kv-events-topic needs --kv-events: give its address too")
        if self.overlap < 1:
            raise InputError(f"overlap is {self.overlap}: give at least 1")

    def _require_no_gpu_options(self) -> None:
        if self.compile:
            raise InputError("steps are not compiled on a CPU: --compile needs --device cuda, so leave it out here")
        if self.deterministic:
            raise InputError(
                "products on a CPU are added up in an order that depends on how many tokens a step has: "
                "--deterministic needs --device cuda"
            )

    @property
    def has_next_turn(self) -> bool:
        return self.next_turn == "on"

    @property
    def weights_dtype(self) -> DType:
        """The data type of the weights in memory, once the device is chosen."""
        assert self.device != "auto", "the device is chosen first"
        return self.dtype or (DType.FP32 if self.device == "cpu" else DType.BF16)

    @property
    def draft_path(self) -> Path | None:
        """The draft model, once it is found."""
        return None if self.draft_model is None else Path(self.draft_model)


DEFAULTS = RunOptions()
