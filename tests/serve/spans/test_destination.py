"""Where spans are sent: the option, OpenTelemetry's variables, and what is refused."""

from __future__ import annotations

import sys

import pytest

from quire.core.errors import InputError, MissingPackage
from quire.serve.spans.destination import destination, without_password

BASE, TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.mark.parametrize(
    ("given", "environment", "found"),
    [
        (None, {}, None),
        ("http://collector:4318", {}, "http://collector:4318/v1/traces"),
        ("http://collector:4318/", {}, "http://collector:4318/v1/traces"),
        ("https://collector/otlp", {}, "https://collector/otlp/v1/traces"),
        ("http://collector:4318/v1/traces", {}, "http://collector:4318/v1/traces"),
        (None, {BASE: "http://collector:4318"}, "http://collector:4318/v1/traces"),
        (None, {BASE: "http://all", TRACES: "http://traces/in"}, "http://traces/in"),
        ("http://typed", {BASE: "http://all", "OTEL_TRACES_EXPORTER": "none"}, "http://typed/v1/traces"),
        (None, {BASE: "http://all", "OTEL_TRACES_EXPORTER": "none"}, None),
        ("http://typed", {"OTEL_SDK_DISABLED": "true"}, None),
        (None, {BASE: ""}, None),
    ],
)
def test_an_option_overrides_the_environment(given: str | None, environment: dict[str, str], found: str | None) -> None:
    assert destination(given, environment) == found


@pytest.mark.parametrize(
    ("given", "environment", "why"),
    [
        ("collector:4318", {}, r"--otel 'collector:4318' is no address: give one such as http://localhost:4318"),
        ("http://", {}, "--otel 'http://' is no address"),
        (None, {BASE: "grpc://x:4317"}, f"{BASE} 'grpc://x:4317' is no address"),
        (None, {BASE: "http://x:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "set http/protobuf"),
        (None, {BASE: "http://x:4318", "OTEL_TRACES_EXPORTER": "console"}, "Quire has otlp alone"),
    ],
)
def test_what_cannot_be_sent_to_is_refused(given: str | None, environment: dict[str, str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        destination(given, environment)


@pytest.mark.story
@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://me:sesame@collector:4318/v1/traces", "http://collector:4318/v1/traces"),
        ("http://me:ses@me@collector", "http://collector"),
        ("me:sesame@collector", "collector"),
        ("http://collector/a@b", "http://collector/a@b"),
    ],
)
def test_a_password_in_the_address_is_in_no_log_and_no_error(address: str, shown: str) -> None:
    assert without_password(address) == shown
    with pytest.raises(InputError) as refused:
        destination(address.replace("http", "grpc"), {})
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize(("given", "environment"), [("http://x", {}), (None, {BASE: "http://x"})])
def test_a_missing_extra_is_named(
    given: str | None, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way spans are asked for: none of them is left out in silence."""
    for name in [one for one in sys.modules if one.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingPackage, match=rf"{(given and '--otel') or BASE} needs opentelemetry: .*\[otel\]"):
        destination(given, environment)
