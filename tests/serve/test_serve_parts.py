"""The server's parts one by one: progress, allowances, tools, reasoning, options from files, forms of errors."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage
from pydantic import ValidationError

from quire.cli import generate
from quire.cli.configuration import complete
from quire.cli.main import main
from quire.cli.serve import _add
from quire.core.errors import InputError
from quire.core.rules import Rules
from quire.core.sampling import Sampling
from quire.core.units import MIB
from quire.serve.allowance import Allowances
from quire.serve.asking import _message, _temperature
from quire.serve.client import EngineClient, Life
from quire.serve.errors import ApiError
from quire.serve.formats import Words
from quire.serve.invalid import refusal_of
from quire.serve.keys import Tenant
from quire.serve.messages import EngineSetup
from quire.serve.progress import Progress
from quire.serve.schemas import Body, ChatBody, CompletionBody, Said
from quire.text.reasoning import Parted, Reasoning
from quire.text.tokenizer import Tokenizer
from quire.text.tools import ToolCall, ToolCalls, call_schema

# ── progress ─────────────────────────────────────────────────────────────


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_progress_is_lost_when_no_step_settles_in_time_and_never_by_waiting() -> None:
    """Beats of a loop that turns without settling anything do not count; beats of an idle one do."""
    clock = Clock()
    watch = Progress(10.0, clock)
    assert not watch.is_progressing(), "nothing is known yet"
    watch.reset()
    for step in range(50):
        clock.now += 9.9
        watch.heard(step, is_idle=False) if step else watch.heard(0, is_idle=True)
        assert watch.is_progressing()
    clock.now += 6
    watch.heard(49, is_idle=False)
    clock.now += 6
    watch.heard(49, is_idle=False)
    assert not watch.is_progressing()
    watch.heard(50, is_idle=False)
    assert watch.is_progressing()


# ── allowances ───────────────────────────────────────────────────────────


def code_of(allowances: Allowances, tenant: Tenant, requests: int, tokens: int) -> str:
    try:
        allowances.enter(tenant, requests, tokens)
    except ApiError as error:
        return error.code
    return ""


def test_tokens_of_a_minute_come_back_second_by_second_and_unused_ones_at_once() -> None:
    clock = Clock()
    allowances, tenant = Allowances(10, clock), Tenant("t", "t", tokens_per_minute=600)
    assert code_of(allowances, tenant, 1, 600) == ""
    assert code_of(allowances, tenant, 1, 1) == "tokens_limit"
    clock.now += 10
    assert allowances.room(tenant) == 100
    assert allowances.room(replace(tenant, most_tokens=50)) == 50
    assert allowances.room(Tenant("u", "u")) is None
    assert code_of(allowances, tenant, 1, 101) == "tokens_limit"
    assert code_of(allowances, tenant, 1, 100) == ""
    allowances.leave(tenant, 1, 80)
    assert code_of(allowances, tenant, 1, 81) == "tokens_limit"
    assert code_of(allowances, tenant, 1, 80) == ""


def test_requests_are_counted_by_tenant_and_together() -> None:
    allowances = Allowances(4)
    one, two = Tenant("one", "", most_requests=2), Tenant("two", "")
    assert [code_of(allowances, one, 1, 1) for _ in range(3)] == ["", "", "requests_limit"]
    assert [code_of(allowances, two, 1, 1) for _ in range(3)] == ["", "", "queue_full"]
    allowances.leave(one, 1, 0)
    assert code_of(allowances, two, 1, 1) == ""
    assert allowances.total == 4
    assert code_of(allowances, two, 5, 1) == "requests_limit", "more choices than there is room for, ever"


@pytest.mark.story
def test_hours_without_requests_do_not_make_the_next_ones_wait_longer() -> None:
    clock = Clock()
    allowances, tenant = Allowances(1, clock), Tenant("t", "t")
    for _ in range(3):
        clock.now += 36_000
        allowances.enter(tenant, 1, 1)
        clock.now += 2
        allowances.leave(tenant, 1, 0)
    assert allowances.retry_seconds == 2


# ── bodies full of mistakes ──────────────────────────────────────────────

MANY: dict[str, Any] = {str(place): 1 for place in range(20_000)}
CHATTED: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.story
@pytest.mark.parametrize(
    ("schema", "body", "words"),
    [
        (CompletionBody, {"model": "tiny", "prompt": [""] * 20_000}, "prompt: 20,000 prompts at once: give at most 64"),
        (CompletionBody, {"model": "tiny", "prompt": [[1]] * 65}, "prompt: 65 prompts at once: give at most 64"),
        (CompletionBody, {"model": "tiny", "prompt": [1, "x"] * 20_000}, 'prompt.1 is "x": give a whole number'),
        (CompletionBody, {"model": "tiny", "prompt": ["", 1] * 20}, "prompt.0 is"),
        (CompletionBody, {"model": "tiny", "prompt": [["x"] * 20_000] * 20}, 'prompt.0.0 is "x": give a whole number'),
        (ChatBody, {"model": "tiny", "messages": [{"role": "user", "content": [1] * 20_000}]}, "messages.0.content.0"),
        (ChatBody, {"model": "tiny", "messages": [{"role": "user", "x": 1, "y": 1}] * 4000}, "messages.0.x is not"),
        (ChatBody, {**CHATTED, "messages": [{"role": "assistant", "tool_calls": [1] * 20_000}]}, "tool_calls.0 is 1"),
        (ChatBody, {**CHATTED, "tools": [{"x": 1, "y": 1}] * 128}, "tools.0.x is not supported"),
        (ChatBody, {**CHATTED, **MANY}, "the body: an object of 20,002 fields: give at most 64"),
        (ChatBody, {**CHATTED, "metadata": MANY}, "metadata: an object of 20,000 fields: give at most 64"),
        (ChatBody, {**CHATTED, "chat_template_kwargs": dict.fromkeys(MANY)}, "_kwargs: an object of 20,000 fields"),
        (ChatBody, {**CHATTED, "logit_bias": MANY}, "logit_bias: an object of 20,000 fields: give at most 1,024"),
    ],
)  # fmt: skip
def test_of_a_body_full_of_mistakes_only_the_first_ones_are_looked_at(
    schema: type[Body], body: dict[str, Any], words: str
) -> None:
    """Each costs a kilobyte: a few megabytes of them would take gigabytes, and all clients' time."""
    with pytest.raises(ValidationError) as refused:
        schema.model_validate(body)
    assert refused.value.error_count() <= 64
    mistakes = [{**mistake, "loc": ("body", *mistake["loc"])} for mistake in refused.value.errors()]
    refusal = refusal_of(mistakes, body)
    assert words in refusal.message
    assert refusal.param is None if words.startswith("the body") else refusal.param in refusal.message


