"""The console in a real browser: every page against a real host and store."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Dialog, Page, expect, sync_playwright

import antiphon
from antiphon.host import recordings
from antiphon.ops.app import Antiphon
from tests.browser import FLAGS
from tests.integration.console import kit

expect.set_options(timeout=60_000)
AXE = Path(__file__).parents[2] / "vendor" / "axe.min.js"
LONG, EVIL, LIVE = "long-run", "evil-run", "live-run"
PAGES = ("#/runs", f"#/runs/{LONG}")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Antiphon]:
    folder = tmp_path_factory.mktemp("console")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTIPHON_API_KEY", kit.KEY)
        patch.setenv("ANTIPHON_HOME", str(folder / "state"))
        made = kit.application(folder)
        for number in range(120):
            kit.open_run(made, f"run-{number:03}", f"agent {number % 4}", "completed", kit.BEGAN - 1_000 * (number + 1))
        kit.long_run(made, LONG, 10_000)
        kit.hostile_run(made, EVIL)
        yield made


@pytest.fixture(scope="module")
def address(app: Antiphon) -> Iterator[str]:
    with kit.served(app) as found:
        yield found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=[*FLAGS])
        yield found
        found.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with opened(browser, address) as found:
        yield found


class opened:
    """A page of the console, signed in; it must not complain, ask other hosts, or open a dialog."""

    def __init__(self, browser: Browser, address: str, key: str = kit.KEY, **options: Any) -> None:
        self.page = browser.new_page(**{"viewport": {"width": 1200, "height": 800}, **options})
        self.page.set_default_timeout(60_000)
        self.complaints: list[str] = []
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self.interrupted)
        self.page.on("request", lambda asked: self.asked(asked.url, address))
        self.page.goto(f"{address}/console#key={key}")

    def interrupted(self, dialog: Dialog) -> None:
        self.complaints.append("dialog")
        dialog.dismiss()

    def asked(self, url: str, address: str) -> None:
        if not url.startswith((address, "data:")):
            self.complaints.append(url)

    def __enter__(self) -> Page:
        expect(self.page.get_by_role("navigation", name="Pages")).to_be_visible()
        return self.page

    def __exit__(self, *_: object) -> None:
        self.page.close()
        assert self.complaints == []


def go(page: Page, where: str) -> None:
    page.evaluate("where => { location.hash = where }", where)
    expect(page.locator("main h1")).to_be_visible()
    expect(page.get_by_text("Loading…")).to_have_count(0)


def test_the_key_leaves_the_address_and_runs_are_listed_page_by_page(page: Page) -> None:
    expect(page.locator("tbody tr")).to_have_count(50)
    assert "key=" not in page.url
    first = page.locator("tbody tr").first.text_content() or ""
    page.get_by_role("button", name="Older").click()
    expect(page.locator("tbody tr").first).not_to_have_text(first)
    page.get_by_role("button", name="Older").click()
    expect(page.get_by_role("button", name="Older")).to_be_disabled()
    expect(page.locator("tbody tr")).to_have_count(22)
    page.get_by_role("button", name="Newer").click()
    page.get_by_role("button", name="Newer").click()
    page.get_by_label("Search").fill("agent 3")
    expect(page.locator("tbody tr")).to_have_count(30)


def test_a_search_says_how_far_it_looked_and_finds_an_id_at_once(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(page.locator("tbody tr")).to_have_count(50)
    monkeypatch.setattr(recordings, "MAX_RUNS_SEARCHED", 40)
    monkeypatch.setattr(recordings, "_PAGE", 40)
    page.get_by_label("Search").fill("nothing like it")
    expect(page.locator("main")).to_contain_text("No runs match. 40 runs were searched; there are more.")
    page.get_by_role("button", name="Search further").click()
    expect(page.get_by_role("button", name="Newer")).to_be_enabled()
    page.get_by_label("Search").fill("run-119")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("run-119")
    page.get_by_label("Search").fill("run-1")
    expect(page.locator("main")).to_contain_text("No runs match. 40 runs were searched")


def test_the_title_of_the_window_says_what_the_page_shows(page: Page) -> None:
    expect(page).to_have_title("Runs · Antiphon")
    go(page, f"#/runs/{LONG}")
    expect(page).to_have_title("long long-run · Runs · Antiphon")
    go(page, f"#/compare/{LONG}/{EVIL}")
    expect(page).to_have_title("long-run vs. evil-run · Compare · Antiphon")
    go(page, "#/health")
    expect(page).to_have_title("Health · Antiphon")
    expect(page.locator("figure").first).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_title("Sign in · Antiphon")


def test_the_end_of_a_call_has_its_name(page: Page) -> None:
    go(page, f"#/runs/{LONG}")
    row = page.locator(".line", has_text="call.finished").first
    expect(row.locator(".kind")).to_have_text("call.finished")
    expect(row.locator(".name")).to_have_text("search")


def test_keys_move_open_search_and_help(page: Page) -> None:
    expect(page.locator("tbody tr")).to_have_count(50)
    page.keyboard.press("j")
    expect(page.locator("tbody tr.at")).to_contain_text("long")
    page.keyboard.press("Enter")
    expect(page.locator("#count")).to_have_text("10,000")
    page.keyboard.press("j")
    expect(page.locator("aside h2")).to_have_text("long")
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page.locator("h1")).to_have_text("Runs")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.keyboard.press("/")
    expect(page.get_by_label("Search")).to_be_focused()
    page.keyboard.press("Tab")
    page.locator("h1").click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next, previous")
    expect(page.get_by_role("dialog")).to_contain_text("xselect, in the inbox")


def test_enter_belongs_to_the_link_or_button_that_has_the_focus(page: Page) -> None:
    fifth = page.locator("tbody a").nth(4)
    wanted = fifth.get_attribute("href") or ""
    fifth.press("Enter")
    expect(page).to_have_url(f"{page.url.partition('#')[0]}{wanted}")
    page.get_by_role("link", name="Runs").press("Enter")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("button", name="Older").press("Enter")
    expect(page.get_by_role("button", name="Newer")).to_be_enabled()
    page.get_by_role("button", name="Keys").press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Close").press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.url.endswith("#/runs")
    page.get_by_role("link", name="Runs").click()
    page.get_by_role("link", name="Health").press("Enter")
    expect(page.locator("h1")).to_have_text("Health")


def test_enter_in_the_inbox_opens_what_has_the_focus_and_a_dialog_has_the_keys(page: Page, app: Antiphon) -> None:
    gateway = antiphon.Gateway(app.store)

    @gateway.tool(idempotent=False, approve="always")
    def wire(to: str) -> str:
        return f"sent to {to}"

    for name in ("ada", "bob", "cyd"):
        with contextlib.suppress(antiphon.errors.ApprovalRequired):
            wire(name)
    page.get_by_role("link", name="Inbox").click()
    rows = page.get_by_label("Approvals", exact=True).locator("li")
    expect(rows).to_have_count(3)
    page.keyboard.press("j")
    expect(page.locator(".rows li.at")).to_have_count(1)
    dialog = page.get_by_role("dialog")
    for name in ("bob", "cyd"):
        rows.filter(has_text=name).get_by_role("button", name="Decide…").press("Enter")
        expect(dialog.get_by_label("Arguments")).to_contain_text(name)
        for key in ("g", "r", "?"):
            page.keyboard.press(key)
        expect(dialog).to_have_count(1)
        assert page.url.endswith("#/inbox")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
    page.get_by_role("link", name="Runs").click()
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("link", name="Inbox").click()
    expect(rows).to_have_count(3)
    page.keyboard.press("j")
    page.keyboard.press("Enter")  # the link that led here has the focus no more
    expect(dialog).to_be_visible()


def test_every_id_of_a_run_can_be_in_an_address(browser: Browser, app: Antiphon, address: str) -> None:
    kit.open_run(app, "order@42+eu", "a strange id", "completed", kit.BEGAN - 500_000)
    page = browser.new_page()
    page.goto(f"{address}/console#key={kit.KEY}")
    page.get_by_label("Search").fill("a strange id")
    expect(page.locator("tbody tr")).to_have_count(1)
    with page.expect_request(f"{address}/v1/recordings/order%4042%2Beu"):
        page.get_by_role("link", name="a strange id").click()
    expect(page.locator("h1")).to_contain_text("a strange id")
    for typed, asked in (("order@42+eu", "order%4042%2Beu"), ("50%", "50%25"), ("a%20b", "a%20b")):
        page.goto(f"{address}/console#/health")
        with page.expect_request(f"{address}/v1/recordings/{asked}"):
            page.goto(f"{address}/console#/runs/{typed}")
    page.close()


def test_a_problem_of_one_page_is_not_shown_on_the_next(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}/console#key={kit.KEY}")
    go(page, "#/runs")
    for where in (f"#/runs/{LONG}", "#/compare"):
        page.evaluate("location.hash = '#/matrices/none'")
        expect(page.locator(".problem")).to_contain_text("There is no matrix")
        page.evaluate("where => { location.hash = where }", where)
        expect(page.locator(".problem")).to_have_count(0)
    page.close()


def test_a_problem_is_gone_when_the_last_answer_is_there(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}/console#key={kit.KEY}")
    page.route(f"**/v1/recordings/{EVIL}", lambda route: route.abort(), times=1)
    page.evaluate("where => { location.hash = where }", f"#/runs/{EVIL}")
    expect(page.locator(".problem")).to_have_text("The host does not answer. This page keeps trying.")
    expect(page.locator("#count")).to_have_text("3")
    expect(page.locator(".problem")).to_have_count(0)
    page.close()


def test_a_long_run_keeps_few_rows_and_says_why_a_call_was_not_sent(page: Page) -> None:
    go(page, f"#/runs/{LONG}")
    expect(page.locator("#count")).to_have_text("10,000")
    assert page.locator(".line").count() < 80
    page.locator(".long").evaluate("box => { box.scrollTop = box.scrollHeight }")
    expect(page.locator(".line").last).to_contain_text("run.finished")
    page.locator(".long").evaluate("box => { box.scrollTop = 0 }")
    expect(page.locator(".line").first).to_contain_text("run.started")
    page.locator(".line", has_text="not sent").first.click()
    expect(page.locator("aside .why")).to_contain_text("its result was reused")
    expect(page.get_by_label("Arguments")).to_contain_text('"n": 7')
    expect(page.get_by_label("Result")).to_contain_text('"said": 7')
    page.get_by_role("button", name="Raw").click()
    expect(page.get_by_label("Raw events")).to_contain_text("call.finished")
    page.locator("canvas").click(position={"x": 8, "y": 45})
    expect(page.locator("aside h2")).to_contain_text("search")


def test_a_run_that_goes_on_is_followed(page: Page, app: Antiphon) -> None:
    expect(page.locator("tbody tr")).to_have_count(50)
    kit.open_run(app, LIVE, "live", at_ms=kit.BEGAN + 60_000)
    app.journal.append(LIVE, [kit.row(LIVE, "run.started", kit.BEGAN + 60_000, {"name": "live"})])
    page.locator("tbody a", has_text="live").click()
    expect(page.locator("#count")).to_have_text("1")
    app.journal.append(LIVE, kit.call(LIVE, 1, "tool", "search", kit.BEGAN + 60_100))
    expect(page.locator("#count")).to_have_text("3")
    page.goto("about:blank")  # the page asks again and again: it must not see the run go
    app.journal.delete_run(LIVE)


def test_hostile_names_and_payloads_are_text(page: Page) -> None:
    expect(page.locator("tbody tr")).to_have_count(50)
    assert page.locator("main img, main script").count() == 0
    go(page, f"#/runs/{EVIL}")
    expect(page.locator("h1")).to_contain_text("<img src=x onerror=alert(1)>\\u202egnp.\\u0007<script>")
    page.locator(".line", has_text="tool").first.click()
    expect(page.get_by_label("Arguments")).to_contain_text("alert(2)")
    expect(page.get_by_label("Arguments")).to_contain_text(f'"exact": {kit.EXACT},')
    expect(page.get_by_role("button", name="Show all")).to_be_visible()
    assert page.locator("main img, main script").count() == 0


def test_a_long_inbox_is_asked_for_in_parts_and_chosen_whole(page: Page, app: Antiphon, address: str) -> None:
    for number in range(60):
        kit.unknown(app, number)
    headers = {"Authorization": f"Bearer {kit.KEY}"}
    found = httpx.get(f"{address}/v1/inbox?limit=2", headers=headers, timeout=60).json()
    assert (len(found["unknown"]), found["counts"]["unknown"]) == (2, 60)
    go(page, "#/inbox")
    group = page.get_by_label("Unknown outcomes", exact=True)
    expect(group.locator("h2")).to_have_text("Unknown outcomes (60)")
    expect(group.locator("li")).to_have_count(50)
    group.get_by_label("All 60").click()
    expect(group.get_by_role("button", name="Resolve 60 selected…")).to_be_enabled()
    expect(group.get_by_label("All 60")).to_be_checked()
    expect(group.locator("li")).to_have_count(60)


def test_the_inbox_says_that_there_may_be_more_than_it_counted(
    page: Page, app: Antiphon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "UNFINISHED", 2)
    for number in range(3):
        kit.open_run(app, f"lost-{number}", "lost", "interrupted", kit.BEGAN - 900_000)
    go(page, "#/inbox")
    group = page.get_by_label("Interrupted runs", exact=True)
    expect(group.locator("h2")).to_have_text("Interrupted runs (2+)")
    expect(group).to_contain_text("Only the first 2 are shown.")
    expect(page.locator("main > p[role=status]")).to_have_text(re.compile(r"^\d+\+ wait for a person\.$"))
    monkeypatch.setattr(recordings, "UNFINISHED", 3)
    expect(group.locator("h2")).to_have_text("Interrupted runs (3)")
    page.goto("about:blank")
    for number in range(3):
        app.journal.delete_run(f"lost-{number}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_for_accessibility_and_nothing_wider_than_a_phone(
    browser: Browser, address: str, scheme: str
) -> None:
    with opened(browser, address, viewport={"width": 375, "height": 700}, color_scheme=scheme, bypass_csp=True) as page:
        for where in PAGES:
            go(page, where)
            page.evaluate(AXE.read_text(encoding="utf-8"))
            found = page.evaluate("axe.run(document)")["violations"]
            serious = [
                (one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")
            ]
            assert serious == [], where
            assert page.evaluate("document.documentElement.scrollWidth") <= 375, where


def test_without_a_key_it_asks_for_one_and_says_what_is_wrong(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}/console")
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("A valid API key is needed")
    page.get_by_label("API key").fill(kit.KEY)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("h1")).to_have_text("Runs")
    page.close()
