"""The keywords of an `LLM`: a field of `RunOptions` each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
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


def signature_of(init: Callable[..., Any]) -> inspect.Signature:
    """The signature of `LLM` with a keyword for each option, as `help(LLM)` shows it."""
    own = [one for name, one in inspect.signature(init).parameters.items() if name not in ("self", "keywords")]
    keywords = inspect.signature(RunOptions).parameters.values()
    return inspect.Signature([*own, *(one.replace(kind=one.KEYWORD_ONLY) for one in keywords)])
