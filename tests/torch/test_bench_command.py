"""`quire bench`: figures from random weights, with what they were measured on; on a machine without a GPU as well."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command import refused, run_text
from quire.bench import decode, random_engine
from quire.bench.random_models import config_of, model_of, shape_of, weight_bytes
from quire.bench.unprompted import spoil
from quire.build import machine
from quire.build import plan as build_plan
from quire.cli import bench
from quire.core.dtypes import DType
from quire.core.errors import DoesNotFit, InputError
from quire.core.sampling import Sampling
from quire.models.catalogue import catalogue_names
from quire.models.read import read_model
from quire.options.run import RunOptions
from quire.plan.settings import Settings
from quire.worker.sampling.sampler import Sampler

CPU = RunOptions(device="cpu")
SMALL = ("smollm2-135m", "--layers", "2", "--device", "cpu")


def measured(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, list[dict[str, object]]]:
    """The tables. What they were measured on stands beside them, progress on standard error."""
    out, said = run_text(capsys, "bench", *arguments, "--json")
    data = json.loads(out)
    assert data["about"]["device"]
    assert data["about"]["torch"] == torch.__version__
    assert data["about"]["triton"]
    assert "quire bench: smollm2-135m" in said
    tables: dict[str, list[dict[str, object]]] = data["tables"]
    return tables


def test_decode_steps_are_timed_beside_the_memorys_limit(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("decode", *SMALL, "--rows", "3", "--length", "64", "--steps", "4")
    (line,) = measured(capsys, *asked)["decode step"]
    assert line["shape"] == "smollm2-135m, 2 layers"
    assert line["rows × tokens"] == "3 × 64"
    assert {"engine, ms", "floor, ms", "floor ÷ engine", "tokens/s"} <= line.keys()


def test_rows_that_draw_are_told_beside_the_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    temperatures: list[float] = []
    enter = Sampler.enter

    def noting(sampler: Sampler, row: int, sampling: Sampling, *given: Any) -> None:
        temperatures.append(sampling.temperature)
        enter(sampler, row, sampling, *given)

    monkeypatch.setattr(Sampler, "enter", noting)
    size, drawing = ("--rows", "2", "--length", "64", "--steps", "4"), ("--temperature", "0.7", "--top-p", "0.9")
    out, _ = run_text(capsys, "bench", "decode", *SMALL, *size, *drawing, "--json")
    data = json.loads(out)
    assert (data["about"]["temperature"], data["about"]["top_p"]) == (0.7, 0.9)
    assert temperatures == [0.7, 0.7]


@pytest.mark.parametrize("steps", [6, pytest.param(1, marks=pytest.mark.soak)])
def test_all_rows_decode_in_every_step_that_is_timed(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """The first rows decode through all the steps that bring the last ones in."""
    monkeypatch.setattr(decode, "BATCH_TOKENS", 20)
    case = decode.Case("smollm2-135m", ((8, 64),), layers=2)
    decoding = decode.Decoding(case, CPU, DType.BF16, steps)
    decoding.fill(8, 64)
    for _ in range(2):
        assert decoding.timed(8) > 0
        assert decoding.unprompted.rows == [8] * (decode.WARM_STEPS + steps)
    decoding.steps = 100
    with pytest.raises(InputError, match="not all of 8 rows decoded in every step that was timed, but 0 in one"):
        decoding.timed(8)


def test_rows_have_the_length_that_was_asked_for_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that came first too, which decoded while the others came."""
    monkeypatch.setattr(decode, "BATCH_TOKENS", 256)
    case = decode.Case("smollm2-135m", ((16, 128),), layers=1)
    decoding = decode.Decoding(case, CPU, DType.BF16, 8)
    assert decoding.filling(16, 128) == 9
    decoding.fill(16, 128)
    decoding.timed(16)
    lengths = decoding.lengths()
    assert np.ptp(lengths) <= 3
    assert lengths.mean() == pytest.approx(128, abs=3)


def test_rows_that_cannot_decode_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_engine, "SPARE_ROOM", 0.5)
    case = decode.Case("smollm2-135m", ((8, 64),), layers=2)
    with pytest.raises(InputError, match=r"8 rows of 64 tokens never decode at once: .* lower --rows or --length"):
        decode.run([case], CPU, lambda _text: None, steps=4)


