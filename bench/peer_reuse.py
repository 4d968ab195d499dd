"""vLLM's side of bench/reuse.py: its planner, scheduler and KV cache manager, driven step by step from outside.

    .venv-vllm/bin/python bench/peer_reuse.py

Runs in the environment of bench/peer_environment.py: it imports vLLM and nothing of Quire. Reads one JSON object a line
and answers each with one line:

    {"layers": […], "pool": bytes, "longest": …, "budget": …, "rows": …}
        a fresh scheduler: {"blocks": …, "block_tokens": …}, or {"refused": why} where its planner does not start
    {"submit": [[place, tokens of the prompt, prompt and answer in base64], …]}
        and one step: {"steps": [[place, start, tokens], …], "hits": [[place, tokens], …], "ended": [place, …]}

Its settings are its defaults: blocks of 16, sha256, of windows and states what a repetition of the prompt needs, states
in `align` mode. Steps follow one another. A model with states has blocks as its platform sizes them: the fewest
multiples of 16 tokens whose attention takes no fewer bytes than a state, which is padded to that.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, TextIO

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
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

PAGE = 16
VOCABULARY = 1 << 17
LAYOUT = "LBNHC"
"""How its engine would lay out blocks: its backends for plain attention ask for it. Changes no size here."""
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 1 << 20,
}


@cache
def model_config(longest: int) -> ModelConfig:
    """A model small enough to be described here; its layers are replaced by those that are asked about."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        return ModelConfig(model=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=longest)


def config_for(given: dict[str, Any], block: int, padded: int | None) -> VllmConfig:
    """`padded`: bytes of a block of one layer with a state; none: the model has no such layers."""
    scheduling = SchedulerConfig(
        max_num_seqs=given["rows"],
        max_num_batched_tokens=given["budget"],
        max_model_len=given["longest"],
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    caching = CacheConfig(block_size=block, enable_prefix_caching=True, prefix_caching_hash_algo="sha256")
    if padded is not None:
        caching.mamba_cache_mode, caching.mamba_block_size, caching.mamba_page_size_padded = "align", block, padded
    config = VllmConfig(
        model_config=model_config(given["longest"]),
        scheduler_config=scheduling,
        cache_config=caching,
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.kv_cache_layout = LAYOUT
    return config


def state_block(layers: list[dict[str, Any]]) -> tuple[int, int | None]:
    """Tokens of a block, and its bytes in one layer if there are states."""
    states = [layer["bytes"] for layer in layers if layer["kind"] == "state"]
    if not states:
        return PAGE, None
    token_bytes = next(4 * layer["heads"] * layer["width"] for layer in layers if layer["kind"] == "full")
    block = PAGE * -(-max(states) // (PAGE * token_bytes))
    return block, block * token_bytes


def spec_of(layer: dict[str, Any], block: int, padded: int | None) -> KVCacheSpec:
    if layer["kind"] == "state":
        return MambaSpec(
            block_size=block,
            shapes=((layer["bytes"] // 2,),),
            dtypes=(torch.bfloat16,),
            page_size_padded=padded,
            mamba_cache_mode="align",
            num_prefill_checkpoint_blocks=int(layer["exports"]),
            prefill_checkpoint_alignment=1 if layer["exports"] else None,
        )
    heads = {
        "block_size": block,
        "num_kv_heads": layer["heads"],
        "head_size": layer["width"],
        "dtype": torch.bfloat16,
    }
    if layer["kind"] == "window":
        return SlidingWindowSpec(sliding_window=layer["window"], **heads)
    return FullAttentionSpec(**heads)


def planned(config: VllmConfig, given: dict[str, Any], block: int, padded: int | None) -> KVCacheConfig:
    layers = {
        f"{layer['kind']}.{number}.{place}": spec_of(layer, block, padded)
        for number, layer in enumerate(given["layers"])
        for place in range(layer["count"])
    }
    return generate_scheduler_kv_cache_config(get_kv_cache_configs(config, [layers], [given["pool"]]))


class Peer:
    """Its scheduler, and the answers that its requests will get."""

    def __init__(self, given: dict[str, Any]) -> None:
        block, padded = state_block(given["layers"])
        config = config_for(given, block, padded)
        memory = planned(config, given, block, padded)
        config.cache_config.num_gpu_blocks = memory.num_blocks
        self.blocks = memory.num_blocks
        self.block_tokens, hash_block = resolve_kv_cache_block_sizes(memory, config)
        self.scheduler = Scheduler(config, memory, StructuredOutputManager(config), self.block_tokens, hash_block)
        hash_function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(hash_block, hash_function)
        self._answers: dict[str, list[int]] = {}

    def submit(self, place: int, prompt: int, packed: str) -> None:
        known = np.frombuffer(base64.b64decode(packed), dtype=np.int32).tolist()
        name, sampling = str(place), SamplingParams(max_tokens=len(known) - prompt, ignore_eos=True)
        self._answers[name] = known[prompt:]
        self.scheduler.add_request(Request(name, known[:prompt], sampling, None, block_hasher=self._hasher))

    def step(self) -> dict[str, Any]:
        scheduled = self.scheduler.schedule()
        counts, requests = scheduled.num_scheduled_tokens, self.scheduler.requests
        steps = [[int(name), requests[name].num_computed_tokens - count, count] for name, count in counts.items()]
        hits = [[int(new.req_id), new.num_computed_tokens] for new in scheduled.scheduled_new_reqs]
        self.scheduler.update_from_output(scheduled, self._output(scheduled))
        ended = [int(name) for name in counts if name not in self.scheduler.requests]
        for place in ended:
            del self._answers[str(place)]
        return {"steps": steps, "hits": hits, "ended": ended}

    def _output(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """A prompt that is not at its end yields no token."""
        names = list(scheduled.num_scheduled_tokens)
        tokens = []
        for name in names:
            request = self.scheduler.requests[name]
            is_due = request.num_computed_tokens >= request.num_tokens
            tokens.append([self._answers[name][request.num_output_tokens]] if is_due else [])
        return ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, tokens)


def answered(peer: Peer | None, given: dict[str, Any]) -> tuple[Peer | None, dict[str, Any]]:
    if "layers" in given:
        try:
            peer = Peer(given)
        except ValueError as error:
            return None, {"refused": str(error).split(". ")[0]}
        return peer, {"blocks": peer.blocks, "block_tokens": peer.block_tokens}
    assert peer is not None, "its scheduler comes first"
    for one in given["submit"]:
        peer.submit(*one)
    return peer, peer.step()


def main(answers: TextIO) -> None:
    peer: Peer | None = None
    for line in sys.stdin:
        peer, answer = answered(peer, json.loads(line))
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what it prints of its own accord is no answer
    main(own)
