"""From conversations, tools and texts to prompts and requests."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import numpy as np
import pytest

from quire.core.errors import InputError
from quire.core.request import MOST_STOP_TOKENS
from quire.core.sampling import Sampling
from quire.text.conversation import template_messages
from quire.text.prompts import Prompts
from quire.text.question import Question
from quire.text.templates import ChatTemplate
from quire.text.tokenizer import Tokenizer
from quire.text.tools import ToolUse, tool_use

FOX = {"role": "user", "content": "the fox?"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture
def prompts(tokenizer: Tokenizer) -> Prompts:
    return Prompts(tokenizer, tokenizer.vocab_size)


# ── messages ──────────────────────────────────────────────────────────────


def test_messages_are_read_as_templates_expect_them() -> None:
    """Parts become text, developers write system messages, arguments are objects, and fields that are null are none."""
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "fox"}]
    read = template_messages(
        [
            {"role": "developer", "content": "Be brief.", "name": None},
            {"role": "user", "content": parts, "name": "ann"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "24 C", "tool_call_id": "a"},
        ]
    )
    assert read[:2] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "the fox", "name": "ann"},
    ]
    assert read[2]["content"] == ""
    assert read[2]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
    assert read[3] == {"role": "tool", "content": "24 C", "tool_call_id": "a"}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages.1.content.0: content of type 'image_url' is"),
        ({"role": "user", "content": [{"type": "text", "text": ""}, {"type": "video"}]}, "messages.1.content.1: "),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "'input_audio' is not supported: Quire reads text"),
        ({"role": "user", "content": [3]}, "messages.1.content.0 is 3: give"),
        ({"role": "user", "content": 3}, "messages.1.content is 3: give text or a list of text parts"),
        ({"role": "user"}, "messages.1: this message of role user has no content: give it"),
        ({"role": "assistant", "content": None}, "messages.1: this message of role assistant has neither content nor"),
        ({"content": "x"}, "messages.1.role is missing"),
        ("the fox", "messages.1.role is missing"),
    ],
)  # fmt: skip
def test_a_message_that_cannot_be_read_is_refused_with_its_place(message: Any, words: str) -> None:
    with pytest.raises(InputError) as refused:
        template_messages([FOX, message])
    assert words in str(refused.value)


# ── tools ─────────────────────────────────────────────────────────────────


def allowed_tools(mode: str, *tools: Any) -> Any:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


@pytest.mark.parametrize(
    ("choice", "use"),
    [
        (None, ToolUse((TOOL,))),
        ("auto", ToolUse((TOOL,))),
        ("none", ToolUse()),
        ("required", ToolUse((TOOL,), must_call=True)),
        (NAMED, ToolUse((TOOL,), must_call=True, allowed=("weather",), most_calls=1)),
        (allowed_tools("auto", NAMED), ToolUse((TOOL,), allowed=("weather",))),
        (allowed_tools("required", NAMED), ToolUse((TOOL,), must_call=True, allowed=("weather",))),
    ],
)
def test_a_choice_says_which_tools_are_offered_and_whether_one_is_called(choice: Any, use: ToolUse) -> None:
    assert tool_use([TOOL], choice) == use
    grammar = use.grammar({})
    assert (grammar is not None) is use.must_call
    assert grammar is None or "weather" in grammar.text
    assert (use.reader() is None) is (choice == "none")


@pytest.mark.parametrize(
    ("tools", "choice", "words"),
    [
        ([], "required", "tool_choice asks for a call and there are no tools: give tools"),
        ([], NAMED, "tool_choice asks for a call and there are no tools: give tools"),
        ([TOOL], "weather", "tool_choice is 'weather': give none, auto, required, {"),
        ([TOOL], allowed_tools("none", NAMED), "tool_choice is {'type': 'allowed_tools'"),
        ([TOOL], allowed_tools("auto"), "tool_choice is {'type': 'allowed_tools'"),
        ([TOOL], allowed_tools("auto", NAMED, 3), "tool_choice is {'type': 'allowed_tools'"),
        ([TOOL], {"type": "function"}, "tool_choice is {'type': 'function'}: give none"),
        ([TOOL, {"name": "weather"}], "auto", "tools.1 names no function: give"),
        ([print], "auto", "tools.0 names no function: give"),
    ],
)
def test_tools_and_choices_that_mean_nothing_are_refused(tools: Any, choice: Any, words: str) -> None:
    with pytest.raises(InputError) as refused:
        tool_use(tools, choice)
    assert words in str(refused.value)


def test_tools_are_explained_in_the_system_message_where_the_template_has_no_place_for_them(
    tokenizer: Tokenizer, prompts: Prompts
) -> None:
    text = prompts.render([{"role": "system", "content": "Be brief."}, FOX], [TOOL])
    assert text.startswith("<|system|>Be brief.\n\nYou can call these functions")
    assert prompts.render([FOX], [TOOL]).startswith("<|system|>You can call these functions")
    template = ChatTemplate("{{ tools[0].function.name }}: {{ messages[0].content }}", {})
    own = Prompts(Tokenizer(tokenizer.inner, template=template), 1)
    assert own.render([FOX], [TOOL]) == "weather: the fox?"


@pytest.mark.parametrize(
    ("marks", "example"),
    [
        ("", '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'),
        ("{# [TOOL_CALLS] [ARGS] #}", "[TOOL_CALLS]NAME[ARGS]{...}"),
        ("{# <start_of_turn> #}", '{"name": "NAME", "parameters": {...}}'),
        ("{# <arg_key> #}", "<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>"),
    ],
)
def test_the_explanation_shows_a_call_in_the_dialect_in_which_calls_are_read(
    tokenizer: Tokenizer, marks: str, example: str
) -> None:
    template = ChatTemplate("{{ messages[0].content }}" + marks, {})
    text = Prompts(Tokenizer(tokenizer.inner, template=template), 1).render([FOX], [TOOL])
    assert text.endswith(f"To call one, write {example} with its name and its arguments.")


@pytest.mark.story
def test_arguments_of_earlier_calls_are_text_where_templates_append_them(tokenizer: Tokenizer) -> None:
    """DeepSeek's templates refused conversations with tool calls: an object cannot be appended to text."""
    append = "{{ messages[0].tool_calls[0].function.arguments + '.' }}{# <｜tool▁calls▁begin｜> #}"
    prompts = Prompts(Tokenizer(tokenizer.inner, template=ChatTemplate(append, {})), 1)
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    assert prompts.render([{"role": "assistant", "tool_calls": [call]}]) == '{"city": "Rome"}.'


