"""Text to tokens and back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from examples import examples
from quire.core.errors import InputError, ModelError
from quire.text.prompts import Prompts
from quire.text.templates import ChatTemplate
from quire.text.tokenizer import Tokenizer


@settings(deadline=None)
@given(text=st.text(), size=st.integers(1, 5))
@pytest.mark.law
def test_any_text_streams_to_itself_however_many_tokens_a_step_brings(
    tokenizer: Tokenizer, text: str, size: int
) -> None:
    stream = tokenizer.stream()
    tokens = tokenizer.encode(text)
    assert "".join(stream.feed(tokens[start : start + size]) for start in range(0, len(tokens), size)) == text
    assert stream.finish() == ""


@settings(deadline=None)
@given(st.lists(st.integers(0, 350)))
@pytest.mark.law
def test_any_tokens_stream_to_what_they_decode_to(tokenizer: Tokenizer, tokens: list[int]) -> None:
    """Also bytes that are no character; only the end has to wait for `finish`."""
    stream = tokenizer.stream()
    text = "".join(stream.feed([token]) for token in tokens)
    whole = tokenizer.decode(tokens)
    assert whole.startswith(text)
    assert whole == text or whole.endswith("\ufffd")
    assert text + stream.finish() == whole
    assert stream.finish() == ""


PIECES = ["<s>", "▁a", "b", "▁"]
BYTES = [0x0A, 0x41, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xFF]


@pytest.fixture(scope="module")
def with_fallback() -> Tokenizer:
    """As Llama 2 and Gemma have it: what no piece spells is spelt in bytes, and runs of bytes are read as a whole."""
    names = [*PIECES, *(f"<0x{byte:02X}>" for byte in BYTES)]
    inner = tokenizers.Tokenizer(models.BPE({name: place for place, name in enumerate(names)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    inner.add_special_tokens(PIECES[:1])
    return Tokenizer(inner)


def shown_of(tokens: list[int]) -> str:
    """A run's characters come out one by one while it is one of characters; behind that, a sign for each byte."""
    text, run = "", b""
    for token in [*tokens, 1]:
        if token >= len(PIECES):
            run += bytes([BYTES[token - len(PIECES)]])
        elif token:
            whole = next(run[:end].decode() for end in range(len(run), -1, -1) if _is_text(run[:end]))
            text += whole + "\ufffd" * (len(run) - len(whole.encode())) + PIECES[token].replace("▁", " ")
            run = b""
    return text.removesuffix(" a").removeprefix(" ")


def _is_text(run: bytes) -> bool:
    try:
        run.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.story
@examples(500)
@given(tokens=st.lists(st.integers(0, len(PIECES) + len(BYTES) - 1)))
@pytest.mark.law
def test_any_bytes_stream_without_loss_though_a_run_is_read_otherwise_at_its_end(
    with_fallback: Tokenizer, tokens: list[int]
) -> None:
    """`decode` takes back the characters of a run that turns out to be none. What has come out stays."""
    stream, expected = with_fallback.stream(), shown_of(tokens)
    text = "".join(stream.feed([token]) for token in tokens)
    assert text + stream.finish() == expected
    assert stream.finish() == ""
    whole = with_fallback.decode(tokens)
    assert whole == expected or "\ufffd" in whole


def test_half_a_character_is_never_shown(tokenizer: Tokenizer) -> None:
    tokens = [tokenizer.inner.get_vocab()[sign] for sign in ("ð", "Ł", "ĺ", "Ģ")]
    stream = tokenizer.stream()
    assert [stream.feed([token]) for token in tokens] == ["", "", "", "😀"]
    assert stream.feed(tokens[:2]) == ""
    assert stream.finish() == "\ufffd"


def test_special_tokens_are_shown_only_when_asked_for(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("fox<|end|>")
    assert tokens[-1] == 0
    assert tokenizer.stream().feed(tokens) == "fox"
    assert tokenizer.stream(skip_special_tokens=False).feed(tokens) == "fox<|end|>"


def test_a_chat_is_what_the_template_makes_of_it(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "the fox?"}]
    prompts = Prompts(tokenizer, tokenizer.vocab_size)
    assert prompts.render(messages) == "<|user|>the fox?<|end|><|assistant|>"
    assert prompts.render(messages, switches={"add_generation_prompt": False}) == "<|user|>the fox?<|end|>"
    with pytest.raises(InputError, match="0 messages"):
        prompts.render([])


def test_ends_come_from_the_generation_settings_and_the_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert tokenizer.eos_token_ids == (2, 0)
    tokenizer.inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 1}))
    bare = Tokenizer.load(tmp_path)
    assert bare.eos_token_ids == (1,)
    assert bare.vocab_size == tokenizer.vocab_size
    assert not bare.has_chat_template
    with pytest.raises(InputError, match="no chat template: give a plain prompt"):
        Prompts(bare, bare.vocab_size).render([{"role": "user", "content": "fox"}])


def test_a_template_of_its_own_file_comes_first(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.inner.save(str(tmp_path / "tokenizer.json"))
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "the fox"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    message = [{"role": "user", "content": ""}]
    assert Prompts(Tokenizer.load(tmp_path), 1).render(message) == "the fox"
    (tmp_path / "chat_template.jinja").write_text("the lazy dog")
    assert Prompts(Tokenizer.load(tmp_path), 1).render(message) == "the lazy dog"


def test_templates_have_what_models_count_on() -> None:
    template = ChatTemplate(
        "{%- for message in messages %}{% if loop.index > 1 %}{% break %}{% endif %}\n"
        "    {% generation %}{{ message.content }}{% endgeneration %}\n"
        "{%- endfor %}|{{ tools | tojson }}|{{ strftime_now('%Y') | length }}|{{ bos_token }}{{ mood }}",
        {"bos_token": "<s>"},
    )
    tools = [{"name": "wölf <b>"}]
    assert template.render([{"content": "a"}, {"content": "b"}], tools, mood="!") == ('a|[{"name": "wölf <b>"}]|4|<s>!')


@pytest.mark.story
@pytest.mark.parametrize("name", ["self", "environment", "args", "kwargs", "messages_"])
def test_a_switch_may_have_any_name(name: str) -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    assert template.render([{"content": "a"}], **{name: True}) == "a"


def test_a_template_that_refuses_says_why() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InputError, match="refuses these 2 messages: roles must alternate"):
        template.render([{"role": "user"}, {"role": "user"}])
    with pytest.raises(ModelError, match="chat template cannot be read"):
        ChatTemplate("{% if %}", {})


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    template = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(InputError, match="refuses"):
        template.render([{"role": "user"}])


def test_a_folder_without_a_tokenizer_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_text_needs_neither_torch_nor_transformers() -> None:
    program = (
        "import sys, quire.text.tokenizer, quire.text.stops, quire.text.grammar, quire.fetch.default\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
