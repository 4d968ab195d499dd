"""Web pages: which of them may use the server, and how browsers are answered (CORS).

A server without keys trusts everyone who reaches it, and a browser on the same machine reaches it for every page that
it shows. So such a server refuses calls of pages of other origins, and calls under a foreign name: a page's name may
resolve to this machine, and the browser then takes the server for a part of that page.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import Scope

from quire.serve.bodies import header
from quire.serve.errors import ApiError
from quire.serve.settings import ANY

METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
READABLE = b"x-request-id, retry-after"
"""Headers of answers that a page may read."""
REMEMBER_SECONDS = 600
_HEADER_NAMES = re.compile(r"^[A-Za-z0-9, _-]{1,2000}$")
Headers = list[tuple[bytes, bytes]]


class Origins:
    def __init__(self, host: str, allowed: tuple[str, ...], has_keys: bool) -> None:
        """`host`: the address that the server was given to listen on."""
        self._allowed, self._has_keys = allowed, has_keys
        self._names = {"localhost", host.lower(), *(urlsplit(one).hostname for one in allowed)}

    def check(self, scope: Scope) -> None:
        """Raises if a server without keys is called under a foreign name, or by a page of a foreign origin."""
        if self._has_keys or ANY in self._allowed:
            return
        host, origin = header(scope, b"host"), header(scope, b"origin")
        if host and not self._is_ours(host):
            message = (
                f"a server without keys is called by its address, not as {host[:80]!r}: start it with --keys, or with "
                "--allow-origin for this name"
            )
            raise ApiError(403, message, "host_refused")
        if origin and not self._may_use(origin) and origin.partition("://")[2] != host:
            raise _refused(origin)

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
            return name in self._names or bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    def _may_use(self, origin: str) -> bool:
        return ANY in self._allowed or origin in self._allowed

    def headers(self, scope: Scope) -> Headers:
        """Of every answer: they let a page of an allowed origin read it."""
        origin = header(scope, b"origin")
        vary = [(b"vary", b"Origin")] if self._allowed and ANY not in self._allowed else []
        if not origin or not self._may_use(origin):
            return vary
        named = ANY if ANY in self._allowed else origin
        allow = (b"access-control-allow-origin", named.encode("latin-1"))
        return [*vary, allow, (b"access-control-expose-headers", READABLE)]

    def preflight(self, scope: Scope) -> Response | None:
        """The answer to a browser that asks whether a page may make a call; None: this is not such a question. It comes
        without a key. `headers` are added to it."""
        origin = header(scope, b"origin")
        if scope["method"] != "OPTIONS" or not origin or not header(scope, b"access-control-request-method"):
            return None
        if not self._may_use(origin):
            raise _refused(origin)
        found = {"access-control-allow-methods": METHODS, "access-control-max-age": str(REMEMBER_SECONDS)}
        asked = header(scope, b"access-control-request-headers")
        if _HEADER_NAMES.match(asked):
            found["access-control-allow-headers"] = asked
        if header(scope, b"access-control-request-private-network") == "true":
            found["access-control-allow-private-network"] = "true"
        return Response(status_code=204, headers=found)


def _refused(origin: str) -> ApiError:
    message = f"pages of {origin[:80]!r} may not use this server: start it with --allow-origin for this origin"
    return ApiError(403, message, "origin_refused")