@pytest.mark.story
def test_tools_are_in_the_system_message_where_the_template_reads_them_there(tokenizer: Tokenizer) -> None:
    """As Phi-4-mini's template does. They used to be passed as a variable of their own, which it does not read."""
    template = "{% for message in messages %}{{ message.role }}{{ message['tools'] }}.{% endfor %}"
    prompts = Prompts(Tokenizer(tokenizer.inner, template=ChatTemplate(template, {})), 1)
    shown = json.dumps([TOOL["function"]])
    assert prompts.render([FOX], [TOOL]) == f"system{shown}.user."
    assert prompts.render([{"role": "system", "content": "Be brief."}, FOX], [TOOL]) == f"system{shown}.user."
    assert prompts.render([FOX]) == "user."


def test_a_switch_reaches_the_template_and_replaces_no_message(tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{{ messages[0].content }}{% if thinking %} hm{% endif %}", {})
    prompts = Prompts(Tokenizer(tokenizer.inner, template=template), 1)
    switches = {"thinking": True, "messages": "x", "tools": "y"}
    assert prompts.render([FOX], switches=switches) == "the fox? hm"


@pytest.mark.parametrize("ending", ["<|end|>", "\n"])
def test_a_prompt_ends_within_the_message_that_is_to_be_continued(tokenizer: Tokenizer, ending: str) -> None:
    """Whatever the template writes after a message; and blanks at its end are left to the answer."""
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}" + ending + "{% endfor %}"
    more = "{% if add_generation_prompt %}[assistant]{% endif %}"
    prompts = Prompts(Tokenizer(tokenizer.inner, template=ChatTemplate(template + more, {})), 1)
    begun = {"role": "assistant", "content": "the fox? "}
    text = prompts.render([FOX, begun], continues=True)
    assert text == f"[user]the fox?{ending}[assistant]the fox?"
    for messages in ([FOX], [FOX, {"role": "assistant", "content": " "}]):
        with pytest.raises(InputError, match="give it the role assistant and content"):
            prompts.render(messages, continues=True)
    hidden = Prompts(Tokenizer(tokenizer.inner, template=ChatTemplate("{{ messages[0].content }}", {})), 1)
    with pytest.raises(InputError, match="does not show the last message"):
        hidden.render([FOX, {"role": "assistant", "content": "a dog"}], continues=True)


