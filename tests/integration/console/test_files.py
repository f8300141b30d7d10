"""Pages as one file, opened in a real browser without a server: a run, a report, golden runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect, sync_playwright

from antiphon.ops import lines
from antiphon.ops.app import Antiphon
from antiphon.scoring import html, render_report
from antiphon.stores import MemoryStore
from tests.browser import FLAGS
from tests.integration.console import kit
from tests.unit.scoring.sample import REPORT
from tests.unit.scoring.test_html import evil_everywhere

AXE = (Path(__file__).parents[2] / "vendor" / "axe.min.js").read_text(encoding="utf-8")
LOOKS: list[tuple[int, Any]] = [(1200, "light"), (375, "dark"), (320, "light")]


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=[*FLAGS])
        yield found
        found.close()


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Antiphon]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTIPHON_HOME", str(tmp_path_factory.mktemp("state")))
        yield Antiphon(store=MemoryStore())


class opened:
    """A file in a page; it must ask for nothing but itself, say nothing and open no dialog."""

    def __init__(self, browser: Browser, folder: Path, text: str, **options: Any) -> None:
        self.file = folder / "page.html"
        self.file.write_text(text, encoding="utf-8")
        self.page = browser.new_page(**{"viewport": {"width": 1200, "height": 800}, **options})
        self.seen: list[str] = []
        self.page.on("console", lambda said: self.seen.append(said.text))
        self.page.on("pageerror", lambda error: self.seen.append(str(error)))
        self.page.on("dialog", self.interrupted)
        self.page.on("request", lambda asked: self.seen.append(asked.url))
        self.page.goto(self.file.as_uri())

    def interrupted(self, dialog: Dialog) -> None:
        self.seen.append("dialog")
        dialog.dismiss()

    def __enter__(self) -> Page:
        expect(self.page.locator("main h1")).to_be_visible()
        return self.page

    def __exit__(self, *_: object) -> None:
        self.page.close()
        assert self.seen == [self.file.as_uri()]


def serious(page: Page) -> list[Any]:
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document)")["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]


def test_a_report_fits_every_screen_whatever_is_in_it(browser: Browser, tmp_path: Path) -> None:
    backgrounds = set()
    with opened(browser, tmp_path, render_report(evil_everywhere(REPORT)), bypass_csp=True) as page:
        page.get_by_text("6 equal calls").click()
        expect(page.locator(".pair.equal")).to_have_count(6)
        page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        for width, scheme in LOOKS:
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0
        assert serious(page) == []
    assert len(backgrounds) == 2


def test_nothing_moves_under_the_pointer_while_a_report_is_scrolled(browser: Browser, tmp_path: Path) -> None:
    with opened(
        browser, tmp_path, render_report(evil_everywhere(REPORT)), viewport={"width": 375, "height": 200}
    ) as page:
        tall = page.evaluate("document.documentElement.scrollHeight")
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert page.evaluate("document.documentElement.scrollHeight") == tall


def test_the_first_divergence_is_on_top_and_both_sides_are_open(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, render_report(REPORT)) as page:
        assert page.locator(".card h2").first.inner_text() == "First divergence"
        expect(page.locator(".card").first).to_contain_text("arguments.amount")
        expect(page.locator(".card").first.locator("del").first).to_have_text("100")
        changed = page.locator(".pair.changed", has_text="refund")
        expect(changed.locator("pre", has_text="a broken lamp").first).to_be_visible()
        expect(changed.locator("pre", has_text="a broken floor lamp").first).to_be_visible()
        expect(page.locator(".ring").first).to_have_attribute("aria-label", "Agent regression score (ARS) 0.845")
        assert page.locator(".part").count() >= 3
        assert kit.squeezed(page) == []


def test_a_long_run_is_one_file(app: Antiphon, browser: Browser, tmp_path: Path) -> None:
    kit.long_run(app, "long", 10_000)
    manifest = app.journal.manifest("long")
    assert manifest is not None
    with opened(browser, tmp_path, lines.run_file(app, manifest)) as page:
        expect(page.locator("#count")).to_have_text("10,000")
        assert page.locator(".line").count() < 80
        page.locator(".line", has_text="not sent").first.click()
        expect(page.locator("aside .why")).to_contain_text("its result was reused")
        expect(page.get_by_label("Arguments")).to_contain_text('"n": 7')
        page.keyboard.press("j")
        expect(page.locator("aside h2")).not_to_have_text("")


def test_hostile_names_and_payloads_of_a_run_are_text(
    app: Antiphon, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.hostile_run(app, "evil")
    manifest = app.journal.manifest("evil")
    assert manifest is not None
    with opened(browser, tmp_path, lines.run_file(app, manifest)) as page:
        expect(page.locator("h1")).to_contain_text("<img src=x onerror=alert(1)>\\u202egnp.\\u0007<script>")
        page.locator(".line", has_text="tool").first.click()
        expect(page.get_by_role("button", name="Show all")).to_be_visible()
        assert page.locator("main img, main script").count() == 0
    monkeypatch.setattr(lines, "FILE_BYTES", 100_000)
    with opened(browser, tmp_path, lines.run_file(app, manifest)) as page:
        page.locator(".line", has_text="tool").first.click()
        expect(page.get_by_role("alert")).to_contain_text("too long for this file")
        expect(page.locator(".command")).to_contain_text("antiphon show evil --event 1")


def test_golden_runs_are_one_file(browser: Browser, tmp_path: Path) -> None:
    good = {"path": "golden/a.antiphon", "status": "pass", "seconds": 0.1, "ars": {"score": 1.0}, "reasons": []}
    fields = [{"path": "arguments.count", "recorded": 2, "current": 3}]
    bad = {
        **good,
        "path": f"golden/{kit.EVIL}",
        "status": "fail",
        "reasons": [kit.EVIL],
        "divergences": [{"name": "order", "message": "has other arguments", "fields": fields}],
    }
    with opened(browser, tmp_path, html.render_tests([good, bad]), bypass_csp=True) as page:
        expect(page.locator("h1")).to_contain_text("1 of 2 golden runs pass")
        page.get_by_text("What differs").click()
        expect(page.get_by_text("arguments.count")).to_be_visible()
        assert page.locator("main img, main script").count() == 0
        assert serious(page) == []
