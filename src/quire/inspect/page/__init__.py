"""The inspector's page: HTML, CSS and ES modules, served as they are. There is no build step, and no other server.

    index.html ── style.css
               └─ app.js ── document.js (documents and differences)   views.js, map.js, … (one drawing each)

A server, a recording and a simulation serve the same files; `app.js` asks `/v1/inspect` which of them it is.
"""

from __future__ import annotations

from importlib.resources import files

PAGE = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
}


def _read() -> dict[str, tuple[bytes, str]]:
    """By name: content and media type."""
    found = {}
    for one in files(__name__).iterdir():
        ending = one.name[one.name.rfind(".") :]
        if ending in TYPES:
            found[one.name] = (one.read_bytes(), TYPES[ending])
    return found


FILES = _read()
