"""The files in docs/deploy: each option, path and source that they name is there. What runs them is not tested here."""

from __future__ import annotations

import json
import re
import shlex
from argparse import Namespace
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire.cli.configuration import NOT_OURS, complete
from quire.cli.main import build_parser
from quire.cli.serve import add_all
from quire.serve import operations

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
DRAINS = 2
"""A server may drain and then write to its tiers, each for --drain-seconds."""


@pytest.fixture(scope="module")
def unit() -> RawConfigParser:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "quire.service")
    return parser


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    (found,) = manifest["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def options_of(arguments: list[str], environment: dict[str, str], patch: pytest.MonkeyPatch) -> Namespace:
    """As `quire serve` reads them; raises for a name or a value that it does not take."""
    for name, value in environment.items():
        patch.setenv(name, value)
    typed, unknown = build_parser().parse_known_args(["serve", *arguments])
    assert not unknown
    return complete(add_all, typed)


def test_the_image_is_made_of_files_that_are_there_and_starts_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DEPLOY / "Containerfile").read_text()
    for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split())
    assert json.loads(re.findall(r"^ENTRYPOINT (.+)$", text, re.MULTILINE)[0]) == ["quire", "serve"]
    environment = dict(word.split("=") for word in re.findall(r"^ENV (.+)$", text, re.MULTILINE)[0].split())
    assert set(environment) & set(NOT_OURS) == {"QUIRE_CACHE"}
    options = options_of([], environment, monkeypatch)
    assert (options.host, options.log_format) == ("0.0.0.0", "json")
    assert f"EXPOSE {options.port}\n" in text


def test_the_unit_starts_a_server_and_lets_it_drain(unit: RawConfigParser, monkeypatch: pytest.MonkeyPatch) -> None:
    service = unit["Service"]
    program, command, *arguments = shlex.split(service["ExecStart"])
    assert (Path(program).name, command) == ("quire", "serve")
    options = options_of(arguments, dict([service["Environment"].split("=")]), monkeypatch)
    assert float(service["TimeoutStopSec"]) > DRAINS * options.drain_seconds
    assert service["KillSignal"] == "SIGTERM"
    assert service["RestartPreventExitStatus"].split() == ["2", "3"]


def test_the_manifest_starts_a_server_with_a_key_and_lets_it_drain(
    manifest: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = container(manifest)
    environment = {one["name"]: "a-key" for one in found["env"]}
    options = options_of(found["args"], environment, monkeypatch)
    assert options.api_key
    grace = manifest["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > DRAINS * options.drain_seconds
    (port,) = found["ports"]
    assert (port["containerPort"], port["name"]) == (options.port, "http")
    assert manifest["Service"]["spec"]["ports"][0]["targetPort"] == "http"
    labels = manifest["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert labels == manifest["Service"]["spec"]["selector"]


def test_each_probe_asks_for_the_path_that_answers_its_question(manifest: dict[str, Any]) -> None:
    """A probe that restarts the server must not fail while weights are loaded."""
    probes = {name: one["httpGet"]["path"] for name, one in container(manifest).items() if name.endswith("Probe")}
    assert probes == {
        "startupProbe": "/health/progress",
        "readinessProbe": "/health/ready",
        "livenessProbe": "/health/live",
    }
    routes = {route.path for route in operations.router.routes}  # type: ignore[attr-defined]
    assert set(probes.values()) <= routes


def test_the_picker_of_llm_d_names_plugins_that_it_has_and_the_options_that_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = (DEPLOY / "llm-d.yaml").read_text()
    config = yaml.safe_load(text)
    given = {one["type"] for one in config["plugins"]}
    assert {one["pluginRef"] for one in config["schedulingProfiles"][0]["plugins"]} <= given
    (command,) = re.findall(r"quire serve MODEL (.+)$", text, re.MULTILINE)
    options = options_of(shlex.split(command), {}, monkeypatch)
    events = next(one for one in config["plugins"] if one["type"] == "precise-prefix-cache-scorer")["parameters"]
    assert options.kv_events_topic.startswith(events["kvEventsConfig"]["topicFilter"])
    assert not options.kv_events.is_bound
    assert options.kv_events.publish.endswith(":5557")
