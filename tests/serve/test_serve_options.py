"""Options of a server: typed, from the environment and from a file; their defaults."""

from __future__ import annotations

import argparse
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import quire
from quire.cli import generate
from quire.cli.configuration import complete
from quire.cli.main import main
from quire.cli.serve import add_all
from quire.core.errors import InputError
from quire.core.sampling import Sampling
from quire.core.units import MIB
from quire.options.child import python
from quire.options.flags import from_flags
from quire.serve.keys import KeyRing
from quire.serve.questions import _temperature
from quire.serve.settings import ServeSettings


def test_a_server_draws_where_commands_take_the_likeliest_token_and_the_quick_start_says_so() -> None:
    parser = argparse.ArgumentParser()
    generate.add_arguments(parser)
    command, library = parser.parse_args(["--prompt", "a"]).temperature, Sampling().temperature
    assert (_temperature(None), command, library) == (1, 0, 0)
    told = (Path(__file__).parents[2] / "docs" / "quick-start.md").read_text()
    assert "take the most likely token (`--temperature 0`, `Sampling(temperature=0)`)" in told
    assert "The server samples at temperature 1 unless a request sets another" in told


def test_what_is_typed_counts_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "quire.toml"
    file.write_text('pool = "64MiB"\nmax-length = 1024\nmax_requests = 5\nlog-text = true\nstage-layers = [10, 20]\n')
    monkeypatch.setenv("QUIRE_MAX_LENGTH", "2k")
    monkeypatch.setenv("QUIRE_PORT", "9000")
    monkeypatch.setenv("QUIRE_CACHE", "elsewhere")
    options = complete(add_all, argparse.Namespace(config=file, port=1))
    assert (options.pool, options.max_length, options.max_requests, options.port) == (64 * MIB, 2048, 5, 1)
    assert options.log_text is True
    assert options.stage_layers == (10, 20)
    assert options.batch_tokens == 8192
    monkeypatch.chdir(tmp_path)
    assert complete(add_all, argparse.Namespace()).max_requests == 5


def test_a_shared_key_is_hashed_as_soon_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment as from the command line; it gives all rights, and a file of keys in addition is refused."""
    monkeypatch.setenv("QUIRE_API_KEY", "open-sesame")
    parsed = complete(add_all, argparse.Namespace())
    settings = from_flags(ServeSettings, vars(parsed))
    assert "open-sesame" not in f"{parsed}{settings}"
    ring = KeyRing(None, key_sha256=settings.api_key_sha256)
    assert not ring.is_open
    assert ring.find("open-sesame") == ring.tenants()[0]
    assert ring.tenants()[0].is_admin
    assert ring.find("open-sesam") is None
    with pytest.raises(InputError, match="--api-key and --keys are both given"):
        replace(settings, keys=Path("keys.json"))


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "line\n"])
def test_a_key_that_no_header_can_carry_is_refused_without_quoting_it(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", key)
    with pytest.raises(InputError) as refused:
        complete(add_all, argparse.Namespace())
    assert "--api-key: the key must have at least 1 character" in str(refused.value)
    assert not key or key not in str(refused.value)


@pytest.mark.story
def test_an_option_that_may_be_repeated_is_a_list_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "quire.toml"
    file.write_text('connector = ["stores:one", "stores:other"]\nsheets = [3, 4]\nlog-text = false\n')
    options = complete(add_all, argparse.Namespace(config=file))
    assert (options.connector, options.sheets, options.log_text) == (["stores:one", "stores:other"], (3, 4), False)
    monkeypatch.setenv("QUIRE_CONNECTOR", "stores:third")
    monkeypatch.setenv("QUIRE_LOG_TEXT", "yes")
    options = complete(add_all, argparse.Namespace(config=file))
    assert (options.connector, options.log_text) == (["stores:third"], True)


@pytest.mark.story
def test_a_file_that_was_only_found_names_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write to the folder must not be able to run code as the server's user. A file that was named may, and
    so may the command line and the environment."""
    (tmp_path / "quire.toml").write_text('connector = "stores:one"\nmax-length = 1024\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"quire.toml was found here, and names code to run \(connector\)"):
        complete(add_all, argparse.Namespace())
    assert complete(add_all, argparse.Namespace(config=Path("quire.toml"))).connector == ["stores:one"]
    monkeypatch.setenv("QUIRE_CONFIG", "quire.toml")
    assert complete(add_all, argparse.Namespace()).connector == ["stores:one"]
    (tmp_path / "quire.toml").write_text("max-length = 1024\n")
    monkeypatch.delenv("QUIRE_CONFIG")
    monkeypatch.setenv("QUIRE_CONNECTOR", "stores:two")
    assert complete(add_all, argparse.Namespace()).connector == ["stores:two"]


def test_the_file_that_was_read_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quire.toml").write_text("port = 99999\n")
    monkeypatch.chdir(tmp_path)
    assert main(["serve", str(tmp_path)]) == 2
    assert f"options are read from {tmp_path / 'quire.toml'}" in capsys.readouterr().out


@pytest.mark.story
def test_a_child_process_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    """Neither by -m nor by -c; and no module starts Python in another way."""
    (tmp_path / "planted.py").write_text("print('planted')")
    for how in (("-m", "planted"), ("-c", "import planted")):
        ended = subprocess.run(python(*how), cwd=tmp_path, capture_output=True, text=True, check=False)
        assert "No module named" in ended.stderr
        assert "planted" not in ended.stdout
    source = Path(quire.__file__).parent
    starting = {path.relative_to(source) for path in source.rglob("*.py") if "sys.executable" in path.read_text()}
    assert starting == {Path("options/child.py")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-length = 'long'", "quire.toml: --max-length"),
        ("max-lenght = 3", "max-lenght is no option of quire serve: did you mean max-length"),
        ("[memory]\npool = 3", r"\[memory\] is a table"),
        ("pool = ", "is not TOML"),
    ],
)
def test_mistakes_in_a_file_are_told_with_its_name(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "quire.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        complete(add_all, argparse.Namespace(config=file))
