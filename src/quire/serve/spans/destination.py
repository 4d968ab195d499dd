"""Where spans are sent: `--otel`, or the environment variables that OpenTelemetry defines for all programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from quire.core.errors import InputError
from quire.options.extras import naming_extras

if TYPE_CHECKING:
    from prometheus_client import Counter

    from quire.serve.spans.spans import Spans

TRACES, BASE = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
PATH = "/v1/traces"
HTTP = "http/protobuf"


def destination(given: str | None, environment: Mapping[str, str]) -> str | None:
    """The address of the collector, with its path; None: no spans. Raises if it is none, or if OpenTelemetry is not
    installed. An option overrides the environment, except for the variable that switches OpenTelemetry off."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    source, address = ("--otel", given) if given else _from(environment)
    if not address:
        return None
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            f"{source} {without_password(address)!r} is no address: give one such as http://localhost:4318"
        )
    with naming_extras(source):
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401  (as above: whether it is installed)
    is_whole = source == TRACES or parts.path.rstrip("/").endswith(PATH)
    return address if is_whole else address.rstrip("/") + PATH


def without_password(address: str) -> str:
    """As a log or an error may have it."""
    scheme, separator, rest = address.rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def _from(environment: Mapping[str, str]) -> tuple[str, str]:
    """The variable, and the address in it; empty if there is none, or if traces are switched off."""
    source = TRACES if environment.get(TRACES) else BASE
    address = environment.get(source, "")
    exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower()
    if not address or exporter == "none":
        return source, ""
    if exporter != "otlp":
        raise InputError(f"OTEL_TRACES_EXPORTER is {exporter!r}: Quire has otlp alone; set that, or none for no spans")
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = environment.get(name, HTTP)
        if protocol != HTTP:
            raise InputError(f"{name} is {protocol!r}: set {HTTP}, and the collector's port for it, usually 4318")
    return source, address


def open_spans(endpoint: str | None, counter: Counter) -> Spans | None:
    """`endpoint`: from `destination`. `counter`: of spans by result."""
    if endpoint is None:
        return None
    from quire.serve.spans.spans import Spans  # imports OpenTelemetry, which a server without spans does not need

    return Spans(endpoint, counter)
