"""`quire serve` on a GPU: it answers what a CPU answers, to many at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

from quire.core.sampling import Sampling
from quire.llm import LLM
from quire.plan.settings import Budget, Settings
from running_server import RunningServer, running_server
from serve_kit import SIZE
from tiny_folder import make_folder

PROMPTS = ["the quick brown fox", "the lazy dog sees", "a", "the dog sees the fox"]
TOKENS = 20
GREEDY = Sampling(ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    where = ("--device", "cuda", "--dtype", "fp32", "--model-name", "tiny")
    with running_server(str(folder), *SIZE, *where, model="tiny", threads=None) as running:
        yield running


def complete(server: RunningServer, prompt: str) -> str:
    asked = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    with server.client() as client:
        answer = client.post("/v1/completions", json=asked)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])


def test_answers_to_many_at_once_are_those_of_a_cpu(folder: Path, server: RunningServer) -> None:
    settings = Settings(max_length=512, max_requests=32, batch_tokens=256)
    on_cpu = LLM(folder, settings=settings, budget=Budget(pool_bytes=2 << 20), device="cpu")
    expected = [answer.text for answer in on_cpu.generate(PROMPTS, GREEDY, max_tokens=TOKENS, raw=True)]
    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        assert list(clients.map(lambda prompt: complete(server, prompt), PROMPTS)) == expected


def test_its_books_balance_when_all_is_answered(server: RunningServer) -> None:
    complete(server, PROMPTS[0])
    server.until("it is audited", server.is_audited)
    assert server.metric("quire_books_balance") == 1
    assert server.get("/health/progress").status_code == 200


def test_where_it_runs_is_chosen_by_itself(folder: Path) -> None:
    with running_server(str(folder), *SIZE, model="tiny", threads=None) as running:
        (ready,) = running.told("engine_ready")
        assert ready["device"] == "cuda"
        assert "full on triton" in ready["kernels"]
