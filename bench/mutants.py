"""How many small changes to the memory, the scheduler and the tiers are noticed? Prints the score and the survivors.

    python bench/mutants.py [--count 200] [--seed 1] [--quick] [--processes 2] [--record FILE] [--only PATH]

A seed picks a sample of all mutants (`mutant_operators.py`). Each is judged in a copy of the tree, by a short random
check, by the pure tests nearest to it, then by longer checks and the other pure tests, until something fails; what
takes too long has failed. `--quick` stops after the nearest tests. Verdicts are written down one by one, and a second
run goes on where the first one ended. Mutants that change nothing stand in `equivalent_mutants.json`, each with a
reason; an entry that no longer matches the source is an error.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any

from mutant_operators import Mutant, mutants_of

ROOT = Path(__file__).parents[1]
TARGETS = (
    "src/quire/kinds",
    "src/quire/prefix",
    "src/quire/cache",
    "src/quire/scheduler",
    "src/quire/tiers",
    "src/quire/plan/bound.py",
)
NEAREST = {
    "kinds": ("kinds", "laws", "cache", "plan"),
    "prefix": ("prefix", "scheduler", "engine", "scenarios"),
    "cache": ("cache", "engine", "scenarios"),
    "scheduler": ("scheduler", "engine", "scenarios", "simulate"),
    "tiers": ("tiers",),
    "plan": ("laws", "plan"),
}
"""By folder of the source: folders of tests/pure, the first ones first."""
LEFT_OUT = ("check", "docs", "cli", "models")
"""They check the checker, what is printed and what is read: none of it is mutated."""
SHORT_STEPS, LONG_STEPS, LONG_SEEDS = 1_500, 8_000, (3, 4)
ENTRY = ("path", "where", "text", "operator", "before", "after", "nth")
"""What names a mutant in the list of equivalent ones."""
SLOWER = 5.0
"""A judge that takes so many times as long as without a mutant, and a minute, has failed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    identity: str
    path: str
    line: int
    where: str
    operator: str
    outcome: str
    """killed, timeout or survived."""
    by: str
    seconds: float
    diff: str


@dataclass(frozen=True, slots=True)
class Judge:
    name: str
    command: tuple[str, ...]


# ── mutants ───────────────────────────────────────────────────────────────


def all_mutants(root: Path = ROOT, targets: Sequence[str] = TARGETS) -> list[Mutant]:
    found = []
    for target in targets:
        place = root / target
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            found += mutants_of(str(path.relative_to(root)), path.read_text())
    return found


def equivalent(mutants: Sequence[Mutant], entries: Sequence[dict[str, Any]]) -> dict[str, str]:
    """By identity: why it changes nothing."""
    by_fields = {tuple(getattr(mutant, name) for name in ENTRY): mutant for mutant in mutants}
    found = {}
    for entry in entries:
        fields = tuple(entry[name] for name in ENTRY)
        if fields not in by_fields:
            raise SystemExit(f"equivalent_mutants.json: no mutant is {fields} any more: take the entry out")
        if not entry["why"].strip():
            raise SystemExit(f"equivalent_mutants.json: {fields} has no reason: write why it changes nothing")
        found[by_fields[fields].identity] = entry["why"]
    return found


