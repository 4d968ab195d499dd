"""A server whose tokenizer grammars cannot be compiled for: it serves, and refuses them alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders

from running_server import running_server
from serve_kit import SIZE, body

SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}


@pytest.mark.story
def test_it_answers_and_refuses_response_formats_by_name(tiny_folder: Path, tmp_path: Path) -> None:
    """It used to stop at the start."""
    folder = tmp_path / "odd"
    shutil.copytree(tiny_folder, folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u0120", " "), decoders.Fuse()])
    tokenizer.save(str(folder / "tokenizer.json"))
    with running_server(str(folder), *SIZE, "--model-name", "odd", model="odd") as server:
        with server.client() as client:
            answer = client.post("/v1/chat/completions", json=body(model="odd", max_tokens=4))
            refused = client.post("/v1/chat/completions", json=body(model="odd", response_format=SCHEMA))
        assert answer.status_code == 200
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_schema", "response_format")
        assert "grammars cannot be used with the tokenizer of odd" in error["message"]
        (warning,) = server.told("text")
        assert "which llguidance cannot read" in warning["message"]
