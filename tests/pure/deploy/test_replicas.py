"""How many replicas there may be, what each needs, and how its load is reported."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quire.core.errors import InputError, PlanError
from quire.deploy.places import Need, needs, places, requests_at_once, require_places
from quire.deploy.scaling import by_calls
from quire.deploy.settings import DeploySettings, Replicas, replicas
from quire.models.read import read_model
from quire.options.ranks import RankOptions
from quire.options.run import RunOptions
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings

GIB = 1 << 30


def test_replicas_are_a_number_or_a_range() -> None:
    assert replicas("4") == Replicas(4, 4)
    assert replicas("1..4") == Replicas(1, 4)
    assert replicas("1..4").scales
    for text, fix in (("4..1", "write 1..4"), ("some", "write 4, or 1..4"), ("0", "0")):
        with pytest.raises(InputError, match=fix):
            replicas(text)
    with pytest.raises(InputError, match="--upscale-seconds"):
        DeploySettings(upscale_seconds=-1)


def test_a_replica_needs_a_gpu_for_each_rank_or_its_part_of_main_memory() -> None:
    """Red: replicas on one machine that together plan for more memory than it has."""
    plan = make_plan(read_model("meta-llama-3.1-8b"), Settings(tensor_parallel=2), Budget(pool_bytes=8 * GIB))
    on_gpus, on_a_cpu = needs(plan, RunOptions(device="cuda")), needs(plan, RunOptions(device="cpu"))
    assert on_gpus == Need(({"CPU": 1, "GPU": 2},), {"CPU": 1, "GPU": 2})
    assert on_a_cpu.own["memory"] > 2 * 8 * GIB
    assert not on_gpus.has_actors


def test_ranks_that_are_actors_reserve_a_bundle_for_each_stage() -> None:
    """The replica's own processes are rank 0. Red: ranks of one stage that Ray may put on several machines, or a
    replica whose ranks find no room in what it has reserved."""
    settings = Settings(tensor_parallel=2, pipeline_parallel=2)
    plan = make_plan(read_model("meta-llama-3.1-8b"), settings, Budget(pool_bytes=8 * GIB))
    launch = RankOptions(launch="ray")
    need = needs(plan, RunOptions(device="cuda", ranks=launch))
    assert need == Need(({"CPU": 2, "GPU": 2}, {"CPU": 2, "GPU": 2}), {"CPU": 1, "GPU": 1})
    assert need.has_actors
    on_a_cpu = needs(plan, RunOptions(device="cpu", threads=3, ranks=launch))
    assert [bundle["CPU"] for bundle in on_a_cpu.bundles] == [6, 6]
    assert on_a_cpu.bundles[0]["memory"] >= 2 * on_a_cpu.own["memory"] - 1 > 2 * 8 * GIB
    assert not needs(plan, RunOptions(device="cuda")).has_actors


def test_load_is_measured_in_requests_that_the_plan_runs_at_once() -> None:
    """At the expected length, as far as it is admitted. Red: a number that does not follow from the plan."""
    plan = make_plan(read_model("meta-llama-3.1-8b"), Settings(), Budget(pool_bytes=16 * GIB))
    assert requests_at_once(plan, 8192) == bound.concurrency(plan, 8192) > 1
    assert requests_at_once(plan, 1 << 30) == bound.concurrency(plan, plan.max_length)
    assert requests_at_once(plan, 16) == plan.max_requests


def test_a_replica_is_never_divided_among_machines() -> None:
    need = [{"CPU": 1.0, "GPU": 2.0}]
    assert places([{"CPU": 8, "GPU": 3}, {"CPU": 8, "GPU": 1}], need, 9) == 1
    assert places([{"CPU": 1, "GPU": 8}, {"CPU": 8}], need, 9) == 1
    assert places([{"CPU": 8, "GPU": 3}, {"CPU": 8, "GPU": 2}], 2 * need, 9) == 1  # its stages may be


REFUSALS = (
    (
        {"CPU": 1.0, "GPU": 1.0},
        "4 replicas need 4 GPUs, 1 GPU each, and Ray has 2 GPUs on 1 machine: lower --replicas to 2 or add machines",
    ),
    (
        {"CPU": 1.0, "GPU": 4.0},
        "4 replicas need 16 GPUs, 4 GPUs each, and Ray has 2 GPUs on 1 machine: use another machine or add machines",
    ),
    (
        {"CPU": 1.0, "memory": 5.0 * GIB},
        "4 replicas need 20.00 GiB of memory, 5.00 GiB of memory each, and Ray has 16.00 GiB of memory on 1 machine: "
        "give each less with --memory-fraction or --pool, lower --replicas to 3 or add machines",
    ),
)


@pytest.mark.parametrize(("need", "says"), REFUSALS)
def test_replicas_without_a_place_are_refused_with_the_numbers_and_the_fix(need: dict[str, float], says: str) -> None:
    machines = [{"CPU": 8.0, "GPU": 2.0, "memory": 16.0 * GIB}]
    require_places(machines, [{"CPU": 2.0}], 4)
    with pytest.raises(PlanError) as refusal:
        require_places(machines, [need], 4)
    assert str(refusal.value) == says


def test_replicas_follow_the_calls_that_have_not_ended() -> None:
    """9 calls, of which one replica runs 4 at once, need 2.25 replicas: Ray rounds up, and keeps to its limits."""
    context = SimpleNamespace(
        aggregated_metrics={"calls": {"a": 6.0, "b": 3.0}}, config=SimpleNamespace(target_ongoing_requests=4)
    )
    assert by_calls(context)[0] == 2.25
    context.aggregated_metrics = None
    assert by_calls(context)[0] == 0
