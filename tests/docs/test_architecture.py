"""The architecture page describes every package, and its picture is the layering that import-linter enforces."""

from __future__ import annotations

import re
import tomllib

from tests.docs.pages import DOCS, ROOT, prose

SOURCE = ROOT / "src" / "antiphon"
PAGE = DOCS / "explanation" / "architecture.md"
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
DEPRECATED = {"embed"}  # names of 0.1.0 that only point elsewhere


def packages() -> set[str]:
    """The folders and public modules of the package; private one-file helpers need no description."""
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    modules = {path.stem for path in SOURCE.glob("*.py") if not path.name.startswith("_")}
    return (folders | modules) - DEPRECATED


def enforced() -> list[set[str]]:
    """The layers of pyproject.toml from top to bottom, as far as the picture shows them."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["id"] == "layers"]
    return [set(re.findall(r"\w+", layer)) & packages() for layer in layers]


def drawn(text: str) -> list[set[str]]:
    """The rows of the picture from top to bottom."""
    inside = re.findall(r"^ .*?│ (.*?) │$", text, re.MULTILINE)
    return [set(re.findall(r"\w+", row)) for row in inside]


def test_every_package_is_described() -> None:
    described = set(ROW.findall("\n".join(line for _, line in prose(PAGE))))
    assert described == packages()


def test_the_picture_is_the_enforced_layering() -> None:
    picture = PAGE.read_text(encoding="utf-8").split("```")[1]
    assert drawn(picture) == enforced()


def test_the_checks_can_fail() -> None:
    assert {"cli", "decide", "errors", "stores"} <= packages()
    assert not {"_version", "embed", "__pycache__"} & packages()
    assert drawn(" top │ a   b |  c │\n     ├───┤\n end │ d │\n") == [{"a", "b", "c"}, {"d"}]


def test_every_file_it_names_exists() -> None:
    names = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    lost = []
    for page in (PAGE, DOCS / "explanation" / "life-of-a-call.md"):
        for found in re.findall(r"(?<![\w/])[\w/]+\.py\b", page.read_text(encoding="utf-8")):
            if found.startswith("tests/") or "NAME" in found:
                continue
            if not any(name == found or name.endswith(f"/{found}") for name in names):
                lost.append(f"{page.name}: {found}")
    assert not lost
