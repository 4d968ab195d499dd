"""Which model types run on several ranks or stages: the proof of each type's split, with a tiny configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quire.sweep.case import Case
from quire.sweep.findings import Finding, examine_by, on_one_thread
from quire.worker.ranks.proof import prove_split

LARGER: Mapping[str, Mapping[str, Any]] = MappingProxyType({"mimo_v2_flash": {"num_key_value_heads": 2}})
"""By type: options without which a tiny configuration has fewer key heads than ranks, as no published model has."""


def sweep_splits(cases: Iterable[Case], ranks: int, stages: int) -> Iterator[Finding]:
    """`pass`: a small twin yields the same logits in parts. Whether a type runs at all is another question."""

    def examined(case: Case) -> Finding:
        own = replace(case, options={**case.options, **LARGER.get(case.type, {})})
        config = own.config
        config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[case.type]]
        prove_split(config, ranks, stages)
        return Finding(case.type, "pass", options=case.label)

    with on_one_thread():
        for case in cases:
            yield examine_by(examined, case)
