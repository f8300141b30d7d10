"""R14: a sealed result is unreadable without the key, and any change to it is noticed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon._seal import Sealer
from antiphon.errors import ConfigError, StoreError

KEY = bytes(range(32))
SEALER = Sealer(KEY)


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
    with pytest.raises(StoreError) as caught:
        SEALER.unseal(changed)
    assert caught.value.code in ("seal_broken", "seal_key", "seal_version")
    assert caught.value.hint


@pytest.mark.parametrize("cut", [0, 1, 5, 12, 20, 80, -1, -5])
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


def test_equal_data_is_sealed_differently_every_time() -> None:
    assert len({SEALER.seal(b"same") for _ in range(50)}) == 50


def test_the_text_is_not_in_the_sealed_value() -> None:
    data = b"the quick brown fox " * 50
    raw = SEALER.seal(data)
    assert b"quick" not in raw.encode()
    assert len(raw) < len(data) * 1.4 + 100


def test_known_answer() -> None:
    """The form of version 1 is fixed: a record that was sealed by any release can be read by this one."""
    sealed = "s1.fbe03fcd.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA4okq4sOYpZSFBkkTr0UdVPb7u61xgFgNDuzDFZ42bTIpBn4mO/0yQJS6vc="
    assert SEALER.unseal(sealed, b"ctx") == b"known answer"


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
    with pytest.raises(StoreError, match="no seal key"):
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
