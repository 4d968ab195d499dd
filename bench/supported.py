"""Which models run: every causal language model type of the installed transformers, tiny and random, run and compared.

python bench/supported.py            prints the table (Markdown); takes minutes
python bench/supported.py --write    writes it to docs/supported-models.md, between the markers
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

import transformers

from quire.core.errors import QuireError
from quire.sweep import Case, Finding, short, sweep, types
from quire.sweep.case import planned, shape_of

DOCUMENT = Path(__file__).parent.parent / "docs" / "supported-models.md"
BEGIN, END = "<!-- begin: make bench-supported -->", "<!-- end: make bench-supported -->"
COUNTED = re.compile(r" \(\d+ families are known\); describe it in a shape file")
"""Left out of reasons: it would change every row with each new family."""
HEAD = ("| type | result | kinds of memory in the tiny model, or why it is refused |", "| --- | --- | --- |")


def release() -> str:
    """The release whose types are listed: patches add none."""
    return ".".join(transformers.__version__.split(".")[:2])


def kinds(name: str) -> str:
    """What its layers remember; raises what planning refuses it with."""
    case = Case(name)
    plan = planned(case, shape_of(case.config, name))
    return ", ".join(f"{kind.slots} {kind.kind.kind}" for kind in plan.stages[0].kinds)


def row(finding: Finding) -> str:
    detail = kinds(finding.type) if finding.verdict == "pass" else COUNTED.sub("", finding.reason)
    return f"| `{finding.type}` | {finding.verdict} | {detail.replace('|', '/')} |"


def refused_by_the_plan(name: str) -> str | None:
    """The row of a type that no model need be built for; None: it can be planned."""
    try:
        kinds(name)
    except QuireError as error:
        return row(Finding(name, "refused", short(error)))
    return None


def table() -> str:
    findings = sorted(sweep(map(Case, types())), key=lambda finding: (finding.verdict != "pass", finding.type))
    counts = Counter(finding.verdict for finding in findings)
    totals = f"transformers {release()}: {counts['pass']} run, {counts['refused']} are refused, {counts['fails']} fail."
    return "\n".join([totals, "", *HEAD, *map(row, findings)])


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
