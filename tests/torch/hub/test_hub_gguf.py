"""GGUF files of a repository: one of several is named, planned from its first bytes, converted once."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from gguf import GGMLQuantizationType
from huggingface_hub import constants

from command import refused, run_json
from gguf_models import ARCHITECTURES, write_parts
from hub_models import SMALL, tokens
from quire import LLM
from quire.build.identity import weights_identity
from quire.fetch.find import find_folder
from quire.fetch.hub_names import revision_of
from small_gguf import write_gguf
from small_hub import SmallHub


@pytest.fixture
def gguf(tiny: Path, tmp_path: Path) -> Path:
    path = tmp_path / "Tiny-Q8_0.gguf"
    write_gguf(path, tokenizers.Tokenizer.from_file(str(tiny / "tokenizer.json")), GGMLQuantizationType.Q8_0)
    return path


def test_a_gguf_file_of_the_hub_answers_as_the_file_does(hub: SmallHub, gguf: Path) -> None:
    """Converted by the first start; the second one only loads what that wrote, and the commit is part of its
    identity."""
    commit = hub.add("org/tiny-gguf", {"README.md": b"x", gguf.name: gguf.read_bytes()})
    expected = tokens(gguf)
    stages: list[set[str]] = []
    for _ in range(2):
        stages.append(set())
        with LLM("org/tiny-gguf", device="cpu", progress=lambda stage, *_: stages[-1].add(stage), **SMALL) as llm:  # type: ignore[arg-type]
            assert llm.generate("the quick brown", max_tokens=8, raw=True)[0].token_ids == expected
            assert llm.plan.model == "org/tiny-gguf"
    assert stages == [{"download", "verify", "convert", "check", "load"}, {"load"}]
    ours, theirs = find_folder("org/tiny-gguf"), find_folder(gguf)
    assert (revision_of(ours), revision_of(theirs)) == (f"org/tiny-gguf@{commit}", "")
    assert weights_identity(ours) != weights_identity(theirs)


def test_one_of_several_files_is_named_by_its_name_or_a_part_of_it(
    hub: SmallHub, gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that several have, or none, is refused with the names."""
    data = gguf.read_bytes()
    names = ("Tiny-Q8_0.gguf", "Tiny-Q4_K_M.gguf", "Tiny-Q4_K_S.gguf", "big/Tiny-F16-00001-of-00002.gguf")
    hub.add("org/tiny-gguf", dict.fromkeys(names, data), "main", "v1")
    for name in ("org/tiny-gguf:Tiny-Q8_0.gguf", "org/tiny-gguf:q8_0", "org/tiny-gguf@v1:Q8_0"):
        assert find_folder(name).name.startswith("Tiny-Q8_0-")
    assert set(hub.sent) == {"Tiny-Q8_0.gguf"}
    said = refused(capsys, "plan", "org/tiny-gguf")
    assert "it has 4 GGUF files: write org/tiny-gguf:FILE, one of Tiny-Q4_K_M.gguf, Tiny-Q4_K_S.gguf, Tiny-Q" in said
    said = refused(capsys, "plan", "org/tiny-gguf:q4_k")
    assert "2 of its 4 GGUF files match: write org/tiny-gguf:FILE, one of Tiny-Q4_K_M.gguf, Tiny-Q4_K_S.gguf" in said
    assert "0 of its 4 GGUF files match" in refused(capsys, "plan", "org/tiny-gguf:Q2")
    assert "lacks 1 of the 2 parts of big/Tiny-F16-00001-of-00002.gguf" in refused(capsys, "plan", "org/tiny-gguf:F16")


def test_a_gguf_file_is_planned_from_its_first_bytes(
    hub: SmallHub, gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pieces grow until one has the whole header; nothing stays in the cache."""
    hub.add("org/tiny-gguf", {gguf.name: gguf.read_bytes() + bytes(1 << 20)})
    monkeypatch.setattr("quire.fetch.hub_headers.GGUF_BYTES", (64, 1 << 14))
    ours, theirs = (run_json(capsys, name, "--memory", "4GiB") for name in ("org/tiny-gguf", str(gguf)))
    assert ours["ranks"] == theirs["ranks"]
    assert [asked for *_, asked in hub.asked if asked] == ["bytes=0-63", f"bytes=0-{(1 << 14) - 1}"]
    assert hub.weight_bytes() == 64 + (1 << 14)
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.gguf"))


def test_a_model_in_several_files_is_planned_downloaded_and_run_as_one(
    hub: SmallHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = write_parts(tmp_path / "big.gguf", ARCHITECTURES["qwen2"], (GGMLQuantizationType.Q8_0,), 12)
    hub.add("org/big", {f"Q8_0/{part.name}": part.read_bytes() for part in parts} | {"big-Q4.gguf": b"x"})
    ours, theirs = (run_json(capsys, name, "--memory", "4GiB") for name in ("org/big:q8_0", str(parts[0])))
    assert ours["ranks"] == theirs["ranks"]
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.gguf")), "a plan reads headers"
    with LLM("org/big:q8_0", device="cpu", **SMALL) as llm:  # type: ignore[arg-type]
        found = llm.generate([[5, 6, 7]], max_tokens=4)[0].token_ids
    with LLM(parts[0], device="cpu", **SMALL) as llm:  # type: ignore[arg-type]
        assert llm.generate([[5, 6, 7]], max_tokens=4)[0].token_ids == found


def test_a_file_that_is_no_gguf_is_refused_by_its_name(hub: SmallHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.add("org/odd", {"odd.gguf": b"something else"})
    assert refused(capsys, "plan", "org/odd") == "quire: odd.gguf cannot be read as GGUF: it begins otherwise\n"


def test_a_gguf_file_in_the_cache_runs_without_the_hub(
    hub: SmallHub, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/tiny-gguf", {gguf.name: gguf.read_bytes(), "other.gguf": b"x"})
    folder = find_folder("org/tiny-gguf:q8_0")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    assert find_folder("org/tiny-gguf:q8_0") == folder
    assert hub.asked == []
