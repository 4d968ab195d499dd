"""The paths around generation: tokens, the tokenizer, versions, pages, and calls that are aborted."""

from __future__ import annotations

import gzip
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire import __version__
from quire.serve.logs import shown_path
from quire.serve.pages import HEADERS, STYLE
from running_server import RunningServer
from serve_kit import CHAT, SIZE, body, chat, wait_for_tokens

MESSAGES = [{"role": "user", "content": "the quick fox"}]
HTML = {"accept": "text/html,application/xhtml+xml"}


@pytest.mark.parametrize("version", ["", "/v1"])
def test_tokens_become_text_again_under_both_spellings(client: httpx.Client, version: str) -> None:
    found = client.post(f"{version}/tokenize", json={"messages": MESSAGES, "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == found["max_length"] == 512
    text = client.post(f"{version}/detokenize", json={"tokens": found["tokens"], "model": "tiny"}).json()["prompt"]
    assert "the quick fox" in text
    again = client.post(f"{version}/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    assert again["tokens"] == found["tokens"], "special tokens are part of the text"
    assert "token_strs" not in again


def test_tokens_that_the_model_does_not_have_are_refused(client: httpx.Client) -> None:
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    error = client.post("/detokenize", json={"tokens": [9_999_999]}).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "tokens")
    assert "the model's tokens are 0 to" in error["message"]


@pytest.mark.story
def test_no_more_tokens_become_text_than_a_request_may_have(client: httpx.Client) -> None:
    """A body of 4 MB became a text of 22 MB, and held up all other calls for half a second."""
    most = client.get("/v1/models").json()["data"][0]["max_length"]
    assert client.post("/detokenize", json={"tokens": [5] * most}).status_code == 200
    refused = client.post("/detokenize", json={"tokens": [5] * (most + 1)})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tokens")


def test_a_rendered_chat_is_the_prompt_that_a_call_has(client: httpx.Client) -> None:
    found = client.post("/v1/chat/completions/render", json=body(max_tokens=3)).json()
    answer = chat(client, max_tokens=3).json()
    assert found["count"] == answer["usage"]["prompt_tokens"]
    assert client.post("/detokenize", json={"tokens": found["token_ids"]}).json()["prompt"] == found["prompt"]


def test_the_tokenizer_says_what_evaluation_tools_ask_for(client: httpx.Client) -> None:
    """Special tokens by name, null where there is none; each one is a token of its own."""
    found = client.get("/tokenizer_info").json()
    tokens = client.post("/tokenize", json={"prompt": found["eos_token"], "add_special_tokens": False}).json()["tokens"]
    assert tokens == [found["eos_token_id"]]
    assert {"bos_token", "pad_token", "unk_token"} <= set(found)
    assert found["mask_token"] is found["mask_token_id"] is None
    assert "messages" in found["chat_template"]
    assert found["model_max_length"] == 512


@pytest.mark.parametrize("earlier", ["", "get_"])
def test_routers_find_the_models_name_and_the_limits_of_the_plan(client: httpx.Client, earlier: str) -> None:
    """Under both spellings of SGLang's paths: a router that finds no name lists the model as unknown."""
    model, server = (client.get(f"/{earlier}{name}_info").json() for name in ("model", "server"))
    assert model == {"model_path": "tiny", "tokenizer_path": "tiny", "is_generation": True}
    assert server["served_model_name"] == server["model_path"] == client.get("/v1/models").json()["data"][0]["id"]
    assert (server["context_length"], server["version"]) == (512, __version__)
    assert server["tp_size"] == server["pp_size"] == server["dp_size"] == 1
    assert server["max_running_requests"] == int(SIZE[SIZE.index("--max-requests") + 1])


def test_version_ping_and_pages_need_no_key(tiny_server: RunningServer, keys: Any) -> None:
    """To read them; to post a ping does."""
    assert tiny_server.get("/version").json() == {"version": __version__}
    with tiny_server.client() as client:
        assert client.get("/ping").json() == {"ready": True, "reason": ""}
        assert client.post("/ping").status_code == 401
        assert client.get("/").json()["model"] == "tiny"
        assert client.get("/v1/models").status_code == 401, "this one does"
    with tiny_server.client(keys.alice) as client:
        assert client.post("/ping").json() == {"ready": True, "reason": ""}


def test_the_pages_list_every_path_and_load_nothing_from_elsewhere(tiny_server: RunningServer) -> None:
    with tiny_server.client() as client:
        docs, index = client.get("/docs", headers=HTML), client.get("/", headers=HTML)
        document = client.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"<code>{method.upper()} {path}</code>" in docs.text
    assert "<code>repetition_penalty</code>" in docs.text
    for page in (docs, index):
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["content-security-policy"] == HEADERS["content-security-policy"]
        assert f"<style>{STYLE}</style>" in page.text
        assert not re.search(r"<script|<img|<link|https?://|style=", page.text)
    pages = {"/docs", "/inspect", "/openapi.json", "/health", "/metrics"}
    assert set(re.findall(r'href="([^"]+)"', index.text)) == pages


def test_the_examples_of_the_page_are_accepted(client: httpx.Client) -> None:
    """Each is the smallest body of its path. Those that take a prompt or messages take one of them, not neither."""
    sections = client.get("/docs", headers=HTML).text.split("<h2>")[1:]
    examples = [
        (path, json.loads(example.replace("&quot;", '"')))
        for section in sections
        for path in re.findall(r"^<code>POST ([^<]+)</code>", section)
        for example in re.findall(r"<pre>(.*?)</pre>", section, re.DOTALL)
    ]
    assert {"/v1/chat/completions", "/v1/completions"} <= {path for path, _ in examples}
    for path, example in examples:
        expected = 400 if path.endswith(("/tokenize", "/leases", "/warm", "/room")) else 200
        assert client.post(path, json=example).status_code == expected, (path, example)


def test_a_compressed_body_is_read_and_limited_after_decompression(client: httpx.Client) -> None:
    written, zipped = json.dumps(body(max_tokens=2)).encode(), {"content-encoding": "gzip"}
    assert client.post(CHAT, content=gzip.compress(written), headers=zipped).status_code == 200
    large = client.post(CHAT, content=gzip.compress(written + bytes(300_000)), headers=zipped)
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
    other = client.post(CHAT, content=written, headers={"content-encoding": "br"})
    assert (other.status_code, other.headers["accept-encoding"]) == (415, "gzip, deflate")


def test_a_model_is_known_by_each_of_its_names_and_answers_with_the_first(client: httpx.Client) -> None:
    assert chat(client, model="tiny-alias", max_tokens=2).json()["model"] == "tiny"
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["tiny"]
    assert client.get("/v1/models/tiny-alias").json()["id"] == "tiny"
    assert chat(client, model="another").json()["error"]["code"] == "model_not_found"


def test_a_call_is_aborted_by_its_own_key_and_by_admins_alone(tiny_server: RunningServer, keys: Any) -> None:
    """Its stream ends with an error of its own, and the engine has nothing to do afterwards."""
    asked = body(max_tokens=450, stream=True, ignore_eos=True)
    for key in (keys.alice, keys.admin):
        tiny_server.until("a stream is aborted", lambda key=key: _is_aborted(tiny_server, keys, key, asked))
    tiny_server.until("it is idle", tiny_server.is_idle)


def _is_aborted(server: RunningServer, keys: Any, key: str, asked: dict[str, Any]) -> bool:
    """On a busy machine an answer can be complete before it is aborted: then there is nothing to abort."""
    with server.client(keys.alice) as alice, server.client(key) as other, server.client(keys.bob) as bob:
        with alice.stream("POST", CHAT, json=asked) as stream:
            lines = stream.iter_lines()
            call = wait_for_tokens(lines, 2)["id"]
            refused = bob.post(f"/v1/requests/{call}/abort")
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "request_not_found")
            found = other.post(f"/v1/requests/{call}/abort").json()
            rest = "".join(lines)
        (choice,) = found["choices"]
        if not found["aborted"]:
            assert choice == {"choice": 0, "status": "ended"}
            return False
        assert choice["status"] == "aborted"
        assert choice["output_tokens"] >= 2
        assert '"code":"aborted"' in rest
        assert "[DONE]" not in rest
        assert other.post(f"/v1/requests/{call}/abort").json()["aborted"] == 0
        return True


def test_a_call_without_a_stream_is_aborted_by_its_request_id_even_while_the_engine_stands_still(
    tiny_server: RunningServer, client: httpx.Client, freeze_file: Path
) -> None:
    named, path = {"x-request-id": "to-be-aborted"}, "/v1/requests/to-be-aborted/abort"
    freeze_file.touch()
    try:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.post, CHAT, json=body(max_tokens=9, n=2, ignore_eos=True), headers=named)
            tiny_server.until("it is known", lambda: client.post(path).status_code == 200)
            refused = answer.result()
    finally:
        freeze_file.unlink()
    assert (refused.status_code, refused.json()["error"]["code"]) == (410, "aborted")
    tiny_server.until("it is idle", tiny_server.is_idle)


