"""Every reason has a sentence, and what a reader may not see is in none of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from quire.core.reasons import Reason, WayBack, Why
from quire.explain.explanation import ANOTHER, Explanation, KindShort, explained_without_others, without_others
from quire.explain.sentences import describe, sentence, why


class Sevens(dict[str, float]):
    """Whatever number is asked for."""

    def __missing__(self, name: str) -> float:
        return 7


SEVENS: Mapping[str, float] = Sevens()
INNER = Reason(Why.NEEDS_PAGES, ("stranger",), SEVENS, detail="stranger")


def reason_of(code: Why) -> Reason:
    return Reason(code, ("stranger",), SEVENS, because=INNER, detail="stranger in /a/file")


@pytest.mark.parametrize("code", Why)
def test_every_code_has_a_sentence(code: Why) -> None:
    text = sentence(reason_of(code))
    assert text
    assert not text.endswith((".", " ", ":"))


@pytest.mark.parametrize("code", Why)
def test_no_other_name_and_no_word_of_a_tier_is_shown_to_a_tenant(code: Why) -> None:
    hidden = without_others(reason_of(code), {"own"})
    assert "stranger" not in repr(hidden)
    assert "stranger" not in sentence(hidden)


def test_a_tenants_own_requests_keep_their_names() -> None:
    reason = Reason(Why.IN_LINE, ("own",), {"place": 2}, because=Reason(Why.PREFIX, ("stranger",)))
    assert sentence(without_others(reason, {"own"})) == (
        f"it is number 2 in line, and own waits: {ANOTHER} is computing its prefix"
    )


def test_a_tenant_does_not_learn_that_another_scope_asked_the_same() -> None:
    assert without_others(Reason(Why.SCOPE), set()) == Reason(Why.NO_OVERLAP)
    running = Reason(Why.RUNNING, numbers=Sevens(hit_tokens=0, loaded_tokens=0), because=Reason(Why.SCOPE))
    assert "nothing was reused (no cached prompt starts with the same tokens)" in sentence(
        without_others(running, set())
    )


def test_an_explanation_names_no_stranger_to_a_tenant() -> None:
    """What strangers hold is added up: how much each of two holds is not shown either."""
    kinds = (KindShort(0, "full", 9, 4, 2, (("stranger", 5), ("own", 1), ("stranger-2", 2)), (("cache", 3),)),)
    after = ("stranger", "own", "stranger-2")
    found = Explanation("own", "waiting", reason_of(Why.PREFIX), None, kinds, 12, 0.5, after)
    hidden = explained_without_others(found, {"own"})
    assert "stranger" not in repr(hidden)
    assert describe(hidden).splitlines() == [
        "own waits: another is computing its prefix",
        "  full: needs 9 pages; 4 are free, running requests are likely to take 2, 7 are missing; "
        "own holds 1, other keys hold 7, cache holds 3",
        "there is room for it when own and 2 others have ended; it runs within 12 steps and 0.5 s of loads, "
        "whatever arrives",
    ]


def test_one_page_is_free_and_several_are() -> None:
    one = KindShort(0, "full", 1, 1, 1, (), (), 0)
    (_, line, _) = describe(Explanation("own", "waiting", Reason(Why.QUEUED), None, (one,), 3)).splitlines()
    assert line == "  full: needs 1 page; 1 is free, running requests are likely to take 1, 1 is missing; none is held"


def test_what_is_kept_for_prefixes_is_said_to_a_request_that_lacks_memory() -> None:
    """Much of the pool may be free then."""
    kept = "25% of the pool is kept for cached prefixes that other queued requests will use"
    assert kept in describe(Explanation("own", "waiting", Reason(Why.MEMORY), kept_share=0.25)).splitlines()
    assert kept not in describe(Explanation("own", "waiting", Reason(Why.QUEUED), kept_share=0.25))
    assert kept not in describe(Explanation("own", "running", Reason(Why.QUEUED), kept_share=0.25))


def test_the_way_back_stands_after_the_reason() -> None:
    back = WayBack(10, 1 << 20, None, 0.001)
    found = Explanation("own", "waiting", Reason(Why.QUEUED), back)
    assert why(found) == (
        "queued; its 10 tokens will be loaded from the tier: loading 1.00 MiB takes a time not measured yet, "
        "computing them takes 1 ms"
    )


def test_a_request_that_can_never_run_says_what_it_lacks_and_where() -> None:
    numbers = {"prompt": 900, "max_tokens": 1_100, "max_length": 1_500}
    short = {"sheets": 7, "sheets for full": 6, "sheets for window 8": 2, "stage": 1}
    text = sentence(Reason(Why.NEVER_FITS, ("r",), numbers | short))
    assert text == (
        "request r of 900 + 1,100 tokens can never run: it needs 8 sheets (6 for full, 2 for window 8) and there are 7 "
        "on stage 1; the longest that fits is 1,500 tokens"
    )
    assert sentence(Reason(Why.NEVER_FITS, ("r",), numbers)).endswith(
        "never run: the longest that fits is 1,500 tokens"
    )
