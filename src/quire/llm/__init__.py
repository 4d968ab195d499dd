"""The library's interface: `LLM`, and its answers."""

from quire.explain.leases import LeaseReport
from quire.llm.answers import Completion, TokenLogprob
from quire.llm.llm import LLM
from quire.llm.questions import Prompt
from quire.llm.schema import Schema
from quire.text.answer import Delta
from quire.text.dialects.calls import ToolCall

__all__ = ["LLM", "Completion", "Delta", "LeaseReport", "Prompt", "Schema", "TokenLogprob", "ToolCall"]
