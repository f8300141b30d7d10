"""Matrices by HTTP and in a browser: read with a key, of one tenant."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec
import orjson
import pytest
from playwright.sync_api import expect, sync_playwright

from antiphon.host.http.app import create
from antiphon.ops.app import Antiphon
from antiphon.ops.matrix_result import one_matrix
from antiphon.ops.matrix_table import Document, Variant
from antiphon.scoring.html import render_matrix
from tests.browser import FLAGS
from tests.integration.console import kit
from tests.integration.console.test_files import opened as in_file
from tests.integration.console.test_pages import AXE, opened

expect.set_options(timeout=60_000)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Antiphon:
    """An application beside a matrix of which three of four cells are done."""
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ANTIPHON_API_KEY", kit.KEY)
    made = kit.application(tmp_path)
    lanes = [Variant(name="baseline"), Variant(name=f"new {kit.EVIL}", model="new")]
    document = Document(
        id="m-1", created_at_ms=kit.BEGAN, version="1", store=made.store.url, tenant=made.tenant, workspace="default",
        runs=["a", "b"], variants=lanes, compares=True, rounds=1, stops=False, code={}, entries={"": "x.py:main"},
    )  # fmt: skip
    folder = tmp_path / "home" / "matrix" / "m-1"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_bytes(msgspec.json.encode(document))
    rows = [
        {"run": run, "variant": lane.name, "sample": 0, "status": status, "score": 1.0, "reasons": [kit.EVIL]}
        for run, lane, status in (("a", lanes[0], "pass"), ("a", lanes[1], "fail"), ("b", lanes[0], "pass"))
    ]
    (folder / "table.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return made


async def test_matrices_are_read_with_a_key(app: Antiphon) -> None:
    application = create(app=app, executes=False)
    async with application.router.lifespan_context(application):
        transport = httpx.ASGITransport(app=application)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            assert (await client.get("/v1/matrices")).status_code == 401
            client.headers["Authorization"] = f"Bearer {kit.KEY}"
            (one,) = (await client.get("/v1/matrices")).json()["matrices"]
            assert (one["done"], one["total"], one["isComplete"]) == (3, 4, False)
            assert one["verdicts"][0]["variant"].startswith("new")
            found = (await client.get("/v1/matrices/m-1")).json()
            assert found["view"]["title"] == "2 runs × 2 variants"
            assert (await client.get("/v1/matrices/none")).status_code == 404
            assert (await client.get("/v1/matrices?limit=0")).status_code == 400


def test_a_matrix_in_a_browser(app: Antiphon, chromium: str, tmp_path: Path) -> None:
    with kit.served(app) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=[*FLAGS])
        with opened(browser, address) as page:
            page.get_by_role("link", name="Matrices").click()
            row = page.locator("tbody tr")
            expect(row).to_contain_text("3 of at most 4 cells")
            expect(row).to_contain_text("undecided")
            page.keyboard.press("Enter")
            expect(page.locator("h1")).to_contain_text("2 runs × 2 variants")
            expect(page.locator("h1 .badge")).to_have_class("badge ")
            top = page.locator("main .report > *").all_inner_texts()[:4]
            assert "3 of at most 4 cells" in top[2], top
            assert "antiphon matrix --resume m-1" in top[3], top
            expect(page.locator("td", has_text="fail")).to_be_visible()
            for width in (1200, 360):
                page.set_viewport_size({"width": width, "height": 800})
                assert kit.squeezed(page) == []
            page.evaluate(AXE.read_text(encoding="utf-8"))
            assert page.evaluate("axe.run().then(found => found.violations.map(one => one.id))") == []
        with in_file(browser, tmp_path, render_matrix(one_matrix(app, "m-1")["view"])) as page:
            assert kit.squeezed(page) == []
        browser.close()
