"""The whole conversation of a call: what an earlier response has stored, then the call's own items."""

from __future__ import annotations

from quire.serve.errors import ApiError
from quire.serve.keys import Tenant
from quire.serve.responses.items import STORED, ItemValue, ReferenceItem
from quire.serve.responses.output import Json
from quire.serve.responses.schemas import ResponseBody
from quire.serve.responses.store import ResponseStore
from quire.serve.responses.translation import input_items


class Conversation:
    def __init__(self, store: ResponseStore, tenant: Tenant) -> None:
        self._store, self._tenant = store, tenant
        self._outputs: dict[str, dict[str, Json]] = {}
        """By response that was referred to: its output items by id, as far as they were not taken yet."""

    @staticmethod
    def responses(body: ResponseBody) -> list[str]:
        """The stored responses that a call refers to."""
        items = body.input if isinstance(body.input, list) else []
        named = {_response_of(item) for item in items if isinstance(item, ReferenceItem)}
        return [*named, *filter(None, [body.previous_response_id])]

    def items(self, body: ResponseBody) -> list[ItemValue]:
        """Without the instructions of earlier calls: a call gives its own."""
        own = enumerate(input_items(body))
        items = [self._resolved(item, f"input.{place}") for place, item in own]
        return [*self._earlier(body.previous_response_id), *items]

    def _earlier(self, previous: str | None) -> list[ItemValue]:
        if previous is None:
            return []
        stored = self._store.find(self._tenant, previous)
        if stored is None:
            message = f"no response {previous[:64]!r} of this key is stored: send the whole conversation as input"
            raise ApiError(400, message, "previous_response_not_found", "previous_response_id")
        return STORED.validate_python(stored.conversation())

    def _resolved(self, item: ItemValue, place: str) -> ItemValue:
        """An output item of a stored response, whose id it contains. Each is taken once, so that a short call cannot
        become a conversation of any length."""
        if not isinstance(item, ReferenceItem):
            return item
        found = self._output(_response_of(item)).pop(item.id, None)
        if found is None:
            why = f"no output item {item.id[:64]!r} of this key is stored, or it is named twice"
            message = f"{place}: {why}: send the item itself"
            raise ApiError(400, message, "item_not_found", place)
        return STORED.validate_python([found])[0]

    def _output(self, response: str) -> dict[str, Json]:
        if response not in self._outputs:
            stored = self._store.find(self._tenant, response)
            output = stored.document()["output"] if stored else []
            self._outputs[response] = {item["id"]: item for item in output}
        return self._outputs[response]


def _response_of(item: ReferenceItem) -> str:
    return "resp_" + item.id.partition("_")[2].partition("_")[0]
