"""One engine of bench/peer.py, in a process of its own: reads cases, prints a line of JSON for each.

    python bench/peer_sides.py quire|vllm --device cuda --seed 1 --folder DIR    < cases, a line of JSON each

The cases need the same engine. Weights are random; vLLM reads a folder with the model's config.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from peer_work import Case, Tokens, measure


class QuireSide:
    """`Engine.step` in a loop, in this process."""

    def __init__(self, case: Case, rows: int, device: str) -> None:
        from quire.bench.random_engine import build_random
        from quire.bench.random_models import config_of
        from quire.core.sampling import Sampling
        from quire.options.run import RunOptions
        from quire.plan.settings import Settings

        config = config_of(case.model, case.layers)
        options = RunOptions(device=device, compile=device == "cuda")
        settings = Settings(max_length=case.longest, max_requests=rows)
        self.engine = build_random(config, settings, options, pool_bytes=case.pool_bytes).engine
        self.sampling = Sampling(temperature=case.temperature, top_p=case.top_p)
        self.vocabulary, self._calls = config.vocab_size, 0

    def generate(self, prompts: Sequence[Tokens], outputs: Sequence[int]) -> tuple[float, list[Tokens]]:
        from quire.core.request import Request

        self._calls += 1
        begin = time.perf_counter()
        streams = [
            self.engine.submit(Request(f"{self._calls}-{place}", prompt, count, sampling=self.sampling))
            for place, (prompt, count) in enumerate(zip(prompts, outputs, strict=True))
        ]
        self.engine.drain()
        return time.perf_counter() - begin, [stream.tokens() for stream in streams]


class VllmSide:
    """`LLM.generate`, with an engine process of its own and asynchronous scheduling, as vLLM has them by default."""

    def __init__(self, case: Case, rows: int, folder: Path) -> None:
        from vllm import LLM, SamplingParams

        memory: dict[str, Any] = {"gpu_memory_utilization": 0.9}
        if case.pool_bytes is not None:
            memory = {"kv_cache_memory_bytes": case.pool_bytes}
        self.llm = LLM(
            model=str(folder), load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True, seed=0,
            generation_config="vllm", max_model_len=case.longest, max_num_seqs=rows,
            enable_prefix_caching=case.work == "waves", **memory,
        )  # fmt: skip
        self._sampling = lambda count: SamplingParams(
            temperature=case.temperature, top_p=case.top_p, max_tokens=count, ignore_eos=True, detokenize=False
        )
        self.vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]

    def generate(self, prompts: Sequence[Tokens], outputs: Sequence[int]) -> tuple[float, list[Tokens]]:
        asked = [{"prompt_token_ids": prompt.tolist()} for prompt in prompts]
        sampling = [self._sampling(count) for count in outputs]
        begin = time.perf_counter()
        answers = self.llm.generate(asked, sampling, use_tqdm=False)
        seconds = time.perf_counter() - begin
        return seconds, [np.array(answer.outputs[0].token_ids, dtype=np.int32) for answer in answers]


def versions(side: str) -> dict[str, str]:
    import torch

    found = {"torch": torch.__version__}
    if side == "vllm":
        import vllm

        return {**found, "vllm": vllm.__version__}
    from quire import __version__

    return {**found, "quire": __version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=("quire", "vllm"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="with the model's config.json, for vLLM")
    arguments = parser.parse_args()
    cases = [Case(**json.loads(line)) for line in sys.stdin]
    rows = max(case.rows for case in cases)
    begin = time.perf_counter()
    first = cases[0]
    side = (
        QuireSide(first, rows, arguments.device)
        if arguments.side == "quire"
        else VllmSide(first, rows, arguments.folder)
    )
    started = {"started": round(time.perf_counter() - begin, 1), "versions": versions(arguments.side)}
    print(json.dumps(started), flush=True)
    for case in cases:
        print(json.dumps({"case": case.name, "took": measure(case, side, arguments.seed)}), flush=True)


if __name__ == "__main__":
    main()
