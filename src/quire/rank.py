"""`python -m quire.rank MODEL …` is `quire serve MODEL …` as one of several ranks, which torchrun or Slurm starts.

torchrun --nproc-per-node 4 -m quire.rank MODEL --tensor-parallel 4
"""

from __future__ import annotations

import sys

from quire.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["rank", *sys.argv[1:]]))
