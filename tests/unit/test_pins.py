"""What is installed is pinned with hashes, and no pin names a host."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = [ROOT / "requirements.lock", *sorted((ROOT / "bench" / "peers").glob("*.txt"))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_requirement_is_pinned_and_hashed(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert "://" not in text
    requirements = re.split(r"\n(?=\S)", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).strip())
    for requirement in requirements:
        assert re.match(r"[\w.\[\],-]+==\S+", requirement), requirement
        assert "--hash=sha256:" in requirement, requirement


def test_every_peer_is_pinned() -> None:
    sources = {file.stem for file in (ROOT / "bench" / "peers").glob("*.in")}
    assert sources == {file.stem for file in FILES[1:]}


def test_release_0_1_0_is_measured_with_the_packages_of_the_lock() -> None:
    locked, pinned = (
        set(re.findall(r"^[\w.-]+==[^\s;]+", file.read_text(encoding="utf-8"), flags=re.MULTILINE))
        for file in (FILES[0], ROOT / "bench" / "peers" / "antiphon-0.1.0.txt")
    )
    assert len(pinned) == 3
    assert pinned <= locked, "run: make bench-pins"


@pytest.mark.parametrize("folder", ["tests/node", "bench/peers/aimock"])
def test_every_npm_package_is_pinned_and_names_no_host(folder: str) -> None:
    packages = json.loads((ROOT / folder / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    for name, package in packages.items():
        assert "resolved" not in package, name
        assert not name or package["integrity"].startswith("sha512-"), name
