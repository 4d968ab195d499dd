"""Adding an option takes two edits: its field, and the line that reads it. `adding_an_option.patch` makes them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_folder import make_folder

ROOT, PATCH = Path(__file__).parents[2], Path(__file__).with_name("adding_an_option.patch")
MOST_FILES = 3
WAYS: list[tuple[list[str], dict[str, str], str]] = [
    ([], {}, ""),
    ([], {}, "fill-byte = 3"),
    ([], {"QUIRE_FILL_BYTE": "5"}, "fill-byte = 3"),
    (["--fill-byte", "7"], {"QUIRE_FILL_BYTE": "5"}, "fill-byte = 3"),
]
"""What is typed, the environment, and quire.toml."""
BOOT = """
import inspect, json, os, pickle, sys
from pathlib import Path
from quire.build.plan import plan_checkpoint, run_settings
from quire.cli.configuration import complete
from quire.cli.flags import run_options
from quire.cli.main import build_parser
from quire.cli.serve import add_all
from quire.llm import LLM
from quire.plan.file import encode
from quire.plan.settings import Budget, Settings
from quire.serve.engine_process import Updates, _boot
from quire.serve.messages import EngineSetup

folder = Path("model")
assert "fill_byte" in inspect.signature(LLM).parameters
for typed, environment, file in json.loads(sys.argv[1]):
    Path("quire.toml").write_text(file)
    os.environ.pop("QUIRE_FILL_BYTE", None)
    os.environ.update(environment)
    typed_arguments = build_parser().parse_args(["serve", "model", "--device", "cpu", *typed])
    options = run_options(complete(add_all, typed_arguments))
    settings = run_settings(Settings(max_length=64, max_requests=2, batch_tokens=16), options)
    plan = plan_checkpoint(folder, settings, Budget(pool_bytes=1 << 20), options)
    setup = pickle.loads(pickle.dumps(EngineSetup(folder, encode(plan), options)))
    print(int(_boot(setup, Updates()).engine.runner.arena.bytes[-1]))
"""
"""What a server does until its engine runs, in one process, once for each way to set the option; prints a
byte of each pool."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source with the patch, and a tiny checkpoint."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", str(PATCH)], cwd=root, check=True)
    (root / "model").mkdir()
    make_folder(root / "model", layers=1)
    return root


def run(tree: Path, *arguments: str) -> str:
    """Of Python, in the patched tree; what it printed."""
    known = {**os.environ, "PYTHONPATH": str(tree / "src"), "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=known, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_patch_is_a_field_and_a_line() -> None:
    text = PATCH.read_text()
    assert 1 < len(re.findall(r"^\+\+\+ b/src/quire/", text, re.MULTILINE)) <= MOST_FILES
    assert len(re.findall(r"^\+(?!\+\+)", text, re.MULTILINE)) == 4
    assert not re.findall(r"^-(?!--)", text, re.MULTILINE)


def test_the_help_of_the_server_shows_the_new_option(tree: Path) -> None:
    lines = run(tree, "-m", "quire", "serve", "--help").splitlines()
    (line,) = [line for line in lines if line.lstrip().startswith("--fill-byte")]
    assert " ".join(line.split()) == "--fill-byte N fill the KV pool with this byte at startup (default: no)"


@pytest.fixture(scope="module")
def filled(tree: Path) -> list[int]:
    """By way: the byte that the pool was filled with."""
    return [int(line) for line in run(tree, "-c", BOOT, json.dumps(WAYS)).split()]


@pytest.mark.parametrize(("way", "expected"), [(0, 0), (1, 3), (2, 5), (3, 7)])
def test_the_new_option_reaches_the_worker_wherever_it_is_set(filled: list[int], way: int, expected: int) -> None:
    """From quire.toml, the environment and the command line, through the engine's setup, into the pool itself."""
    assert filled[way] == expected
