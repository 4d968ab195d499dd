"""The inspector's page: plain files of this package. They hold no data, so no key is needed to read them."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.inspect.page import FILES, HEADERS, PAGE
from quire.serve.errors import ApiError

router = APIRouter(include_in_schema=False)
OPEN_PATHS = ("/inspect", *(f"/inspect/{name}" for name in FILES))


@router.get("/inspect")
async def page(request: Request) -> Response:
    del request
    return _response(PAGE)


@router.get("/inspect/{name}")
async def part(name: str) -> Response:
    if name not in FILES:
        raise ApiError(404, f"the inspector has no file {name[:64]!r}: open /inspect", "not_found")
    return _response(name)


def _response(name: str) -> Response:
    content, media_type = FILES[name]
    return Response(content, headers=HEADERS, media_type=media_type)
