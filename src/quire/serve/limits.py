"""Whether a request can ever run, by the plan's own bound, and what the API says if it cannot."""

from __future__ import annotations

from quire.plan import bound
from quire.plan.plan import Plan
from quire.plan.tightest import sheets_short, tightest
from quire.serve.errors import ApiError


class Limits:
    """`field` and `limit`: the client's names for its prompt and for the length of its output."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def room(self, prompt_tokens: int) -> int:
        """Output tokens that fit after a prompt; 1 if none do."""
        return max(1, self._plan.max_length - prompt_tokens)

    def output_tokens(self, prompt_tokens: int, asked: int | None, field: str, limit: str) -> int:
        """As many as were requested, or all that fit. Raises if prompt and output could never run."""
        most = asked or self.room(prompt_tokens)
        if not bound.admits(self._plan, prompt_tokens + most):
            lower = self._plan.max_length - prompt_tokens
            fix = f" or lower {limit} to {lower:,}" if lower > 0 else ""
            size = f"{prompt_tokens:,} tokens of {field} and {most:,} of output"
            raise self._too_long(field, size, fix, {"prompt_tokens": prompt_tokens, "max_tokens": most})
        return most

    def require_beginning(self, prompt_tokens: int, field: str) -> None:
        """Raises if the beginning of a prompt, `prompt_tokens` long, is already far too long."""
        if prompt_tokens > 2 * self._plan.max_length:
            size = f"at least {prompt_tokens:,} tokens of {field}"
            raise self._too_long(field, size, "", {"prompt_tokens": prompt_tokens})

    def _too_long(self, field: str, size: str, fix: str, numbers: dict[str, int]) -> ApiError:
        longest = self._plan.max_length
        tight = tightest(self._plan, numbers["prompt_tokens"] + numbers.get("max_tokens", 1))
        message = (
            f"this model's maximum context length is {longest:,} tokens here, and this is {size}: "
            f"{sheets_short(tight.numbers)}shorten the {field}{fix}"
        )
        known = {**numbers, "max_length": longest, "sheets_needed": tight.needed, "sheets": tight.sheets}
        return ApiError(400, message, "context_length_exceeded", field, numbers=known)