def difference(mutant: Mutant, original: str) -> str:
    both = original.splitlines(), mutant.source.splitlines()
    lines = difflib.unified_diff(*both, n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


# ── judges ────────────────────────────────────────────────────────────────


def judges(path: str, is_quick: bool) -> Iterator[Judge]:
    """What looks at a mutant of a module, one after another."""
    yield _check(SHORT_STEPS, 0)
    folder = Path(path).relative_to("src/quire").parts[0]
    nearest = [f"tests/pure/{name}" for name in NEAREST[folder]]
    yield _tests("nearest tests", nearest[:1])
    if is_quick:
        return
    if len(nearest) > 1:
        yield _tests("near tests", nearest[1:])
    for seed in LONG_SEEDS:
        yield _check(LONG_STEPS, seed)
    others = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests/pure").iterdir() if p.is_dir())
    left = [one for one in others if one not in nearest and Path(one).name not in (*LEFT_OUT, "__pycache__")]
    yield _tests("other tests", left)


def _check(steps: int, seed: int) -> Judge:
    command = (sys.executable, "-m", "quire", "check", "--steps", str(steps), "--seed", str(seed))
    return Judge(f"quire check --steps {steps} --seed {seed}", command)


def _tests(name: str, folders: Sequence[str]) -> Judge:
    options = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly")
    return Judge(name, (sys.executable, "-m", "pytest", *options, *folders))


def run(command: Sequence[str], tree: Path, most_seconds: float) -> tuple[bool | None, str]:
    """Whether it ended well, None: it did not end; and what it printed last."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=most_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own children too
        process.communicate()
        return None, "it did not end"
    return process.returncode == 0, _last_words(output)


def _last_words(output: str) -> str:
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR", "violation"))]
    return (failed or output.splitlines() or [""])[0 if failed else -1][:200]


def judge(mutant: Mutant, tree: Path, is_quick: bool, allowed: Callable[[str], float]) -> Verdict:
    """`allowed`: seconds that a judge may take, by its name."""
    path, begun = tree / mutant.path, time.monotonic()
    original = path.read_text()
    outcome, by = "survived", ""
    path.write_text(mutant.source)
    try:
        for one in judges(mutant.path, is_quick):
            ended_well, words = run(one.command, tree, allowed(one.name))
            if not ended_well:
                outcome, by = "timeout" if ended_well is None else "killed", f"{one.name}: {words}"
                break
    finally:
        path.write_text(original)
    seconds = round(time.monotonic() - begun, 1)
    fields = mutant.identity, mutant.path, mutant.line, mutant.where, mutant.operator
    return Verdict(*fields, outcome, by, seconds, difference(mutant, original))


def copy_of_the_tree(target: Path) -> Path:
    """Everything that git knows or could know."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)
    return target


def calibrated(tree: Path, sample: Sequence[Mutant], is_quick: bool) -> dict[str, float]:
    """Seconds that each judge takes without a mutant; all of them must be content."""
    seconds: dict[str, float] = {}
    for path in {mutant.path for mutant in sample}:
        for one in judges(path, is_quick):
            if (key := _key(path, one.name)) not in seconds:
                begun = time.monotonic()
                ended_well, words = run(one.command, tree, 3600.0)
                if not ended_well:
                    raise SystemExit(f"{one.name} fails without any mutant, so it judges nothing: {words}")
                seconds[key] = time.monotonic() - begun
    return seconds


def _key(path: str, name: str) -> str:
    """Checks are the same for all; tests depend on the folder."""
    return name if name.startswith("quire check") else f"{Path(path).parts[2]} {name}"


# ── a run ─────────────────────────────────────────────────────────────────


def read_record(record: Path) -> dict[str, Verdict]:
    if not record.exists():
        return {}
    verdicts = [Verdict(**json.loads(line)) for line in record.read_text().splitlines()]
    return {verdict.identity: verdict for verdict in verdicts}


def judge_all(sample: Sequence[Mutant], record: Path, is_quick: bool, processes: int) -> list[Verdict]:
    """Verdicts of the sample; those of the record are not asked for again."""
    known = read_record(record)
    left = [mutant for mutant in sample if mutant.identity not in known]
    with tempfile.TemporaryDirectory() as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(processes):
            trees.put(copy_of_the_tree(Path(folder) / str(number)))
        seconds = calibrated(Path(folder) / "0", left, is_quick)

        def work(mutant: Mutant) -> None:
            tree = trees.get()
            verdict = judge(mutant, tree, is_quick, lambda name: 60 + SLOWER * seconds[_key(mutant.path, name)])
            trees.put(tree)
            known[verdict.identity] = verdict
            with record.open("a") as file:
                file.write(json.dumps(asdict(verdict)) + "\n")
            where = f"{verdict.path}:{verdict.line}"
            print(f"{verdict.outcome:<9} {verdict.seconds:>6.1f} s  {where}  {verdict.by}", flush=True)

        with ThreadPoolExecutor(processes) as pool:
            list(pool.map(work, left))
    return [known[mutant.identity] for mutant in sample]


def report(verdicts: Sequence[Verdict], equivalents: int) -> None:
    survivors = [verdict for verdict in verdicts if verdict.outcome == "survived"]
    for verdict in survivors:
        print(f"\nsurvived  {verdict.path}:{verdict.line}  {verdict.where}  ({verdict.operator})\n{verdict.diff}")
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    print(f"\n{', '.join(f'{count} {outcome}' for outcome, count in outcomes.items())}, {equivalents} equivalent")
    noticed = len(verdicts) - len(survivors)
    print(f"noticed: {noticed} of {len(verdicts)} mutants, {100 * noticed / max(1, len(verdicts)):.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--count", type=int, default=200, help="mutants to judge (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="which sample (default 1)")
    parser.add_argument("--quick", action="store_true", help="a short check and the nearest tests only")
    parser.add_argument("--processes", type=int, default=2, help="mutants judged at a time (default 2)")
    parser.add_argument("--record", type=Path, default=Path("mutants.jsonl"), help="verdicts (default mutants.jsonl)")
    parser.add_argument("--only", default="", metavar="PATH", help="mutants of paths that contain this")
    options = parser.parse_args()
    mutants = all_mutants()
    reasons = equivalent(mutants, json.loads((ROOT / "bench/equivalent_mutants.json").read_text()))
    chosen = [mutant for mutant in mutants if options.only in mutant.path]
    sample = Random(options.seed).sample(chosen, min(options.count, len(chosen)))
    print(f"{len(sample):,} of {len(chosen):,} mutants, seed {options.seed}", flush=True)
    asked = [mutant for mutant in sample if mutant.identity not in reasons]
    verdicts = judge_all(asked, options.record, options.quick, options.processes)
    report(verdicts, equivalents=len(sample) - len(asked))


if __name__ == "__main__":
    main()
