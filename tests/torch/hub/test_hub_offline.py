"""Without the hub, what the shared cache has is used, by whichever client it was downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download

from command import refused
from hub_models import in_shards, point_to, tokens
from quire.fetch.errors import HubError
from quire.fetch.find import find_folder, find_source
from quire.fetch.hub_download import forget_compared
from small_hub import SmallHub, files_of


def test_a_complete_copy_runs_without_the_hub(
    hub: SmallHub, tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By branch and by commit, silently with HF_HUB_OFFLINE; with a warning if the hub cannot be reached."""
    commit = hub.add("org/tiny", in_shards(tiny))
    folder = find_folder("org/tiny")
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find_folder("org/tiny") == find_folder(f"org/tiny@{commit}") == folder
    assert (hub.asked, caplog.messages) == ([], [])
    assert tokens("org/tiny") == tokens(tiny)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    point_to(monkeypatch, "http://127.0.0.1:9")
    assert find_folder("org/tiny") == folder
    assert caplog.messages[0].startswith(f"org/tiny: the copy in the cache is used, commit {commit[:12]}: http://127.")


def test_a_copy_that_another_client_downloaded_is_used(
    hub: SmallHub, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, its digests are the names that the cache gives to contents: a changed file is refused, not deleted."""
    hub.add("org/tiny", files_of(tiny))
    folder = Path(snapshot_download("org/tiny"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find_folder("org/tiny") == folder
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(HubError, match=r"model.safetensors has the digest .*: delete .* and start with the hub"):
        find_folder("org/tiny")
    assert weights.exists()


def test_a_model_that_was_never_downloaded_is_refused_offline(
    hub: SmallHub, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line: where it was looked for, and what to unset. No request is made."""
    hub.add("org/tiny", files_of(tiny))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ("org/tiny", "org/tiny@v1", "org/tiny:x.gguf"):
        said = refused(capsys, "generate", name, "--prompt", "x")
        assert said == (
            f"quire: {name} is not in {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set: unset it to download\n"
        )
    assert hub.asked == []


def test_a_copy_with_the_configuration_alone_can_be_planned_but_not_run_offline(
    hub: SmallHub, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `quire plan` left is not taken for a model: missing files are counted and named."""
    hub.add("org/tiny", files_of(tiny))
    hub.add("org/sharded", in_shards(tiny))
    for name in ("org/tiny", "org/sharded"):
        find_source(name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    small = ("--max-length", "64", "--pool", "1MiB", "--device", "cpu")
    said = refused(capsys, "generate", "org/tiny", "--prompt", "x", *small)
    assert "in the cache lacks 2 of 3 files (tokenizer.json, model.safetensors), and HF_HUB_OFFLINE is set" in said
    said = refused(capsys, "generate", "org/sharded", "--prompt", "x", *small)
    assert "lacks 4 of 6 files (tokenizer.json, model-00001-of-00003.safetensors, " in said


def test_a_damaged_copy_is_replaced_with_the_hub(hub: SmallHub, tiny: Path) -> None:
    """A file that was truncated in the cache is removed, and the next start downloads it again."""
    hub.add("org/tiny", files_of(tiny))
    weights = find_folder("org/tiny") / "model.safetensors"
    true = weights.read_bytes()
    weights.write_bytes(true[:1000])
    with pytest.raises(HubError, match=rf"model.safetensors has 1,000 bytes, the hub states {len(true):,}: it is rem"):
        find_folder("org/tiny")
    assert not weights.exists()
    assert find_folder("org/tiny") == weights.parent
    assert weights.read_bytes() == true
    forget_compared(find_source("org/tiny"))  # type: ignore[arg-type]
    assert find_folder("org/tiny") == weights.parent
