"""Small changes to a module that a test should notice: which there are, where, and what the source is then.

    <  →  <=            comparison        x + 1  →  x - 1       arithmetic       f(a, b)  →  f(b, a)      arguments
    8  →  9             constant          not x  →  x           not              x[a:]    →  x[a + 1:]    slice
    if x  →  if not x   condition         and    →  or          and-or           f(x)     →  (nothing)    statement
    min   →  max        least-most        True   →  False       boolean          def f(): return          return

Each replaces one stretch of the source, so a difference shows one place. Annotations, docstrings, decorators, texts,
assertions and what is raised stay as they are.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
LEAST_MOST = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}
LEFT_ALONE = (ast.JoinedStr, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)
BEFORE = "\0"
"""In what comes after: what was there."""
MOST_BEFORE = 160
"""Letters of what was there, in an identity."""


@dataclass(frozen=True, slots=True)
class Mutant:
    path: str
    """Of its module, from the root of the repository."""
    where: str
    """The class and function around it."""
    line: int
    text: str
    """Of that line."""
    operator: str
    before: str
    after: str
    nth: int
    """Of those that are otherwise alike."""
    source: str
    """The whole module with the change."""

    @property
    def identity(self) -> str:
        """The same for the same change, wherever its line has moved."""
        fields = (self.path, self.where, self.text, self.operator, self.before, self.after, str(self.nth))
        return hashlib.sha256("\0".join(fields).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Change:
    node: ast.expr | ast.stmt
    operator: str
    after: str


def mutants_of(path: str, source: str) -> list[Mutant]:
    """In the order of the source."""
    lines, found, seen = _Lines(source), [], {}
    for where, change in _changes(ast.parse(source)):
        begin, end = lines.span(change.node)
        before = source[begin:end]
        if _normal(before) == _normal(change.after):
            continue
        after = change.after.replace(BEFORE, before)
        shown, short = change.after.replace(BEFORE, ""), " ".join(before.split())[:MOST_BEFORE]
        line = change.node.lineno
        key = (where, lines.text(line), change.operator, short, shown.strip())
        seen[key] = seen.get(key, -1) + 1
        changed = source[:begin] + after + source[end:]
        found.append(Mutant(path, where, line, *key[1:], seen[key], changed))
    return found


def _normal(text: str) -> str:
    """Without what only looks different."""
    return "".join(text.split()).replace("(", "").replace(")", "").replace("'", '"')


class _Lines:
    """From lines and columns, which count bytes, to places in the text."""

    def __init__(self, source: str) -> None:
        self._lines = source.splitlines(keepends=True)
        self._begins = [0]
        for line in self._lines:
            self._begins.append(self._begins[-1] + len(line))

    def text(self, line: int) -> str:
        return self._lines[line - 1].strip()

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset)

    def _place(self, line: int, column: int) -> int:
        text = self._lines[line - 1].encode()[:column].decode()
        return self._begins[line - 1] + len(text)


# ── walking ───────────────────────────────────────────────────────────────


def _changes(tree: ast.Module) -> Iterator[tuple[str, _Change]]:
    for node in tree.body:
        yield from _walk(node, "")


def _walk(node: ast.AST, where: str) -> Iterator[tuple[str, _Change]]:
    if isinstance(node, LEFT_ALONE) or _is_text(node) or _is_for_types(node) or _is_strict(node):
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        where = f"{where}.{node.name}" if where else node.name
    for operator in OPERATORS:
        if operator is not _statement or not where.endswith("__init__"):
            yield from ((where, change) for change in operator(node))
    for child in _children(node):
        yield from _walk(child, where)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Those that run: no annotations, no decorators."""
    skipped = {"annotation", "returns", "decorator_list", "type_comment"}
    for name, value in ast.iter_fields(node):
        if name not in skipped:
            values = value if isinstance(value, list) else [value]
            yield from (one for one in values if isinstance(one, ast.AST))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_for_types(node: ast.AST) -> bool:
    """Blocks that never run, and names of types."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.AnnAssign) and node.value is None


def _is_strict(node: ast.AST) -> bool:
    """zip(…, strict=True) asserts, as an assertion does."""
    return isinstance(node, ast.keyword) and node.arg == "strict"


# ── operators ─────────────────────────────────────────────────────────────


def _comparison(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Compare):
        for place, old in enumerate(node.ops):
            for new in COMPARISONS[type(old)]:
                changed = deepcopy(node)
                changed.ops[place] = new()
                yield _Change(node, "comparison", _text(changed))


def _constant(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        for value in (node.value + 1, node.value - 1):  # type: ignore[operator]
            yield _Change(node, "constant", f"({value})" if value < 0 else repr(value))


def _boolean(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _Change(node, "boolean", repr(not node.value))


def _arithmetic(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in ARITHMETIC:
        changed = deepcopy(node)
        changed.op = ARITHMETIC[type(node.op)]()
        yield _Change(node, "arithmetic", _text(changed))


def _condition(node: ast.AST) -> Iterator[_Change]:
    tests = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else []
    tests += node.ifs if isinstance(node, ast.comprehension) else []
    for test in tests:
        if not isinstance(test, ast.Compare) or len(test.ops) > 1:  # others are comparisons
            yield _Change(test, "condition", f"(not ({ast.unparse(test)}))")


def _not(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        yield _Change(node, "not", _text(node.operand))


def _and_or(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.BoolOp):
        changed = deepcopy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield _Change(node, "and-or", _text(changed))


def _least_most(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Name) and node.id in LEAST_MOST and isinstance(node.ctx, ast.Load):
        yield _Change(node, "least-most", LEAST_MOST[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in LEAST_MOST:
        yield _Change(node, "least-most", f"{_text(node.value)}.{LEAST_MOST[node.attr]}")


def _statement(node: ast.AST) -> Iterator[_Change]:
    """Calls for their effect, what is written to objects that are there already, deletions, jumps."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    is_written = bool(targets) and not any(isinstance(target, ast.Name) for target in targets)
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if isinstance(node, ast.stmt) and (
        is_written or is_call or isinstance(node, ast.Delete | ast.Continue | ast.Break)
    ):
        yield _Change(node, "statement", "pass")


