"""What is served: strict headers, few bytes, and the script that its sources give."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tomllib
from pathlib import Path

import httpx

from antiphon.console.pages import FILES, POLICY
from antiphon.host.http.app import create
from tests.integration.console import kit

ROOT = Path(__file__).parents[3] / "src" / "antiphon" / "console"
SOURCE, STATIC = ROOT / "source", ROOT / "static"
NAMES = re.compile(r".*\.js|package(-lock)?\.json|build\.mjs")


def digest_of(folder: Path) -> str:
    """The digest of everything that the script is built from, as the build writes it."""
    made = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file() and NAMES.fullmatch(path.name)):
        made.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return made.hexdigest()


def test_the_script_was_built_from_these_sources() -> None:
    head, _, body = (STATIC / "console.js").read_bytes().partition(b"\n")
    assert f"sources {digest_of(SOURCE)}" in head.decode(), "build it anew: make console"
    assert f"script {hashlib.sha256(body).hexdigest()}" in head.decode(), "it was changed after it was built"


def test_a_changed_source_is_found(tmp_path: Path) -> None:
    for path in SOURCE.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    (tmp_path / "ui.js").write_text("changed")
    assert digest_of(tmp_path) != digest_of(SOURCE)


def test_versions_are_exact_and_the_lock_names_no_host() -> None:
    wanted = json.loads((SOURCE / "package.json").read_text())
    for version in {**wanted["dependencies"], **wanted["devDependencies"]}.values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert "://" not in (SOURCE / "package-lock.json").read_text()
    licenses = (STATIC / "licenses.txt").read_text()
    for name, version in wanted["dependencies"].items():
        assert f"== {name} {version} (" in licenses


def test_all_of_it_is_small() -> None:
    assert sum(path.stat().st_size for path in STATIC.iterdir()) < 200_000
    settings = tomllib.loads((ROOT.parents[2] / "pyproject.toml").read_text())
    assert settings["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"] == ["src/antiphon/console/source"]


async def test_pages_say_what_may_run_and_hold_no_data(tmp_path: Path) -> None:
    application = create(app=kit.application(tmp_path), executes=False)
    async with application.router.lifespan_context(application):
        transport = httpx.ASGITransport(app=application)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for path in FILES:
                answer = await client.get(path)
                assert answer.status_code == 200
                assert answer.headers.get_list("content-security-policy") == [POLICY]
                again = await client.get(path, headers={"If-None-Match": answer.headers["etag"]})
                assert again.status_code == 304
            assert (await client.get("/console/../pages.py")).status_code == 404
            assert (await client.get("/v1/recordings")).status_code == 401
            assert (await client.post("/v1/runs", json={})).status_code == 405, "the console starts nothing"
            assert (await client.post("/v1/calls", json={})).status_code == 404
    assert "unsafe" not in POLICY
    assert "<script>" not in (STATIC / "index.html").read_text()
