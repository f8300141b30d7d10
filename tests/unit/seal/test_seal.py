"""R14: a sealed result is unreadable without the key, and any change to it is noticed."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon import _seal
from antiphon._seal import Sealer
from antiphon.errors import ConfigError, StoreError

KEY = bytes(range(32))
SEALER = Sealer(KEY)

# Written by release 0.1.0 with KEY: a result in a claim record (no context), a secret of a webhook (its id).
OLD_RESULT = (
    "s1.fbe03fcd.IH5j1+ZDmsBouCG/saciJtCn7fyLqSEZtArR6vuyukkOrFs6FGFcp2Gi"
    "BdgKu+ksf+JHXvqG0CYvcAyogsyUxKqfpnIdQA2wsG722w=="
)
OLD_SECRET = (
    "s1.fbe03fcd.oj+XPAMaNuung7syrHT2XbavfPfVlarozWlsGMDGdjTGoH3iLH5SlcLB"
    "RjSkWwLKrGplKip9PjU3vrUJ7s+FdDftjyxgTspOrAX2NqkT"
)


@given(st.binary(max_size=500), st.binary(max_size=40))
def test_what_is_sealed_can_be_unsealed(data: bytes, context: bytes) -> None:
    sealed = SEALER.seal(data, context)
    assert sealed.isascii()
    assert SEALER.unseal(sealed, context) == data
    assert Sealer(KEY).unseal(sealed, context) == data


@settings(max_examples=300)
@given(st.binary(min_size=1, max_size=60), st.integers(0, 10_000), st.integers(0, 11))
def test_any_changed_character_is_refused(data: bytes, where: int, which: int) -> None:
    sealed = SEALER.seal(data)
    place = where % len(sealed)
    other = [c for c in "ABCabc012.+/=" if c != sealed[place]][which]
    changed = sealed[:place] + other + sealed[place + 1 :]
    refused(changed)


def refused(sealed: str, context: bytes = b"") -> None:
    with pytest.raises(StoreError) as caught:
        SEALER.unseal(sealed, context)
    assert caught.value.code in ("seal_broken", "seal_key", "seal_version")
    assert caught.value.hint


@pytest.mark.parametrize("cut", [0, 1, 5, 12, 20, 60, -1, -5])
def test_a_cut_value_is_refused(cut: int) -> None:
    with pytest.raises(StoreError):
        SEALER.unseal(SEALER.seal(b"a result of some length")[:cut])


def test_a_value_from_another_record_is_refused() -> None:
    sealed = SEALER.seal(b"data", context=b"claim-1")
    for context in (b"claim-2", b"", b"claim-1 "):
        with pytest.raises(StoreError, match="moved from another record"):
            SEALER.unseal(sealed, context)


def test_another_key_is_named_and_refused() -> None:
    with pytest.raises(StoreError, match="another key") as caught:
        Sealer(bytes(32)).unseal(SEALER.seal(b"data"))
    assert caught.value.code == "seal_key"
    assert f"'{SEALER.key_id}' is not in the configured seal key ({Sealer(bytes(32)).key_id})" in str(caught.value)
    assert KEY.hex() not in str(caught.value)


def test_a_forged_key_id_does_not_help() -> None:
    other = Sealer(bytes(32))
    sealed = other.seal(b"data").replace(other.key_id, SEALER.key_id)
    with pytest.raises(StoreError) as caught:
        SEALER.unseal(sealed)
    assert caught.value.code == "seal_broken"


def test_a_newer_form_is_refused() -> None:
    with pytest.raises(StoreError) as caught:
        SEALER.unseal("s9.abcd.AAAA")
    assert caught.value.code == "seal_version"


def test_no_nonce_is_used_twice() -> None:
    nonces = {base64.b64decode(SEALER.seal(b"same").rpartition(".")[2])[:12] for _ in range(20_000)}
    assert len(nonces) == 20_000


def test_the_text_is_not_in_the_sealed_value() -> None:
    data = b"the quick brown fox " * 50
    raw = SEALER.seal(data)
    assert b"quick" not in raw.encode()
    assert len(raw) < len(data) * 1.4 + 100


def test_known_answer() -> None:
    """The form of version 2 is fixed: a record that was sealed by any release can be read by this one."""
    sealed = "s2.fbe03fcd.AAAAAAAAAAAAAAAAzqI/A3mN7w//MhhTQWZPagQYuOhK7WW0iPiLdQ=="
    assert SEALER.unseal(sealed, b"ctx") == b"known answer"


def test_new_values_are_never_written_in_the_old_form() -> None:
    assert SEALER.seal(b"data").startswith(f"s2.{SEALER.key_id}.")


def test_values_of_release_0_1_0_can_be_read() -> None:
    assert SEALER.unseal(OLD_RESULT) == b'{"token":"sk-0.1.0"}'
    assert SEALER.unseal(OLD_RESULT, b"the key of its record") == b'{"token":"sk-0.1.0"}'
    assert SEALER.unseal(OLD_SECRET, b"0190c3a2-hook") == b"whsec_of_release_0.1.0"


def test_old_values_that_were_changed_are_refused() -> None:
    for place in range(len(OLD_RESULT)):
        other = "A" if OLD_RESULT[place] != "A" else "B"
        refused(OLD_RESULT[:place] + other + OLD_RESULT[place + 1 :])
    for context in (b"", b"another hook"):
        refused(OLD_SECRET, context)
    with pytest.raises(StoreError, match="another key"):
        Sealer(bytes(32)).unseal(OLD_RESULT)


def test_neither_form_passes_for_the_other() -> None:
    refused("s2" + OLD_RESULT[2:])
    refused("s1" + SEALER.seal(b"data that is long enough for a nonce and a tag of the old form")[2:])


@pytest.mark.parametrize(
    "text",
    [
        KEY.hex(),
        KEY.hex().upper(),
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        " AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n",
    ],
)
def test_a_configured_key_in_hex_or_base64(text: str) -> None:
    assert Sealer.from_text(text).unseal(SEALER.seal(b"x")) == b"x"


@pytest.mark.parametrize("text", ["", "short", "zz" * 32, "A" * 44])
def test_a_bad_configured_key_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigError, match="32 bytes") as caught:
        Sealer.from_text(text)
    assert not text or text not in str(caught.value)


def test_the_key_file_is_made_once_and_private(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "store.db.key"
    old = os.umask(0)
    try:
        first = Sealer.from_key_file(file)
    finally:
        os.umask(old)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    assert Sealer.from_key_file(file).unseal(first.seal(b"x")) == b"x"
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == [file.name]


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "k"
    Sealer.from_key_file(file)
    file.chmod(0o640)
    with pytest.raises(StoreError, match="chmod 600"):
        Sealer.from_key_file(file)


@pytest.mark.parametrize("content", ["", "garbage", "antiphon-seal-key-1 AAAA\n", "antiphon-seal-key-1 ***\n"])
def test_a_damaged_key_file_is_never_replaced(tmp_path: Path, content: str) -> None:
    file = tmp_path / "k"
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(StoreError, match="is not a seal key"):
        Sealer.from_key_file(file)
    assert file.read_text() == content


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(StoreError, match="cannot be used"):
        Sealer.from_key_file(blocker / "k")


def test_many_processes_agree_on_one_key(tmp_path: Path) -> None:
    file = tmp_path / "k"
    code = f"from antiphon._seal import Sealer; print(Sealer.from_key_file({str(file)!r}).key_id)"
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    ids = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert len(ids) == 1
    assert ids == {Sealer.from_key_file(file).key_id}


def test_a_key_file_that_was_replaced_is_taken_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process looks once in two milliseconds; what it sealed in between is read with the older key of the file."""
    now = 100.0
    monkeypatch.setattr(_seal, "monotonic", lambda: now)
    sealer = Sealer.from_key_file(tmp_path / "key")
    sealer.seal(b"first")
    before = sealer.key_id
    _seal.write_keys(tmp_path / "key", [b"n" * 32, *_seal.read_keys(tmp_path / "key")])
    between = sealer.seal(b"between")
    assert between.startswith(f"s2.{before}.")
    now += 0.0021
    assert sealer.seal(b"after").startswith(f"s2.{_seal.key_id_of(b'n' * 32)}.")
    assert sealer.unseal(between) == Sealer.from_key_file(tmp_path / "key").unseal(between) == b"between"


