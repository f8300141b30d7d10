"""The site builds without a warning, loads nothing from elsewhere, and documents every public name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from scripts.site_pages import DOCS, public_modules, public_names
from tests.docs.pages import ROOT

REFERENCE = re.compile(r"""<(?P<tag>\w+)[^>]*?\s(?:href|src)=["']?(?P<target>[^"'\s>]+)""")
ID = re.compile(r"""\sid=["']?([^"'\s>]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    return folder


def broken(site: Path) -> list[str]:
    """Links and anchors of the built pages that lead nowhere, and what a page would load from elsewhere."""
    texts = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    ids = {page: {unescape(found) for found in ID.findall(text)} for page, text in texts.items()}
    lost = []
    for page, text in texts.items():
        if page.name == "404.html":
            continue
        for found in REFERENCE.finditer(text):
            target = urlsplit(unescape(found["target"]))
            if target.scheme or target.netloc:
                if found["tag"] in ("script", "img", "link") and target.scheme != "data":
                    lost.append(f"{page.name} loads {found['target']}")
                continue
            aim = (page.parent / unquote(target.path)).resolve() if target.path else page
            aim = aim / "index.html" if aim.is_dir() else aim
            if not aim.exists():
                lost.append(f"{page.relative_to(site)}: {found['target']}")
            elif target.fragment and aim in ids and unquote(target.fragment) not in ids[aim]:
                lost.append(f"{page.relative_to(site)}: {found['target']} has no such place")
    return sorted(set(lost))


def test_no_link_is_broken_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert broken(site) == []


def test_every_public_name_has_its_entry(site: Path) -> None:
    lost = []
    for module in public_modules():
        ids = set(ID.findall((site / "api" / f"{module}.html").read_text(encoding="utf-8")))
        lost += [f"{module}.{name}" for name in public_names(module) if f"{module}.{name}" not in ids]
    assert lost == []


def test_every_page_is_in_the_navigation_and_can_be_searched(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = {page.relative_to(DOCS).with_suffix(".html").as_posix() for page in DOCS.rglob("*.md")}
    assert pages <= found
    home = (site / "index.html").read_text(encoding="utf-8")
    linked = set(re.findall(r'href="?([^"\s>]+\.html)', home))
    assert pages - {"index.html"} <= linked


def test_the_check_of_links_can_fail(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html">x</a><a href="#no">y</a><script src="https://e.org/x.js">')
    assert len(broken(tmp_path)) == 3
