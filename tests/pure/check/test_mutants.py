"""The mutation tool checked: operators change what they say and nothing else, and judges are believed."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

import mutants
from mutant_operators import Mutant, mutants_of
from mutants import ENTRY, ROOT, Judge, Verdict, all_mutants, difference, equivalent, judge, read_record, run

MODULE = "def f(a, b):\n    {}\n"
CHANGED = [
    ("comparison", "return a < b", ["return (a <= b)", "return (a >= b)"]),
    ("comparison", "return a is None", ["return (a is not None)"]),
    ("comparison", "return 'x' in a", ["return ('x' not in a)"]),
    ("constant", "return a[2]", ["return a[3]", "return a[1]"]),
    ("constant", "return 0", ["return 1", "return (-1)"]),
    ("boolean", "return True", ["return False"]),
    ("arithmetic", "return a + b", ["return (a - b)"]),
    ("arithmetic", "a.x += b", ["a.x -= b"]),
    ("arithmetic", "return a // b % b", ["return (a // b // b)", "return (a * b) % b"]),
    ("condition", "return a if b else 0", ["return a if (not (b)) else 0"]),
    ("condition", "return [x for x in a if x]", ["return [x for x in a if (not (x))]"]),
    ("not", "return not a", ["return a"]),
    ("not", "return ~a", ["return a"]),
    ("and-or", "return a and b", ["return (a or b)"]),
    ("least-most", "return min(a, b)", ["return max(a, b)"]),
    ("least-most", "return a.minimum(b)", ["return a.maximum(b)"]),
    ("least-most", "return (a < 0).any()", ["return (a < 0).all()"]),
    ("least-most", "return any(a)", ["return all(a)"]),
    ("statement", "a.clear()", ["pass"]),
    ("statement", "a.b = 1", ["pass"]),
    ("statement", "del a[b]", ["pass"]),
    ("arguments", "return a(1, b)", ["return a(b, 1)"]),
    ("slice", "return a[b:]", ["return a[:]", "return a[b + 1:]"]),
    ("slice", "return a[:b]", ["return a[:]", "return a[:b + 1]"]),
]


def of(operator: str, source: str) -> list[Mutant]:
    return [one for one in mutants_of("m.py", source) if one.operator == operator]


@pytest.mark.parametrize(("operator", "line", "expected"), CHANGED)
def test_an_operator_changes_what_it_says(operator: str, line: str, expected: list[str]) -> None:
    assert [one.source for one in of(operator, MODULE.format(line))] == [MODULE.format(after) for after in expected]


@pytest.mark.parametrize(
    ("kind", "expected"), [("None", ["return"]), ("bool", ["return True", "return False"]), ("int", [])]
)
def test_a_function_that_returns_early_does_nothing_of_what_it_did(kind: str, expected: list[str]) -> None:
    source = f'def f(a) -> {kind}:\n    """Text."""\n    a.x = 1\n'
    changed = [f'def f(a) -> {kind}:\n    """Text."""\n    {first}\n    a.x = 1\n' for first in expected]
    assert [one.source for one in of("return", source)] == changed


@pytest.mark.parametrize(
    "line",
    [
        '"""1 and 2."""',
        "x: dict[str, 'tuple[int, 3]']",
        "assert a < 1, 'words'",
        "raise ValueError(a + 1)",
        "return f'{a + 1}'",
        "from a import b",
        "return zip(a, strict=True)",
        "x = a",
    ],
)
def test_what_does_not_run_or_only_speaks_stays_as_it_is(line: str) -> None:
    assert mutants_of("m.py", MODULE.format(line)) == []


def test_decorators_and_blocks_for_types_stay_as_they_are() -> None:
    assert mutants_of("m.py", "@cache(1)\nclass A:\n    x: int\nif TYPE_CHECKING:\n    f(1)\n") == []


def test_an_identity_outlives_lines_that_move_and_tells_alike_changes_apart() -> None:
    source = MODULE.format("return a[1] + b[1]")
    before, after = mutants_of("m.py", source), mutants_of("m.py", "# new\n\n" + source)
    assert [one.identity for one in before] == [one.identity for one in after]
    assert len({one.identity for one in before}) == len(before)
    assert [one.line + 2 for one in before] == [one.line for one in after]


@pytest.fixture(scope="module")
def found() -> list[Mutant]:
    return all_mutants()


def test_every_mutant_of_the_project_is_another_program(found: list[Mutant]) -> None:
    """There are thousands, each with an identity of its own; some of them are compiled."""
    assert len(found) > 3000
    assert len({one.identity for one in found}) == len(found)
    trees = {path: ast.dump(ast.parse((ROOT / path).read_text())) for path in {one.path for one in found}}
    assert all(ast.dump(ast.parse(one.source)) != trees[one.path] for one in found[::41])
    assert {Path(one.path).parts[2] for one in found} == {"kinds", "prefix", "cache", "scheduler", "tiers", "plan"}


def test_listed_equivalents_match_the_source_and_have_reasons(found: list[Mutant]) -> None:
    equivalent(found, json.loads((ROOT / "bench/equivalent_mutants.json").read_text()))
    one = found[0]
    entry = {name: getattr(one, name) for name in ENTRY}
    assert equivalent(found, [{**entry, "why": "it is never read"}]) == {one.identity: "it is never read"}
    with pytest.raises(SystemExit, match="take the entry out"):
        equivalent(found, [{**entry, "before": "gone", "why": "it is never read"}])
    with pytest.raises(SystemExit, match="has no reason"):
        equivalent(found, [{**entry, "why": " "}])


def judged(tree: Path, monkeypatch: pytest.MonkeyPatch, script: str, seconds: float = 60.0) -> Verdict:
    """`script`: looks at the module in the working directory."""
    (tree / "m.py").write_text(MODULE.format("return a < b"))
    monkeypatch.setattr(mutants, "judges", lambda *_: [Judge("the script", (sys.executable, "-c", script))])
    mutant = of("comparison", (tree / "m.py").read_text())[0]
    verdict = judge(mutant, tree, True, lambda _name: seconds)
    assert (tree / "m.py").read_text() == MODULE.format("return a < b"), "the tree is as it was"
    return verdict


def test_a_mutant_is_killed_survives_or_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = judged(tmp_path, monkeypatch, "import m; assert not m.f(1, 1)")
    assert (verdict.outcome, verdict.line) == ("killed", 2)
    assert judged(tmp_path, monkeypatch, "import m; assert m.f(1, 2)").outcome == "survived"
    assert judged(tmp_path, monkeypatch, "while True: pass", seconds=0.5).outcome == "timeout"


def test_a_difference_shows_the_line_and_nothing_else() -> None:
    source = MODULE.format("return a < b")
    assert difference(of("comparison", source)[0], source).splitlines()[1:] == [
        "-    return a < b",
        "+    return (a <= b)",
    ]


def test_a_second_run_goes_on_where_the_first_one_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was judged before is read from the record."""
    record = tmp_path / "record.jsonl"
    sample = of("comparison", MODULE.format("return a < b"))
    monkeypatch.setattr(mutants, "calibrated", lambda *_: {})
    monkeypatch.setattr(mutants, "copy_of_the_tree", lambda target: target)
    asked: list[str] = []

    def noted(mutant: Mutant, *_: object) -> Verdict:
        asked.append(mutant.identity)
        return Verdict(mutant.identity, "m.py", 2, "f", "comparison", "killed", "a test", 0.1, "")

    monkeypatch.setattr(mutants, "judge", noted)
    mutants.judge_all(sample[:1], record, True, 1)
    verdicts = mutants.judge_all(sample, record, True, 1)
    assert asked == [one.identity for one in sample]
    assert [one.identity for one in verdicts] == asked
    assert list(read_record(record)) == asked


def test_the_last_words_of_a_failure_are_kept(tmp_path: Path) -> None:
    ended_well, words = run(
        (sys.executable, "-c", "print('FAILED here'); print('x'); raise SystemExit(1)"), tmp_path, 60
    )
    assert (ended_well, words) == (False, "FAILED here")
