"""The library's face: `LLM`, and what it answers."""

from quire.llm.answers import Completion, TokenLogprob
from quire.llm.llm import LLM, Prompt

__all__ = ["LLM", "Completion", "Prompt", "TokenLogprob"]
