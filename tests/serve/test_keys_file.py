"""The file of keys: changed by one command at a time, and never through what others put into its folder."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from quire.core.errors import InputError
from quire.serve import keys as module
from quire.serve.keys import Tenant, add_key, read_keys, remove_key

ROUNDS, WRITERS = 25, 4


@pytest.mark.story
def test_changes_at_the_same_moment_all_count(tmp_path: Path) -> None:
    """No key that was removed comes back, and none that was added is lost. Each writer opens the lock's file itself, so
    threads exclude each other as processes do."""
    path = tmp_path / "keys.json"
    for number in range(WRITERS):
        add_key(path, Tenant(f"old-{number}-0", "a"))
    barrier = Barrier(WRITERS)

    def rotate(number: int) -> None:
        barrier.wait()
        for turn in range(ROUNDS):
            add_key(path, Tenant(f"old-{number}-{turn + 1}", "a"))
            remove_key(path, f"old-{number}-{turn}")

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(rotate, range(WRITERS)))
    assert sorted(one.name for one in read_keys(path)) == [f"old-{number}-{ROUNDS}" for number in range(WRITERS)]
    assert sorted(one.name for one in tmp_path.iterdir()) == [".keys.json.lock", "keys.json"]
    assert all(stat.S_IMODE(one.stat().st_mode) == 0o600 for one in tmp_path.iterdir())


@pytest.mark.story
@pytest.mark.parametrize("planted", [".keys.json.known", ".keys.json.lock"])
def test_a_link_in_the_folder_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    monkeypatch.setattr(module.secrets, "token_hex", lambda _bytes: "known")
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / planted).symlink_to(target)
    with pytest.raises(InputError, match=r"cannot (write|lock) the keys"):
        add_key(tmp_path / "keys.json", Tenant("alice", "a"))
    assert target.read_text() == "mine"


def test_a_file_that_is_there_already_is_not_taken_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be open in another program, which would read or change the keys."""
    monkeypatch.setattr(module.secrets, "token_hex", lambda _bytes: "known")
    (tmp_path / ".keys.json.known").touch(0o666)
    with pytest.raises(InputError, match=r"cannot write the keys to .*: File exists"):
        add_key(tmp_path / "keys.json", Tenant("alice", "a"))
    assert not (tmp_path / "keys.json").exists()
