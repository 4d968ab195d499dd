"""A connector in 60 lines: records in an SQLite file. `quire check-connector example_connector` says it conforms."""

import hashlib
import os
import sqlite3
import threading
from collections.abc import Sequence

from quire.core.connector import Layout


class SqliteRecords:
    name = "sqlite"

    def __init__(self, path: str) -> None:
        self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=5)
        self._lock = threading.Lock()

    def register(self, layout: Layout) -> None:
        """The fingerprint is part of every key: engines of other models may use the same file."""
        self._layout = layout.fingerprint
        self._ask("CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, digest BLOB, data BLOB)")

    def _ask(self, question: str, *values: object) -> list[tuple[bytes, ...]]:
        with self._lock:
            return self._file.execute(question, values).fetchall()

    def _key(self, name: bytes) -> str:
        return f"{self._layout}:{name.hex()}"

    def has(self, names: Sequence[bytes]) -> list[bool]:
        return [bool(self._ask("SELECT 1 FROM records WHERE key = ?", self._key(name))) for name in names]

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        data = b"".join(parts)
        digest = hashlib.sha256(data).digest()
        self._ask("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", self._key(name), digest, data)

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        """Only what is whole goes into the parts: nobody checks it afterwards."""
        for digest, data in self._ask("SELECT digest, data FROM records WHERE key = ?", self._key(name)):
            if len(data) == sum(map(len, parts)) and hashlib.sha256(data).digest() == digest:
                begin = 0
                for part in parts:
                    part[:] = data[begin : begin + len(part)]
                    begin += len(part)
                return True
        return False

    def drop(self, name: bytes) -> None:
        self._ask("DELETE FROM records WHERE key = ?", self._key(name))

    def forget(self, scope: bytes) -> None:
        """May be left out. Two digits of a key's name are its first byte, whatever that is; then comes the scope."""
        self._ask("DELETE FROM records WHERE key GLOB ?", f"{self._layout}:??{scope.hex()}*")

    def close(self) -> None:
        self._file.close()


def connector() -> SqliteRecords:
    return SqliteRecords(os.environ.get("RECORDS", "records.sqlite"))
