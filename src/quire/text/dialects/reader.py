"""Reads tool calls out of streamed text, in any dialect of the table. The result does not depend on the pieces.

    text ── a mark ──▶ name, opening of the arguments ──▶ the call begins ──▶ its arguments, as they arrive ──▶ text
                    └─ no call, or of no known tool: it stays text

A call that has begun cannot become text any more. If its JSON breaks, its arguments end there, what follows is text,
and the ending of the answer stays stop or length. Arguments that are not JSON are passed on when they are complete.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from quire.text.dialects.bare import bare_object
from quire.text.dialects.calls import Read, Tool, ToolCall, join_calls, names_of, parameters_of
from quire.text.dialects.cursor import Cursor, Waiting
from quire.text.dialects.dialect import Dialect
from quire.text.dialects.json_text import JsonText
from quire.text.dialects.notations import header_name, text_arguments
from quire.text.dialects.pythonic import python_calls
from quire.text.dialects.table import PLAIN


class ToolCalls:
    """Text before a call passes at once."""

    def __init__(self, tools: Sequence[Tool], most: int | None = None, dialect: Dialect = PLAIN) -> None:
        """`most`: the most calls of an answer; further ones are left out."""
        self.count = 0
        """Calls read so far."""
        self.is_whole = True
        """No call has broken or unfinished arguments."""
        self.marks = dialect.marks
        self._dialect, self._most = dialect, most
        self._schemas = {name: parameters_of(tool) for name, tool in zip(names_of(tools), tools, strict=True)}
        self._cursor = Cursor()
        self._content = ""
        self._calls: list[ToolCall] = []
        self._is_after_call = False
        self._reading = self._read()

    def feed(self, text: str) -> Read:
        self._cursor.add(text)
        return self._continue()

    def finish(self) -> Read:
        self._cursor.is_over = True
        return self._continue()

    def _continue(self) -> Read:
        next(self._reading, None)
        read = Read(self._content, join_calls(self._calls))
        self._content, self._calls = "", []
        return read

    def _read(self) -> Waiting[None]:
        cursor = self._cursor
        yield from self._beginning()
        while True:
            if self._is_after_call:
                yield from self._gap()
            text, mark = cursor.certain(self._dialect.begins)
            self._content += text
            cursor.drop()
            if mark is not None:
                yield from self._section(mark)
            elif not (yield from cursor.more()):
                self._content += cursor.certain(())[0]
                return

    def _beginning(self) -> Waiting[None]:
        """An answer may begin with one JSON object, or a list of calls in Python, without a mark."""
        cursor = self._cursor
        yield from cursor.blanks()
        first = yield from cursor.character()
        if first == "{":
            found = yield from self._json_calls()
        elif first == "[" and self._dialect.is_python:
            found = yield from self._python_calls("")
        else:
            cursor.at = 0
            return
        if not found:
            self._say()

    def _gap(self) -> Waiting[None]:
        """Blanks between two calls, and after the last one, are not text."""
        cursor = self._cursor
        yield from cursor.blanks()
        begin = cursor.at
        is_over = not (yield from cursor.character())
        is_call = (yield from cursor.one_of(self._dialect.begins)) is not None
        cursor.at = begin
        if is_over or is_call:
            cursor.drop()
        else:
            self._say()
        self._is_after_call = False

    def _section(self, mark: str) -> Waiting[None]:
        """The calls after this mark, in the first notation in which there is one; else the mark is text."""
        failed_at = len(mark)
        for reading in (self._json(mark), self._named(), self._python(mark)):
            self._cursor.at = 0
            if (yield from reading):
                return
            failed_at = max(failed_at, self._cursor.at)
        self._cursor.at = failed_at
        self._say()

    def _json(self, mark: str) -> Waiting[bool]:
        if mark not in self._dialect.json_marks:
            return False
        self._cursor.at = len(mark)
        return (yield from self._json_calls())

    def _json_calls(self) -> Waiting[bool]:
        """One object, or several in a list or with separators."""
        cursor = self._cursor
        yield from cursor.blanks()
        is_list = yield from cursor.literal("[")
        if not (yield from self._json_call()):
            return False
        while (yield from self._has_next(is_list)):
            if not (yield from self._json_call()):
                self._say()
                return True
        for end in (*("]" if is_list else ""), *self._dialect.json_ends):
            yield from self._optional(end)
        cursor.drop()
        return True

    def _has_next(self, is_list: bool) -> Waiting[bool]:
        """Whether another object follows in the list, or where the dialect has several without one."""
        begin, separator = self._cursor.at, "," if is_list else self._dialect.separator
        is_separated = bool(separator) and (yield from self._optional(separator))
        yield from self._cursor.blanks()
        if separator and (is_separated or not is_list) and (yield from self._cursor.character()) == "{":
            return True
        self._cursor.at = begin
        return False

    def _json_call(self) -> Waiting[bool]:
        cursor, scan = self._cursor, JsonText()
        begin = cursor.at
        name = yield from header_name(cursor, '{ "name" : {json_name} , {json_key} :', self._schemas)
        if name is None or (yield from cursor.character()) != "{":
            cursor.at = begin
            return (yield from self._json_object(begin, scan))
        for character in cursor.taken[begin:]:
            scan.accept(character)
        if (yield from self._arguments(name, scan)):
            yield from self._close(scan, 0)
        cursor.drop()
        return True

    def _json_object(self, begin: int, scan: JsonText) -> Waiting[bool]:
        """A call that is passed on when it is complete: its name comes after its arguments, say."""
        if not (yield from self._close(scan, 0)):
            return False
        try:
            value = json.loads(self._cursor.taken[begin:])
        except (ValueError, RecursionError):
            return False
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in self._schemas:
            return False
        arguments = value.get("arguments", value.get("parameters", {}))
        self._whole(name, arguments if isinstance(arguments, str) else json.dumps(arguments))
        self._cursor.drop()
        return True

    def _named(self) -> Waiting[bool]:
        """A call whose name is written before its arguments."""
        cursor, dialect = self._cursor, self._dialect
        if dialect.opening:
            yield from cursor.literal(dialect.opening)
        name = yield from self._header()
        if name is None:
            return False
        if dialect.parameters is not None:
            end, schema = dialect.footers[0], self._schemas[name]
            values = yield from text_arguments(cursor, dialect.parameters, end, schema)
            if values is None:
                return False
            is_whole = self._whole(name, json.dumps(values))
        elif (yield from cursor.character()) != "{":
            return False
        elif dialect.quote:
            return (yield from self._bare_call(name))
        else:
            is_whole = yield from self._arguments(name, JsonText())
        for footer in dialect.footers if is_whole else ():
            yield from self._optional(footer)
        cursor.drop()
        return True

    def _bare_call(self, name: str) -> Waiting[bool]:
        begin = self._cursor.at
        text = yield from self._cursor.until(self._dialect.footers[0])
        values = bare_object(self._cursor.taken[begin:] if text is None else text, self._dialect.quote)
        if values is None:
            return False
        self._whole(name, json.dumps(values))
        self._cursor.drop()
        return True

    def _header(self) -> Waiting[str | None]:
        begin = self._cursor.at
        for header in self._dialect.headers:
            self._cursor.at = begin
            name = yield from header_name(self._cursor, header, self._schemas)
            if name is not None and ((yield from self._cursor.character()) == "{" or self._dialect.parameters):
                return name
        self._cursor.at = begin
        return None

    def _arguments(self, name: str, scan: JsonText) -> Waiting[bool]:
        """Begins a call and passes its arguments on as they arrive; False: they break, or the text is over."""
        cursor, depth, call = self._cursor, scan.depth, self._begin(name)
        while True:
            piece = cursor.json(scan, depth)
            if call is not None and piece:
                self._continue_call(call, piece)
            if scan.depth == depth:
                return True
            if not cursor.is_at_end or not (yield from cursor.more()):
                self.is_whole = self._is_after_call = False
                return False

    def _close(self, scan: JsonText, depth: int) -> Waiting[bool]:
        """Reads JSON up to where it closes to this depth; False: it does not."""
        while True:
            self._cursor.json(scan, depth)
            if scan.depth == depth and scan.is_closed:
                return True
            if not self._cursor.is_at_end or not (yield from self._cursor.more()):
                return False

    def _python(self, mark: str) -> Waiting[bool]:
        return mark in dict(self._dialect.python_marks) and (yield from self._python_calls(mark))

    def _python_calls(self, mark: str) -> Waiting[bool]:
        """Without a mark they are the whole answer."""
        cursor = self._cursor
        begin = cursor.at = max(cursor.at, len(mark))
        yield from cursor.blanks()
        yield from cursor.literal("[")
        yield from cursor.blanks()
        if (yield from cursor.one_of([f"{name}(" for name in self._schemas])) is None:
            return False
        cursor.at = begin
        text = (yield from cursor.until(dict(self._dialect.python_marks)[mark])) if mark else (yield from cursor.rest())
        calls = python_calls(cursor.taken[begin:] if text is None else text)
        if not calls or any(name not in self._schemas for name, _ in calls):
            return False
        for name, arguments in calls:
            self._whole(name, json.dumps(arguments))
        cursor.drop()
        return True

    def _optional(self, mark: str) -> Waiting[bool]:
        begin = self._cursor.at
        yield from self._cursor.blanks()
        found = yield from self._cursor.literal(mark)
        if not found:
            self._cursor.at = begin
        return found

    def _begin(self, name: str) -> ToolCall | None:
        """None: there are enough calls already."""
        self._is_after_call = True
        if self._most is not None and self.count >= self._most:
            return None
        call = ToolCall(name, "", self.count, at=len(self._content))
        self.count += 1
        self._calls.append(call)
        return call

    def _whole(self, name: str, arguments: str) -> bool:
        call = self._begin(name)
        if call is not None:
            self._continue_call(call, arguments)
        return True

    def _continue_call(self, call: ToolCall, arguments: str) -> None:
        self._calls.append(replace(call, arguments=arguments, continues=True, at=len(self._content)))

    def _say(self) -> None:
        """What was read is text."""
        self._content += self._cursor.taken
        self._cursor.drop()
        self._is_after_call = False
