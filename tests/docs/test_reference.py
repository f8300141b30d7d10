"""The pages made from the code are current, whole, and the check can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.cli import COMMANDS
from scripts import make_reference


def test_pages_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_reference.main(["--check"]) == 0, capsys.readouterr().out


def test_every_command_has_its_part() -> None:
    page = make_reference.commands()
    assert [line[12:] for line in page.splitlines() if line.startswith("## antiphon ")] == list(COMMANDS)


def test_a_stale_page_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_reference, "ROOT", tmp_path)
    assert make_reference.main(["--check"]) == 1
    assert make_reference.main([]) == 0
    (tmp_path / "cli.md").write_text("old")
    assert make_reference.main(["--check"]) == 1
    assert make_reference.main([]) == 0
    assert make_reference.main(["--check"]) == 0


def test_a_setting_without_a_meaning_breaks_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_reference._meanings()
    del whole["RetrySection"]["base_ms"]
    monkeypatch.setattr(make_reference, "_meanings", lambda: whole)
    with pytest.raises(KeyError, match="base_ms"):
        make_reference.settings()
