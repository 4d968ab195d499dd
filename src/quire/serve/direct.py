"""Calls of the routes that generate, past FastAPI's layers: these have nothing to do for them, and cost time for each.

    path ──▶ a route with a body and a fixed path ──▶ its handler (`body_route.py`)
         └─▶ any other ──▶ FastAPI, which looks for it among all routes

FastAPI has the same routes, for its document and for other methods of these paths, and answers their errors alike.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from quire.serve.app import ROUTERS, answer_bug, answer_refusal
from quire.serve.body_route import BodyRoute
from quire.serve.errors import ApiError


class DirectRoutes:
    def __init__(self, app: FastAPI) -> None:
        self._app = app
        found = [route for router in ROUTERS for route in router.routes if isinstance(route, BodyRoute)]
        self._routes = {route.path: (route, route.get_route_handler()) for route in found if _is_direct(route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") != "POST" or scope["path"] not in self._routes:
            await self._app(scope, receive, send)
            return
        scope["route"], handler = self._routes[scope["path"]]
        scope["app"] = self._app
        request = Request(scope, receive, send)
        try:
            response = await handler(request)
        except ApiError as error:
            response = await answer_refusal(request, error)
        except Exception as error:
            response = await answer_bug(request, error)
            await response(scope, receive, send)
            raise  # for the log
        await response(scope, receive, send)


def _is_direct(route: BodyRoute) -> bool:
    return route.methods == {"POST"} and route.body_field is not None and not route.param_convertors
