"""The default model itself, as transformers sees it. Needs the download."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.fetch.default import fetch_default
from quire.text.prompts import Prompts
from quire.text.tokenizer import Tokenizer

pytestmark = pytest.mark.network
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def folder() -> Path:
    return fetch_default()


def test_the_capital_of_france_is_paris(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from quire.worker.weights.expand import expand

    tokenizer = Tokenizer.load(folder)
    prompts = Prompts(tokenizer, tokenizer.vocab_size)
    prompt = prompts.encode(prompts.render(QUESTION), add_special_tokens=False).tolist()
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert prompt == theirs.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(expand(folder, tmp_path / "plain"))
    tokens = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=16)[0, len(prompt) :].tolist()
    assert tokenizer.decode(tokens) == "The capital of France is Paris."
    assert tokens[-1] in tokenizer.eos_token_ids


@pytest.mark.parametrize("text", ["It's 12345 o'clock\n\n  — Füße, 你好, 🤗!", "def f(x):\n\treturn x**2  # 3.14\n"])
def test_text_comes_back_from_its_tokens(folder: Path, text: str) -> None:
    tokenizer = Tokenizer.load(folder)
    tokens = tokenizer.encode(text)
    assert tokenizer.stream().feed(tokens) == text
    assert not any(sum(sign.isdigit() for sign in tokenizer.decode([token])) > 1 for token in tokens)


def test_its_settings_are_those_of_the_published_model(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    assert [config[name] for name in names] == [576, 1536, 30, 9, 3]
    assert (config["vocab_size"], config["max_position_embeddings"], config["rope_theta"]) == (49_152, 8_192, 100_000)
    assert Tokenizer.load(folder).eos_token_ids == (2,)
