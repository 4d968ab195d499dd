"""Models for a hub of the tests, and the client that is pointed to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from quire import LLM, Budget, Settings
from small_hub import files_of

SMALL = {"settings": Settings(max_length=128, max_requests=4, batch_tokens=128), "budget": Budget(pool_bytes=1 << 20)}
FLAGS = ("--max-length", "128", "--pool", "1MiB", "--max-tokens", "6", "--raw", "--device", "cpu")


def in_shards(folder: Path, count: int = 3) -> dict[str, bytes]:
    """The same checkpoint, with its weights in several files and an index."""
    files = files_of(folder)
    tensors = load_file(folder / "model.safetensors")
    del files["model.safetensors"]
    names = [f"model-{one + 1:05}-of-{count:05}.safetensors" for one in range(count)]
    shards: dict[str, dict[str, torch.Tensor]] = {name: {} for name in names}
    for place, (name, tensor) in enumerate(tensors.items()):
        shards[names[place % count]][name] = tensor
    for name, part in shards.items():
        save_file(part, folder.parent / name, {"format": "pt"})
        files[name] = (folder.parent / name).read_bytes()
        (folder.parent / name).unlink()
    index = {"metadata": {}, "weight_map": {name: file for file, part in shards.items() for name in part}}
    return files | {"model.safetensors.index.json": json.dumps(index).encode()}


def tokens(model: str | Path) -> tuple[int, ...]:
    with LLM(model, device="cpu", **SMALL) as llm:  # type: ignore[arg-type]
        return tuple(llm.generate("the quick brown", max_tokens=8, raw=True)[0].token_ids)


def point_to(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """As HF_ENDPOINT does."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
