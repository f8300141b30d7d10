"""A framework that is missing or too old is one line that names the extra and the range (K9)."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType

import pytest

from antiphon.adapters import _requirements
from antiphon.adapters._requirements import REQUIREMENTS, Requirement, require
from antiphon.errors import MissingExtra

_PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.fixture(autouse=True)
def _fresh() -> None:
    require.cache_clear()


def test_a_missing_framework_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        REQUIREMENTS, "ghost", Requirement("ghost", "ghost_framework", "langchain", "The ghost adapter", (1,), (2,))
    )
    with pytest.raises(MissingExtra) as caught:
        require("ghost")
    assert str(caught.value) == (
        "The ghost adapter needs the package 'ghost' (ghost >= 1, < 2). "
        "Install it with: pip install 'antiphon[langchain]'"
    )


@pytest.mark.parametrize("found", ["0.9", "2.0", "2.0.1rc1"])
def test_an_unsupported_version_names_the_range(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        REQUIREMENTS, "fake", Requirement("fake", "fake_framework", "mcp", "The fake adapter", (1,), (2,))
    )
    monkeypatch.setitem(sys.modules, "fake_framework", ModuleType("fake_framework"))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found)
    with pytest.raises(MissingExtra, match=rf"needs fake >= 1, < 2; {found} is installed"):
        require("fake")


@pytest.mark.parametrize(("text", "numbers"), [("1.2.3", (1, 2, 3)), ("2.0.1rc1", (2, 0, 1)), ("3.dev0", (3,))])
def test_versions_are_read_as_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert _requirements._numbers(text) == numbers


def test_every_adapter_belongs_to_an_extra() -> None:
    import tomllib

    extras = tomllib.loads(_PYPROJECT.read_text())["project"]["optional-dependencies"]
    for wanted in REQUIREMENTS.values():
        assert any(line.startswith(wanted.package) for line in extras[wanted.extra]), wanted
