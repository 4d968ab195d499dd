"""A model of the hub is downloaded once, compared with what the hub states, and runs as its folder does."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path

import pytest
from huggingface_hub import constants

from hub_models import FLAGS, SMALL, in_shards, tokens
from quire import LLM
from quire.build.identity import weights_identity
from quire.cli.main import main
from quire.fetch.find import find_folder, find_source
from quire.fetch.hub_names import HubId, read_hub_id, revision_of
from quire.options.child import python
from small_hub import SmallHub, files_of


def test_a_model_of_the_hub_answers_as_its_folder_does(hub: SmallHub, tiny: Path) -> None:
    """In one file and in shards; the second start asks for no file, and the plan has the hub's name."""
    hub.add("org/tiny", files_of(tiny))
    hub.add("org/sharded", in_shards(tiny))
    expected = tokens(tiny)
    assert tokens("org/tiny") == expected
    assert tokens("org/sharded") == expected
    hub.sent.clear()
    with LLM("org/tiny", device="cpu", **SMALL) as llm:  # type: ignore[arg-type]
        assert llm.plan.model == "org/tiny"
    assert hub.sent == {}


@pytest.mark.servers
def test_the_command_reads_the_environment_that_other_clients_read(hub: SmallHub, tiny: Path, tmp_path: Path) -> None:
    """HF_ENDPOINT, HF_HOME and HF_TOKEN, in a process of its own; the answer is the folder's, and the folder is where
    the client of the hub puts it. The second start is without the hub."""
    commit = hub.add("org/tiny", files_of(tiny))
    hub.repositories["org/tiny"].token = "secret"
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "secret"}
    environment.pop("HF_HUB_CACHE", None)
    command = [*python("-m", "quire.cli.main", "generate", "org/tiny"), "--prompt", "the quick", *FLAGS, "--stats"]
    first = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    local = [*python("-m", "quire.cli.main", "generate", str(tiny)), "--prompt", "the quick", *FLAGS]
    assert first.stdout == subprocess.run(local, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in first.stderr.splitlines()[:2]] == ["download", "verify"]
    assert "start: " in first.stderr.splitlines()[-1]
    assert set(hub.tokens) == {"Bearer secret"}
    snapshot = tmp_path / "home" / "hub" / "models--org--tiny" / "snapshots" / commit
    assert (snapshot / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    again = subprocess.run(
        command, env=environment | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=True
    )
    assert again.stdout == first.stdout


def test_only_safetensors_and_small_files_are_downloaded(hub: SmallHub, tiny: Path) -> None:
    """No pickle, no code, no second copy of the weights, no pictures."""
    others = {"pytorch_model.bin": b"pickle", "modeling_tiny.py": b"raise SystemExit", "consolidated.safetensors": b"x"}
    hub.add("org/tiny", {**files_of(tiny), **others, "README.md": b"# Tiny", "onnx/model.safetensors": b"x"})
    folder = find_folder("org/tiny")
    expected = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*")} == expected


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: SmallHub, tiny: Path) -> None:
    """Each has the files of its commit."""
    old = {**files_of(tiny), "generation_config.json": b'{"eos_token_id": 3}'}
    first = hub.add("org/tiny", old, "main", "v1")
    second = hub.add("org/tiny", files_of(tiny), "main", "refs/pr/1")
    named = {"": second, "@main": second, "@v1": first, f"@{first}": first, "@refs/pr/1": second}
    assert {name: find_folder(f"org/tiny{name}").name for name in named} == named
    assert (find_folder("org/tiny@v1") / "generation_config.json").read_bytes() == old["generation_config.json"]


def test_the_commit_is_part_of_the_weights_identity(hub: SmallHub, tiny: Path) -> None:
    """Records of one commit are not taken for those of another, nor of a folder, even if the weights are the same."""
    hub.add("org/tiny", files_of(tiny), "main", "v1")
    hub.add("org/tiny", {**files_of(tiny), "README.md": b"new"}, "main")
    folders = [find_folder("org/tiny"), find_folder("org/tiny@v1"), tiny]
    assert len({weights_identity(folder) for folder in folders}) == 3
    assert revision_of(folders[0]) == f"org/tiny@{hub.repositories['org/tiny'].refs['main']}"
    assert revision_of(tiny) == ""


