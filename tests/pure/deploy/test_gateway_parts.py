"""What the gateway decides by itself: where a call goes, what is asked about it, which replica is chosen, and how the
answers of all become one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.deploy.destinations import Destination, Kind, destination
from quire.deploy.failures import last_event
from quire.deploy.members import Members, Replica
from quire.deploy.merging import merged
from quire.deploy.placing import Placing, most_reused
from quire.deploy.prompts import question_of, session_of
from quire.deploy.upstream import room_of
from quire.explain.room import Room
from quire.serve.errors import ApiError
from quire.serve.room import _document

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
SAID = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
IDLE = Room(True, False, 1000)


@pytest.mark.parametrize(
    ("method", "path", "body", "goes"),
    [
        ("POST", CHAT, {"messages": SAID}, Destination(Kind.PLACED)),
        ("POST", MESSAGES, {"retain": {"seconds": 5, "session": "s"}}, Destination(Kind.PLACED, "s")),
        ("POST", "/v1/leases", {"name": "n"}, Destination(Kind.PLACED, "n", by_reuse=True)),
        ("POST", "/v1/cache/warm", {}, Destination(Kind.PLACED)),
        ("POST", CHAT, {"fork_from": {"id": "chatcmpl-1"}}, Destination(Kind.HELD)),
        ("POST", RESPONSES, {"previous_response_id": "resp_1"}, Destination(Kind.HELD)),
        ("POST", RESPONSES, {"input": [{"id": "msg_1_0"}]}, Destination(Kind.HELD)),
        ("POST", "/v1/responses/input_tokens", {"previous_response_id": "resp_1"}, Destination(Kind.HELD)),
        ("POST", "/v1/responses/input_tokens", {"input": "x"}, Destination(Kind.ANY)),
        ("DELETE", "/v1/responses/resp_1", None, Destination(Kind.HELD)),
        ("POST", "/v1/responses/resp_1/cancel", None, Destination(Kind.HELD)),
        ("GET", "/v1/requests/abc/explain", None, Destination(Kind.HELD)),
        ("GET", "/v1/leases/n", None, Destination(Kind.HELD)),
        ("GET", "/v1/leases", None, Destination(Kind.TOGETHER)),
        ("HEAD", "/metrics", None, Destination(Kind.TOGETHER)),
        ("DELETE", "/v1/cache", None, Destination(Kind.TOGETHER)),
        ("GET", "/v1/models", None, Destination(Kind.ANY)),
        ("POST", "/v1/tokenize", {"prompt": "x"}, Destination(Kind.ANY)),
    ],
)
def test_a_call_goes_where_what_it_needs_is(method: str, path: str, body: Any, goes: Destination) -> None:
    assert destination(method, path, body) == goes


@pytest.mark.parametrize(
    ("path", "body", "question"),
    [
        (CHAT, {"messages": SAID, "max_tokens": 9}, {"messages": SAID, "max_tokens": 9}),
        ("/v1/completions", {"prompt": ["one", "two"]}, {"prompt": "one"}),
        ("/v1/completions", {"prompt": [1, 2]}, {"prompt": [1, 2]}),
        (
            MESSAGES,
            {"model": "m", "max_tokens": 3, "system": "Be brief.", "messages": SAID[1:]},
            {"messages": SAID, "max_tokens": 3},
        ),
        (RESPONSES, {"model": "m", "instructions": "Be brief.", "input": "Why?"}, {"messages": SAID}),
        (MESSAGES, {"messages": "none"}, None),
        (CHAT, {"max_tokens": 9}, None),
        (CHAT, None, None),
    ],
)
def test_the_question_is_the_prompt_in_the_form_of_room(path: str, body: Any, question: Any) -> None:
    """The same conversation in each API is the same question; of a body that will be refused nothing is asked."""
    assert question_of(path, body) == question


def test_a_session_lasts_for_a_conversation_and_belongs_to_a_key() -> None:
    """Named by the client, or known by its beginning. Red: two keys that share a session by its name."""
    later = [*SAID, {"role": "assistant", "content": "So."}, {"role": "user", "content": "Go on."}]
    other = [SAID[0], {"role": "user", "content": "How?"}]
    first, second, third = (session_of({}, {}, {"messages": one}) for one in (SAID, later, other))
    assert first == second != third
    assert session_of({"authorization": "Bearer k"}, {}, {"messages": SAID}) != first
    named = [
        session_of({"x-session-id": "s"}, {}, {"messages": SAID}),
        session_of({}, {"prompt_cache_key": "s"}, {"messages": other}),
        session_of({}, {"retain": {"session": "s"}}, None),
    ]
    assert len({*named, first}) == 2
    assert session_of({}, {}, {"prompt": "once"}) == session_of({}, {}, None) == ""


def test_replicas_that_come_and_go_keep_the_places_of_the_others() -> None:
    """A session stays where its tokens are, although the replica before it has left and a new one has come. Red: places
    by the order of names."""
    placing, here = Placing(), {"b": IDLE, "c": IDLE}
    home = placing.choose("s", here, {}, 0.0)
    assert home is not None
    left = {name: room for name, room in (here | {"a": IDLE}).items() if name == home or name == "a"}
    left[home] = Room(True, False, 1000, pool_tokens=900)
    assert placing.choose("s", left, {}, 1.0) == home
    assert {placing.choose(f"s{number}", left, {}, 1.0) for number in range(4)} == {"a", home}


def test_calls_that_a_replica_does_not_report_yet_count_there() -> None:
    """Red: of many calls at once, all go to the replica whose answer was the first."""
    placing = Placing()
    assert placing.choose("", {"a": IDLE, "b": IDLE}, {"a": 2}, 0.0) == "b"


def test_a_replica_without_an_answer_is_not_chosen_and_a_call_that_fits_nowhere_by_none() -> None:
    placing = Placing()
    assert placing.choose("s", {"a": None, "b": IDLE}, {}, 0.0) == "b"
    assert placing.choose("s", {"a": None, "b": Room(False, False, 9000)}, {}, 0.0) is None
    assert most_reused({"a": None, "b": Room(True, False, 9, 1), "c": Room(True, False, 9, 5)}) == "c"


def test_a_lost_replica_gets_no_calls_until_it_is_reported_again() -> None:
    members, one, two = Members(), Replica("a", "http://a"), Replica("b", "http://b")
    members.replace([two, one])
    with members.calling(one):
        assert members.least_busy() == [two, one]
    assert not members.calls
    members.lose(one)
    assert members.least_busy() == [two]
    members.replace([one, two])
    assert members.least_busy() == [one, two]


def test_the_answers_of_all_replicas_become_one() -> None:
    def both(method: str, path: str, one: Any, other: Any) -> Any:
        contents = {"a": json.dumps(one).encode(), "b": json.dumps(other).encode()}
        return json.loads(merged(method, path, contents))

    leases = [{"object": "list", "data": [name], "broken": []} for name in "xy"]
    assert both("GET", "/v1/leases", *leases) == {"object": "list", "data": ["x", "y"], "broken": []}
    kinds = [{"kinds": [{"stage": 0, "kind": "full", "cached_pages": pages}], "unit_tokens": 64} for pages in (2, 3)]
    assert both("GET", "/v1/cache", *kinds)["kinds"] == [{"stage": 0, "kind": "full", "cached_pages": 5}]
    dropped = [{"dropped_units": units, "unit_tokens": 64, "kept_by": [name]} for units, name in ((1, "x"), (2, "y"))]
    assert both("DELETE", "/v1/cache", *dropped) == {"dropped_units": 3, "unit_tokens": 64, "kept_by": ["x", "y"]}


def test_metrics_of_all_replicas_have_each_description_once_and_its_samples_after_it() -> None:
    """Red: a scraper that refuses the text because a metric comes twice."""
    texts = {
        name: f'# HELP m What.\n# TYPE m gauge\nm {value}\n# TYPE n counter\nn_total{{k="v"}} 1.0\n'
        for name, value in (("a", 1), ("b", 2))
    }
    found = merged("GET", "/metrics", {name: text.encode() for name, text in texts.items()}).decode()
    assert found.splitlines() == [
        "# HELP m What.",
        "# TYPE m gauge",
        'm{replica="a"} 1',
        'm{replica="b"} 2',
        "# TYPE n counter",
        'n_total{k="v",replica="a"} 1.0',
        'n_total{k="v",replica="b"} 1.0',
    ]


def test_the_gateway_reads_what_the_server_writes_about_room() -> None:
    """Red: a field of Room that only one of them has."""
    room = Room(True, False, 100, 64, 20, 10, 300, 2, 1, 7, 0.5)
    assert room_of(_document(room)) == room


@pytest.mark.parametrize(("path", "name"), [(CHAT, ""), (MESSAGES, "error"), (RESPONSES, "error")])
def test_a_stream_ends_with_an_error_of_its_api(path: str, name: str) -> None:
    event = last_event(path, ApiError(503, "gone", "replica_gone"), "req_1").decode().strip()
    head, _, data = event.rpartition("data: ")
    assert head.strip() == (f"event: {name}" if name else "")
    told = json.loads(data)
    error = told.get("error", told)
    assert (error["message"], "replica_gone" in data) == ("gone", True)
