"""Compiles Quire's C library when a wheel or an editable installation is made, where there is a compiler."""

from __future__ import annotations

import runpy
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeHook(BuildHookInterface[Any]):
    """Without a compiler the wheel is pure Python, and torch's products are used."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version
        own = runpy.run_path(str(Path(self.root) / "src" / "quire" / "native" / "compile.py"))
        own["LIBRARY"].unlink(missing_ok=True)
        why_not = own["build"]()
        if why_not is not None:
            print(f"quire: products in C are left out, because {why_not}", file=sys.stderr)
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"], build_data["tag"] = False, f"py3-none-{platform}"
        build_data["artifacts"].append("src/quire/native/*.so")
