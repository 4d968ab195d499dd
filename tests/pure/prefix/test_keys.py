"""Names of prefixes, and who shares them: quick ways are compared with plain ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quire.prefix.junctions import Junctions
from quire.prefix.keys import extend, keys_of, root_hash, root_key, scope_of

ROOT = root_key(("layout", "scope"))
TOKENS = np.arange(100, dtype=np.int32)


def test_a_prompt_that_becomes_known_bit_by_bit_has_the_keys_of_the_whole() -> None:
    keys, behind = [], root_hash(ROOT, 8)
    for begin, end in ((0, 16), (16, 24), (24, 96)):
        more, behind = extend(behind, scope_of(ROOT), TOKENS[begin:end], 8)
        keys += more
    assert keys == keys_of(ROOT, TOKENS, 8)
    assert len(keys) == len(set(keys)) == 12


def test_a_hash_can_be_gone_on_from_twice() -> None:
    """A preempted request names its tokens again, from where its prompt ended."""
    _, behind = extend(root_hash(ROOT, 8), scope_of(ROOT), TOKENS[:16], 8)
    first, again = (extend(behind, scope_of(ROOT), TOKENS[16:32], 8)[0] for _ in range(2))
    assert first == again


def test_keys_tell_tokens_scopes_and_units_apart() -> None:
    other = TOKENS.copy()
    other[20] += 1
    pairs = zip(keys_of(ROOT, TOKENS, 8), keys_of(ROOT, other, 8), strict=True)
    assert [one == two for one, two in pairs] == [True] * 2 + [False] * 10
    everything = keys_of(ROOT, TOKENS, 8) + keys_of(ROOT, TOKENS, 16) + keys_of(root_key(("layout", "x")), TOKENS, 8)
    assert len(set(everything)) == len(everything)


@given(st.lists(st.tuples(st.text("ab", max_size=5), st.booleans()), max_size=12))
def test_a_prompt_shares_as_much_as_with_the_one_that_is_most_like_it(coming: list[tuple[str, bool]]) -> None:
    """Of all that are here when it comes; some leave again."""
    junctions, here = Junctions(), []
    for name, stays in coming:
        keys = [name[: count + 1].encode() for count in range(len(name))]
        alike = [sum(a == b for a, b in zip(keys, others, strict=False)) for others in here]
        assert junctions.add(keys) == max(alike, default=0)
        here.append(keys)
        if not stays:
            junctions.remove(here.pop(0))
    for keys in here:
        junctions.remove(keys)
    assert junctions.add([b"a", b"ab"]) == 0
