"""Keys, and what each of them may see and have."""

from __future__ import annotations

import hmac
import json
import statistics
from typing import Any

import anthropic
import openai
import pytest

from command import refused
from quire.cli.main import main
from quire.core.errors import InputError
from quire.core.rules import Policy
from quire.serve.keys import KeyRing, Tenant, add_key, digest, read_keys, remove_key
from quire.serve.server import rules_of
from running_server import RunningServer
from serve_kit import CHAT, body, chat

PROMPT = "the quick brown fox sees the lazy dog " * 12


def hits(server: RunningServer, key: str, prompt: str) -> int:
    with server.client(key) as client:
        answer = chat(client, messages=[{"role": "user", "content": prompt}], max_tokens=2)
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture
def empty_server(tiny_server: RunningServer, keys: Any) -> RunningServer:
    """Nothing is cached: what a test computes need not make way for what others left."""
    tiny_server.until("it is idle", tiny_server.is_idle)
    with tiny_server.client(keys.admin) as admin:
        assert admin.delete("/v1/cache", params={"everything": True}).status_code == 200
    return tiny_server


@pytest.mark.parametrize("given", ["", "Bearer nobody", "Basic x", "Bearer"])
def test_without_a_known_key_nothing_is_answered(tiny_server: RunningServer, given: str) -> None:
    headers = {"authorization": given} if given else {}
    with tiny_server.client() as client:
        for path in ("/v1/models", "/v1/plan", "/v1/cache", "/nowhere"):
            assert client.get(path, headers=headers).status_code == 401
        answer = client.post(CHAT, json=body(), headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        for path in ("/health", "/health/live", "/health/ready", "/health/progress", "/metrics", "/openapi.json"):
            assert client.get(path, headers=headers).status_code == 200


def test_answers_and_refusals_say_what_is_left_of_a_keys_limits(tiny_server: RunningServer, keys: Any) -> None:
    with tiny_server.client(keys.slow) as slow, tiny_server.client(keys.alice) as alice:
        for answer in (slow.get("/v1/models"), chat(slow, max_tokens=401)):
            assert answer.headers["x-ratelimit-limit-requests"] == "1"
            assert answer.headers["x-ratelimit-remaining-requests"] == "1"
            assert answer.headers["x-ratelimit-limit-tokens"] == "450"
            assert 0 <= int(answer.headers["x-ratelimit-remaining-tokens"]) <= 450
        assert not [name for name in alice.get("/v1/models").headers if name.startswith("x-ratelimit")]


def test_the_same_prompt_is_found_within_a_scope_and_never_in_another(empty_server: RunningServer, keys: Any) -> None:
    assert hits(empty_server, keys.alice, PROMPT) == 0
    assert hits(empty_server, keys.bob, PROMPT) == 0
    found = hits(empty_server, keys.alice, PROMPT)
    assert found >= 64
    assert hits(empty_server, keys.alices_other, PROMPT) == found


def test_a_key_drops_the_cache_of_its_own_scope_alone(empty_server: RunningServer, keys: Any) -> None:
    prompt = "and " + PROMPT
    for key in (keys.alice, keys.bob):
        hits(empty_server, key, prompt)
    with empty_server.client(keys.bob) as bob:
        assert bob.delete("/v1/cache", params={"scope": "alice"}).status_code == 403
        assert bob.delete("/v1/cache", params={"everything": True}).status_code == 403
        assert bob.delete("/v1/cache").json()["dropped_units"] > 0
    assert hits(empty_server, keys.bob, prompt) == 0
    assert hits(empty_server, keys.alice, prompt) >= 64
    with empty_server.client(keys.admin) as admin:
        assert admin.delete("/v1/cache", params={"scope": "alice"}).json()["dropped_units"] > 0
        assert hits(empty_server, keys.alice, prompt) == 0
        admin.delete("/v1/cache", params={"everything": True})
        empty_server.until("nothing is cached", lambda: empty_server.metric("quire_pages", state="cached") == 0)


def test_a_client_cannot_choose_its_scope(tiny_server: RunningServer, keys: Any) -> None:
    """Also not by OpenAI's field for related prompts, which is ignored."""
    prompt = "mine " + PROMPT
    hits(tiny_server, keys.alice, prompt)
    with tiny_server.client(keys.bob) as bob:
        for field in ("scope", "tenant"):
            answer = chat(bob, **{field: "alice"})
            assert answer.status_code == 400
            assert field in answer.json()["error"]["message"]
        asked = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 2, "prompt_cache_key": "alice"}
        answer = chat(bob, **asked)
        assert answer.headers["x-quire-ignored"] == "prompt_cache_key"
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_miss_does_not_tell_that_somebody_else_asked_the_same(empty_server: RunningServer, keys: Any) -> None:
    prompt = "so " + PROMPT
    hits(empty_server, keys.alice, prompt)
    with empty_server.client(keys.bob) as bob, empty_server.client(keys.admin) as admin:
        call = chat(bob, messages=[{"role": "user", "content": prompt}], max_tokens=2).json()["id"]
        seen = {
            name: client.get(f"/v1/requests/{call}/explain").json() for name, client in (("bob", bob), ("admin", admin))
        }
    reasons = {name: told["choices"][0]["events"][1]["code"] for name, told in seen.items()}
    assert reasons == {"bob": "no_overlap", "admin": "scope"}