def test_more_than_the_memory_is_refused_before_a_model_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_plan, "available_bytes", lambda: 1 << 20)
    monkeypatch.setattr(random_engine, "model_of", lambda *_: pytest.fail("a model was built"))
    with pytest.raises(DoesNotFit, match=r"exceed the 1\.00 MiB that this machine has left"):
        random_engine.build_random(config_of("smollm2-135m", 2), Settings(max_length=64, max_requests=2), CPU)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32])
def test_a_pool_of_8_bits_is_filled_with_small_numbers_whoever_reads_it(dtype: torch.dtype) -> None:
    arena = torch.zeros(1 << 16, dtype=torch.uint8)
    spoil(arena, DType.FP8)
    numbers = arena.view(dtype).float()
    assert 0 < float(numbers.min()) < float(numbers.max()) < 2


def test_requests_run_from_beginning_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("serve", *SMALL, "--requests", "3", "--prompt", "20", "--outputs", "5")
    (line,) = measured(capsys, *asked)["requests"]
    assert line["requests"] == 3
    assert line["tokens in + out"] == "20 + 5"
    assert {"seconds", "output tokens/s", "first token, ms, median", "between tokens, ms, median"} <= line.keys()


def test_tables_are_printed_where_json_is_not_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_text(capsys, "bench", "serve", *SMALL, "--requests", "1", "--prompt", "4", "--outputs", "2")
    assert out.startswith("device ")
    assert "\n| shape | requests | tokens in + out | seconds |" in out


