"""A seal key that is lost or damaged: whoever meets it says which key, where it is looked for, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon import cli
from antiphon._seal import key_ids
from antiphon.errors import ResultNotKept
from antiphon.ops.app import using

SECRET = "sk-live-4eC39HqLyjWDarjtT1zdp7dcAAAABBBB"


def pay_in(app: antiphon.Antiphon) -> Callable[[str], dict[str, str]]:
    @app.gateway.tool(idempotent=False, effect="write", key="order")
    def pay(order: str) -> dict[str, str]:
        return {"order": order, "api_key": SECRET}

    return pay


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The key file of a store with a sealed result and a recording."""
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    app = antiphon.Antiphon()
    pay = pay_in(app)
    app.record(lambda: pay("o1"))
    return tmp_path / "state/antiphon.db.seal-key"


def lose(file: Path) -> str:
    """Returns which key was lost."""
    (key,) = key_ids(file)
    file.unlink()
    return key


def damage(file: Path) -> str:
    (key,) = key_ids(file)
    file.write_text("junk")
    return key


def main(words: list[str]) -> int:
    """A command as in a process of its own."""
    with using(antiphon.Antiphon()):
        return cli.main(words)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def about_keys(found: Any) -> list[dict[str, Any]]:
    return [one for one in found["findings"] if one["check"] == "seal key"]


def test_doctor_is_silent_about_keys_that_are_there(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = told(capsys, "doctor")
    assert (code, about_keys(found)) == (0, [])
    assert main(["sealkeys", "rotate"]) == 0
    assert about_keys(told(capsys, "doctor")[1]) == [], "the old key still unseals"


def test_doctor_names_a_lost_key(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = lose(file)
    code, found = told(capsys, "doctor")
    result, recording = about_keys(found)
    assert (code, result["level"], recording["level"]) == (0, "warning", "warning")
    assert result["message"] == f"1 result of calls is sealed with key {key}, which is not in {file}"
    assert "Restore the key" in result["hint"]
    assert recording["message"].startswith("the originals of 1 recording are sealed under key ")
    assert not file.exists(), "a look makes no key"


def test_doctor_tells_of_a_damaged_key_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = damage(file)
    code, found = told(capsys, "doctor")
    damaged, result, _ = about_keys(found)
    assert (code, damaged["level"], damaged["message"]) == (1, "error", f"The file {file} is not a seal key.")
    assert f"key {key}, which is not in {file}" in result["message"]


def test_doctor_does_not_miss_keys_of_imported_runs(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--latest", "--output", "run.antiphon"]) == 0
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "elsewhere"))
    assert main(["import", "run.antiphon"]) == 0
    assert about_keys(told(capsys, "doctor")[1]) == []


@pytest.mark.parametrize("harm", [lose, damage])
def test_backup_warns_in_the_words_of_doctor(
    file: Path, harm: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    key = harm(file)
    said = [one["message"] for one in about_keys(told(capsys, "doctor")[1])]
    assert main(["backup", "copy", "--seal-key", "copy.key"]) == 0
    text = capsys.readouterr().out
    assert all(f"seal key: {message}" in text for message in said)
    assert "there is no seal key to copy: copy.key was not written" in text
    assert "nothing has been sealed" not in text
    assert not Path("copy.key").exists()
    assert json.loads(Path("copy/backup.json").read_text())["sealKeyIds"] == [key], "restore asks for it"


def test_a_repeated_call_names_the_lost_key(file: Path) -> None:
    key = lose(file)
    app = antiphon.Antiphon()
    pay = pay_in(app)
    with pytest.raises(ResultNotKept) as caught:
        app.record(lambda: pay("o1"))
    text = str(caught.value)
    assert f"'{key}' is not in the key file {file}" in text
    assert "its result cannot be read" in text
    assert "Put that key back" in text
    assert "could not be stored" not in text
    assert "Return a value" not in text
