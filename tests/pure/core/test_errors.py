"""The tree that docs/errors.md draws is that of all errors, and `quire.core.errors` draws its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from quire.core import errors

PACKAGE = Path(errors.__file__).parents[1]
PAGE = PACKAGE.parents[1] / "docs" / "errors.md"
ROW = re.compile(r"^(?: {4})?(?P<branches>[│├└─ ]*)(?P<name>[A-Z]\w+) +(?P<exit>\d)? ")


Errors = dict[str, tuple[str, int]]
"""By error: its parent, and its exit code."""


def drawn(text: str) -> Errors:
    found: Errors = {}
    above: list[str] = ["QuireError"]
    for match in filter(None, map(ROW.match, text.splitlines())):
        depth = len(match["branches"]) // 4
        if depth:
            found[match["name"]] = above[depth - 1], int(match["exit"])
        above[depth:] = [match["name"]]
    return found


def written(paths: Iterable[Path]) -> Errors:
    """The same, from the source: a class has its parent's exit code unless it sets one."""
    parents, codes = {}, {"QuireError": 1}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.bases and isinstance(node.bases[0], ast.Name):
                parents[node.name] = node.bases[0].id
                for code in filter(None, map(_exit_code, node.body)):
                    codes[node.name] = code
    found = {}
    for name in parents:
        line = [name]
        while line[-1] in parents:
            line.append(parents[line[-1]])
        if "QuireError" in line[1:]:
            found[name] = parents[name], next(codes[one] for one in line if one in codes)
    return found


def _exit_code(statement: ast.stmt) -> int | None:
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
        names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
        return int(statement.value.value) if names == ["exit_code"] else None  # type: ignore[arg-type]
    return None


def test_the_drawn_tree_has_every_error_with_its_parent_and_its_exit_code() -> None:
    tree = drawn(PAGE.read_text())
    assert len(tree) > 15
    assert tree == written(sorted(PACKAGE.rglob("*.py")))


def test_the_core_draws_its_own_errors() -> None:
    tree = drawn(errors.__doc__ or "")
    assert len(tree) > 5
    assert tree == written([Path(errors.__file__)])