def test_keys_and_values_can_be_held_in_8_bits(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("serve", *SMALL, "--requests", "1", "--prompt", "20", "--outputs", "2", "--kv-dtype", "fp8")
    assert measured(capsys, *asked)["requests"]


@pytest.mark.story
@pytest.mark.parametrize("deterministic", [True, False])
def test_what_must_not_depend_on_the_batch_is_told_to_be_compiled(
    monkeypatch: pytest.MonkeyPatch, deterministic: bool
) -> None:
    monkeypatch.setattr(decode, "read_bandwidth", lambda _device: decode.Bandwidth(1.0, 1.0))
    monkeypatch.setattr(decode, "about", lambda _device, **told: told)
    report = decode.run((), RunOptions(device="cuda", deterministic=deterministic), print)
    assert report.about["compiled"] is deterministic


def test_a_cpu_needs_no_triton() -> None:
    without = "import sys; sys.modules['triton'] = None; from quire.cli.main import main; sys.exit(main(sys.argv[1:]))"
    asked = ["bench", "serve", *SMALL, "--requests", "1", "--prompt", "4", "--outputs", "2", "--json"]
    done = subprocess.run([sys.executable, "-c", without, *asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tables"]["requests"]


def test_kernels_need_a_gpu_and_say_what_runs_without(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "chosen_device", lambda _asked: "cpu")
    assert "quire bench decode and quire bench serve run on a CPU" in refused(capsys, "bench", "kernels")


@pytest.mark.story
@pytest.mark.parametrize("what", ["decode", "serve"])
def test_a_gpu_that_is_asked_for_and_not_there_is_told(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_accelerator", lambda: None)
    assert "quire: no accelerator answers here" in refused(capsys, "bench", what, "--device", "cuda")


def test_what_cannot_be_measured_is_refused_before_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert "not in the catalogue" in refused(capsys, "bench", "serve", "no-such-model")
    assert "give both" in refused(capsys, "bench", "decode", *SMALL, "--top-p", "0.5")
    assert "transformers has no code for models of type rwkv7" in refused(capsys, "bench", "serve", "rwkv7-world-0.1b")
    assert "--lenght is not understood: did you mean --length?" in refused(capsys, "bench", "decode", "--lenght", "9")
    short = refused(capsys, "bench", "decode", *SMALL, "--length", "56")
    assert "--length 56 is too short for 48 steps: give at least 57" in short
    many = refused(capsys, "bench", "decode", "smollm2-135m", "--layers", "31", "--device", "cpu")
    assert "quire: --layers 31 are more than smollm2-135m has: give at most 30" in many


@pytest.mark.parametrize("name", ["llama-3.2-1b", "llama-3.1-8b", "gemma-3-12b", "gemma-3-27b", "qwen3-next-80b-a3b"])
def test_random_models_have_the_shape_of_the_catalogue(name: str) -> None:
    """What transformers builds is as large as what is planned; rotary tables and norms aside."""
    config = config_of(name, layers=8)
    model, shape = model_of(config, torch.device("meta")), shape_of(config)
    assert len(shape.layers) == 8
    built = sum(part.numel() * part.element_size() for part in model.parameters())
    planned = sum(layer.weight_bytes for layer in shape.layers) + shape.embedding_bytes + shape.head_bytes
    assert built == pytest.approx(planned, rel=1e-3)
    assert weight_bytes(model).read(1_000_000) <= built * 1.001  # with the buffers of rotary frequencies


@pytest.mark.parametrize("name", ["bamba-9b", "jamba-v0.1", "gpt-oss-20b", "nvidia-nemotron-3-nano-30b-a3b-bf16"])
def test_random_models_remember_what_the_catalogue_says(name: str) -> None:
    memories = [layer.memories for layer in read_model(name).layers]
    assert [layer.memories for layer in shape_of(config_of(name)).layers] == memories
    assert [layer.memories for layer in shape_of(config_of(name, layers=8)).layers] == memories[:8]


def test_every_option_is_documented() -> None:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    (what,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    for name, command in what.choices.items():
        assert f"quire bench {name}" in page
        options = {option for action in command._actions for option in action.option_strings if option.startswith("--")}
        assert not {option for option in options - {"--help"} if f"`{option}" not in page}


def test_every_table_of_kernels_can_be_asked_for_by_name() -> None:
    from quire.bench.kernels import TABLES

    assert tuple(TABLES) == bench.KERNELS


def known_configs() -> dict[str, Any]:
    found = {}
    for name in catalogue_names():
        with suppress(InputError):  # transformers has no code for some
            found[name] = config_of(name)
    return found


@pytest.mark.story
def test_the_share_of_experts_that_a_token_reads_is_one_for_every_shape_of_the_catalogue() -> None:
    """However a configuration spells how many there are, or that there are none."""
    shares = {name: shape_of(config).experts.share for name, config in known_configs().items()}
    assert all(0 < share <= 1 for share in shares.values())
    expected = {"deepseek-v3": 8 / 256, "glm-4.5": 8 / 160, "gpt-oss-20b": 4 / 32, "granite-4.0-h-tiny": 6 / 64}
    expected |= {"gemma-4-31b": 1, "granite-4.0-h-micro": 1, "kimi-linear-48b-a3b": 8 / 256, "smollm2-135m": 1}
    assert {name: shares[name] for name in expected} == expected


@pytest.mark.story
@pytest.mark.parametrize(
    "name", ["deepseek-v3", "granite-4.0-h-tiny", "glm-4.5", "nvidia-nemotron-3-nano-30b-a3b-bf16"]
)
def test_of_experts_a_step_reads_those_that_its_tokens_choose(name: str) -> None:
    """Nothing is allocated: a few layers on no device at all."""
    model = model_of(config_of(name, 6), torch.device("meta"))
    whole = sum(part.numel() * part.element_size() for part in model.parameters())
    one, many = (weight_bytes(model).read(tokens) for tokens in (1, 100_000))
    assert 0 < one < 0.5 * many <= 1.001 * whole


@pytest.mark.parametrize(("weights", "bits"), [("int8", 8.5), ("int4", 5.0), ("fp8", 8.0)])
def test_random_weights_can_be_packed_as_those_of_a_checkpoint(
    capsys: pytest.CaptureFixture[str], weights: str, bits: float
) -> None:
    """They take the bits of `--weights`, and a step runs on them. Red: matrices that stay in floats."""
    asked = ("decode", *SMALL, "--rows", "2", "--length", "64", "--steps", "2", "--weights", weights)
    (line,) = measured(capsys, *asked)["decode step"]
    assert float(str(line["engine, ms"])) > 0
    model = model_of(config_of("llama-3.1-8b", 1), torch.device("meta"), torch.bfloat16, weights)
    layer = sum(part.nbytes for name, part in model.named_buffers() if ".layers." in name)
    matrices = 4096 * (4096 + 1024 + 1024 + 4096 + 3 * 14336)
    assert 8 * layer / matrices == pytest.approx(bits, rel=0.01)


def test_random_experts_of_gpt_oss_are_packed_as_it_ships() -> None:
    """Red: 12 billion expert weights in floats."""
    model = model_of(config_of("gpt-oss-20b", 1), torch.device("meta"))
    packed = sum(part.nbytes for name, part in model.named_buffers() if ".experts." in name)
    assert 8 * packed / (32 * 3 * 2880 * 2880) == pytest.approx(4.25, rel=0.01)  # 4 bits, an exponent for each 32
