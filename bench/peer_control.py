"""vLLM's own scheduler and block manager under the workload that Quire's control plane is timed with.

    .venv-vllm/bin/python bench/peer_control.py --workload decode --requests 1024 --layout gemma3

Runs in the environment of bench/peer_environment.py: it imports vLLM and nothing of Quire. Prints one JSON line; vLLM's
own warnings go to stderr. One repeat's figure is the mean of its timed steps; best and median are over the repeats.
No model runs: the sampled tokens are made between the two timed halves of a step.

    decode   one step = schedule (one token for every request) + update_from_output
    prefill  construct and hash a request of 8,192 random tokens, look it up (a miss), allocate it and free the oldest,
             through the scheduler as its engine calls it: add the request, schedule and update until it has its first
             token (the eight before it get a token in each of these steps), finish the oldest
    manager  the same by calls of the block manager alone, without the scheduler around it and without those eight
    lookup   one step = look up a prompt of 32,768 tokens, hashed beforehand, that the cache holds

With its default settings vLLM keeps of a window group only what a repetition of the whole prompt needs; with --dense it
keeps every page, so that any shorter prefix hits as well.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from time import perf_counter

os.environ["VLLM_TARGET_DEVICE"] = "cpu"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.gc_utils import freeze_gc_heap
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

PAGE = 16
WINDOW = 1024
WINDOW_GROUPS = 5
MAX_LEN = 131_072
VOCABULARY = 128_000
PROMPT = 1536
PREFILL_PROMPT = 8192
LOOKUP_PROMPT = 32_768
CHUNK = {"full": PREFILL_PROMPT, "gemma3": 2048}
REQUESTS = {"decode": 1024, "prefill": 8, "manager": 8, "lookup": 1}
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": MAX_LEN,
}
HEADS = {"block_size": PAGE, "num_kv_heads": 16, "head_size": 128, "dtype": torch.bfloat16}


@dataclass(frozen=True)
class Work:
    """What one run does: the arguments of the command line."""

    workload: str
    layout: str
    requests: int
    steps: int
    warmup: int
    dense: bool


class Peer:
    """vLLM's scheduler, built as its engine builds it, and the hasher that its engine gives to requests."""

    def __init__(self, work: Work, blocks: int, batched_tokens: int, requests: int) -> None:
        config = _vllm_config(blocks, batched_tokens, requests, work.dense)
        memory = KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=_groups(work.layout),
            prefix_cache_retention_interval=config.cache_config.prefix_cache_retention_interval,
        )
        block, hash_block = resolve_kv_cache_block_sizes(memory, config)
        self.scheduler = Scheduler(config, memory, StructuredOutputManager(config), block, hash_block)
        self.manager = self.scheduler.kv_cache_manager
        hash_function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(hash_block, hash_function)
        self._sampling = SamplingParams(max_tokens=MAX_LEN, ignore_eos=True)
        freeze_gc_heap()

    def request(self, name: str, prompt: list[int]) -> Request:
        return Request(name, prompt, self._sampling, None, block_hasher=self._hasher)

    def prefill(self, request: Request, chunk: int) -> None:
        """What the scheduler does to the blocks of one waiting request, without the queues around it."""
        found, hit, _ = self.manager.get_computed_blocks(request)
        assert hit == 0, "every prompt is new"
        for start in range(0, request.num_prompt_tokens, chunk):
            tokens = min(chunk, request.num_prompt_tokens - start)
            first = {"new_computed_blocks": found, "full_sequence_must_fit": True} if start == 0 else {}
            self.manager.new_step_starts()
            assert self.manager.allocate_slots(request, tokens, **first) is not None, "the pool is too small"
            request.num_computed_tokens += tokens


def _groups(layout: str) -> list[KVCacheGroupSpec]:
    """Layers that share a block table: one group of full attention, preceded by five with a window for Gemma 3."""
    windows = WINDOW_GROUPS if layout == "gemma3" else 0
    window = SlidingWindowSpec(sliding_window=WINDOW, **HEADS)
    groups = [KVCacheGroupSpec([f"window.{index}"], window) for index in range(windows)]
    return [*groups, KVCacheGroupSpec(["full"], FullAttentionSpec(**HEADS))]


