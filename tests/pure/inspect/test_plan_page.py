"""`quire plan --html`: one file that asks for nothing else and runs no script."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from quire.cli.main import main
from quire.core.units import format_bytes
from quire.planner.document import document, load


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("model", ["gemma-3-27b", "qwen3-next-80b-a3b", "llama-3.1-8b"])
def test_a_page_shows_the_plan_and_nothing_can_run_in_it(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page, saved = tmp_path / "plan.html", tmp_path / "plan.json"
    main(["plan", model, "--pool", "16GiB", "--html", str(page), "--output", str(saved)])
    capsys.readouterr()
    reader = Reader()
    reader.feed(page.read_text())
    assert not {tag for tag, _ in reader.tags} & {"script", "iframe", "object", "embed", "link", "img", "form", "base"}
    for tag, attributes in reader.tags:
        assert not {name for name in attributes if name in ("style", "src", "href") or name.startswith("on")}, tag
    data, shown = document(load(saved)[0]), " ".join(reader.text)
    for kind in data["kinds"]:
        assert kind["name"] in shown
        assert format_bytes(kind["page_bytes"]) in shown
    for length, count in data["concurrency"].items():
        assert f"{int(length):,}" in shown
        assert f"{count:,}" in shown
    rects = [float(attributes["width"] or 0) for tag, attributes in reader.tags if tag == "rect"]
    assert sum(rects) == pytest.approx(1000, abs=0.1)


def test_the_policy_allows_the_one_style_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    main(["plan", "gemma-3-27b", "--pool", "16GiB", "--html", str(page)])
    capsys.readouterr()
    (style,) = re.findall(r"<style>(.*?)</style>", page.read_text(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page.read_text())
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'")


def test_a_plan_that_does_not_fit_says_so_on_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    assert main(["plan", "gemma-3-27b", "--pool", "64MiB", "--max-length", "100k", "--html", str(page)]) == 3
    capsys.readouterr()
    assert "It does not fit" in page.read_text()
