"""What the server keeps of responses: for whom, how much, and what goes first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from quire.core.errors import InputError
from quire.options.texts import bytes_or_zero
from quire.serve.errors import ApiError
from quire.serve.keys import Tenant
from quire.serve.responses.conversation import Conversation
from quire.serve.responses.items import CallItem, MessageItem
from quire.serve.responses.routes import input_items, is_stored
from quire.serve.responses.schemas import ResponseBody
from quire.serve.responses.store import ENTRY_BYTES, ResponseStore, Stored
from quire.serve.settings import ServeSettings

ALICE, BOB = Tenant("alice", "a", key_sha256="1"), Tenant("bob", "b", key_sha256="2")
USER = {"id": "msg_1", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}


def response(name: str, text: str = "Yes?") -> dict[str, Any]:
    call = name.removeprefix("resp_")
    content = [{"type": "output_text", "text": text, "annotations": []}]
    said = {"id": f"msg_{call}_0", "type": "message", "role": "assistant", "status": "completed", "content": content}
    calls = {"type": "function_call", "id": f"fc_{call}_1", "call_id": "a", "name": "weather", "arguments": "{}"}
    return {"id": name, "instructions": "Be kind.", "output": [said, calls]}


def size(store: ResponseStore, tenant: Tenant, name: str) -> int:
    return store.get(tenant, name).size


def filled(limit: int, *names: str, most: int = 100) -> ResponseStore:
    store = ResponseStore(limit, most)
    for name in names:
        store.keep(ALICE, response(name), [USER])
    return store


ONE = size(filled(1 << 20, "resp_1"), ALICE, "resp_1")
"""Bytes of one response."""


def test_a_response_is_counted_with_all_its_bytes() -> None:
    store = filled(1 << 20, "resp_1", "resp_2")
    found = store.get(ALICE, "resp_1")
    assert found.document() == response("resp_1")
    assert found.input_items() == [USER]
    assert len(found.response) + len(found.input) + ENTRY_BYTES == ONE
    assert (store.bytes, store.responses) == (2 * ONE, 2)


@pytest.mark.parametrize("limits", [(3 * ONE, 100), (1 << 20, 3)])
def test_the_oldest_response_goes_first_beyond_either_limit(limits: tuple[int, int]) -> None:
    store = filled(limits[0], "resp_1", "resp_2", "resp_3", "resp_4", most=limits[1])
    assert [bool(store.find(ALICE, f"resp_{number}")) for number in (1, 2, 3, 4)] == [False, True, True, True]
    assert store.bytes == 3 * ONE


def test_a_key_that_stores_much_takes_no_place_of_another_that_stores_little() -> None:
    """The key that holds the most bytes gives up its own oldest, whichever key stores."""
    store = ResponseStore(4 * ONE)
    store.keep(BOB, response("resp_b"), [USER])
    for number in range(10):
        store.keep(ALICE, response(f"resp_{number}"), [USER])
    assert store.find(BOB, "resp_b")
    assert [number for number in range(10) if store.find(ALICE, f"resp_{number}")] == [7, 8, 9]
    store.keep(BOB, response("resp_c"), [USER])
    assert [number for number in range(10) if store.find(ALICE, f"resp_{number}")] == [8, 9]


def test_a_response_larger_than_the_store_leaves_the_others_there() -> None:
    store = filled(3 * ONE, "resp_1")
    store.keep(BOB, response("resp_2", "x" * 3 * ONE), [USER])
    assert store.find(BOB, "resp_2") is None
    assert store.find(ALICE, "resp_1")


def test_another_key_finds_nothing_and_cannot_see_that_there_is_anything() -> None:
    """Also a later key of the same name. The error is that of an id that never was."""
    store = filled(1 << 20, "resp_1")
    for stranger in (BOB, replace(ALICE, key_sha256="3")):
        for act in (store.get, store.delete):
            with pytest.raises(ApiError) as refused:
                act(stranger, "resp_1")
            with pytest.raises(ApiError) as never:
                act(stranger, "resp_9")
            assert (refused.value.status, refused.value.code) == (404, "response_not_found")
            assert refused.value.message.replace("resp_1", "resp_9") == never.value.message
    assert store.get(ALICE, "resp_1")


def test_a_deleted_response_is_gone_with_its_bytes() -> None:
    store = filled(1 << 20, "resp_1", "resp_2")
    store.delete(ALICE, "resp_1")
    assert store.find(ALICE, "resp_1") is None
    assert store.bytes == ONE
    store.delete(ALICE, "resp_2")
    assert (store.bytes, store.responses, store._owners) == (0, 0, {})


def conversation(store: ResponseStore, tenant: Tenant = ALICE, **fields: Any) -> list[Any]:
    body = ResponseBody.model_validate({"model": "tiny", "input": "And now?", **fields})
    return Conversation(store, tenant).items(body)


def test_a_call_continues_a_stored_conversation_without_its_instructions() -> None:
    items = conversation(filled(1 << 20, "resp_1"), previous_response_id="resp_1")
    assert [type(item) for item in items] == [MessageItem, MessageItem, CallItem, MessageItem]
    assert [item.role for item in items if isinstance(item, MessageItem)] == ["user", "assistant", "user"]


@pytest.mark.parametrize(("tenant", "name"), [(ALICE, "resp_2"), (BOB, "resp_1")])
def test_a_conversation_that_is_not_stored_for_this_key_is_not_continued(tenant: Tenant, name: str) -> None:
    with pytest.raises(ApiError) as refused:
        conversation(filled(1 << 20, "resp_1"), tenant, previous_response_id=name)
    error = refused.value
    assert (error.status, error.code, error.param) == (400, "previous_response_not_found", "previous_response_id")


def test_an_item_can_be_named_instead_of_sent_once() -> None:
    """Twice the same would let a short body become a conversation of any length."""
    store = filled(1 << 20, "resp_1")
    named = [{"type": "item_reference", "id": "msg_1_0"}, {"id": "fc_1_1"}]
    said, call = conversation(store, input=named)
    assert (said.content[0].text, call.call_id) == ("Yes?", "a")
    missing = [[{"id": "msg_1_7"}], [{"id": "x"}], [*named, named[0]]]
    for given, tenant in ((named, BOB), *((one, ALICE) for one in missing)):
        with pytest.raises(ApiError) as refused:
            conversation(store, tenant, input=given)
        assert refused.value.code == "item_not_found"
        assert refused.value.param == ("input.2" if len(given) == 3 else "input.0")


def test_a_store_of_no_bytes_keeps_nothing() -> None:
    store = filled(0, "resp_1")
    assert not store.is_on
    assert store.find(ALICE, "resp_1") is None


def test_a_call_is_stored_unless_it_or_the_server_says_otherwise() -> None:
    """Without a store, a call that asks to be stored is refused."""
    calls = [
        ResponseBody.model_validate({"model": "tiny", "input": "x", "store": store}) for store in (None, True, False)
    ]
    assert [is_stored(call, ResponseStore(ONE)) for call in calls] == [True, True, False]
    assert [is_stored(call, ResponseStore(0)) for call in calls[::2]] == [False, False]
    with pytest.raises(ApiError, match="start it with --store-bytes") as refused:
        is_stored(calls[1], ResponseStore(0))
    assert (refused.value.code, refused.value.param) == ("unsupported_field", "store")


def test_the_store_can_be_turned_off() -> None:
    assert (bytes_or_zero("0"), bytes_or_zero("1KiB")) == (0, 1024)
    assert ServeSettings().store_bytes == 64 << 20
    with pytest.raises(InputError):
        bytes_or_zero("-1")


def test_what_is_stored_cannot_be_changed() -> None:
    stored = Stored(b'{"output":[]}', b"[]")
    stored.document()["output"].append(1)
    assert stored.conversation() == []


@pytest.mark.story
def test_items_of_a_long_conversation_are_not_read_on_the_event_loop() -> None:
    """16 calls for one item each held up all others for 3 s. Red: a list that is read where it is asked for."""
    store, read = filled(1 << 20, "resp_1"), list[tuple[str, int]]()

    async def in_turn(work: Callable[[], Any], tenant: Tenant, size_bytes: int) -> Any:
        read.append((tenant.name, size_bytes))
        return work()

    service = SimpleNamespace(responses=store, read=in_turn)
    request: Any = SimpleNamespace(
        app=SimpleNamespace(state=SimpleNamespace(service=service)), state=SimpleNamespace(tenant=ALICE)
    )
    answer = asyncio.run(input_items(request=request, response="resp_1", limit=20, order="asc", after=None))
    assert json.loads(bytes(answer.body))["data"] == [USER]
    assert read == [("alice", len(store.get(ALICE, "resp_1").input))]
