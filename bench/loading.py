"""Peak memory of a rank that reads its share of a checkpoint: less than the share and one tensor.

python bench/loading.py                    a checkpoint of 1 GiB, 2 ranks
python bench/loading.py --mebibytes 128 --ranks 4 --experts
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, Qwen3MoeConfig

from quire.core.units import MIB, format_bytes
from quire.worker.model.model import build
from quire.worker.ranks.member import Member
from quire.worker.ranks.reading import read_configuration, read_share
from quire.worker.ranks.share import Share
from quire.worker.ranks.shared import share_model
from quire.worker.ranks.threads import Meeting, ThreadRank
from quire.worker.weights.slices import StoredTensors

LAYERS, HIDDEN, VOCABULARY = 8, 1024, 8192


@dataclass(frozen=True, slots=True)
class Loading:
    """Bytes of one rank."""

    share: int
    tensor: int
    """The largest one of the checkpoint, or the experts of a layer."""
    peak: int
    """Beyond what the process had before it read."""

    def line(self) -> str:
        return (
            f"share {format_bytes(self.share)}, largest tensor {format_bytes(self.tensor)}, "
            f"peak {format_bytes(self.peak)}: {self.peak / (self.share + self.tensor):.0%} of both"
        )


def make_checkpoint(folder: Path, mebibytes: int, has_experts: bool) -> None:
    """Random weights of this size, in files of an eighth of it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build(_config(mebibytes, has_experts), torch.bfloat16)
    model.save_pretrained(folder, max_shard_size=mebibytes * MIB // 8)


def _config(mebibytes: int, has_experts: bool) -> LlamaConfig | Qwen3MoeConfig:
    numbers = mebibytes * MIB // 2 - 2 * HIDDEN * VOCABULARY - LAYERS * 4 * HIDDEN * HIDDEN
    inner = max(64, numbers // (3 * LAYERS * HIDDEN) // 128 * 128)
    sizes: dict[str, Any] = {
        "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 16, "num_key_value_heads": 16,
        "head_dim": 64, "vocab_size": VOCABULARY, "intermediate_size": inner,
    }  # fmt: skip
    if not has_experts:
        return LlamaConfig(**sizes)
    return Qwen3MoeConfig(**sizes, num_experts=16, num_experts_per_tok=2, moe_intermediate_size=inner // 16)


def measure(folder: Path, rank: int, ranks: int) -> Loading:
    """In a process of its own."""
    command = [sys.executable, __file__, "--folder", str(folder), "--rank", str(rank), "--ranks", str(ranks)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Loading(**json.loads(found.splitlines()[-1]))


def _load(folder: Path, rank: int, ranks: int) -> Loading:
    member = Member(Share(rank, ranks, 0, 1), ThreadRank(Meeting(ranks), rank, ranks))
    share_model(read_configuration(folder), member, range(LAYERS), torch.bfloat16)  # imports what reading needs
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    model = read_share(folder, member, range(LAYERS), torch.bfloat16)
    peak = _status("VmHWM") - before
    with StoredTensors(folder) as stored:
        groups: dict[str, int] = {}
        for name in stored.names():
            layer, is_expert, projection = name.partition(".experts.")
            group = f"{layer}{is_expert}{'down' if 'down' in projection else 'up'}" if is_expert else name
            groups[group] = groups.get(group, 0) + stored[name].nbytes
    return Loading(sum(one.nbytes for one in model.parameters()), max(groups.values()), peak)


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of the checkpoint (default: 1024)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--experts", action="store_true", help="most weights are those of experts")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is not None:
        found = _load(options.folder, options.rank, options.ranks)
        print(json.dumps({"share": found.share, "tensor": found.tensor, "peak": found.peak}))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), options.mebibytes, options.experts)
        for rank in range(options.ranks):
            print(f"rank {rank} of {options.ranks}:", measure(Path(folder), rank, options.ranks).line())


if __name__ == "__main__":
    main()
