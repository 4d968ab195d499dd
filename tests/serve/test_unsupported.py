"""What Quire does not serve is refused by name, with what to do instead."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from quire.serve.errors import ApiError
from quire.serve.invalid import refusal_of
from quire.serve.schemas import Body, ChatBody, CompletionBody

SAID = {"role": "user", "content": "the fox"}
ADAPTERS = "Quire runs no adapters, so merge it into the weights and serve the merged folder"
MEDIA = "Quire reads text alone, so send what it says as text"


def refusal(schema: type[Body], body: dict[str, Any]) -> ApiError:
    with pytest.raises(ValidationError) as refused:
        schema.model_validate({"model": "tiny", **body})
    return refusal_of([{**one, "loc": ("body", *one["loc"])} for one in refused.value.errors()], body)


@pytest.mark.parametrize("field", ["lora", "lora_name", "lora_path", "lora_request", "adapter", "adapter_id"])
def test_adapters_are_not_supported_and_can_be_merged(field: str) -> None:
    for error in (
        refusal(ChatBody, {"messages": [SAID], field: "x"}),
        refusal(CompletionBody, {"prompt": "x", field: {"path": "x"}}),
    ):
        assert (error.status, error.code, error.param) == (400, "unsupported_field", field)
        assert error.message == f"{field} is not supported: {ADAPTERS}"


@pytest.mark.parametrize("kind", ["image_url", "image", "input_audio", "video_url", "file"])
def test_parts_that_are_not_text_are_not_supported_and_are_named_with_their_place(kind: str) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": kind, kind: {"url": "data:"}}]
    error = refusal(ChatBody, {"messages": [SAID, {"role": "user", "content": parts}]})
    assert (error.status, error.param) == (400, "messages.1.content.1")
    assert error.message == f"messages.1.content.1: content of type '{kind}' is not supported: {MEDIA}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modalities": ["text", "audio"]}, f"modalities is not supported: {MEDIA}"),
        ({"messages": [{**SAID, "images": ["x"]}]}, f"messages.0.images is not supported: {MEDIA}"),
        ({"best_of": 2}, "best_of is not supported: leave it out"),
    ],
)
def test_other_fields_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    error = refusal(ChatBody, {"messages": [SAID], **change})
    assert (error.code, error.message) == ("unsupported_field", message)
