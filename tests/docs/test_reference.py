"""The pages made from the code are current, whole, and the check can fail."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from antiphon.cli import COMMANDS
from scripts import make_reference
from tests.docs.pages import name, pages, script


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


DOTTED = re.compile(r"`(antiphon(?:\.[A-Za-z_]\w*)+)")


@pytest.mark.parametrize("page", ["names.md", "contract.md", "keys.md", "configuration.md", "public-modules.md"])
def test_names_that_pages_promise_exist(page: str) -> None:
    found = DOTTED.findall((make_reference.ROOT / page).read_text(encoding="utf-8"))
    missing = [dotted for dotted in found if not dotted.endswith(".toml") and not _exists(dotted)]
    assert found
    assert not missing


IMPORT = re.compile(r"^\s*(?:from (antiphon[\w.]*) import (.+)|import (antiphon[\w.]*))", re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in pages() if script(page).strip()], ids=name)
def test_examples_import_public_modules_only(page: Path) -> None:
    text = (make_reference.ROOT / "public-modules.md").read_text(encoding="utf-8")
    public = set(re.findall(r"`(antiphon[\w.]*)`", text.partition("## Deprecated")[0]))
    used = set()
    for module, names, plain in IMPORT.findall(script(page)):
        below = {f"antiphon.{word}" for word in re.findall(r"\w+", names)} if module == "antiphon" else set()
        used |= {plain or module} | {word for word in below if _is_module(word)}
    assert used <= public


def _is_module(dotted: str) -> bool:
    try:
        import_module(dotted)
    except ModuleNotFoundError:
        return False
    return True


def test_a_name_that_is_gone_is_noticed() -> None:
    assert _exists("antiphon.stores.RedisStore")
    assert not _exists("antiphon.stores.RedisDedupeStore")
    assert not _exists("antiphon.nowhere.name")


def _exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or an attribute below one."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: object = import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False
