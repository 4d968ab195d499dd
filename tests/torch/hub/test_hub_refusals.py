"""What the hub does not give, or what cannot run, is refused in one line with the fix, without any weights."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest
import safetensors.torch
import torch
from huggingface_hub import constants

from command import refused, run_text
from hub_models import FLAGS, in_shards, point_to
from quire.cli.main import main
from quire.fetch.errors import HubError
from quire.fetch.find import find_folder
from quire.options.child import python
from quire.worker.weights.loading import load_checkpoint
from small_hub import SmallHub, files_of

ASK = ("--prompt", "the quick", *FLAGS)


def numberless(text: str) -> str:
    """Commands plan for other batches, and free memory varies."""
    return re.sub(r"[\d.]+ [KMGT]iB", "SIZE", text)


def test_what_does_not_fit_is_refused_before_any_byte_of_weights(
    hub: SmallHub, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the message of `quire plan`, by every command that runs a model."""
    config = json.loads((tiny / "config.json").read_text()) | {"hidden_size": 1 << 17, "intermediate_size": 1 << 19}
    hub.add("org/huge", {**files_of(tiny), "config.json": json.dumps(config).encode()})
    limits = ["--max-length", "64", "--device", "cpu"]
    planned = run_text(capsys, "plan", "org/huge", *limits, code=3)[1].partition("does not fit: ")[2]
    for command in (["generate", "org/huge", "--prompt", "x"], ["chat", "org/huge"], ["serve", "org/huge", "--port=0"]):
        assert main([*command, *limits]) == 3
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert numberless(said) == f"quire: {numberless(planned)}"
    assert hub.weight_bytes() == 0
    assert "tokenizer.json" not in hub.sent


def test_a_family_that_is_not_known_is_refused_and_its_code_is_not_run(
    hub: SmallHub, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`auto_map` names Python files of the repository."""
    own = {"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "modeling_mine.Mine"}}
    files = {**files_of(tiny), "modeling_mine.py": b"raise SystemExit('run')"}
    hub.add("org/own", files | {"config.json": json.dumps(json.loads(files["config.json"]) | own).encode()})
    for command in (["plan"], ["fetch"], ["generate", "--prompt", "x"]):
        said = refused(capsys, *command, "org/own")
        assert "no such family" in said
        assert "its own code (auto_map) is never run" in said
    assert set(hub.sent) == {"config.json"}


def test_code_next_to_a_known_family_is_ignored(tiny: Path, tmp_path: Path) -> None:
    """transformers' own class is used."""
    folder = shutil.copytree(tiny, tmp_path / "own")
    own = {"auto_map": {"AutoModelForCausalLM": "modeling_mine.Mine", "AutoConfig": "modeling_mine.Config"}}
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | own))
    (folder / "modeling_mine.py").write_text("raise SystemExit('run')")
    assert type(load_checkpoint(folder, torch.float32, "eager")).__name__ == "LlamaForCausalLM"


def test_pickles_are_refused(hub: SmallHub, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: data for name, data in files_of(tiny).items() if name != "model.safetensors"}
    hub.add("org/old", {**files, "pytorch_model.bin": b"x" * 2048})
    said = refused(capsys, "generate", "org/old", *ASK)
    assert "org/old has weights as pickles alone (pytorch_model.bin, 2.00 KiB), which can run code: choose one" in said
    hub.add("org/none", files)
    assert "has no weights as safetensors or GGUF" in refused(capsys, "generate", "org/none", *ASK)
    assert hub.weight_bytes() == 0


