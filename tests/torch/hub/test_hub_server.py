"""`quire serve org/name`: a server of a model of the hub, with a draft model of the hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from running_server import running_server
from small_hub import SmallHub, files_of
from tiny_folder import make_folder

pytestmark = pytest.mark.servers


def test_a_server_has_the_name_that_it_was_started_with(hub: SmallHub, tiny: Path, tmp_path: Path) -> None:
    """It is what clients give as the model, also if its weights were quantised at the start, which happens once. Each
    process prints how long its phases of the start took."""
    draft = tmp_path / "draft"
    draft.mkdir()
    hub.add("org/tiny", files_of(tiny))
    hub.add("org/draft", files_of(make_folder(draft, layers=1)))
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_CACHE": str(tmp_path / "hub")}
    environment["QUIRE_CACHE"] = str(tmp_path / "cache")
    arguments = ("org/tiny@main", "--draft-model", "org/draft", "--max-length", "128", "--max-requests", "4")
    arguments += ("--weights", "int8")
    with running_server(
        *arguments, "--pool", "2MiB", "--device", "cpu", model="org/tiny", environment=environment
    ) as server:
        assert [model["id"] for model in server.get("/v1/models").json()["data"]] == ["org/tiny"]
        body = {"model": "org/tiny", "prompt": "the quick", "max_tokens": 4, "temperature": 0}
        with server.client() as client:
            answer = client.post("/v1/completions", json=body)
        assert answer.json()["usage"]["completion_tokens"] == 4
        told = [line for line in server.report if line.startswith("start: ")]
    assert len(told) == 2
    assert "load " in told[1]
    assert (tmp_path / "hub" / "models--org--draft" / "refs" / "main").exists()
