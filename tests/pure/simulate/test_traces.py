"""Traces of others, and made-up ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from quire.core.errors import InputError
from quire.simulate.synthetic import SORTS, make_trace
from quire.simulate.tokens import Recipe, mixed_tokens, seed_of
from quire.simulate.traces import Trace, read_trace, spread


def mooncake(path: Path, *records: tuple[int, int, int, list[int]]) -> Path:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("".join(json.dumps(dict(zip(names, record, strict=True))) + "\n" for record in records))
    return path


def azure(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    return path


def test_equal_hash_ids_are_equal_tokens_and_others_are_not(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "t.jsonl", (0, 1500, 9, [7, 8, 9]), (3000, 1300, 0, [7, 8, 10]))
    first, second = read_trace(path, None).requests
    one, two = first.recipe.made(), second.recipe.made()
    assert (len(one), len(two)) == (1500, 1300)
    assert (first.output_tokens, second.output_tokens) == (9, 1)
    assert np.array_equal(one[:1024], two[:1024])
    assert np.mean(one[1024:1300] == two[1024:]) < 0.05


def test_arrivals_of_one_bucket_are_spread_over_it(tmp_path: Path) -> None:
    records = [(time, 10, 1, [0]) for time in (0, 0, 0, 3000, 9000, 9000)]
    trace = read_trace(mooncake(tmp_path / "t.jsonl", *records), None)
    assert [one.seconds for one in trace.requests] == pytest.approx([0, 1, 2, 3, 9, 10.5])


def test_moments_that_differ_stay() -> None:
    assert spread([0.0, 0.5, 0.75]) == [0.0, 0.5, 0.75]


def test_azure_is_read_from_its_first_moment_on_and_shares_nothing(tmp_path: Path) -> None:
    path = azure(tmp_path / "t.csv", "2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.6805900,374,0")
    first, second = read_trace(path, None).requests
    assert (first.seconds, second.seconds) == (0.0, pytest.approx(4.0))
    assert (first.output_tokens, second.output_tokens) == (44, 1)
    assert first.recipe.made()[0] != second.recipe.made()[0]


def test_a_compressed_trace_is_known_by_its_content(tmp_path: Path) -> None:
    plain = mooncake(tmp_path / "t.jsonl", (0, 10, 1, [0]))
    packed = tmp_path / "named-like-nothing"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert len(read_trace(packed, None).requests) == 1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "Expecting"),
        ('{"timestamp": 0}', "input_length is missing"),
        ('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}', "1 hash_ids for 600 tokens"),
        ('{"timestamp": 0, "input_length": -1, "output_length": 1, "hash_ids": [1]}', "-1 is not a whole number"),
        ('{"timestamp": -5, "input_length": 5, "output_length": 1, "hash_ids": [1]}', "timestamp is -5"),
        ('{"timestamp": 0, "input_length": 5, "output_length": "1", "hash_ids": [1]}', "'1' is not a whole number"),
        ("[]", "list indices"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_malformed_line_is_told_by_number(tmp_path: Path, line: str, problem: str) -> None:
    path = mooncake(tmp_path / "t.jsonl", (0, 10, 1, [0]))
    path.write_text(path.read_text() + "\n" + line + "\n")
    with pytest.raises(InputError, match=f"line 3 cannot be understood: .*{problem}") as caught:
        read_trace(path, None)
    assert "\n" not in str(caught.value)


def test_a_malformed_line_of_azure_is_told_by_number(tmp_path: Path) -> None:
    path = azure(tmp_path / "t.csv", "2023-11-16 18:15:46,3,4", "yesterday,3,4")
    with pytest.raises(InputError, match="line 3"):
        read_trace(path, None)


def test_a_moment_may_name_its_zone(tmp_path: Path) -> None:
    path = azure(tmp_path / "t.csv", "2024-05-10 00:00:00.5+00:00,10,5", "2024-05-10 02:00:01.5+02:00,10,5")
    assert [one.seconds for one in read_trace(path, None).requests] == [0.0, 1.0]


def test_a_torn_archive_and_a_folder_are_told(tmp_path: Path) -> None:
    torn = tmp_path / "torn.gz"
    torn.write_bytes(gzip.compress(b"x" * 100_000)[:60])
    for path in (torn, tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_trace(path, None)


def test_other_formats_empty_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with pytest.raises(InputError, match="no such file"):
        read_trace(path, None)
    for text, problem in (
        ("", "is empty"),
        ("a,b\n1,2", "neither"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "no r"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=problem):
            read_trace(path, None)


def test_the_first_requests_and_a_rate_can_be_chosen(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "t.jsonl", *((3000 * one, 10, 1, [one]) for one in range(20)))
    trace = read_trace(path, 11).at_rate(5.0)
    assert len(trace.requests) == 11
    assert trace.requests[-1].seconds == pytest.approx(2.0)


def test_requests_of_one_moment_come_evenly_at_a_rate() -> None:
    trace = make_trace("documents", 3, 0)
    together = Trace("t", tuple(type(one)(one.name, one.recipe, 1, 0.0) for one in trace.requests)).at_rate(2.0)
    assert [one.seconds for one in together.requests] == [0.0, 0.5, 1.0]


def test_pieces_of_a_recipe_follow_one_another() -> None:
    made = Recipe.of([(5, 0, 3), (6, 10, 2)]).made()
    seeds = np.array([5, 5, 5, 6, 6], dtype=np.uint64)
    assert made.tolist() == mixed_tokens(seeds, np.array([0, 1, 2, 10, 11])).tolist()
    assert len(set(Recipe.of([(5, 0, 1000)]).made().tolist())) > 900


@pytest.mark.parametrize("sort", SORTS)
def test_equal_seeds_make_equal_traces(sort: str) -> None:
    one, same, other = (make_trace(sort, 40, seed).requests for seed in (1, 1, 2))
    assert [a.seconds for a in one] == [a.seconds for a in same] != [a.seconds for a in other]
    assert all(np.array_equal(a.recipe.made(), b.recipe.made()) for a, b in zip(one, same, strict=True))
    assert len(one) == 40


@pytest.mark.parametrize("sort", ["chat", "agents"])
def test_a_turn_begins_with_the_last_prompt_and_its_answer(sort: str) -> None:
    requests = make_trace(sort, 60, 0).requests
    turns = [one for one in requests if one.after is not None]
    assert turns
    for turn in turns:
        before = requests[turn.after or 0]
        prompt = before.recipe.made()
        seed = np.array([seed_of(before.name)], dtype=np.uint64)
        answer = mixed_tokens(seed, len(prompt) + np.arange(before.output_tokens))
        begin = np.concatenate([prompt, answer])
        assert np.array_equal(turn.recipe.made()[: len(begin)], begin)


def test_an_unknown_sort_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="synthetic:chat, synthetic:agents"):
        make_trace("poems", 1, 0)