@pytest.mark.story
def test_a_message_of_the_official_client_can_be_sent_back_as_it_is() -> None:
    """Fields that it has and the answer had not are null."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for told in ({"content": "the fox"}, {"content": None, "tool_calls": [call]}):
        message = ChatCompletionMessage.model_validate({"role": "assistant", "refusal": None, **told})
        body = ChatBody.model_validate({**CHATTED, "messages": [*CHATTED["messages"], message.model_dump()]})
        assert body.messages[1].text == (told["content"] or "")


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.story
def test_what_is_nested_too_deeply_is_refused_or_stays_text() -> None:
    """Whoever writes it out again could not."""
    for levels in (100, 101):
        tool = {"type": "function", "function": {"name": "f", "parameters": nested(levels)}}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": nested(levels)}}
        for change in ({"tools": [tool]}, {"response_format": form}):
            body = {**CHATTED, **change}
            if levels == 100:
                assert ChatBody.model_validate(body)
                continue
            with pytest.raises(ValidationError, match="it is nested deeper than 100 levels: flatten it"):
                ChatBody.model_validate(body)
        call = {"id": "a", "function": {"name": "f", "arguments": json.dumps(nested(levels))}}
        said = _message(Said.model_validate({"role": "assistant", "tool_calls": [call]}))
        (arguments,) = [call["function"]["arguments"] for call in said["tool_calls"]]
        assert arguments == (nested(levels) if levels == 100 else json.dumps(nested(levels)))


# ── tools and reasoning ──────────────────────────────────────────────────

TOOLS: list[Any] = [{"type": "function", "function": {"name": name}} for name in ("weather", "time")]


def read_tools(text: str, size: int) -> tuple[str, list[ToolCall]]:
    """Fed in pieces of `size` characters."""
    reader = ToolCalls(TOOLS)
    parts = [reader.feed(text[i : i + size]) for i in range(0, len(text), size)] + [reader.finish()]
    return "".join(part.content for part in parts), [call for part in parts for call in part.calls]


CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
READ = ToolCall("weather", '{"city": "Rome"}')


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (CALL, "", [READ]),
        (f"<tool_call>{CALL}</tool_call>", "", [READ]),
        (f"Let me see. <tool_call>\n{CALL}\n</tool_call>\n<tool_call>{CALL}</tool_call>", "Let me see. ", [READ, READ]),
        (f"Well <tool_call>{CALL}", "Well", [READ]),
        ('{"name": "weather", "parameters": {"city": "Rome"}}', "", [READ]),
        ("a < b and <tool> too", "a < b and <tool> too", []),
        ('{"name": "unknown", "arguments": {}}', '{"name": "unknown", "arguments": {}}', []),
        ("<tool_call>not json</tool_call>!", "<tool_call>not json</tool_call>!", []),
        ('{"name": ["weather"]}', '{"name": ["weather"]}', []),
        ("<tool_call>{", "<tool_call>{", []),
    ],
)
def test_calls_are_read_out_of_text_however_it_is_cut(
    size: int, text: str, content: str, calls: list[ToolCall]
) -> None:
    shown, found = read_tools(text, size)
    assert (shown.rstrip() if calls else shown, found) == (content.rstrip() if calls else content, calls)


def test_a_schema_of_calls_names_the_tools() -> None:
    assert json.loads(call_schema(TOOLS, "time"))["properties"]["name"] == {"const": "time"}
    assert len(json.loads(call_schema(TOOLS))["anyOf"]) == 2
    with pytest.raises(InputError, match="weather, time"):
        call_schema(TOOLS, "nothing")


def read_reasoning(text: str, size: int, prompt: str = "") -> Parted:
    reader = Reasoning.behind(prompt)
    parts = [reader.feed(text[i : i + size]) for i in range(0, len(text), size)] + [reader.finish()]
    return Parted("".join(part.reasoning for part in parts), "".join(part.content for part in parts))


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("", "<think>hm</think>Yes", Parted("hm", "Yes")),
        ("", "\n<think>\nhm</think>\n\nYes <think>", Parted("hm", "Yes <think>")),
        ("<think>\n", "hm</think>Yes", Parted("hm", "Yes")),
        ("", "Yes <think>no</think>", Parted("", "Yes <think>no</think>")),
        ("", "<think>never ends", Parted("never ends", "")),
        ("", "<thing>", Parted("", "<thing>")),
        ("", "<thi", Parted("", "<thi")),
        ("<think>", "\n\nhm,\n\nhm\n</think>\n\nYes,\nyes\n", Parted("hm,\n\nhm", "Yes,\nyes\n")),
        ("", "\nYes", Parted("", "\nYes")),
    ],
)
def test_reasoning_is_parted_from_the_answer(size: int, prompt: str, text: str, expected: Parted) -> None:
    assert read_reasoning(text, size, prompt) == expected


def test_a_server_draws_where_commands_take_the_likeliest_token_and_the_quick_start_says_so() -> None:
    parser = argparse.ArgumentParser()
    generate.add_arguments(parser)
    command, library = parser.parse_args(["--prompt", "a"]).temperature, Sampling().temperature
    assert (_temperature(None), command, library) == (1, 0, 0)
    told = (Path(__file__).parents[2] / "docs" / "quick-start.md").read_text()
    assert "take the likeliest token (`--temperature 0`, `Sampling(temperature=0)`)" in told
    assert "requests draw at temperature 1 unless they say otherwise" in told


def test_tokens_that_are_parts_of_a_character_have_exact_bytes(tiny_folder: Path) -> None:
    tokenizer = Tokenizer.load(tiny_folder)
    words = Words(tokenizer)
    text = "the Füße 🤗\n"
    assert bytes(byte for token in tokenizer.encode(text) for byte in words.bytes(token)).decode() == text
    assert bytes(words.bytes(tokenizer.eos_token_ids[0])) == b"<|end|>"


# ── options ──────────────────────────────────────────────────────────────


def test_what_is_typed_counts_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "quire.toml"
    file.write_text('pool = "64MiB"\nmax-length = 1024\nmax_requests = 5\nlog-text = true\nstage-layers = [10, 20]\n')
    monkeypatch.setenv("QUIRE_MAX_LENGTH", "2k")
    monkeypatch.setenv("QUIRE_PORT", "9000")
    monkeypatch.setenv("QUIRE_CACHE", "elsewhere")
    options = complete(_add, argparse.Namespace(config=file, port=1))
    assert (options.pool, options.max_length, options.max_requests, options.port) == (64 * MIB, 2048, 5, 1)
    assert options.log_text is True
    assert options.stage_layers == (10, 20)
    assert options.batch_tokens == 8192
    monkeypatch.chdir(tmp_path)
    assert complete(_add, argparse.Namespace()).max_requests == 5


@pytest.mark.story
def test_an_option_that_may_be_repeated_is_a_list_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "quire.toml"
    file.write_text('connector = ["stores:one", "stores:other"]\nsheets = [3, 4]\nlog-text = false\n')
    options = complete(_add, argparse.Namespace(config=file))
    assert (options.connector, options.sheets, options.log_text) == (["stores:one", "stores:other"], (3, 4), False)
    monkeypatch.setenv("QUIRE_CONNECTOR", "stores:third")
    monkeypatch.setenv("QUIRE_LOG_TEXT", "yes")
    options = complete(_add, argparse.Namespace(config=file))
    assert (options.connector, options.log_text) == (["stores:third"], True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-length = 'long'", "quire.toml: --max-length"),
        ("max-lenght = 3", "max-lenght is no option of quire serve: did you mean max-length"),
        ("[memory]\npool = 3", r"\[memory\] is a table"),
        ("pool = ", "is not TOML"),
    ],
)
def test_mistakes_in_a_file_are_told_with_its_name(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "quire.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        complete(_add, argparse.Namespace(config=file))


def test_a_server_that_cannot_boot_says_why_before_it_reads_a_weight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_PORT", "x")
    assert main(["serve", str(tmp_path)]) == 2
    assert "the environment: --port" in capsys.readouterr().err
    monkeypatch.delenv("QUIRE_PORT")
    assert main(["serve", "--port", "0", str(tmp_path)]) == 2
    assert "has no config.json" in capsys.readouterr().err
    assert main(["serve", "--port", "99999", str(tmp_path)]) == 2
    assert "--port 99999 is none" in capsys.readouterr().err


def test_a_server_whose_address_is_taken_or_whose_weights_are_broken_says_so_and_ends(
    tiny_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(tiny_folder), "--pool", "2MiB", "--port", port]) == 2
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in capfd.readouterr().err
    broken = tmp_path / "broken"
    shutil.copytree(tiny_folder, broken)
    (broken / "model.safetensors").write_bytes(b"no weights")
    assert main(["serve", str(broken), "--pool", "2MiB", "--port", "0"]) == 2
    assert "cannot be read" in capfd.readouterr().err.splitlines()[-1]


# ── the end of an engine ─────────────────────────────────────────────────


class Ending:
    """A process that ends by itself when it was asked about so often; or when it is killed."""

    def __init__(self, asked: int) -> None:
        self.left, self.is_killed = asked, False

    def poll(self) -> int | None:
        self.left -= 1
        return 0 if self.left < 0 or self.is_killed else None

    def kill(self) -> None:
        self.is_killed = True


@pytest.mark.parametrize(("is_hurried", "is_killed"), [(False, False), (True, True)])
def test_an_engine_that_still_writes_to_its_tiers_is_waited_for_unless_somebody_hurries(
    is_hurried: bool, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.serve.client.CLOSE_SECONDS", 0.0)

    async def closed() -> Ending:
        client = EngineClient(EngineSetup("", {}, "fp32", Rules()), Progress(1), lambda *_a, **_k: None)
        process, (ours, theirs) = Ending(5), socket.socketpair()
        with ours, theirs:
            client._life = Life(process, ours, None, 0.0)  # type: ignore[arg-type]
            client.is_hurried = is_hurried
            await client.close(seconds=1000.0)
        return process

    assert asyncio.run(closed()).is_killed is is_killed
