"""The real client of the hub, against a hub of the tests, with caches of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from hub_models import point_to
from small_hub import SmallHub
from tiny_folder import make_folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint's folder."""
    return make_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallHub]:
    """The client has read its variables from the environment when it was imported: they are set where it keeps them."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "quire"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    huggingface_hub.close_session()
    with SmallHub().running() as hub:
        point_to(monkeypatch, hub.url)
        yield hub
    huggingface_hub.close_session()
