"""What the docs say, the code says."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import capacity
from event_kit import event_classes
from quire.cli.main import build_parser, main
from quire.core.events import counted_fields
from quire.core.reasons import Why
from quire.kinds import KINDS
from quire.models.catalogue import catalogue_names
from quire.models.families import FAMILIES, TEXT_PARTS
from quire.models.read import read_model
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def options_of(command: str) -> set[str]:
    commands = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {name for action in commands.choices[command]._actions for name in action.option_strings if name != "-h"}


def test_every_option_of_plan_is_documented() -> None:
    text = (DOCS / "plan.md").read_text()
    missing = {option for option in options_of("plan") - {"--help"} if f"`{option}" not in text}
    assert not missing


def test_every_field_of_the_json_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "gemma-3-27b", "--pool", "8GiB", "--json"])
    data = json.loads(capsys.readouterr().out)
    text = (DOCS / "plan.md").read_text()
    fields = set(data) | set(data["kinds"][0])
    assert not {field for field in fields if f"`{field}`" not in text and f"`{field}[]`" not in text}


@pytest.mark.golden
def test_the_picture_in_the_readme_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "gemma-3-27b", "--device", "h200"])
    assert "$ quire plan gemma-3-27b --device h200\n" + capsys.readouterr().out in (ROOT / "README.md").read_text()


@pytest.mark.golden
def test_the_simulation_in_the_docs_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    example = (DOCS / "simulate.md").read_text().partition("## An example")[2].split("```")[1]
    command, _, printed = example.strip().partition("\n")
    assert main(shlex.split(command.removeprefix("$ quire"))) == 0
    assert capsys.readouterr().out.strip() == printed


def test_the_capacity_tables_are_what_the_benchmark_prints() -> None:
    """make bench-capacity ARGUMENTS=--write brings the page up to date."""
    text = (DOCS / "capacity.md").read_text()
    assert capacity.with_tables(text) == text


def test_every_kind_has_a_row_on_its_page() -> None:
    rows = re.findall(r"^\| `([a-z]+)`", (DOCS / "kinds.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(KINDS)


def test_the_readme_quotes_the_capacity_tables() -> None:
    """Each row of the README's comparison is a row of the benchmark's."""
    names = {
        "Gemma-3-27B": "gemma-3-27b",
        "Mistral-7B-v0.1 (sliding window)": "mistral-7b-v0.1",
        "gpt-oss-120b": "gpt-oss-120b",
        "Bamba-9B (bf16 states)": "bamba-9b",
        "Llama-3.1-8B": "meta-llama-3.1-8b",
        "DeepSeek-V3": "deepseek-v3",
    }
    tables = (DOCS / "capacity.md").read_text()
    rows = re.findall(
        r"^\| (.+?) \| (\d+k) \| (\d+) \| (\d+) \| (\d+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    assert len(rows) == len(names)
    for name, length, quire, during, peer in rows:
        row = rf"^\| {re.escape(names[name])} \| [^|]+ \| {length} \| {quire} \| {during} \| {peer} \|"
        assert re.search(row, tables, re.MULTILINE), name


def test_every_event_and_option_of_the_other_commands_is_documented() -> None:
    events = (DOCS / "events.md").read_text()
    rows = {name: re.search(rf"^\| `{name}` \|.*$", events, re.MULTILINE) for name in event_classes()}
    assert not {name for name, row in rows.items() if row is None}
    fields = [(row[0], field) for name, row in rows.items() if row for field in counted_fields(event_classes()[name])]
    assert not {field for row, field in fields if f"`{field}`" not in (events if field.startswith("missed_") else row)}
    assert not {why.value for why in Why if f"`{why.value}`" not in events}
    assert not {option for option in options_of("replay") - {"--help"} if option not in events}


def test_every_family_is_listed() -> None:
    text = (DOCS / "models.md").read_text()
    listed = set(re.findall(r"`([a-z0-9_]+)`", text.split("begin: families")[1].split("end: families")[0]))
    assert listed == set(FAMILIES) | set(TEXT_PARTS)


def test_the_shape_file_in_the_docs_plans(tmp_path: Path) -> None:
    example = (DOCS / "models.md").read_text().split("```json\n")[1].split("```")[0]
    path = tmp_path / "shape.json"
    path.write_text(example)
    plan = make_plan(read_model(str(path)), Settings(), Budget(pool_bytes=1 << 33))
    assert {kind.kind.kind for kind in plan.stages[0].kinds} == set(KINDS)


def test_every_command_that_is_printed_is_understood() -> None:
    """Its name and its options, as they stand in a block of code."""
    printed = [(page.name, command) for page in PAGES for command in _commands(page.read_text())]
    assert len(printed) > 30
    for page, command in printed:
        try:
            _, unknown = build_parser().parse_known_args(shlex.split(command)[1:])
        except SystemExit:
            pytest.fail(f"{page}: {command}")
        assert not unknown, f"{page}: {command}"


def _commands(text: str) -> Iterator[str]:
    for block in re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            parts = re.split(r"&&|\|", re.split(r"\s#\s", line.strip().removeprefix("$ "))[0])
            yield from (part.strip() for part in parts if part.strip().startswith("quire "))


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_a_decision_record_is_short() -> None:
    records = sorted((DOCS / "decisions").glob("*.md"))
    assert records
    for record in records:
        assert len(record.read_text().splitlines()) <= 40, record.name


@pytest.mark.parametrize("name", catalogue_names())
def test_every_catalogue_model_plans(name: str) -> None:
    plan = make_plan(read_model(name), Settings(), Budget(pool_bytes=1 << 38))
    assert plan.fits
    assert plan.max_length > 0


def test_the_table_of_the_house_lists_every_part_of_the_package() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| ((?:`[a-z_.]+`(?:, )?)+) \|.*\|.*\|$", table, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([a-z_.]+)`", row)}
    package = ROOT / "src" / "quire"
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    files = {path.name for path in package.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert listed == folders | files


def test_the_reading_guide_names_files_that_are_there_and_every_file_of_the_heart() -> None:
    """Named from the package's folder, or in the folder of the file named before."""
    guide = re.sub(r"^```.*?^```", "", (DOCS / "reading-guide.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    package, named = ROOT / "src" / "quire", [ROOT]
    for name in re.findall(r"`([a-z_/]+\.py)`", guide):
        found = [place for place in (package / name, named[-1].parent / name) if place.is_file()]
        assert found, name
        named.append(found[0])
    heart = ("core", "kinds", "plan", "cache", "scheduler", "engine")
    files = {path for part in heart for path in (package / part).glob("*.py") if path.name != "__init__.py"}
    missing = sorted(str(path.relative_to(package)) for path in files - set(named))
    assert not missing


def test_the_guide_to_the_worker_lists_its_folders_and_files() -> None:
    """Each folder has a row in the guide's first table, and a docstring of one line; each file is named, once."""
    guide, worker = (DOCS / "worker.md").read_text(), ROOT / "src" / "quire" / "worker"
    folders = {path.parent.name for path in worker.glob("*/__init__.py")}
    assert set(re.findall(r"^\| `([a-z]+)/` \|.*\|.*→.*\|$", guide, re.MULTILINE)) == folders
    assert not [path for path in worker.glob("*/__init__.py") if len(path.read_text().splitlines()) != 1]
    assert not [path.name for path in worker.glob("*.py") if path.name != "__init__.py"], "every module has a folder"
    named: list[str] = []
    for row in re.findall(r"^\| (`[a-z]+/[a-z_]+\.py`(?:, `[a-z_]+\.py`)*) \|", guide, re.MULTILINE):
        first, *others = re.findall(r"`([a-z_/.]+)`", row)
        named += [first, *(f"{first.partition('/')[0]}/{other}" for other in others)]
    files = [path.relative_to(worker).as_posix() for path in worker.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(named) == sorted(file for file in files if not file.startswith(("kernels/", "weights/")))


@pytest.mark.parametrize("title", ["A chat request", "Why a request waits"])
def test_every_hop_of_the_walks_in_the_reading_guide_is_there(title: str) -> None:
    """Each row names files and what to read in each: a class, a function, or a method after its class."""
    walk = (DOCS / "reading-guide.md").read_text().split(f"## {title}, hop by hop")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", walk, re.MULTILINE)
    assert rows
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    for number, cell in rows:
        source = ""
        for name in re.findall(r"`([^`]+)`", cell):
            if name.endswith(".py"):
                source = (ROOT / "src" / "quire" / name).read_text()
                continue
            for part in name.split("."):
                assert re.search(rf"^ *(async def|def|class) {part}\b", source, re.MULTILINE), f"{number}: {name}"


def test_the_clients_of_the_docs_have_the_versions_that_make_clients_installs() -> None:
    """Each pinned client is in the table of clients with its version."""
    table, clients = (DOCS / "operations.md").read_text().split("### Clients\n")[1], ROOT / "tests" / "clients"
    pinned = (clients / "requirements.txt").read_text().split("\n# What they need in addition")[0]
    versions = re.findall(r"^([a-z-]+)(?:\[[a-z]+\])?==(\S+)$", pinned, re.MULTILINE)
    packages = json.loads((clients / "package.json").read_text())["dependencies"]
    versions += [pair for pair in packages.items() if pair[0] != "zod"]  # the AI SDK's own need
    assert len(versions) > 15
    for name, version in versions:
        assert re.search(rf"`{name}`[^|]*(\| )?{re.escape(version)}\b", table.split("\n## ")[0]), name
