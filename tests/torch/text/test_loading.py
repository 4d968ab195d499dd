"""From what is named to a model in memory: GGUF files, progress, torn checkpoints, plans that do not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from quire import LLM
from quire.cli.fetch import Bar
from quire.cli.main import main
from quire.core.errors import DoesNotFit, InputError, ModelError
from quire.fetch.find import find_folder
from quire.plan.settings import Budget, Settings
from quire.text.tokenizer import Tokenizer
from quire.worker.model import packed_cpu
from quire.worker.model.model import load
from quire.worker.weights.expand import expand
from quire.worker.weights.gguf import open_gguf
from small_gguf import write_gguf

SETTINGS = Settings(max_requests=4, batch_tokens=32, max_length=128)
BUDGET = Budget(pool_bytes=1 << 20)


@pytest.fixture
def gguf(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf", tokenizer.inner, GGMLQuantizationType.Q8_0)
    return tmp_path / "tiny.gguf"


def test_a_gguf_file_runs_and_is_converted_once(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_cpu, "fits", lambda _packed: False)  # planes round tokens to bf16
    stages: list[set[str]] = []
    tokens = []
    for _ in range(2):
        stages.append(set())
        llm = LLM(gguf, settings=SETTINGS, budget=BUDGET, progress=lambda stage, *_: stages[-1].add(stage))
        tokens.append(llm.generate([[5, 6, 7, 8]], max_tokens=6)[0].token_ids)
        llm.close()
    assert stages == [{"convert", "check", "load"}, {"load"}]
    reference = AutoModelForCausalLM.from_pretrained(expand(find_folder(gguf), tmp_path / "plain"))
    ids = reference.generate(torch.tensor([[5, 6, 7, 8]]), max_new_tokens=6, do_sample=False)
    assert tokens == [tuple(ids[0, 4:].tolist())] * 2


def test_a_converted_file_that_was_damaged_is_converted_again(gguf: Path) -> None:
    weights = find_folder(gguf) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert (find_folder(gguf) / "model.safetensors").read_bytes() == whole


def test_the_command_takes_a_gguf_file(gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(gguf), "--max-tokens", "4", "--max-length", "128", "--pool", "1MiB", "--raw"]
    assert main(["generate", "--prompt", "the quick", *arguments]) == 0
    first = capsys.readouterr()
    assert [line.split()[0] for line in first.err.splitlines()] == ["convert", "check"]
    assert main(["generate", "--prompt", "the quick", *arguments]) == 0
    assert capsys.readouterr() == (first.out, ""), "nothing but the text where there is no terminal"


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), dtype=np.float64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"m\.gguf has tensors quantised as F64, which is not read: give safetensors"):
        open_gguf(tmp_path / "m.gguf")
    with pytest.raises(InputError, match="there is no such folder or GGUF file"):
        find_folder(tmp_path / "other.gguf")
    with pytest.raises(InputError, match="the catalogue has its shape for plans, not its weights; give a folder"):
        find_folder("gemma-3-27b")


def test_a_bar_tells_how_far_the_weights_are(gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[int, int]] = []
    folder = find_folder(gguf)
    load(folder, torch.float32, lambda done, total: seen.append((done, total)))
    size = (folder / "model.safetensors").stat().st_size
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)
    assert len(seen) > 10
    load(folder, torch.float32)
    assert capsys.readouterr() == ("", ""), "transformers' own bar is not shown"
    hidden, shown = Bar(hidden=("load",)), Bar()
    for done, total in seen:
        hidden("load", done, total)
        shown("load", done, total)
    assert capsys.readouterr().err.split()[0] == "load"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "has no weights for model.norm.weight: is the checkpoint"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(3)}),
            "has weights of another shape for model.norm.weight: is the checkpoint whole",
        ),
    ],
)
def test_weights_that_are_missing_are_not_made_up(gguf: Path, tmp_path: Path, change: object, message: str) -> None:
    folder = shutil.copytree(find_folder(gguf), tmp_path / "odd")
    tensors = load_file(folder / "model.safetensors")
    change(tensors)  # type: ignore[operator]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=message):
        load(folder, torch.float32)


def test_a_torn_file_of_weights_says_so(gguf: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(find_folder(gguf), tmp_path / "torn")
    (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelError, match="cannot be read"):
        load(folder, torch.float32)


def test_a_length_that_does_not_fit_is_refused_before_any_weight_is_read(
    gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The weights are garbage and nobody notices: the plan's own message comes first."""
    folder = shutil.copytree(find_folder(gguf), tmp_path / "garbage")
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 1 << 24}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(DoesNotFit) as refused:
        LLM(folder, settings=Settings(max_length=10_000_000), budget=BUDGET)
    arguments = [str(folder), "--max-length", "10000000", "--pool", "1MiB"]
    assert main(["generate", "--prompt", "x", *arguments]) == 3
    assert capsys.readouterr() == ("", f"quire: {refused.value}\n")
    assert "10,000,000" in str(refused.value)
    with pytest.raises(ModelError, match="cannot be read"):
        LLM(folder, settings=SETTINGS, budget=BUDGET)
