"""Where a model may come from, in order: a file or folder, the catalogue, a hub."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from model_configs import llama

from quire.core.errors import ModelError
from quire.models.catalogue import catalogue_entry
from quire.models.read import read_config, read_model
from quire.models.shapefile import shape_to_json


class Hub(BaseHTTPRequestHandler):
    """Answers like a hub: one model, one gated model, one that is not JSON."""

    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        answers = {
            "/org/new-model/resolve/main/config.json": (200, json.dumps(llama()).encode()),
            "/org/gated/resolve/main/config.json": (403, b""),
            "/org/page/resolve/main/config.json": (200, b"<html>"),
        }
        status, body = answers.get(self.path, (404, b""))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Silent."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    server = HTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Hub.asked.clear()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield Hub
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_a_folder_is_named_after_itself_and_a_file_after_its_stem(tmp_path: Path) -> None:
    """`config.json` inside a folder, or any file."""
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(llama()), encoding="utf-8")
    (tmp_path / "Other-1.5.json").write_text(json.dumps(llama()), encoding="utf-8")
    assert read_model(str(folder)).name == "My-Model"
    assert read_model(str(folder / "config.json")).name == "My-Model"
    assert read_model(str(tmp_path / "Other-1.5.json")).name == "Other-1.5"


def test_a_shape_file_is_told_apart_by_its_key(tmp_path: Path) -> None:
    """`quire_shape`."""
    shape = read_config(llama(), "tiny")
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(shape_to_json(shape)), encoding="utf-8")
    assert read_model(str(file)) == shape


def test_a_file_comes_before_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies here is what is meant."""
    monkeypatch.chdir(tmp_path)
    Path("phi-4").write_text(json.dumps(llama()), encoding="utf-8")
    assert len(read_model("phi-4").layers) == 2
    assert len(read_model("PHI-4").layers) == 40


@pytest.mark.parametrize("name", ["llama-3.1-8b", "Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "llama_3.1_8b"])
def test_catalogue_names_are_found_in_any_dress(name: str) -> None:
    """Any case, `_` for `-`, with an organisation, by alias."""
    assert read_model(name).name == "meta-llama-3.1-8b"


@pytest.mark.usefixtures("offline")
def test_an_unknown_name_gets_near_misses_and_the_command_that_lists_all() -> None:
    """At most three."""
    with pytest.raises(ModelError) as caught:
        read_model("lama-3.1-8b")
    assert "llama-3.1-8b" in str(caught.value)
    assert "`quire models`" in str(caught.value)
    assert str(caught.value).count(" or ") <= 3
    with pytest.raises(ModelError, match="`quire models`"):
        read_model("")


def test_a_hub_id_is_asked_for_where_nothing_else_answers(hub: type[Hub]) -> None:
    """With the token, from HF_ENDPOINT."""
    shape = read_model("org/new-model")
    assert (shape.name, len(shape.layers)) == ("org/new-model", 2)
    assert hub.asked == [("/org/new-model/resolve/main/config.json", "Bearer secret")]


def test_the_hub_is_not_asked_for_a_catalogue_name(hub: type[Hub]) -> None:
    """Nor for a name without an organisation."""
    read_model("microsoft/phi-4")
    with pytest.raises(ModelError):
        read_model("no-such-model")
    assert hub.asked == []


@pytest.mark.parametrize(
    ("name", "words"),
    [("org/absent", "answers 404"), ("org/gated", "set HF_TOKEN"), ("org/page", "not JSON")],
)
@pytest.mark.usefixtures("hub")
def test_a_hub_that_has_nothing_says_why(name: str, words: str) -> None:
    """One line, with the hint to the list."""
    with pytest.raises(ModelError, match=words) as caught:
        read_model(name)
    assert "`quire models`" in str(caught.value)


def test_offline_means_offline(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE is honoured."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        read_model("org/new-model")
    assert hub.asked == []


def test_a_hub_that_cannot_be_reached_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback from the network."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for endpoint, words in (("http://127.0.0.1:9", "cannot be reached"), ("ftp://x", "must start with http")):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        with pytest.raises(ModelError, match=words):
            read_model("org/new-model")


def test_how_many_experts_a_token_chooses_is_read_however_it_is_spelled() -> None:
    """By ERNIE's name, layer by layer, or as the family has it; where nobody says, that is noted."""
    mixtral = catalogue_entry("mixtral-8x7b").config
    rest = {name: value for name, value in mixtral.items() if name != "num_experts_per_tok"}
    unsaid = read_config(rest, "mixtral")
    assert (unsaid.experts.per_token, unsaid.experts.share) == (0, 1.0)
    assert [note for note in unsaid.notes if "num_experts_per_tok absent" in note]
    assert read_config({**rest, "moe_k": 3}, "mixtral").experts.per_token == 3
    assert read_config({**rest, "moe_topk": [1, 4, 2]}, "mixtral").experts.per_token == 4
    uncounted = {name: value for name, value in mixtral.items() if name != "num_local_experts"}
    assert read_config(uncounted, "mixtral").experts == read_config(mixtral, "mixtral").experts
    with pytest.raises(ModelError, match="moe_k is 'many': it must be a whole number"):
        read_config({**rest, "moe_k": "many"}, "mixtral")


def test_a_latent_width_of_experts_is_still_refused_where_the_family_has_none() -> None:
    with pytest.raises(ModelError, match="moe_latent_size"):
        read_config({**catalogue_entry("qwen3-30b-a3b").config, "moe_latent_size": 512}, "odd")