def _arguments(node: ast.AST) -> Iterator[_Change]:
    if not isinstance(node, ast.Call) or any(isinstance(one, ast.Starred) for one in node.args):
        return
    for place in range(len(node.args) - 1):
        if ast.unparse(node.args[place]) != ast.unparse(node.args[place + 1]):
            changed = deepcopy(node)
            changed.args[place : place + 2] = reversed(changed.args[place : place + 2])
            yield _Change(node, "arguments", _text(changed))


def _slice(node: ast.AST) -> Iterator[_Change]:
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
        return
    own = node.slice
    for name, bound in (("lower", own.lower), ("upper", own.upper)):
        for value in (None, f"{ast.unparse(bound)} + 1") if bound else ():
            changed = deepcopy(node)
            setattr(changed.slice, name, ast.parse(value, mode="eval").body if value else None)
            yield _Change(node, "slice", _text(changed))


def _return(node: ast.AST) -> Iterator[_Change]:
    """A function does nothing, or always says the same."""
    if not isinstance(node, ast.FunctionDef) or node.name == "__init__":
        return
    body = [one for one in node.body if not _is_text(one)]
    returns = ast.unparse(node.returns) if node.returns else ""
    for value in {"None": ("return",), "bool": ("return True", "return False")}.get(returns, ()) if body else ():
        yield _Change(body[0], "return", f"{value}\n{' ' * body[0].col_offset}{BEFORE}")


def _text(node: ast.AST) -> str:
    """In parentheses where it could run into its neighbours."""
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp | ast.IfExp | ast.UnaryOp) else text


OPERATORS: tuple[Callable[[ast.AST], Iterator[_Change]], ...] = (
    _comparison,
    _constant,
    _boolean,
    _arithmetic,
    _condition,
    _not,
    _and_or,
    _least_most,
    _statement,
    _arguments,
    _slice,
    _return,
)