@pytest.mark.story
def test_an_unknown_path_is_logged_as_it_was_and_counted_as_one(
    tiny_server: RunningServer, client: httpx.Client
) -> None:
    """Operators could not see what a client looks for. A label for each such path would fill the metrics."""
    client.get("/v1/embedings", headers={"x-request-id": "lost-one"})
    client.get("/" + "x" * 200 + "%0a%22", headers={"x-request-id": "lost-long"})
    tiny_server.until("both are logged", lambda: len(_lines(tiny_server, "lost-")) == 2)
    assert [line["path"] for line in _lines(tiny_server, "lost-")] == ["/v1/embedings", "/" + "x" * 127 + "…"]
    assert shown_path("/a\n\u202e") == "/a??"
    assert "embedings" not in tiny_server.get("/metrics").text


def _lines(server: RunningServer, prefix: str) -> list[dict[str, Any]]:
    return [line for line in server.told("request") if line["request"].startswith(prefix)]


@pytest.mark.story
def test_threads_of_the_engine_sleep_while_they_wait(tiny_server: RunningServer) -> None:
    """As OpenMP's own library reports it when torch loads it: spinning threads made shared CPUs many times slower."""
    policies = [line.partition("=")[2].strip() for line in tiny_server.raw_logs if "OMP_WAIT_POLICY" in line]
    wanted = f"'{os.environ.get('OMP_WAIT_POLICY', 'passive').upper()}'"
    assert set(policies) == {wanted}, "one line for each start of the engine: other tests may have killed it"
