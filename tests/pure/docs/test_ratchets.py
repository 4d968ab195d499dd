"""Sizes that may only shrink: `ratchet.json` lists what is too large today, and each entry goes when its code does.

After code has become smaller, `python tests/pure/docs/test_ratchets.py` writes the list anew.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

ROOT = Path(__file__).parents[3]
LIST = Path(__file__).parent / "ratchet.json"
MOST_LINES, MOST_POSITIONAL, MOST_FUNCTION_LINES = 400, 5, 60
HEART, MOST_HEART_LINES = ("core", "kinds", "plan", "cache", "scheduler", "engine"), 7500
Sizes = dict[str, int]


def measured() -> dict[str, Sizes]:
    """By rule, then by file or function: what is beyond the limit."""
    files: Sizes = {}
    parameters: Sizes = {}
    functions: Sizes = {}
    for folder in ("src", "tests", "bench"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name, text = path.relative_to(ROOT).as_posix(), path.read_text()
            if (lines := len(text.splitlines())) > MOST_LINES:
                files[name] = lines
            if folder == "src":
                _measure_functions(name, ast.parse(text), parameters, functions)
    return {"lines of a file": files, "positional parameters": parameters, "lines of a function": functions}


def _measure_functions(name: str, tree: ast.Module, parameters: Sizes, functions: Sizes) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
            count = len(names) - (names[:1] in (["self"], ["cls"]))
            lines = (node.end_lineno or 0) - node.lineno + 1
            for sizes, size, most in ((parameters, count, MOST_POSITIONAL), (functions, lines, MOST_FUNCTION_LINES)):
                if size > most:
                    key = f"{name}: {node.name}"
                    sizes[key] = max(size, sizes.get(key, 0))


def test_the_heart_is_small_enough_to_be_read_in_an_afternoon() -> None:
    files = [path for part in HEART for path in (ROOT / "src" / "quire" / part).rglob("*.py")]
    assert len(files) > 60
    assert sum(len(path.read_text().splitlines()) for path in files) <= MOST_HEART_LINES


def test_nothing_grows_beyond_its_limit() -> None:
    allowed: dict[str, Sizes] = json.loads(LIST.read_text())
    found = measured()
    grown = [
        f"{rule}, {name}: {size}, {allowed[rule].get(name, 'none')} allowed"
        for rule, sizes in found.items()
        for name, size in sizes.items()
        if size > allowed[rule].get(name, 0)
    ]
    assert not grown
    shrunk = [
        f"{rule}, {name}: {found[rule].get(name, 'within the limit')} instead of {size}"
        for rule, sizes in allowed.items()
        for name, size in sizes.items()
        if found[rule].get(name, 0) < size
    ]
    assert not shrunk, "these have become smaller: run python tests/pure/docs/test_ratchets.py"


if __name__ == "__main__":
    LIST.write_text(json.dumps(measured(), indent=1) + "\n")