@pytest.mark.parametrize(
    ("template", "effort", "switches"),
    [
        ("{{ enable_thinking }}", "none", {"enable_thinking": False}),
        ("{{ enable_thinking }}", "high", {"enable_thinking": True}),
        ("{% if thinking is defined and thinking %}{% endif %}", "minimal", {"thinking": False}),
        ("{{ reasoning_effort }}", "medium", {"reasoning_effort": "medium"}),
        ("{{ reasoning_effort }}", "max", {"reasoning_effort": "high"}),
        ("{% set thinking = 1 %}{{ messages }}{# enable_thinking #}", "high", {}),
    ],
)
def test_an_effort_sets_the_switches_that_the_template_has(
    tokenizer: Tokenizer, template: str, effort: str, switches: dict[str, Any]
) -> None:
    """What a template sets itself, or has in a comment, is no switch."""
    prompts = Prompts(Tokenizer(tokenizer.inner, template=ChatTemplate(template, {})), 1)
    assert prompts.effort_switches(effort) == switches


# ── requests ──────────────────────────────────────────────────────────────


def question(**change: Any) -> Question:
    prompts = (np.arange(3, dtype=np.int32), np.arange(5, dtype=np.int32))
    return Question(prompts, ("a", "b"), (7, 8), **{"sampling": Sampling(seed=1), "samples": 2, **change})


def test_there_is_a_request_for_each_sample_of_each_prompt_in_this_order(tokenizer: Tokenizer) -> None:
    asked = question(priority=3)
    requests = asked.requests(map(str, count(5)), tokenizer, "ann", "anns")
    assert [(one.name, len(one.prompt), one.max_tokens) for one in requests] == [
        ("5", 3, 7),
        ("6", 3, 7),
        ("7", 5, 8),
        ("8", 5, 8),
    ]
    assert {(one.tenant, one.scope, one.priority) for one in requests} == {("ann", "anns", 3)}
    assert {one.stop_tokens for one in requests} == {tokenizer.eos_token_ids[:MOST_STOP_TOKENS]}
    assert len(asked.answers(tokenizer)) == asked.request_count == 4
    assert asked.tokens == 2 * (3 + 7 + 5 + 8)


def test_samples_differ_prompts_alike_do_not_unless_no_seed_was_given(tokenizer: Tokenizer) -> None:
    """With a seed, sample i of every prompt draws from stream i; without one, each request draws from its own."""
    seeds = [one.sampling.seed for one in question().requests(map(str, count()), tokenizer)]
    assert seeds[:2] == seeds[2:]
    assert seeds[0] != seeds[1]
    unseeded = question(sampling=Sampling()).requests(map(str, count()), tokenizer)
    assert len({one.sampling.seed for one in unseeded}) == 4


def test_log_probabilities_of_a_prompt_come_with_its_first_sample(tokenizer: Tokenizer) -> None:
    asked = question(sampling=Sampling(prompt_logprobs=2)).requests(map(str, count()), tokenizer)
    assert [one.sampling.prompt_logprobs for one in asked] == [2, None, 2, None]


def test_an_answer_goes_on_past_the_end_of_text_where_that_is_asked_for(tokenizer: Tokenizer) -> None:
    asked = question(sampling=Sampling(ignore_eos=True))
    assert {one.stop_tokens for one in asked.requests(map(str, count()), tokenizer)} == {()}


def test_only_answers_whose_length_is_open_are_shortened() -> None:
    """To what fits the limit with their prompts, and to a single token where nothing does."""
    asked, limit = question(is_length_open=True), 30
    assert question().within(limit).max_tokens == (7, 8)
    assert asked.within(limit).max_tokens == (3, 3)
    assert asked.within(limit).tokens <= limit
    assert asked.within(1).max_tokens == (1, 1)
    assert asked.within(None) is asked.within(46) is asked
