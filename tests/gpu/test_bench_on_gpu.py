"""`quire bench kernels` on a GPU: the command as somebody types it."""

from __future__ import annotations

import json

import pytest
import torch

from command import run_text

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)


def test_pages_are_moved_and_the_figures_name_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    out, said = run_text(capsys, "bench", "kernels", "--tables", "pages", "--json")
    data = json.loads(out)
    assert data["about"]["device"] == torch.cuda.get_device_name()
    assert "quire bench: pages\n" in said
    (lines,) = data["tables"].values()
    assert {"copy pages", "gather pages", "clear pages"} < {line["what"] for line in lines}
    assert all(line["TB/s, read + written"] > 0 for line in lines)
