"""`RunOptions`: one value for the command line, files, the environment, the library and the engine's process."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest

from quire.cli.configuration import complete
from quire.cli.flags import add_flags, run_options
from quire.cli.main import build_parser
from quire.cli.serve import add_all
from quire.core.dtypes import DType
from quire.core.errors import InputError
from quire.core.rules import Policy, Rules
from quire.options.flags import Flag, Part, flags, from_flags, option, part, read_texts
from quire.options.peer import Peer, Role
from quire.options.run import RunOptions
from quire.options.tiers import Tiers

WITHOUT_FLAG = {"rules", "overlap"}
"""The server makes the rules from its keys; the other one is for the library."""


def served(*arguments: str) -> RunOptions:
    """As `quire serve` reads them."""
    return run_options(complete(add_all, build_parser().parse_args(["serve", *arguments])))


def parsed(command: str, *arguments: str) -> argparse.Namespace:
    return build_parser().parse_args([command, *arguments])


# ── from flags to the value ───────────────────────────────────────────────


def test_every_option_of_the_command_line_arrives_in_its_field(tmp_path: Path) -> None:
    options = served(
        *("--device", "cuda", "--compile", "--deterministic", "--dtype", "bf16", "--kv-dtype", "fp8", "--threads", "3"),
        *("--draft-model", "small", "--draft-tokens", "5", "--host-memory", "1GiB", "--disk", "cache:2GiB"),
        *(
            "--remote",
            "redis://host",
            "--connector",
            "a:b",
            "--connector",
            "c",
            "--tier-secret",
            str(tmp_path / "tiers"),
        ),
        *("--role", "decode", "--peer", "host:7000", "--peer-secret", str(tmp_path), "--peer-seconds", "2.5"),
    )
    peer = Peer(role=Role.DECODE, host="host", port=7000, secret=tmp_path, seconds=2.5)
    tiers = Tiers(1 << 30, Path("cache"), 2 << 30, "redis://host", ("a:b", "c"), peer, tmp_path / "tiers")
    assert options == RunOptions(
        device="cuda",
        compile=True,
        deterministic=True,
        dtype=DType.BF16,
        kv_dtype=DType.FP8,
        threads=3,
        draft_model="small",
        draft_tokens=5,
        tiers=tiers,
    )
    assert served("--record", "run.jsonl").record == Path("run.jsonl")


def test_nothing_typed_is_the_value_with_its_defaults() -> None:
    assert served() == RunOptions()
    for command in (("generate", "--prompt", "x"), ("chat",)):
        assert run_options(parsed(*command)) == RunOptions()


def test_the_server_has_a_flag_for_each_field() -> None:
    """A field without a flag is listed here, so that none is forgotten."""
    without = {one.name for one in fields(RunOptions) if not {Flag, Part} & set(one.metadata)}
    assert without == WITHOUT_FLAG
    commands = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    names = {name for action in commands.choices["serve"]._actions for name in action.option_strings}
    assert {flag.name for flag in flags(RunOptions)} <= names


def test_a_hand_over_is_described_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    assert served("--peer-seconds", "3").tiers.peer is None
    with pytest.raises(InputError, match="needs --role, --peer and --peer-secret: give --peer as well"):
        served("--role", "prefill", "--peer-secret", str(tmp_path))


# ── what a field's metadata does ──────────────────────────────────────────


@dataclass(frozen=True)
class Inner:
    size: int = option(1, "some", "size of the inner value", "--inner-size", parse=int)
    low: int = option(0, "others", "a range", "--range", fields=("low", "high"), parse=int)
    high: int = 9


@dataclass(frozen=True)
class Outer:
    name: str = option("none", "some", "name of the outer value", choices=("none", "one"))
    inner: Inner = field(default_factory=Inner, metadata=part(Inner))

    def __post_init__(self) -> None:
        read_texts(self)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Outer()),
        ({"name": "one", "inner_size": 4}, Outer("one", Inner(4))),
        ({"range": (2, 3), "unknown": 5}, Outer(inner=Inner(low=2, high=3))),
        ({"name": None, "inner_size": None, "range": None}, Outer()),
    ],
)
def test_a_value_is_made_from_what_was_given_of_it(given: Mapping[str, Any], expected: Outer) -> None:
    """Parts within it too; a flag may set several fields."""
    assert from_flags(Outer, given) == expected


def test_a_choice_that_there_is_none_of_is_refused_wherever_it_was_given() -> None:
    with pytest.raises(InputError, match="name 'two' is not known: choose one of none, one"):
        Outer("two")


def test_a_command_has_the_flags_of_the_groups_that_it_lists() -> None:
    parser = argparse.ArgumentParser()
    add_flags({"draft": parser})
    assert set(vars(parser.parse_args([]))) == {"draft", "draft_memory", "draft_model", "draft_tokens"}


# ── the value itself ──────────────────────────────────────────────────────


def test_text_is_read_as_on_the_command_line() -> None:
    options = RunOptions(dtype="bf16", kv_dtype="float8", record="run.jsonl")  # type: ignore[arg-type]
    assert (options.dtype, options.kv_dtype, options.record) == (DType.BF16, DType.FP8, Path("run.jsonl"))
    assert Tiers(host_bytes="1MiB").host_bytes == 1 << 20  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"device": "tpu"}, "device 'tpu' is not known: choose one of auto, cpu, cuda"),
        ({"dtype": "fp8"}, "--dtype fp8 is not one of fp32, bf16, fp16"),
        ({"dtype": DType.INT8}, "--dtype int8 is not one of fp32, bf16, fp16"),
        ({"kv_dtype": "int4"}, "--kv-dtype 'int4' is not known: choose one of fp32, bf16, fp16, fp8"),
        ({"device": "cpu", "compile": True}, "--compile needs --device cuda"),
        ({"device": "cpu", "deterministic": True}, "--deterministic needs --device cuda"),
        ({"threads": 0}, "threads is 0: give a whole number from 1 to 1,073,741,824"),
        ({"threads": True}, "threads is True: give a whole number"),
        ({"draft_tokens": 2.5}, "draft_tokens is 2.5: give a whole number"),
        ({"draft_tokens": 1 << 40}, "draft_tokens is 1099511627776: give a whole number"),
        ({"overlap": 0}, "overlap is 0: give at least 1"),
    ],
)
def test_what_cannot_be_run_is_refused_when_the_value_is_made(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        RunOptions(**wrong)


def test_what_needs_a_gpu_is_refused_as_soon_as_the_device_is_known() -> None:
    options = RunOptions(deterministic=True)
    with pytest.raises(InputError, match="--deterministic needs --device cuda"):
        replace(options, device="cpu")
    assert replace(options, device="cuda").weights_dtype is DType.BF16


def test_a_recording_and_a_peer_are_refused_together(tmp_path: Path) -> None:
    tiers = Tiers(peer=Peer(role=Role.PREFILL, host="127.0.0.1", port=1, secret=tmp_path))
    with pytest.raises(InputError, match="leave --record or --role out"):
        RunOptions(record=tmp_path, tiers=tiers)


def test_it_travels_to_another_process_as_it_is(tmp_path: Path) -> None:
    tiers = Tiers(
        1 << 20, connectors=("mine:connector",), peer=Peer(role=Role.DECODE, host="::1", port=7, secret=tmp_path)
    )
    rules = Rules(Policy.FAIR, queue_bound=7)
    options = RunOptions(device="cuda", compile=True, dtype=DType.FP16, tiers=tiers, rules=rules, threads=2)
    assert pickle.loads(pickle.dumps(options)) == options
