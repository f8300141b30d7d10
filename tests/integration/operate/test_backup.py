"""Backup and restore of a store in use: consistent, complete, checked, and with the seal key apart."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon._seal import key_ids
from antiphon.ops import backup, silent
from antiphon.stores import SQLiteStore

Command = Callable[..., subprocess.CompletedProcess[str]]
SECRET = "sk-live-4eC39HqLyjWDarjtT1zdp7dcAAAABBBB"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "state"
    monkeypatch.setenv("ANTIPHON_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture
def command(tmp_path: Path, state: Path) -> Command:
    def run(*words: str, check: bool = True, largest: int = -1) -> subprocess.CompletedProcess[str]:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        done = subprocess.run(
            [sys.executable, "-m", "antiphon.cli", *words],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1])) if largest > 0 else None,
            cwd=tmp_path,
            env={**os.environ},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


def gateway_on(state: Path, made: list[str]) -> tuple[antiphon.Gateway, Callable[..., Any]]:
    gateway = antiphon.Gateway(store=SQLiteStore(state / "antiphon.db"))

    @gateway.tool(idempotent=False, effect="write")
    def charge(order: str) -> dict[str, str]:
        made.append(order)
        return {"order": order, "api_key": SECRET, "text": "x" * (200_000 if order == "large" else 1)}

    return gateway, lambda order: gateway.session("s").turn().call("charge", {"order": order}, call_id=order)


def test_a_backup_under_load_restores_every_call_that_was_over(tmp_path: Path, state: Path, command: Command) -> None:
    state.mkdir()
    made: list[str] = []
    gateway, call = gateway_on(state, made)
    over: list[str] = []
    stop = threading.Event()

    def load() -> None:
        number = 0
        while not stop.is_set():
            call(f"o{number}")
            over.append(f"o{number}")
            number += 1

    call("large")
    worker = threading.Thread(target=load)
    worker.start()
    try:
        while len(over) < 20:
            pass
        before = list(over)
        key = tmp_path / "vault.key"
        said = json.loads(command("backup", "copy", "--seal-key", str(key), "--json").stdout)
    finally:
        stop.set()
        worker.join()
    gateway.close()
    assert said["sealKeyCopied"] == str(key)
    assert key.stat().st_mode & 0o077 == 0
    assert key_ids(key) == key_ids(state / "antiphon.db.seal-key")
    copied = b"".join(file.read_bytes() for file in (tmp_path / "copy").rglob("*") if file.is_file())
    assert key.read_bytes().split()[-1] not in copied, "the key is apart"
    assert SECRET.encode() not in copied

    state.rename(tmp_path / "lost")
    (tmp_path / "lost/antiphon.db").unlink()
    refused = command("restore", "copy", check=False)
    assert refused.returncode == 2
    assert "that key is not here" in refused.stderr
    restored = json.loads(command("restore", "copy", "--seal-key", str(key), "--json").stdout)
    assert restored["sealKeysMissing"] == []
    again: list[str] = []
    gateway, call = gateway_on(state, again)
    for order in [*before, "large"]:
        answer = call(order)
        assert answer.status == "success"
        assert answer.output.content["api_key"] == SECRET
    assert again == [], "what was over before the backup is answered, not repeated"
    gateway.close()


def test_a_store_that_is_there_is_kept_aside(tmp_path: Path, state: Path, command: Command) -> None:
    state.mkdir()
    gateway, call = gateway_on(state, [])
    call("first")
    command("backup", "copy")
    call("second")
    gateway.close()
    refused = command("restore", "copy", check=False)
    assert refused.returncode == 2
    assert "A store already exists" in refused.stderr
    before = sorted(file.name for file in state.iterdir())
    refused = command("restore", "copy", "--force", "--seal-key", "nowhere", check=False)
    assert "There is no seal key nowhere. Nothing was restored." in refused.stderr
    assert sorted(file.name for file in state.iterdir()) == before
    said = json.loads(command("restore", "copy", "--force", "--json").stdout)
    (aside,) = said["movedAside"]
    assert Path(aside).exists()
    listed = json.loads(command("claims", "list", "--json").stdout)["claims"]
    assert len(listed) == 1, "as it was when the backup was taken"


def damage(file: Path) -> bytes:
    """Change one bit in the middle; returns what it was."""
    before = file.read_bytes()
    file.write_bytes(
        before[: len(before) // 2] + bytes([before[len(before) // 2] ^ 1]) + before[len(before) // 2 + 1 :]
    )
    return before


def large_file(folder: Path) -> Path:
    (found,) = [file for file in (folder / "blobs").rglob("*") if file.stat().st_size > 100_000]
    return found


def test_a_damaged_payload_is_repaired(tmp_path: Path, state: Path, command: Command) -> None:
    state.mkdir()
    made: list[str] = []
    gateway, call = gateway_on(state, made)
    call("large")
    gateway.close()
    command("backup", "copy")
    payload = large_file(state)
    notes = tuple((state / "blobs/stores").iterdir())
    whole = {file: damage(file) for file in (payload, *notes)}
    spoilt = payload.read_bytes()
    said = json.loads(command("restore", "copy", "--force", "--json").stdout)
    assert {file: file.read_bytes() for file in whole} == whole
    (aside,) = [Path(one) for one in said["movedAside"] if payload.name in one]
    assert aside.read_bytes() == spoilt, "never deleted"
    gateway, call = gateway_on(state, made)
    assert call("large").output.content["text"] == "x" * 200_000
    assert made == ["large"]
    gateway.close()
    command("backup", "another")
    kept = json.loads((tmp_path / "another/backup.json").read_bytes())["files"]
    assert [name for name in kept if "before-restore" in name] == [], "what is kept aside is no payload"


def test_a_whole_payload_is_not_replaced_by_a_damaged_one(tmp_path: Path, state: Path, command: Command) -> None:
    state.mkdir()
    gateway, call = gateway_on(state, [])
    call("large")
    gateway.close()
    payload = large_file(state)
    whole = damage(payload)
    command("backup", "copy")
    payload.write_bytes(whole)
    command("restore", "copy", "--force")
    assert payload.read_bytes() == whole


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_restore_that_fails_leaves_everything_as_it_was(tmp_path: Path, state: Path, command: Command) -> None:
    state.mkdir()
    made: list[str] = []
    gateway, call = gateway_on(state, made)
    call("large")
    command("backup", "copy", "--seal-key", "vault.key")
    large_file(state).unlink()
    call("later")
    gateway.close()
    before = contents(state)
    failed = command("restore", "copy", "--force", "--seal-key", "vault.key", check=False, largest=40_000)
    assert failed.returncode != 0
    assert "Traceback" not in failed.stderr
    assert "File too large. Nothing was changed: the store, the payloads and the seal key are as they" in failed.stderr
    assert contents(state) == before
    gateway, call = gateway_on(state, made)
    assert call("later").status == "success"
    gateway.close()
    assert made == ["large", "later"], "no effect is repeated"


@pytest.mark.parametrize("step", range(1, 9))
def test_files_are_replaced_all_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Whichever step fails; a store is never missing, not even for a moment in which the process may be killed."""
    place = tmp_path / "place"
    place.mkdir()
    names = ("a.db", "b.db", "new", "key")
    for name in names:
        (tmp_path / name).write_bytes(b"new")
        if name != "new":
            (place / name).write_bytes(b"old")
    (place / "a.db-wal").write_bytes(b"old wal")
    (place / ".restore-of-a-killed-one").write_bytes(b"half")
    sources = {place / name: tmp_path / name for name in names}
    before = contents(place)
    del before[".restore-of-a-killed-one"]
    steps = 0

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*words: Any) -> Any:
            nonlocal steps
            assert all((place / name).exists() for name in ("a.db", "b.db", "key"))
            steps += 1
            if steps == step:
                raise OSError(28, "No space left on device")
            return act(*words)

        return counting

    for owner, name in ((Path, "replace"), (Path, "rename"), (os, "link")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    with pytest.raises(OSError, match="No space left"):
        backup._replace_all(sources, "aside", silent)
    assert contents(place) == before
    monkeypatch.undo()
    moved = backup._replace_all(sources, "aside", silent)
    assert moved == [str(place / f"{name}.aside") for name in ("a.db", "b.db", "key")]
    assert {contents(place)[name] for name in names} == {b"new"}
    assert contents(place)["a.db.aside-wal"] == b"old wal"


def test_a_restored_file_has_the_owner_and_the_mode_of_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a service can still read its store after a restore by root."""
    (tmp_path / "source").write_bytes(b"new")
    (tmp_path / "store.db").write_bytes(b"old")
    (tmp_path / "store.db").chmod(0o640)
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "chown", lambda _, user, group: given.append((user, group)))
    sources = dict.fromkeys((tmp_path / "store.db", tmp_path / "blobs/t=default/payload"), tmp_path / "source")
    backup._replace_all(sources, "aside", silent)
    assert (tmp_path / "store.db").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "blobs/t=default/payload").stat().st_mode & 0o777 == 0o600
    assert given == [(tmp_path.stat().st_uid, tmp_path.stat().st_gid)] * 4, "two files, two folders"


def test_artifacts_that_waited_for_the_bucket_are_not_put_back(tmp_path: Path, state: Path, command: Command) -> None:
    """The same run may have been uploaded again since the backup; payloads never change, so they are put back."""
    names = ("artifacts/default/agent/artifacts/2026/11/run.antiphon", "payloads/t=default/ab/payload")
    files = [state / "outbox" / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_bytes(b"as of the backup")
    gateway, call = gateway_on(state, [])
    call("first")
    gateway.close()
    command("backup", "copy")
    for file in files:
        file.unlink()
    told = command("restore", "copy", "--force").stdout
    assert "not restored: 1 artifact not yet uploaded" in told
    assert "antiphon export RUN --upload" in told
    assert [file.exists() for file in files] == [False, True]
    assert (tmp_path / "copy/outbox" / names[0]).exists()


def test_the_configured_seal_key_may_be_named(tmp_path: Path, state: Path, command: Command) -> None:
    state.mkdir()
    gateway, call = gateway_on(state, [])
    call("first")
    gateway.close()
    command("backup", "copy")
    key = state / "antiphon.db.seal-key"
    before = key.read_bytes()
    command("restore", "copy", "--force", "--seal-key", str(key))
    assert key.read_bytes() == before
    assert key.stat().st_mode & 0o077 == 0
    gateway, call = gateway_on(state, [])
    assert call("first").output.content["api_key"] == SECRET
    gateway.close()


@pytest.mark.parametrize("what", ["database", "missing", "unfinished", "no files", "listed files"])
def test_a_damaged_backup_is_refused_and_nothing_is_touched(
    tmp_path: Path, state: Path, command: Command, what: str
) -> None:
    state.mkdir()
    gateway, call = gateway_on(state, [])
    call("large")
    gateway.close()
    command("backup", "copy")
    (copy,) = (tmp_path / "copy/databases").iterdir()
    manifest = tmp_path / "copy/backup.json"
    said = json.loads(manifest.read_bytes())
    if what == "database":
        damage(copy)
    elif what == "missing":
        next(file for file in (tmp_path / "copy/blobs").rglob("*") if file.is_file()).unlink()
    elif what == "unfinished":
        manifest.unlink()
    elif what == "no files":
        manifest.write_text(json.dumps({name: value for name, value in said.items() if name != "files"}))
    else:
        manifest.write_text(json.dumps({**said, "files": list(said["files"])}))
    before = (state / "antiphon.db").read_bytes()
    refused = command("restore", "copy", "--force", check=False)
    assert refused.returncode in (2, 4), refused.stdout
    assert "backup" in refused.stderr
    assert (state / "antiphon.db").read_bytes() == before
    refused = command("restore", "copy", "--verify", check=False)
    assert refused.returncode in (2, 4)
    assert "Traceback" not in refused.stderr


def test_what_cannot_be_backed_up_here_is_said(tmp_path: Path, state: Path, command: Command) -> None:
    (tmp_path / "redis.toml").write_text('[store]\nurl = "redis://127.0.0.1:1/0"\n')
    refused = command("backup", "copy", "--config", "redis.toml", check=False)
    assert refused.returncode == 2
    assert "SQLite only" in refused.stderr
    state.mkdir()
    gateway, call = gateway_on(state, [])
    call("first")
    gateway.close()
    inside = command("backup", "copy", "--seal-key", "copy/key", check=False)
    assert inside.returncode == 2
    assert "Keep the seal key elsewhere" in inside.stderr
    assert not (tmp_path / "copy").exists()


def test_the_seal_key_is_rotated_while_processes_run(tmp_path: Path, state: Path, command: Command) -> None:
    """A process that runs seals with the new key at once, and reads what others sealed with it."""
    state.mkdir()
    made: list[str] = []
    gateway, call = gateway_on(state, made)
    call("old")
    (first,) = json.loads(command("sealkeys", "--json").stdout)["keys"]
    rotated = json.loads(command("sealkeys", "rotate", "--json").stdout)["keys"]
    assert [one["use"] for one in rotated] == ["seals", "unseals"]
    call("new")
    stored = (state / "antiphon.db").read_bytes() + (state / "antiphon.db-wal").read_bytes()
    assert f"s2.{rotated[0]['id']}.".encode() in stored, "the running process seals with the new key"
    other, ask = gateway_on(state, made)
    command("sealkeys", "rotate")
    ask("newest")
    for order in ("old", "new", "newest"):
        assert call(order).output.content["api_key"] == SECRET
        assert ask(order).output.content["api_key"] == SECRET
    assert made == ["old", "new", "newest"]
    refused = command("sealkeys", "remove", first["id"], check=False)
    assert refused.returncode == 2
    assert "could never be read again" in refused.stderr
    command("sealkeys", "remove", first["id"], "--force")
    assert len(json.loads(command("sealkeys", "--json").stdout)["keys"]) == 2
    added = json.loads(command("sealkeys", "add", "--json").stdout)["keys"]
    used = json.loads(command("sealkeys", "use", added[-1]["id"], "--json").stdout)["keys"]
    assert used[0]["id"] == added[-1]["id"]
    for one in (gateway, other):
        one.close()


def test_doctor_is_short_and_grouped(tmp_path: Path, state: Path, command: Command) -> None:
    state.mkdir()
    gateway = antiphon.Gateway(store=SQLiteStore(state / "antiphon.db"), config={"gateway": {"open_mode": False}})

    @gateway.tool(idempotent=False, effect="write")
    def pay(order: str) -> None:
        raise ConnectionError("the line is dead")

    session = gateway.session("s")
    for number in range(20):
        session.turn().call("pay", {"order": f"o{number}"}, call_id=f"c{number}")
    gateway.close()
    text = command("doctor").stdout
    assert "20 outcomes unknown (tools/pay: 20)" in text
    assert len(text.splitlines()) <= 12, text
    assert "docs/" not in text, "a pip user does not have the files"
    found = json.loads(command("doctor", "--json").stdout)
    assert found["ok"] is True
    assert found["checks"]["claims"]["level"] == "warning"
    assert found["checks"]["store"]["level"] == "ok"
    (claims,) = found["checks"]["claims"]["findings"]
    assert claims["unknown"] == {"tools/pay": 20}


@pytest.mark.parametrize(("setting", "durable"), [("on", True), ("off", False)])
def test_doctor_says_not_durable_for_postgresql_without_fsync(
    postgres_server: Callable[..., Any], command: Command, tmp_path: Path, setting: str, durable: bool
) -> None:
    server = postgres_server(settings={"fsync": setting, "synchronous_commit": setting})
    (tmp_path / "antiphon.toml").write_text(f'[store]\nurl = "{server.url}"\n')
    found = json.loads(command("doctor", "--config", "antiphon.toml", "--json").stdout)["checks"]["store"]
    assert found["level"] == ("ok" if durable else "warning")
    text = " ".join(one["message"] for one in found["findings"])
    assert ("not durable" in text) is not durable
    assert ("fsync is off" in text) is not durable
