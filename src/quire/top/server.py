"""Where a server is, and its document: asked for over one connection, which is made anew when it was lost."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from quire.core.errors import InputError, QuireError
from quire.core.version import __version__
from quire.inspect.document import SCHEMA, Json

PATH = "/v1/inspect"
TIMEOUT_SECONDS = 5.0
"""A server whose engine is frozen answers within a second."""
OWN_PATHS = ("/v1/inspect", "/inspect", "/v1", "")
"""Ends of addresses that people copy from elsewhere."""


class NoAnswer(QuireError):
    """The server cannot be reached now, or refuses for a moment."""


class Refused(InputError):
    """What answers is no server that this command can show, or wants another key."""


class Server:
    def __init__(self, url: str, key: str = "") -> None:
        """`key` empty: none is sent."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"{url!r} is no address: give one such as http://127.0.0.1:8000")
        try:
            port = parts.port
        except ValueError:
            raise InputError(f"{url!r} has no port from 0 to 65,535: give one such as http://127.0.0.1:8000") from None
        path = parts.path.rstrip("/")
        self._path = next(path.removesuffix(end) for end in OWN_PATHS if path.endswith(end)) + PATH
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, port, timeout=TIMEOUT_SECONDS)
        self._headers = {"accept": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})

    def document(self) -> Json:
        """Raises NoAnswer if it may work later, and Refused if it will not."""
        status, body = self._get()
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if status != 200 or not isinstance(found, dict):
            raise self._failure(status, found)
        if found.get("schema") != SCHEMA:
            theirs = f"{found.get('schema')} of Quire {found.get('version')}"
            raise Refused(f"{self.address} shows {theirs}, and this is Quire {__version__} with {SCHEMA}: use the same")
        return found

    def close(self) -> None:
        self._connection.close()

    def _get(self) -> tuple[int, bytes]:
        try:
            self._connection.request("GET", self._path, headers=self._headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except TimeoutError:
            self._connection.close()
            raise NoAnswer(f"{self.address} has not answered within {TIMEOUT_SECONDS:g} s: is it overloaded?") from None
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise NoAnswer(f"cannot reach {self.address}: {why}; is quire serve running there?") from None

    def _failure(self, status: int, body: Any) -> QuireError:
        error = body.get("error") if isinstance(body, dict) else None
        code, message = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, None)
        if status == 401 and "authorization" in self._headers:
            return Refused(f"{self.address} does not know this key: set another one as QUIRE_API_KEY")
        if status == 401:
            return Refused(f"{self.address} needs a key: set it as QUIRE_API_KEY, or give --api-key")
        if code is None or status == 404:
            return Refused(f"{self.address} has no {PATH} (status {status}): it is no Quire server, or an older one")
        return NoAnswer(f"{self.address} answers {status}: {message}")