@pytest.mark.story
def test_who_names_no_length_gets_what_the_key_may_have(tiny_server: RunningServer, keys: Any) -> None:
    """It was refused for as many tokens as the longest request has, which nobody had asked for."""
    with tiny_server.client(keys.brief) as brief:
        answer = chat(brief, max_tokens=None, ignore_eos=True)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["total_tokens"] == 60
        both = chat(brief, max_tokens=None, n=2, ignore_eos=True).json()["usage"]
        assert 0 < both["completion_tokens"] <= 60 - 2 * both["prompt_tokens"]
        for refused in ({"max_tokens": 100}, {"messages": [{"role": "user", "content": "fox " * 100}]}):
            answer = chat(brief, **refused)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "tokens_limit")


def test_a_key_has_no_more_than_its_limits(tiny_server: RunningServer, keys: Any) -> None:
    with tiny_server.client(keys.slow) as slow:
        large = chat(slow, max_tokens=420)
        assert (large.status_code, large.json()["error"]["code"]) == (400, "tokens_limit")
        many = chat(slow, n=2, max_tokens=5)
        assert (many.status_code, many.json()["error"]["code"]) == (400, "requests_limit")
        answers = [chat(slow, max_tokens=350, ignore_eos=True) for _ in range(4)]
    assert [answer.status_code for answer in answers][:1] == [200]
    assert answers[-1].status_code == 429
    assert answers[-1].json()["error"]["code"] == "tokens_limit"
    assert int(answers[-1].headers["retry-after"]) >= 1


def test_the_official_client_knows_these_errors_as_its_own(tiny_server: RunningServer, keys: Any) -> None:
    def ask(key: str, times: int) -> None:
        with openai.OpenAI(base_url=tiny_server.address + "/v1", api_key=key, max_retries=0, timeout=60) as client:
            for _ in range(times):
                client.completions.create(model="tiny", prompt="fox", max_tokens=350, extra_body={"ignore_eos": True})

    with pytest.raises(openai.AuthenticationError, match="this key is not known"):
        ask("nobody's", 1)
    with pytest.raises(openai.RateLimitError, match="tokens asked for") as limited:
        ask(keys.slow, 4)
    assert limited.value.code == "tokens_limit"
    assert int(limited.value.response.headers["retry-after"]) >= 1


def test_the_client_of_the_messages_api_knows_when_to_come_back(tiny_server: RunningServer, keys: Any) -> None:
    """Chats use the key's tokens up; a slow machine may need several attempts before it has none left."""

    def limited(client: anthropic.Anthropic) -> anthropic.RateLimitError | None:
        with tiny_server.client(keys.slow) as slow:
            tiny_server.until("none are left", lambda: chat(slow, max_tokens=350, ignore_eos=True).status_code == 429)
        try:
            client.messages.create(model="tiny", messages=[{"role": "user", "content": "fox"}], max_tokens=390)
        except anthropic.RateLimitError as error:
            return error
        return None

    with anthropic.Anthropic(base_url=tiny_server.address, api_key=keys.slow, max_retries=0) as client:
        error = next(error for _ in range(20) if (error := limited(client)))
    assert (error.type, error.error_code) == ("rate_limit_error", "tokens_limit")
    assert int(error.response.headers["retry-after"]) >= 1


def test_times_to_the_first_token_do_not_tell_scopes_apart(empty_server: RunningServer, keys: Any) -> None:
    """A prompt that another scope has computed takes as long as one that nobody has: what is reused is counted, and the
    engine's own numbers say that nothing was."""
    empty_server.until("it is idle", empty_server.is_idle)
    known, fresh = [], []
    for turn in range(4):
        prompt = f"{turn} " + PROMPT
        hits(empty_server, keys.alice, prompt)
        before = empty_server.metric("quire_computed_tokens_total")
        hits(empty_server, keys.bob, prompt)
        empty_server.until("it is idle", empty_server.is_idle)
        between = empty_server.metric("quire_computed_tokens_total")
        hits(empty_server, keys.bob, f"{turn + 4} " + PROMPT)
        empty_server.until("it is idle", empty_server.is_idle)
        known.append(between - before)
        fresh.append(empty_server.metric("quire_computed_tokens_total") - between)
    assert statistics.median(known) == statistics.median(fresh)


