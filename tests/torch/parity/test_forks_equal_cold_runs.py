"""Branches and forks of tiny models: every token is what a request that shares nothing yields, in fp32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.core.events import RequestAdmitted
from quire.core.request import Request
from quire.forks.forks import Forks
from tiny_models import OUTPUTS, Service, plan_of, reference

torch.set_num_threads(1)
MODELS = {
    "llama": "full",
    "gemma3_text": "full and window",
    "gpt_oss": "full and window, with sink logits",
    "llama4_text": "full and chunked",
    "deepseek_v3": "latent",
    "qwen3_next": "full and gated delta rule",
    "lfm2": "full and convolution",
    "mamba2": "state alone",
}
AT = 7
"""Outputs of the parent that its forks have in common."""


def alone(name: str, prompt: np.ndarray, outputs: int) -> list[int]:
    service = Service(name, plan_of(name, batch_tokens=512))
    (stream,) = service.send([prompt], outputs)
    service.engine.drain()
    return stream.tokens().tolist()


@pytest.mark.parametrize("name", MODELS)
def test_branches_and_forks_yield_what_cold_runs_yield(name: str) -> None:
    """Branches of a prompt; forks of one of them while it runs, at its end and before it, each with a token of its own;
    and a fork of it when it has ended."""
    prompt, expected = reference(name).prompts[-1], reference(name).tokens[-1]
    service = Service(name, plan_of(name, batch_tokens=24))
    engine, forks = service.engine, Forks(service.engine)
    branches = [forks.note(engine.submit(Request(f"b{n}", prompt, OUTPUTS, is_branch=True))) for n in range(3)]
    while len(branches[0].tokens()) < AT:
        engine.step()
    begun = {"end": forks.tokens("b0"), "middle": forks.tokens("b0", len(prompt) + AT - 3)}
    begun["other"] = np.concatenate([begun["end"], np.array([5], dtype=np.int32)])
    running = {key: engine.submit(Request(key, tokens, 6, is_branch=True)) for key, tokens in begun.items()}
    engine.drain()
    begun["ended"] = forks.tokens("b1")
    running["ended"] = engine.submit(Request("ended", begun["ended"], 6, is_branch=True))
    engine.drain()
    assert [stream.tokens().tolist() for stream in branches] == [expected] * 3
    for key, stream in running.items():
        assert stream.tokens().tolist() == alone(name, begun[key], 6), key
    assert _hit(service, "b1") == _hit(service, "b2") == len(prompt) - 1
    assert _hit(service, "end") == len(begun["end"]) - 1


def _hit(service: Service, name: str) -> int:
    return next(one.hit_tokens for one in service.engine.history.of(name) if isinstance(one, RequestAdmitted))
