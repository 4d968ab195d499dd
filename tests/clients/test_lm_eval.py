"""`lm-eval` with `local-completions`, on two small tasks of tests/clients/tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asked import MODEL
from commands import command, output_of

TASKS = Path(__file__).parent / "tasks"
TOLERANCE = 1e-3
"""Of a log-likelihood: both compute in fp32, in another order."""


@pytest.fixture(scope="module", params=["huggingface", "remote"])
def samples(request: pytest.FixtureRequest, v1: str, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What lm-eval asked and got, by task: with the checkpoint's tokenizer, or with the server's."""
    here = tmp_path_factory.mktemp("lm_eval")
    given = f"model={MODEL},base_url={v1}/completions,tokenizer_backend={request.param},max_retries=1"
    given += f",tokenizer={folder}" if request.param == "huggingface" else ""
    output_of(
        command("lm-eval"), "run", "--model", "local-completions", "--model_args", given, "--tasks", "capitals",
        "colours", "--include_path", str(TASKS), "--output_path", str(here), "--log_samples", folder=TASKS,
        HF_HOME=str(here / "home"),
    )  # fmt: skip
    files = {path.name.split("_")[1]: path for path in here.rglob("samples_*.jsonl")}
    return {task: [json.loads(line) for line in path.read_text().splitlines()] for task, path in files.items()}


@pytest.fixture(scope="module")
def likelihood(folder: Path) -> Any:
    """A function by transformers: the log-likelihood of a continuation, and whether each token is the likeliest."""
    torch = pytest.importorskip("torch", reason="the package torch is not installed")
    transformers = pytest.importorskip("transformers", reason="the package transformers is not installed")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.inference_mode()
    def likelihood(context: str, continuation: str) -> tuple[float, bool]:
        start = len(tokenizer(context).input_ids)
        tokens = tokenizer(context + continuation, return_tensors="pt").input_ids
        scores = model(tokens).logits[0, start - 1 : -1].log_softmax(-1)
        wanted = tokens[0, start:]
        total = scores.gather(1, wanted[:, None]).sum().item()
        return total, bool((scores.argmax(-1) == wanted).all())

    return likelihood


def test_texts_are_generated_until_the_stop(samples: Any) -> None:
    """Prompts as tokens, a few tokens each, nothing after the stop string."""
    texts = [sample["resps"][0][0] for sample in samples["capitals"]]
    assert len(texts) == 2
    assert texts[0].startswith(" Paris")
    assert not any("." in text for text in texts)


def test_log_likelihoods_are_those_of_transformers(samples: Any, likelihood: Any) -> None:
    """Of every choice of every question, and whether it is what a greedy model would say."""
    asked = [
        (tuple(request.values()), answer[0])
        for sample in samples["colours"]
        for request, answer in zip(sample["arguments"].values(), sample["resps"], strict=True)
    ]
    assert len(asked) == 5
    for (context, continuation), (found, is_greedy) in asked:
        expected, is_expected = likelihood(context, continuation)
        assert float(found) == pytest.approx(expected, abs=TOLERANCE), continuation
        assert (is_greedy in (True, "True")) == is_expected
