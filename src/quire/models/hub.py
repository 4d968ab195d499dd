"""One file from a model hub: `config.json` of `org/name`."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request

from quire.core.errors import QuireError

TIMEOUT_SECONDS = 5.0
LARGEST_ANSWER = 16 << 20


class HubError(QuireError):
    """Why the hub gave nothing, as part of a sentence."""


def fetch_config(model: str) -> dict[str, object]:
    """`HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean what they mean elsewhere."""
    if os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in ("1", "true", "yes", "on"):
        raise HubError("not in the catalogue, and HF_HUB_OFFLINE keeps us from asking the hub")
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    if not endpoint.startswith(("http://", "https://")):
        raise HubError(f"HF_ENDPOINT is {endpoint!r}, it must start with http:// or https://")
    return _parse(_get(f"{endpoint}/{urllib.parse.quote(model)}/resolve/main/config.json"), endpoint)


def _get(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "quire"})
    token = os.environ.get("HF_TOKEN")
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    host = urllib.parse.urlsplit(url).netloc
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            return bytes(answer.read(LARGEST_ANSWER))
    except urllib.error.HTTPError as error:
        hint = ", set HF_TOKEN if the model is gated" if error.code in (401, 403) else ""
        raise HubError(f"{host} answers {error.code}{hint}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise HubError(f"not in the catalogue, and {host} cannot be reached: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(reason).splitlines()[0] if str(reason) else type(error).__name__


def _parse(body: bytes, endpoint: str) -> dict[str, object]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise HubError(f"{endpoint} answered with something that is not JSON") from None
    if not isinstance(value, dict):
        raise HubError(f"{endpoint} answered with JSON that is not a configuration")
    return value