# ── keys at rest ─────────────────────────────────────────────────────────


def test_a_key_is_shown_once_and_kept_as_a_hash(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.json"
    limits = ("--most-requests", "2", "--most-tokens", "50", "--tokens-per-minute", "600")
    assert main(["keys", "add", "ann", "--file", str(file), "--weight", "3", *limits, "--admin"]) == 0
    key = capsys.readouterr().out.strip()
    assert len(key) > 40
    assert key not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    (tenant,) = read_keys(file)
    assert tenant == Tenant("ann", "ann", 3.0, 2, 50, 600, is_admin=True, key_sha256=digest(key))
    assert KeyRing(file).find(key) == tenant
    assert KeyRing(file).find(key + "x") is None
    assert main(["keys", "add", "ann", "--file", str(file)]) == 2
    assert main(["keys", "list", "--file", str(file)]) == 0
    told = capsys.readouterr().out
    assert key not in told
    assert told.splitlines()[1].split() == ["ann", "ann", "3", "2", "50", "600", "yes"]
    assert main(["keys", "remove", "ann", "--file", str(file)]) == 0
    assert read_keys(file) == ()


@pytest.mark.story
def test_options_of_keys_may_stand_before_the_name(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """And the file before the action; what an action has no use for is refused, not left unheard."""
    file = ("--file", str(tmp_path / "keys.json"))
    assert main(["keys", *file, "add", "ann"]) == 0
    assert main(["keys", "remove", *file, "ann"]) == 0
    assert read_keys(tmp_path / "keys.json") == ()
    capsys.readouterr()
    for action in (["add"], ["remove"], ["list", "ann"], ["list", "--admin"], ["delete", "ann"]):
        assert f"quire keys{'' if action[0] == 'delete' else ' ' + action[0]}: " in refused(
            capsys, "keys", *action, *file
        )


def test_a_key_is_compared_with_every_entry_whichever_is_right(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In constant time each: how long it takes tells neither how much of a key is right nor whose it is."""
    file, compared = tmp_path / "keys.json", []
    made = [add_key(file, Tenant(name, name)) for name in ("first", "second", "third")]
    same = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda one, other: compared.append(other) or same(one, other))
    ring = KeyRing(file)
    for key in (*made, "nobody's"):
        compared.clear()
        ring.find(key)
        assert compared == [digest(one) for one in made]


def test_tenants_compete_by_their_weights(tmp_path: Any) -> None:
    file = tmp_path / "keys.json"
    add_key(file, Tenant("small", "small"))
    rules = rules_of(KeyRing(file), queue=7)
    assert (rules.policy, rules.queue_bound) == (Policy.FAIR, 7)
    assert rules_of(KeyRing(None), queue=7).policy is Policy.PRIORITY


def test_a_ring_follows_its_file_and_survives_a_broken_one(tmp_path: Any) -> None:
    now = 0.0
    file = tmp_path / "keys.json"
    first = add_key(file, Tenant("first", "one"))
    ring = KeyRing(file, lambda: now)
    second = add_key(file, Tenant("second", "two"))
    assert ring.find(second) is None
    now = 2.0
    assert ring.find(second) is not None
    remove_key(file, "first")
    now = 4.0
    assert ring.find(first) is None
    file.write_text("{")
    now = 6.0
    assert ring.find(second) is not None
    assert "no file of keys" in ring.problem


@pytest.mark.story
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 5),
        ("scope", 5),
        ("key_sha256", None),
        ("key_sha256", "schlüssel"),
        ("weight", "2"),
        ("weight", float("inf")),
        ("weight", True),
        ("most_requests", 1.5),
        ("most_tokens", "9"),
        ("tokens_per_minute", True),
        ("is_admin", "false"),
    ],
)
def test_a_key_whose_entry_was_mistyped_is_refused_and_the_ring_keeps_those_it_had(
    tmp_path: Any, field: str, value: Any
) -> None:
    now = 0.0
    file = tmp_path / "keys.json"
    key = add_key(file, Tenant("first", "one"))
    ring = KeyRing(file, lambda: now)
    data = json.loads(file.read_text())
    data["keys"][0][field] = value
    file.write_text(json.dumps(data))
    now = 2.0
    assert ring.find(key) == Tenant("first", "one", key_sha256=digest(key))
    assert field in ring.problem
    assert "schlüssel" not in ring.problem


@pytest.mark.parametrize(
    "text", ["", "[]", '{"quire_keys": 2, "keys": []}', '{"quire_keys": 1, "keys": [{"name": "x"}]}']
)
def test_a_file_that_holds_no_keys_is_refused(tmp_path: Any, text: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"keys\.json"):
        KeyRing(file)