@cache
def _model_config() -> ModelConfig:
    """A model small enough to be described here; its layers are replaced by those of the layout."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        return ModelConfig(model=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=MAX_LEN)


def _vllm_config(blocks: int, batched_tokens: int, requests: int, dense: bool) -> VllmConfig:
    scheduling = SchedulerConfig(
        max_num_seqs=requests,
        max_num_batched_tokens=batched_tokens,
        max_model_len=MAX_LEN,
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    caching = CacheConfig(block_size=PAGE, enable_prefix_caching=True, prefix_caching_hash_algo="sha256")
    if dense:
        caching.prefix_cache_retention_interval = None
    config = VllmConfig(
        model_config=_model_config(),
        scheduler_config=scheduling,
        cache_config=caching,
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.num_gpu_blocks = blocks
    return config


def _blocks(layout: str, tokens: int, in_flight: int) -> int:
    """Blocks that vLLM charges one request of this length."""
    window = SlidingWindowSpec(sliding_window=WINDOW, **HEADS)
    per_window = window.max_admission_blocks_per_request(in_flight, tokens)
    return -(-tokens // PAGE) + (WINDOW_GROUPS * per_window if layout == "gemma3" else 0)


def decode(work: Work) -> list[float]:
    longest = PROMPT + PAGE + work.warmup + work.steps
    prompts = work.requests * (PROMPT + PAGE)
    blocks = work.requests * _blocks(work.layout, longest, longest) + 1
    peer = Peer(work, blocks, prompts, work.requests)
    random = np.random.default_rng(0)
    for index in range(work.requests):
        prompt = random.integers(VOCABULARY, size=PROMPT + index % PAGE).tolist()
        peer.scheduler.add_request(peer.request(f"r{index}", prompt))
    _decode_step(peer.scheduler, random)
    assert len(peer.scheduler.running) == work.requests, "one step prefills every request"
    times = [_decode_step(peer.scheduler, random) for _ in range(work.warmup + work.steps)]
    assert all(request.num_output_tokens == 1 + len(times) for request in peer.scheduler.running)
    return times[work.warmup :]


def _decode_step(scheduler: Scheduler, random: np.random.Generator) -> float:
    begin = perf_counter()
    scheduled = scheduler.schedule()
    middle = perf_counter()
    output = _model_output(scheduled, random)
    resume = perf_counter()
    scheduler.update_from_output(scheduled, output)
    return (perf_counter() - resume) + (middle - begin)


def _model_output(scheduled: SchedulerOutput, random: np.random.Generator) -> ModelRunnerOutput:
    names = list(scheduled.num_scheduled_tokens)
    tokens = random.integers(VOCABULARY, size=(len(names), 1)).tolist()
    return ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, tokens)


def manager(work: Work) -> list[float]:
    chunk = CHUNK[work.layout]
    blocks = (work.requests + 1) * _blocks(work.layout, PREFILL_PROMPT, chunk) + 1
    peer = Peer(work, blocks, chunk, work.requests + 1)
    random = np.random.default_rng(0)
    live: deque[Request] = deque()
    times: list[float] = []
    for index in range(work.requests + work.warmup + work.steps):
        prompt = random.integers(VOCABULARY, size=PREFILL_PROMPT).tolist()
        begin = perf_counter()
        request = peer.request(f"r{index}", prompt)
        peer.prefill(request, chunk)
        live.append(request)
        if len(live) > work.requests:
            peer.manager.free(live.popleft())
        times.append(perf_counter() - begin)
    return times[work.requests + work.warmup :]


def prefill(work: Work) -> list[float]:
    chunk = CHUNK[work.layout]
    in_flight = chunk + work.requests
    longest = PREFILL_PROMPT + (work.requests + 1) * (PREFILL_PROMPT // chunk + 1)
    blocks = (work.requests + 1) * _blocks(work.layout, longest, in_flight) + 1
    peer = Peer(work, blocks, in_flight, work.requests + 1)
    random = np.random.default_rng(0)
    live: deque[Request] = deque()
    times: list[float] = []
    for index in range(work.requests + work.warmup + work.steps):
        prompt = random.integers(VOCABULARY, size=PREFILL_PROMPT).tolist()
        begin = perf_counter()
        request = peer.request(f"r{index}", prompt)
        peer.scheduler.add_request(request)
        spent = perf_counter() - begin
        while not request.num_output_tokens:
            spent += _prefill_step(peer.scheduler, random)
        live.append(request)
        begin = perf_counter()
        if len(live) > work.requests:
            peer.scheduler.finish_requests(live.popleft().request_id, RequestStatus.FINISHED_ABORTED)
        times.append(spent + perf_counter() - begin)
    assert len(peer.scheduler.running) == work.requests, "none was preempted"
    return times[work.requests + work.warmup :]


def _prefill_step(scheduler: Scheduler, random: np.random.Generator) -> float:
    """As in decode; a prompt that is not at its end yields no token."""
    begin = perf_counter()
    scheduled = scheduler.schedule()
    middle = perf_counter()
    names = list(scheduled.num_scheduled_tokens)
    is_due = [scheduler.requests[name].num_computed_tokens >= scheduler.requests[name].num_tokens for name in names]
    sampled = random.integers(VOCABULARY, size=len(names)).tolist()
    tokens = [[token] if due else [] for token, due in zip(sampled, is_due, strict=True)]
    output = ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, tokens)
    resume = perf_counter()
    scheduler.update_from_output(scheduled, output)
    return (perf_counter() - resume) + (middle - begin)


def lookup(work: Work) -> list[float]:
    chunk = CHUNK[work.layout]
    peer = Peer(work, 2 * _blocks(work.layout, LOOKUP_PROMPT, chunk) + 1, chunk, 2)
    prompt = np.random.default_rng(0).integers(VOCABULARY, size=LOOKUP_PROMPT).tolist()
    peer.prefill(peer.request("stored", prompt), chunk)
    again = peer.request("again", prompt)
    times: list[float] = []
    for _ in range(work.warmup + work.steps):
        begin = perf_counter()
        _, hit, _ = peer.manager.get_computed_blocks(again)
        times.append(perf_counter() - begin)
        assert hit == LOOKUP_PROMPT - PAGE, "all but the page of the last token, which is always computed"
    return times[work.warmup :]


WORKLOADS: dict[str, Callable[[Work], list[float]]] = {
    "decode": decode,
    "prefill": prefill,
    "manager": manager,
    "lookup": lookup,
}


def measure(work: Work, repeat: int) -> dict[str, object]:
    """The mean step of each repeat, the best and the median of them; a prefill also as tokens per second."""
    means: list[float] = []
    for _ in range(repeat):
        means.append(statistics.fmean(WORKLOADS[work.workload](work)))
        gc.unfreeze()
        gc.collect()
    best, median = min(means), statistics.median(means)
    figures = {"best_ms": round(best * 1e3, 4), "median_ms": round(median * 1e3, 4)}
    if work.workload in ("prefill", "manager"):
        figures["best_tokens_per_s"] = round(PREFILL_PROMPT / best)
        figures["median_tokens_per_s"] = round(PREFILL_PROMPT / median)
    return {**asdict(work), "repeat": repeat, **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=sorted(WORKLOADS), required=True)
    parser.add_argument("--layout", choices=sorted(CHUNK), default="full")
    parser.add_argument("--requests", type=int, help="decode: 1024, prefill and manager: 8 live ones, lookup: 1")
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--warmup", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--dense", action="store_true", help="keep every page of a window group for later prompts")
    given = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    requests = given.requests or REQUESTS[given.workload]
    work = Work(given.workload, given.layout, requests, given.steps, given.warmup, given.dense)
    print(json.dumps(measure(work, given.repeat)))


if __name__ == "__main__":
    main()
