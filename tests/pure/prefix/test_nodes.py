"""The tree of prefixes: every key has one node, however chains were added, found and forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from quire.prefix.nodes import NO_NODE, NOTES, Nodes

KEYS = [bytes([number]) for number in range(8)]


def add(nodes: Nodes, begin: int, end: int) -> list[int]:
    """Keys [begin, end) behind what is there of KEYS."""
    known = nodes.follow(KEYS, begin)
    parent = int(known[-1]) if begin else NO_NODE
    return nodes.add(KEYS[begin:end], parent, np.arange(begin + 1, end + 1)).tolist()


@pytest.mark.story
def test_a_chain_known_up_to_the_middle_of_a_run_goes_on_along_it() -> None:
    """It was not, and the rest of the run got second nodes, whose children were counted twice. Nor does it go on beyond
    what is asked for, where more is known: a boundary before that was kept under its own key at a later place."""
    nodes = Nodes()
    whole = add(nodes, 0, 2) + add(nodes, 2, 6)
    for known in range(len(whole) + 1):
        for most in range(len(KEYS) + 1):
            assert nodes.follow(KEYS, most, np.array(whole[:known], dtype=np.int64)).tolist() == whole[:most]


def test_chains_that_part_inside_a_run_are_told_apart() -> None:
    nodes = Nodes()
    whole = add(nodes, 0, 6)
    other = [*KEYS[:3], b"x", b"y"]
    branch = nodes.add(other[3:], whole[2], np.arange(4, 6)).tolist()
    assert nodes.follow(other, 5).tolist() == whole[:3] + branch
    assert nodes.follow(other, 5, np.array(whole[:2])).tolist() == whole[:3] + branch
    assert nodes.depth(KEYS) == 6
    assert sorted(nodes.leaves().tolist()) == sorted([whole[-1], branch[-1]])


def test_what_is_forgotten_from_the_end_is_not_found_and_can_come_again() -> None:
    nodes = Nodes()
    whole = add(nodes, 0, 3) + add(nodes, 3, 6)
    assert nodes.remove(np.array(whole[2:])) == whole[1]
    assert nodes.depth(KEYS) == 2
    again = add(nodes, 2, 5)
    assert nodes.follow(KEYS, 8, np.array(whole)).tolist() == whole[:2] + again
    assert len(nodes) == 5
    assert nodes.leaves().tolist() == again[-1:]


def test_nothing_that_was_noted_of_a_forgotten_prefix_is_that_of_the_next_in_its_place() -> None:
    nodes = Nodes()
    whole = np.array(add(nodes, 0, 6))
    for name in NOTES:
        getattr(nodes, name)[whole] = 1
    nodes.remove(whole)
    again = add(nodes, 0, 6)
    assert set(again) == set(whole.tolist())
    assert [nodes.notes(node) for node in again] == [[0] * len(NOTES)] * 6
