"""One server of all that is unusual: a tokenizer that grammars cannot be compiled for, tiers that do not work, a draft
model, and no next turns. It answers, and says of each what cannot be used."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders

from running_server import RunningServer, running_server
from serve_kit import SIZE, body, chat

SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
LONG = [{"role": "user", "content": "the lazy dog sees the quick brown fox, and " * 8}]


@pytest.fixture(scope="module")
def odd_server(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The draft model equals the model. Of the tiers one is a folder that is a file, one a server that is not there,
    one a store whose writes are lost."""
    place = tmp_path_factory.mktemp("odd")
    folder, file = place / "odd", place / "file"
    file.touch()
    shutil.copytree(tiny_folder, folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u0120", " "), decoders.Fuse()])
    tokenizer.save(str(folder / "tokenizer.json"))
    tiers = ("--disk", f"{file}:1GiB", "--remote", "redis://127.0.0.1:1", "--connector", "doubles:Sieve")
    draft = ("--draft-model", str(folder), "--draft-tokens", "2")
    more = ("--model-name", "tiny", "--next-turn", "off")
    with running_server(str(folder), *SIZE, *tiers, *draft, *more, model="tiny") as server:
        yield server


@pytest.mark.story
def test_response_formats_are_refused_by_the_name_of_the_tokenizer_and_chats_are_answered(
    odd_server: RunningServer,
) -> None:
    """The server used to stop at the start."""
    with odd_server.client() as client:
        answer = chat(client, max_tokens=4)
        refused = client.post("/v1/chat/completions", json=body(response_format=SCHEMA))
    assert answer.status_code == 200
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_schema", "response_format")
    assert "grammars cannot be used with the tokenizer of odd" in error["message"]
    (warning,) = odd_server.told("text")
    assert "which llguidance cannot read" in warning["message"]


def test_tiers_that_do_not_work_promise_nothing_and_the_server_serves(odd_server: RunningServer) -> None:
    _host, disk, remote, sieve, *_, address = odd_server.report[odd_server.report.index("Tiers\n") + 1 :]
    assert address.startswith("serving "), "it is printed when the server serves"
    assert any(line.startswith("loading ") for line in odd_server.report)
    assert disk.startswith("disk: NOT IN USE, cannot use the folder ")
    assert disk.endswith(": Not a directory\n")
    assert remote.startswith("remote: NOT IN USE, redis://127.0.0.1:1 cannot be reached: ")
    assert sieve.startswith("sieve: READ ONLY, nothing new is kept there: cannot write: what was written does not ")
    assert not any("stay warm" in line for line in (disk, remote, sieve))
    assert [line["message"].split(": ")[0] for line in odd_server.told("tier")] == [
        "tier disk",
        "tier remote",
        "tier sieve",
    ]
    with odd_server.client() as client:
        assert chat(client, messages=LONG, max_tokens=2).status_code == 200
        kept_by = [client.delete("/v1/cache").json()["kept_by"] for _ in range(2)]
        assert kept_by == [["disk", "remote", "sieve"]] * 2


def test_tokens_of_the_draft_model_are_counted_and_all_accepted(odd_server: RunningServer) -> None:
    def counted() -> list[float]:
        odd_server.until("it is idle", odd_server.is_idle)
        return [odd_server.metric(f"quire_{word}_tokens_total") for word in ("drafted", "accepted")]

    before = counted()
    with odd_server.client() as client:
        asked = {"model": "tiny", "prompt": "the fox", "max_tokens": 12, "temperature": 0}
        answer = client.post("/v1/completions", json=asked).json()
    assert answer["usage"]["completion_tokens"] > 0
    drafted, accepted = (after - earlier for after, earlier in zip(counted(), before, strict=True))
    assert drafted == accepted > 0


def test_with_next_turns_off_nothing_is_computed_ahead(odd_server: RunningServer) -> None:
    with odd_server.client() as client:
        assert chat(client, max_tokens=4).status_code == 200
        refused = client.post("/v1/cache/warm", json={"prompt": "the quick fox"})
        lines = client.get("/metrics").text.splitlines()
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "warm_disabled")
    assert "quire_turns_total 0.0" in lines
    assert "quire_warm_tokens_total 0.0" in lines
