"""The keywords of an `LLM` as options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.core.errors import InputError
from quire.options.run import RunOptions
from quire.options.spelling import near_to


def run_options(options: RunOptions | None, keywords: Mapping[str, Any]) -> RunOptions:
    """The options from keywords, or those given as `options`."""
    known = RunOptions.__dataclass_fields__
    for name in keywords:
        if name not in known:
            raise InputError(f"LLM has no option {name}{near_to(name, known)}")
    if options is not None and keywords:
        raise InputError(f"options and {', '.join(keywords)} are both given: put {', '.join(keywords)} into options")
    return options or RunOptions(**keywords)
