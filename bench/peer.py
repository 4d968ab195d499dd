"""Quire and vLLM in turn on the same work, on this GPU: one table with their ratios.

    python bench/peer.py [--vllm PYTHON] [--vllm-path FOLDER] [--only TEXT ...] [--rounds 3] [--json FILE]
    python bench/peer.py --device cpu     # Quire alone on a small shape: whether the bench itself works

The work is in bench/peer_work.py. For each shape both engines start anew in every round, one after the other, since
each wants the whole device; the table has the best of the rounds. Weights are random and prompts are tokens; vLLM runs
through `LLM.generate`, Quire through `Engine.step`, neither with HTTP (`make bench-load` adds that). If vLLM cannot be
imported, Quire runs alone and the table says so. Printed first: device, clocks and power limit, and all versions.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from peer_work import CASES, ON_A_CPU, Case
from quire.bench.report import markdown
from quire.build.machine import let_threads_sleep

SIDES = Path(__file__).with_name("peer_sides.py")
CLOCKS = "name,clocks.max.sm,clocks.max.mem,power.limit,driver_version"
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "WARNING"}


@dataclass(slots=True)
class Found:
    """What was measured of a case, by side, a figure for each round."""

    took: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def best(self, side: str, case: Case) -> float | None:
        return min(self.took.get((side, case.name), ()), default=None)

    def row(self, case: Case, sides: Sequence[str]) -> dict[str, object]:
        best = {side: self.best(side, case) for side in sides}
        cells: dict[str, object] = {"work": case.name, "unit": case.unit}
        cells |= {side: "failed" if took is None else f"{took:.3g}" for side, took in best.items()}
        quire, vllm = best.get("quire"), best.get("vllm")
        return cells | {"vLLM ÷ Quire": f"{vllm / quire:.2f}" if quire and vllm else "–"}


def folder_for(case: Case, scratch: Path) -> Path:
    """A folder that vLLM reads: the configuration alone, for weights are random."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from quire.bench.random_models import config_of

    config = config_of(case.model, case.layers)
    fields = {**json.loads(config.to_json_string(use_diff=False)), "dtype": "bfloat16"}
    fields["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    folder = scratch / case.model
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def one_side(side: str, cases: Sequence[Case], seed: int, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Lines of one process. One that ends early is reported, and its further cases count as failed."""
    environment = dict(os.environ)
    command = [sys.executable, str(SIDES), side, "--device", arguments.device, "--seed", str(seed)]
    with tempfile.TemporaryDirectory() as scratch:
        if side == "vllm":
            command[0] = arguments.vllm
            environment |= OFFLINE
            if arguments.vllm_path:
                environment["PYTHONPATH"] = os.pathsep.join([arguments.vllm_path, environment.get("PYTHONPATH", "")])
            command += ["--folder", str(folder_for(cases[0], Path(scratch)))]
        asked = "\n".join(json.dumps(case.fields()) for case in cases)
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=environment, **pipes) as process:
            process.stdin.write(asked)
            process.stdin.close()
            yield from (json.loads(line) for line in process.stdout if line.startswith("{"))
        if process.returncode:
            print(f"{side} ended with {process.returncode}: {cases[0].model}", file=sys.stderr, flush=True)


def has_vllm(arguments: argparse.Namespace) -> bool:
    if arguments.device == "cpu":
        return False
    if arguments.vllm == sys.executable and not arguments.vllm_path:
        return importlib.util.find_spec("vllm") is not None
    return True


def chosen(arguments: argparse.Namespace) -> list[Case]:
    cases = ON_A_CPU if arguments.device == "cpu" else CASES
    found = [case for case in cases if not arguments.only or any(text in case.name for text in arguments.only)]
    if not found:
        names = "; ".join(case.name for case in cases)
        raise SystemExit(f"no work is named {' or '.join(arguments.only)}: there are {names}")
    return found


def about(arguments: argparse.Namespace) -> str:
    if arguments.device == "cpu":
        return "on a CPU: the figures say nothing"
    command = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", default=sys.executable, help="the python that has vLLM (default: this one)")
    parser.add_argument("--vllm-path", help="a folder with vLLM, for PYTHONPATH of that python")
    parser.add_argument("--only", nargs="+", help="only work whose name contains one of these texts")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each engine, best of which counts (default 3)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--json", type=Path, help="write all figures there as well")
    arguments = parser.parse_args()
    let_threads_sleep()
    cases, sides = chosen(arguments), ("quire", "vllm") if has_vllm(arguments) else ("quire",)
    found = Found()
    print(about(arguments), flush=True)
    if "vllm" not in sides:
        print("vLLM is not here (--vllm, --vllm-path): Quire alone", flush=True)
    engines = [list(own) for _, own in groupby(cases, key=lambda case: case.engine)]
    for turn in range(arguments.rounds):
        for own in engines:
            for side in sides:
                for line in one_side(side, own, turn, arguments):
                    if "case" in line:
                        found.took.setdefault((side, line["case"]), []).append(line["took"])
                    else:
                        found.versions |= line["versions"]
                    print(f"round {turn + 1}, {side}: {json.dumps(line)}", file=sys.stderr, flush=True)
    print(", ".join(f"{name} {version}" for name, version in sorted(found.versions.items())))
    print(markdown([found.row(case, sides) for case in cases]))
    if arguments.json:
        rounds = [{"side": side, "case": name, "took": took} for (side, name), took in found.took.items()]
        arguments.json.write_text(json.dumps({"versions": found.versions, "rounds": rounds}, indent=1))
    if any(found.best("quire", case) is None for case in cases):
        raise SystemExit("Quire failed at some work: see the lines above")


if __name__ == "__main__":
    main()
