"""vLLM's side of bench/at_once.py: what its planner promises, and how many requests its scheduler really runs at once.

    .venv-vllm/bin/python bench/peer_at_once.py --full 10 --windows 52 --window 1024 --heads 16 --width 128
        --length 8192 --outputs 160 --pool 68719476736 --number-bytes 2 --requests 124

Runs in the environment of bench/peer_environment.py: it imports vLLM and nothing of Quire. The planner is asked as its
engine asks it: blocks of 16, prefix caching, 8,192 batched tokens, overlapped steps. Then its scheduler gets twice as
many requests as fit, one step behind the other, and tokens that nobody computed. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

os.environ["VLLM_TARGET_DEVICE"] = "cpu"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    get_kv_cache_configs,
    get_max_concurrency_for_kv_cache_config,
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

PAGE = 16
BATCHED_TOKENS = 8192
MOST_REQUESTS = 256
VOCABULARY = 10_000
LAYOUT = "LBNHC"
"""How its engine would lay out blocks: its backends for plain attention ask for it. Changes no size here."""
NUMBERS = ("full", "windows", "window", "heads", "width", "length", "outputs", "pool", "number-bytes", "requests")
DTYPES = {1: torch.float8_e4m3fn, 2: torch.bfloat16}
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 131_072,
}


def config_for(length: int, is_overlapped: bool) -> VllmConfig:
    """A model small enough to be described here; its layers are replaced by those that are asked about."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=length)
    scheduling = SchedulerConfig(
        max_num_seqs=MOST_REQUESTS,
        max_num_batched_tokens=BATCHED_TOKENS,
        max_model_len=length,
        is_encoder_decoder=False,
        async_scheduling=is_overlapped,
    )
    caching = CacheConfig(block_size=PAGE, enable_prefix_caching=True, prefix_caching_hash_algo="sha256")
    config = VllmConfig(
        model_config=model, scheduler_config=scheduling, cache_config=caching, device_config=DeviceConfig("cpu")
    )
    config.cache_config.kv_cache_layout = LAYOUT
    return config


def planned(config: VllmConfig, given: argparse.Namespace) -> KVCacheConfig:
    heads = {
        "block_size": PAGE,
        "num_kv_heads": given.heads,
        "head_size": given.width,
        "dtype": DTYPES[given.number_bytes],
    }
    windows = {
        f"window.{place}": SlidingWindowSpec(sliding_window=given.window, **heads) for place in range(given.windows)
    }
    layers = {**windows, **{f"full.{place}": FullAttentionSpec(**heads) for place in range(given.full)}}
    return generate_scheduler_kv_cache_config(get_kv_cache_configs(config, [layers], [given.pool]))


class Counting:
    """Its scheduler, and the most requests that decoded in one step."""

    def __init__(self, config: VllmConfig, memory: KVCacheConfig, given: argparse.Namespace) -> None:
        config.cache_config.num_gpu_blocks = memory.num_blocks
        block, hash_block = resolve_kv_cache_block_sizes(memory, config)
        self.scheduler = Scheduler(config, memory, StructuredOutputManager(config), block, hash_block)
        hash_function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(hash_block, hash_function)
        self._sampling = SamplingParams(max_tokens=given.outputs, ignore_eos=True)
        self.most, self.preempted = 0, 0

    def submit(self, name: str, prompt: list[int]) -> None:
        self.scheduler.add_request(Request(name, prompt, self._sampling, None, block_hasher=self._hasher))

    def step(self) -> None:
        scheduled = self.scheduler.schedule()
        counts = scheduled.num_scheduled_tokens
        if counts and sum(counts.values()) == len(counts):
            self.most = max(self.most, len(counts))
        self.preempted += len(scheduled.preempted_req_ids or ())
        self.scheduler.update_from_output(scheduled, self._output(scheduled))

    def _output(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """A prompt that is not at its end yields no token."""
        names = list(scheduled.num_scheduled_tokens)
        requests = [self.scheduler.requests[name] for name in names]
        tokens = [[7] if request.num_computed_tokens >= request.num_tokens else [] for request in requests]
        return ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in NUMBERS:
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    overlapped = config_for(given.length, is_overlapped=True)
    promised = planned(overlapped, given)
    config = config_for(given.length, is_overlapped=False)
    counting = Counting(config, planned(config, given), given)
    random = np.random.default_rng(0)
    for place in range(given.requests):
        prompt = random.integers(3, VOCABULARY, given.length - given.outputs).tolist()
        counting.submit(f"r{place}", prompt)
    while counting.scheduler.has_unfinished_requests():
        counting.step()
    promise = get_max_concurrency_for_kv_cache_config(overlapped, promised)
    figures = {"blocks": promised.num_blocks, "promised": round(promise, 3)}
    print(json.dumps({**figures, "at_once": counting.most, "preempted": counting.preempted}))


if __name__ == "__main__":
    main()