def test_a_key_file_that_others_could_read_is_taken_after_chmod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(_seal, "monotonic", lambda: now)
    file, rotated = tmp_path / "key", b"n" * 32
    sealer, fingerprints = Sealer.from_key_file(file), _seal.FingerprintKeys(None, file)
    before = sealer.key_id, fingerprints()
    _seal.write_keys(tmp_path / "rotated", [rotated, *_seal.read_keys(file)], new=True)
    (tmp_path / "rotated").chmod(0o644)
    (tmp_path / "rotated").rename(file)
    now += 1
    sealer.seal(b"refused")
    assert (sealer.key_id, fingerprints()) == before
    file.chmod(0o600)
    now += 1
    sealer.seal(b"taken")
    assert sealer.key_id == _seal.key_id_of(rotated)
    assert fingerprints() == _seal.FingerprintKeys(rotated, None)() + before[1]


def test_a_key_file_that_is_replaced_while_it_is_read_is_taken_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, rotated, read_keys = tmp_path / "key", b"n" * 32, _seal.read_keys
    Sealer.from_key_file(file)

    def read_before_rotation(path: Path) -> list[bytes]:
        keys = read_keys(path)
        monkeypatch.setattr(_seal, "read_keys", read_keys)
        _seal.write_keys(path, [rotated, *keys])
        return keys

    monkeypatch.setattr(_seal, "read_keys", read_before_rotation)
    sealer = Sealer.from_key_file(file)
    sealer.seal(b"data")
    assert sealer.key_id == _seal.key_id_of(rotated)


def test_simultaneous_changes_of_a_key_file_lose_no_key(tmp_path: Path) -> None:
    """Also those that find no file: one makes it, the others add to it."""
    file = tmp_path / "k"

    def rotate(number: int) -> bytes:
        key = number.to_bytes(32)
        _seal.change_keys(file, lambda keys: [key, *keys])
        return key

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(rotate, range(80)))
    assert sorted(_seal.read_keys(file)) == sorted(made)
    assert [p.name for p in tmp_path.iterdir()] == ["k"]


def test_a_key_file_that_is_rewritten_keeps_its_owner_its_mode_and_its_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "vault" / "k"
    Sealer.from_key_file(file)
    owner = file.stat()
    file.chmod(0o400 if os.geteuid() == 0 else 0o700)
    mode = stat.S_IMODE(file.stat().st_mode)
    (tmp_path / "k").symlink_to(file)
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "chown", lambda _, user, group: given.append((user, group)))
    _seal.change_keys(tmp_path / "k", lambda keys: [b"n" * 32, *keys])
    assert given == [(owner.st_uid, owner.st_gid)]
    assert stat.S_IMODE(file.stat().st_mode) == mode
    assert (tmp_path / "k").is_symlink()
    assert len(_seal.read_keys(file)) == 2
