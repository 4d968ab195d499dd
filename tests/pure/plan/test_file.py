"""A plan saves to JSON with a fingerprint and loads back equal."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from shapes import FULL, GEMMA_3_27B, STATE, WINDOW, attention, latent, model

from quire.core.dtypes import DType
from quire.core.errors import PlanFileError
from quire.core.units import GIB
from quire.models.shape import Layer, ModelShape
from quire.plan.file import fingerprint, layout_fingerprint
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.planner.document import document, is_plan_file, load, plan_of, save

EVERY_KIND = [
    FULL, WINDOW, STATE, latent(), latent(tokens_per_state=4), attention("chunked", chunk=1000),
    attention("sink", sinks=4, window=512), attention("cross", encoder_tokens=1500), Layer(()),
]  # fmt: skip


def a_plan(shape: ModelShape | None = None, **settings: object) -> Plan:
    return make_plan(shape or model(EVERY_KIND), Settings(**settings), Budget(pool_bytes=8 * GIB))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"host_bytes": GIB},
        {"pipeline_parallel": 2},
        {"kv_dtype": DType.FP8, "state_dtype": DType.BF16},
        {"max_length": 64},
    ],
)
def test_a_plan_loads_back_equal(settings: dict[str, object], tmp_path: Path) -> None:
    plan = a_plan(**settings)
    save(document(plan), tmp_path / "plan.json")
    assert load(tmp_path / "plan.json")[0] == plan


def test_the_fingerprint_changes_with_anything_that_shapes_memory() -> None:
    base = a_plan()
    assert fingerprint(base) == fingerprint(a_plan())
    others = [a_plan(kv_dtype=DType.FP8), a_plan(max_length=2048), a_plan(reserved_pages=1), a_plan(model(GEMMA_3_27B))]
    assert len({fingerprint(plan) for plan in (base, *others)}) == 5
    assert fingerprint(replace(base, notes=("other words",))) == fingerprint(base)


def test_the_layout_fingerprint_is_that_of_the_bytes_alone() -> None:
    """Pages of two engines can be exchanged if layouts agree, whatever their pools and limits."""
    base = a_plan()
    assert layout_fingerprint(base) == layout_fingerprint(a_plan(max_length=2048))
    assert layout_fingerprint(base) != layout_fingerprint(a_plan(kv_dtype=DType.FP8))


@pytest.mark.parametrize("field", ["sheets", "max_length", "concurrency", "ledger", "fits", "plan", "notes"])
def test_a_changed_plan_is_refused(field: str, tmp_path: Path) -> None:
    """Not only the plan itself: every table that someone may read from the file."""
    data = document(a_plan())
    if field == "plan":
        data["plan"]["stages"][0]["sheets"] += 1
    else:
        data[field] = {"sheets": 7, "max_length": 9, "fits": False}.get(field, {})
    save(data, tmp_path / "plan.json")
    with pytest.raises(PlanFileError, match="was changed after it was made"):
        load(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [("bottleneck_stage", 7), ("ranks", []), ("stages", []), ("batch_tokens", 10**30), ("reserved_pages", 1e308)],
)
def test_a_plan_with_numbers_that_lead_nowhere_is_damaged(field: str, value: object) -> None:
    data = document(a_plan())
    data["plan"][field] = value
    with pytest.raises(PlanFileError, match=r"plan.json is damaged \(.+\): make the plan again"):
        plan_of(data, "plan.json")


def test_a_plan_of_another_version_is_refused() -> None:
    with pytest.raises(PlanFileError, match=r"schema 'quire.plan/9', this version reads 'quire.plan/3'"):
        plan_of({**document(a_plan()), "schema": "quire.plan/9"}, "plan.json")


@pytest.mark.parametrize(
    "text",
    [
        "", "not json", "[]", "{}", '{"schema": "quire.plan/3"}', '{"schema": "quire.plan/3", "plan": {}}',
        '{"schema": "quire.plan/3", "plan": ' + "[" * 100_000,
    ],
)  # fmt: skip
def test_a_torn_file_is_one_clear_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanFileError) as caught:
        load(tmp_path / "plan.json")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="cannot read the plan"):
        load(tmp_path / "absent.json")


def test_a_plan_is_known_whatever_the_order_of_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("\n " + json.dumps(document(a_plan()), sort_keys=True))
    assert is_plan_file(path)


def test_asking_whether_a_large_file_is_a_plan_reads_only_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF")
        file.truncate(64 << 20)
    tracemalloc.start()
    try:
        assert not is_plan_file(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_document_is_plain_json() -> None:
    assert json.loads(json.dumps(document(a_plan(host_bytes=GIB)))) == document(a_plan(host_bytes=GIB))
