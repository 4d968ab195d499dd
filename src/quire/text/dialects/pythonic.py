"""Calls that are written as Python: `[weather(city="Rome"), time()]`, or a call a line."""

from __future__ import annotations

import ast
from typing import Any

_NAMES = {"true": True, "false": False, "null": None}
"""Names of JSON that models write in Python, too."""


def python_calls(text: str) -> list[tuple[str, dict[str, Any]]] | None:
    """The names and arguments of the calls; None: it is not Python, or something else than calls of literals."""
    try:
        statements = ast.parse(text.strip()).body
        values = [statement.value for statement in statements if isinstance(statement, ast.Expr)]
        if len(values) < len(statements):
            return None
        nodes = [one for value in values for one in (value.elts if isinstance(value, ast.List) else [value])]
        return [_call(node) for node in nodes] or None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    if any(one.arg is None for one in node.keywords):
        raise ValueError("arguments that are unpacked")
    return ast.unparse(node.func), {str(one.arg): _value(one.value) for one in node.keywords}


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(key): _value(value) for key, value in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    raise ValueError("not a literal")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("not a text")


def _number(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    raise ValueError("not a number")
