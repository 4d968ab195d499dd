"""Which of the model types that run on one rank run on two, and on two stages: the proof of each type's split.

python bench/splits.py            prints the table (Markdown); takes minutes
python bench/splits.py --write    writes it to docs/splits.md, between the markers
"""

from __future__ import annotations

import argparse
import re

from quire.sweep import Case, Finding, sweep_splits
from supported import DOCUMENT as SUPPORTED
from supported import release

DOCUMENT = SUPPORTED.parent / "splits.md"
BEGIN, END = "<!-- begin: make bench-splits -->", "<!-- end: make bench-splits -->"
RUNS = re.compile(r"^\| `([^`]+)` \| pass", re.MULTILINE)
ADVICE = re.compile(r": choose --(tensor|pipeline)-parallel \d+$")
WAYS = (("two ranks", 2, 1), ("two stages", 1, 2))


def types() -> list[str]:
    """Those that run on one rank, by the table of all types."""
    return RUNS.findall(SUPPORTED.read_text())


def row(name: str, findings: list[Finding]) -> str:
    cells = ("runs" if one.verdict == "pass" else ADVICE.sub("", one.reason).replace("|", "/") for one in findings)
    return f"| `{name}` | {' | '.join(cells)} |"


def table() -> str:
    names = types()
    each = [list(sweep_splits(map(Case, names), ranks, stages)) for _, ranks, stages in WAYS]
    counts = [sum(one.verdict == "pass" for one in found) for found in each]
    totals = ", ".join(f"{count} on {way}" for count, (way, _, _) in zip(counts, WAYS, strict=True))
    refused = [row(name, list(own)) for name, *own in zip(names, *each, strict=True) if any(one.reason for one in own)]
    head = (f"| type | {' | '.join(way for way, _, _ in WAYS)} |", "| --- | --- | --- |")
    return "\n".join([f"transformers {release()}: of {len(names)} types that run, {totals}.", "", *head, *refused])


def with_table(text: str) -> str:
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"update {DOCUMENT.name}")
    if parser.parse_args().write:
        DOCUMENT.write_text(with_table(DOCUMENT.read_text()))
    else:
        print(table())


if __name__ == "__main__":
    main()
