"""Pages for people with a browser: what the server is (`/`), and every path with its fields and an example (`/docs`).

Both are made here and ask for nothing else: no script, no image, no other server.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire import __version__
from quire.serve.errors import json_response
from quire.serve.service import Service

router = APIRouter(include_in_schema=False)
LINKS = {
    "inspect": "/inspect",
    "docs": "/docs",
    "openapi": "/openapi.json",
    "health": "/health",
    "metrics": "/metrics",
}
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "h2{font-size:1rem;margin:2rem 0 0;border-top:1px solid #ccc;padding-top:1rem}"
    "code,pre{font-family:ui-monospace,monospace;font-size:.9rem}pre{background:#f4f4f4;padding:.6rem;overflow:auto}"
    "table{border-collapse:collapse}td{padding:.1rem 1rem .1rem 0;vertical-align:top}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
}
MOST_LEVELS = 4
"""Of an example: a schema may name itself."""
Schema = Mapping[str, Any]


@router.get("/")
async def index(request: Request) -> Response:
    """JSON for programs, a page for browsers."""
    service: Service = request.app.state.service
    if "text/html" not in request.headers.get("accept", ""):
        return json_response({"name": "quire", "version": __version__, "model": service.model, **LINKS})
    links = "".join(f'<li><a href="{path}">{name}</a></li>' for name, path in LINKS.items())
    return _page(f"Quire {__version__}", f"<p>It serves <code>{escape(service.model)}</code>.</p><ul>{links}</ul>")


@router.get("/docs")
async def docs(request: Request) -> Response:
    document: dict[str, Any] = request.app.openapi()
    sections = "".join(
        _section(f"{method.upper()} {path}", operation, document)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    )
    return _page("Paths of this server", f'<p>From <a href="/openapi.json">/openapi.json</a>.</p>{sections}')


def _page(title: str, body: str) -> Response:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    text = f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{escape(title)}</h1>{body}</body></html>'
    return Response(text, headers=HEADERS, media_type="text/html; charset=utf-8")


def _section(title: str, operation: Schema, document: Schema) -> str:
    """One path and method: what it does, its fields, the smallest body that it takes."""
    parts = [f"<h2><code>{escape(title)}</code></h2>", f"<p>{escape(operation.get('description', ''))}</p>"]
    given = [(one["name"], one["schema"], one.get("required", False)) for one in operation.get("parameters", ())]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None:
        known = _resolved(body, document)
        given += [(name, one, name in known.get("required", ())) for name, one in known["properties"].items()]
    rows = "".join(_row(name, schema, is_required) for name, schema, is_required in given)
    parts.append(f"<table>{rows}</table>" if rows else "")
    if body is not None:
        parts.append(f"<pre>{escape(json.dumps(_example(body, document), indent=1))}</pre>")
    return "".join(parts)


def _row(name: str, schema: Schema, is_required: bool) -> str:
    kind = " or ".join(dict.fromkeys(_kinds(schema)))
    cells = (f"<code>{escape(name)}</code>", escape(kind), "required" if is_required else "")
    more = escape(schema.get("description", ""))
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in (*cells, more)) + "</tr>"


def _kinds(schema: Schema) -> Iterator[str]:
    """The types that a field may have, null aside."""
    for one in schema.get("anyOf") or schema.get("oneOf") or (schema,):
        name = one.get("$ref", "").rpartition("/")[2] or one.get("type") or "any"
        if name != "null":
            yield str(name)


def _resolved(schema: Schema, document: Schema) -> Schema:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: Schema = document["components"]["schemas"][name] if name else schema
    return found


def _example(schema: Schema, document: Schema, level: int = 0) -> Any:
    """The smallest value: required fields alone, of several types the first."""
    schema = _resolved(schema, document)
    for fixed in ("const", "default"):
        if schema.get(fixed) is not None:
            return schema[fixed]
    if schema.get("enum"):
        return schema["enum"][0]
    if several := schema.get("oneOf") or ("properties" not in schema and schema.get("anyOf")):
        return _example(several[0], document, level)
    if level < MOST_LEVELS and schema.get("type") == "array":
        return [_example(schema["items"], document, level + 1)]
    if level < MOST_LEVELS and "properties" in schema:
        first: Schema = next(iter(schema.get("anyOf", ())), {})  # an object may need one of several sets of fields
        needed = [*schema.get("required", ()), *first.get("required", ())]
        return {name: _example(schema["properties"][name], document, level + 1) for name in needed}
    return {"string": "text", "integer": schema.get("minimum", 1), "number": 1.0, "boolean": True}.get(
        schema.get("type", ""), {}
    )