def test_a_repository_that_lacks_files_is_refused_before_the_download(
    hub: SmallHub, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shard that the index names, the tokenizer, an index that is none."""
    files = in_shards(tiny)
    del files["model-00002-of-00003.safetensors"]
    hub.add("org/torn", files)
    said = refused(capsys, "generate", "org/torn", *ASK)
    assert "org/torn lacks 1 of 3 files of weights: model-00002-of-00003.safetensors" in said
    hub.add("org/mute", {name: data for name, data in files_of(tiny).items() if name != "tokenizer.json"})
    assert "org/mute has no tokenizer.json, which is needed" in refused(capsys, "generate", "org/mute", *ASK)
    for index in (b"{", b"[]", b'{"weight_map": {"a": "../a.safetensors"}}', b'{"weight_map": {"a": "a.bin"}}'):
        hub.add("org/odd", {**in_shards(tiny), "model.safetensors.index.json": index})
        assert "model.safetensors.index.json " in refused(capsys, "generate", "org/odd", *ASK)
    assert hub.weight_bytes() == 0


def test_a_gated_repository_says_where_access_is_given(
    hub: SmallHub, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a token, with one of another account, with one that is not valid, and with the right one."""
    hub.add("org/gated", files_of(tiny))
    hub.repositories["org/gated"].token, hub.repositories["org/gated"].is_gated = "mine", True
    said = refused(capsys, "generate", "org/gated", *ASK)
    assert f"org/gated is gated, and no token is set: request access at {hub.url}/org/gated, then set HF_TOKEN" in said
    monkeypatch.setenv("HF_TOKEN", "other")
    assert "this token's account has no access" in refused(capsys, "generate", "org/gated", *ASK)
    monkeypatch.setenv("HF_TOKEN", "wrong")
    assert "the token is not accepted, correct HF_TOKEN" in refused(capsys, "generate", "org/gated", *ASK)
    monkeypatch.setenv("HF_TOKEN", "mine")
    assert find_folder("org/gated").is_dir()


def test_a_name_that_the_hub_does_not_have_is_refused(
    hub: SmallHub, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A repository or a private one, a revision."""
    hub.add("org/tiny", files_of(tiny))
    said = refused(capsys, "generate", "org/absent", *ASK)
    assert f"org/absent: no such folder here, and {hub.url} shows no such repository: check the name, or set" in said
    said = refused(capsys, "plan", "org/tiny@v9")
    assert said == "quire: org/tiny has no revision v9: give a branch, a tag or a commit\n"


def test_a_hub_that_cannot_be_asked_is_one_line(
    hub: SmallHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing listens, it answers 503, it is no hub, its address is no address."""
    hub.is_broken = True
    assert f"and {hub.url} answers 503: try again later" in refused(capsys, "generate", "org/tiny", *ASK)
    for endpoint in ("http://127.0.0.1:9", "ftp://x"):
        point_to(monkeypatch, endpoint)
        said = refused(capsys, "generate", "org/tiny", *ASK)
        assert f"and {endpoint} cannot be reached (" in said
        assert "): check the network, HF_ENDPOINT and the proxy" in said


@pytest.mark.parametrize("kind", ["digest", "shorter", "longer"])
def test_bytes_that_are_not_what_the_hub_states_are_not_kept(hub: SmallHub, tiny: Path, kind: str) -> None:
    """Neither under the file's name nor under its digest: the next start downloads the file again, and runs."""
    files = files_of(tiny)
    hub.add("org/tiny", files)
    true = files["model.safetensors"]
    changed = {"digest": b"\0" * len(true), "shorter": true[:-8], "longer": true + bytes(8)}
    hub.replaced["model.safetensors"] = changed[kind]
    words = "model.safetensors has the digest" if kind == "digest" else "failed|cannot be reached"
    with pytest.raises(HubError, match=words):
        find_folder("org/tiny")
    cache = Path(constants.HF_HUB_CACHE)
    assert not [path for path in cache.rglob("*") if path.name in ("model.safetensors",)]
    assert all(path.stat().st_size < 64 << 10 for path in (cache / "models--org--tiny" / "blobs").iterdir())
    hub.replaced.clear()
    assert (find_folder("org/tiny") / "model.safetensors").read_bytes() == true


def test_a_disk_without_room_is_refused_before_the_download(
    hub: SmallHub, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what is needed, what is free, and what would help."""
    hub.add("org/tiny", files_of(tiny))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(1 << 40, (1 << 40) - 1024, 1024))
    said = refused(capsys, "generate", "org/tiny", *ASK)
    assert "which has 1.00 KiB free: free " in said
    assert "or set HF_HOME to a folder on another disk" in said
    assert hub.weight_bytes() == 0


def test_a_disk_that_fills_up_leaves_no_half_file(hub: SmallHub, tiny: Path, tmp_path: Path) -> None:
    """A limit on the size of files fails the client's writes as a full disk does."""
    hub.add("org/tiny", {**files_of(tiny), "model.safetensors": safetensors.torch.save({"a": torch.ones(1 << 20)})})
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    environment.pop("HF_HUB_CACHE", None)
    ended = subprocess.run(
        python("-m", "quire.cli.main", "fetch", "org/tiny"),
        env=environment, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr == f"quire: File too large in {tmp_path}/home/hub: free some space there, or set HF_HOME\n"
    left = [path.name for path in (tmp_path / "home").rglob("*") if path.is_file() and path.stat().st_size > 64 << 10]
    assert left == []


@pytest.mark.story
@pytest.mark.parametrize("is_absolute", [False, True])
def test_a_name_that_leads_out_of_the_cache_touches_no_file(
    hub: SmallHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_absolute: bool
) -> None:
    """A file of the user was taken for a download that is not what the hub states, and removed."""
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"precious")
    name = str(mine) if is_absolute else "../../../../mine.gguf"
    hub.add("org/odd", {name: b"GGUF of a stranger"})
    assert f"lists '{name}' in org/odd, which lies outside of it" in refused(capsys, "fetch", "org/odd")
    assert mine.read_bytes() == b"precious"
