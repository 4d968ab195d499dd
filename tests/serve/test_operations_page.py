"""docs/operations.md has everything that an operator can see or set; the board asks for nothing that is not there."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from quire.cli.main import build_parser
from quire.core.errors import QuireError
from quire.deploy import gateway
from quire.models.read import read_model
from quire.options.run import RunOptions
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.serve import generation, inspector, inspector_pages, leases, operations, pages, tokens
from quire.serve.anthropic import routes as messages
from quire.serve.anthropic.schemas import MessageBody
from quire.serve.away import EngineAway
from quire.serve.board.grafana import board
from quire.serve.board.panels import PANELS
from quire.serve.client import EngineClient
from quire.serve.lease_register import LeaseRegister
from quire.serve.leases import LeaseBody
from quire.serve.logs import EVENTS
from quire.serve.messages import EngineSetup
from quire.serve.metrics import Metrics
from quire.serve.progress import Progress
from quire.serve.responses import routes as responses
from quire.serve.responses.schemas import ResponseBody
from quire.serve.schemas import ChatBody, CompletionBody, TokenizeBody
from quire.serve.tokens import DetokenizeBody

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operations.md").read_text()
ABOUT_THE_REPORT = {
    "--compare-devices",
    "--explain",
    "--html",
    "--json",
    "--lengths",
    "--output",
    "--plot",
    "--target-length",
    "--target-requests",
    "--workload",
}
"""Options of `quire plan` that say what is shown and asked, and change no plan."""


def metrics_text() -> str:
    client = EngineClient(EngineSetup(Path(), {}, RunOptions()), Progress(1), lambda *_a, **_k: None)
    plan = make_plan(read_model("gemma-3-27b"), Settings(), Budget(pool_bytes=1 << 33))
    metrics = Metrics(plan, client, lambda: False)
    metrics.registry.register(LeaseRegister(client))
    return metrics.text().decode()


def metric_names() -> set[str]:
    """As they are printed: a counter's with its ending."""
    return {name for name, _ in re.findall(r"^# TYPE (quire_\w+) (\w+)$", metrics_text(), re.MULTILINE)}


def test_every_option_is_on_the_page() -> None:
    commands = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    keys = next(a for a in commands.choices["keys"]._actions if isinstance(a, argparse._SubParsersAction))
    served = [commands.choices[name] for name in ("serve", "deploy", "top")]
    for command in (*served, *keys.choices.values()):
        options = {name for action in command._actions for name in action.option_strings}
        assert not {name for name in options - {"-h", "--help"} if f"`{name}" not in PAGE}


def test_the_server_takes_every_option_of_the_planner_that_shapes_memory() -> None:
    commands = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    plan, serve = (
        {name for action in commands.choices[command]._actions for name in action.option_strings}
        for command in ("plan", "serve")
    )
    assert plan - serve == ABOUT_THE_REPORT


def test_every_metric_is_on_the_page_and_every_one_on_the_page_is_real() -> None:
    names = metric_names()
    assert len(names) > 30
    assert set(re.findall(r"`(quire_\w+)`", PAGE)) == names


def test_every_alias_of_a_metric_is_on_the_page() -> None:
    text = metrics_text()
    names = set(re.findall(r"^(vllm:\w+)", text, re.MULTILINE))
    assert len(names) == 11
    assert not {name for name in names if f"`{name.replace('gpu_prefix_cache', 'prefix_cache')}`" not in PAGE}


def test_every_log_event_is_on_the_page() -> None:
    section = PAGE.split("### Logs")[1].split("## Debug")[0]
    assert not {event for event in EVENTS if f"`{event}`" not in section}


def test_every_path_and_field_is_on_the_page() -> None:
    for route in (
        r
        for part in (generation, inspector, inspector_pages, leases, messages, operations, pages, responses, tokens)
        for r in part.router.routes
    ):
        for method in route.methods:  # type: ignore[attr-defined]
            assert f"`{method} {route.path_format}`" in PAGE  # type: ignore[attr-defined]
    bodies = (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody, ResponseBody, MessageBody)
    fields = {field for body in bodies for field in body.model_fields}
    assert not {field for field in fields if f"`{field}`" not in PAGE}
    leasing = (DOCS / "leases.md").read_text()
    assert not {field for field in LeaseBody.model_fields if f"`{field}`" not in leasing + PAGE}


def test_every_error_code_is_on_the_page() -> None:
    folders = Path(operations.__file__).parent, Path(gateway.__file__).parent
    source = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    codes = set(re.findall(r'ApiError\(\s*\d+,.*?, "([a-z_]+)"\s*[,)]', source, re.DOTALL))
    assert {"queue_full", "draining", "timeout", "context_length_exceeded"} <= codes
    codes |= {error.code for error in EngineAway.__subclasses__()}
    assert not {code for code in codes if f"`{code}`" not in PAGE}


def test_the_board_asks_for_metrics_that_there_are() -> None:
    asked = [query for panel in PANELS for _, query in panel.queries]
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for text in asked for name in re.findall(r"quire_\w+", text)}
    assert len(names) > 30
    assert names <= metric_names()


def test_the_board_is_what_the_panels_make() -> None:
    """`make board` writes it anew. What is changed in the file alone would be lost then."""
    assert (DOCS / "grafana" / "quire.json").read_text() == board()


def test_every_exit_code_of_an_error_is_on_the_page() -> None:
    def codes(error: type[QuireError]) -> set[int]:
        return {error.exit_code}.union(*(codes(each) for each in error.__subclasses__()))

    table = PAGE.split("| exit code | means |")[1].split("\n\n")[0]
    assert codes(QuireError) | {0, 130} == set(map(int, re.findall(r"^\| (\d+) \|", table, re.MULTILINE)))
