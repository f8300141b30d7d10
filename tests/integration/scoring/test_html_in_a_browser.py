"""The HTML report in a real browser: fits a phone, has two colour schemes, runs nothing, asks for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Dialog, Page, sync_playwright

from antiphon.scoring import render_report
from tests.browser import FLAGS
from tests.unit.scoring.sample import REPORT
from tests.unit.scoring.test_html import evil_everywhere

SIZES = {"desktop": (1200, 900), "phone": (390, 844), "small phone": (320, 640)}


@pytest.mark.parametrize("report", [REPORT, evil_everywhere(REPORT)], ids=["plain", "attacked"])
def test_the_report_fits_every_screen(report: Any, chromium: str, tmp_path: Path) -> None:
    page_file = tmp_path / "report.html"
    page_file.write_text(render_report(report), encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=[*FLAGS])
        backgrounds = set()
        for width, height in SIZES.values():
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                seen = _watch(page)
                page.goto(page_file.as_uri())
                page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert page.evaluate("document.querySelectorAll('script, img').length") == 0
                assert seen == [page_file.as_uri()]
                backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
                page.close()
        browser.close()
    assert len(backgrounds) == 2


def _watch(page: Page) -> list[str]:
    """Everything that the page asks for, says or pops up."""
    seen: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        seen.append("dialog")
        dialog.dismiss()

    page.on("console", lambda message: seen.append(message.text))
    page.on("dialog", dismiss)
    page.on("request", lambda request: seen.append(request.url))
    return seen
