"""What ranks on Ray reserve, and what they need of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quire.build.bundles import amounts_of, bundles_of, cpus_of, needs_of_ranks, place_of_gpu
from quire.build.limits import require_ranks
from quire.core.errors import InputError, MissingPackage
from quire.models.read import read_model
from quire.options.ranks import RankOptions
from quire.options.run import RunOptions
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.worker.ranks.interfaces import interface_of, loopback

GIB = 1 << 30
ON_RAY = RankOptions(launch="ray")


def test_a_rank_reserves_what_its_plan_says() -> None:
    """On a CPU memory for all that its ledger has, and a CPU for each thread. Red: ranks that Ray puts on a machine
    without room for them."""
    settings = Settings(tensor_parallel=2, pipeline_parallel=2)
    plan = make_plan(read_model("llama-3.1-8b"), settings, Budget(pool_bytes=GIB))
    needs = needs_of_ranks(plan, RunOptions(device="cpu", threads=3))
    assert [need["memory"] for need in needs] == [sum(line.bytes for line in rank.ledger) for rank in plan.ranks]
    assert {need["CPU"] for need in needs} == {3}
    first, second = bundles_of(plan, RunOptions(device="cuda"))
    assert first == second == {"CPU": 2, "GPU": 2}
    assert amounts_of(first) == "2 CPUs and 2 GPUs"
    assert cpus_of(RunOptions(device="cpu")) == 1


def test_rank_0_uses_the_gpu_that_ray_has_given_to_it() -> None:
    """Among those that it sees, which Ray numbers as the machine does."""
    assert place_of_gpu("3", None) == 3
    assert place_of_gpu("3", "1, 3") == 1
    with pytest.raises(
        InputError, match="Ray gives GPU 2 to rank 0, and CUDA_VISIBLE_DEVICES is 1,3: start without it"
    ):
        place_of_gpu("2", "1,3")


def test_collectives_listen_on_the_interface_of_the_address() -> None:
    assert interface_of("127.0.0.1") == loopback() != ""
    assert interface_of("203.0.113.1") == ""


def test_a_ray_that_is_missing_or_too_old_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before anything is planned or downloaded. One rank needs no Ray."""
    options = RunOptions(device="cpu", ranks=ON_RAY)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackage, match=r"^--launch ray needs ray: install it with pip install '\.\[ray\]'"):
        require_ranks(2, 1, options)
    require_ranks(1, 1, options)
    monkeypatch.delitem(sys.modules, "ray")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").touch()
    (tmp_path / "ray-2.9.3.dist-info").mkdir()
    (tmp_path / "ray-2.9.3.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.9.3\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        MissingPackage, match=r"^--launch ray needs Ray 2\.60 or newer, and 2\.9\.3 is here: install it"
    ):
        require_ranks(2, 1, options)
