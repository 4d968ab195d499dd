"""Bodies that name a prefix: a conversation, or a prompt as text or as tokens."""

from __future__ import annotations

from pydantic import Field

from quire.core.request import Tokens
from quire.serve.errors import ApiError
from quire.serve.questions import BodyReader
from quire.serve.schemas import Body, ChatBody, Messages, Text, Tools
from quire.serve.schemas import Tokens as TokenIds


class PrefixBody(Body):
    model: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    prompt: Text | TokenIds | None = Field(None, description="Text or token numbers, instead of messages.")

    @property
    def field(self) -> str:
        """The one that names the prefix."""
        return "prompt" if self.messages is None else "messages"

    def require_one(self) -> None:
        if (self.messages is None) == (self.prompt is None):
            given = "neither messages nor a prompt" if self.messages is None else "messages and a prompt"
            raise ApiError(400, f"the body has {given}: give one of them", "invalid_value", "messages")

    def tokens(self, reader: BodyReader) -> Tokens:
        if self.model is not None:
            reader.require_model(self.model)
        if self.messages is not None:
            chat = ChatBody.model_construct(model=reader.model, messages=self.messages, tools=self.tools)
            return reader.conversation(chat)[1]
        return reader.prompt_tokens(self.prompt or "")