def test_a_cut_connection_is_resumed_where_it_ended(
    hub: SmallHub, tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next request asks for the rest alone, and the file is whole."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 500)  # what the client writes at a time; else 10 MB
    hub.add("org/tiny", files_of(tiny))
    size = (tiny / "model.safetensors").stat().st_size
    hub.cut_after["model.safetensors"] = 1000
    with caplog.at_level(logging.ERROR, logger="huggingface_hub"):
        folder = find_folder("org/tiny")
    assert (folder / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    ranges = [asked for method, path, asked in hub.asked if method == "GET" and path.endswith("/model.safetensors")]
    assert ranges == ["", "bytes=1000-"]
    assert hub.sent["model.safetensors"] == size


def test_a_start_after_an_interrupted_one_downloads_only_what_is_missing(hub: SmallHub, tiny: Path) -> None:
    """Files that were complete are kept; nothing of the incomplete one is taken for it."""
    files = in_shards(tiny)
    hub.add("org/tiny", files)

    def interrupting(stage: str, done: int, total: int) -> None:
        if stage == "download" and done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_folder("org/tiny", interrupting)
    folder = find_source("org/tiny").folder  # type: ignore[union-attr]
    assert not all((folder / name).exists() for name in files), "else nothing was interrupted"
    assert not list(folder.parents[1].rglob("*.incomplete"))
    kept = {name for name in files if (folder / name).exists()}
    hub.sent.clear()
    assert tokens("org/tiny") == tokens(tiny)
    assert not kept & set(hub.sent)


def test_progress_is_shown_in_bytes(hub: SmallHub, tiny: Path) -> None:
    hub.add("org/tiny", files_of(tiny))
    seen: dict[str, list[tuple[int, int]]] = {}
    find_folder("org/tiny", lambda stage, done, total: seen.setdefault(stage, []).append((done, total)))
    assert list(seen) == ["download", "verify"]
    for steps in seen.values():
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1] > (tiny / "model.safetensors").stat().st_size


def test_a_folder_that_exists_comes_before_the_hub_and_says_so(
    hub: SmallHub, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names the way to ask the hub; a path that does not exist never asks it."""
    hub.add("org/tiny", files_of(tiny))
    monkeypatch.chdir(tmp_path)
    Path("org/tiny").mkdir(parents=True)
    assert find_source("org/tiny") == Path("org/tiny")
    assert caplog.messages == ["org/tiny is a folder here: it is used, the hub is not asked (org/tiny@main asks it)"]
    assert hub.asked == []
    assert find_folder("org/tiny@main").parent.name == "snapshots"
    for path in ("./org/new", "/org/new", "org/new/deep", "org/new.gguf", "~/new"):
        assert read_hub_id(path) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubId("org/name")),
        ("org/name@v1.0", HubId("org/name", "v1.0")),
        ("org/name@refs/pr/2:Q4_K_M.gguf", HubId("org/name", "refs/pr/2", "Q4_K_M.gguf")),
        ("org/name:sub/x.gguf", HubId("org/name", "main", "sub/x.gguf")),
        ("name", None),
        ("a/b/c", None),
        ("org/name@", None),
        ("org/na..me", None),
        ("org/name@../main", None),
        ("org/--name", None),
        ("what is this?", None),
    ],
)
def test_how_a_hub_id_is_written(text: str, expected: HubId | None) -> None:
    assert read_hub_id(text) == expected


def test_fetch_downloads_and_reads_every_file_again(
    hub: SmallHub, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that was changed without its size or time is found, removed, and downloaded by the next call."""
    hub.add("org/tiny", files_of(tiny))
    assert main(["fetch", "org/tiny"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    blob = (folder / "model.safetensors").resolve()
    status = blob.stat()
    with blob.open("r+b") as file:
        file.seek(status.st_size - 1)
        file.write(b"\xff")
    os.utime(blob, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert find_folder("org/tiny") == folder, "a start trusts size and time"
    assert main(["fetch", "org/tiny"]) == 2
    said = capsys.readouterr().err
    assert "model.safetensors has the digest" in said
    assert "it is removed, start again to download it once more" in said
    assert main(["fetch", "org/tiny"]) == 0
    assert (folder / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
