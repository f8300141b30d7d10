"""Compare in a real browser: run beside run, recording beside replay."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import antiphon
from antiphon.ops.app import Antiphon, using
from tests.browser import FLAGS
from tests.integration.console import kit
from tests.integration.console.test_files import serious
from tests.integration.console.test_pages import go, opened

expect.set_options(timeout=60_000)


class Made(NamedTuple):
    app: Antiphon
    recording: str
    other: str
    strict: str
    explored: str
    evil: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("console")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTIPHON_API_KEY", kit.KEY)
        patch.setenv("ANTIPHON_HOME", str(folder / "state"))
        patch.chdir(folder)
        (folder / "side_effect").mkdir()
        (folder / "side_effect" / "side_effects.yaml").write_text("tools: {refund: false, search: true}\ndone: true\n")
        app = kit.application(folder)
        tool = app.gateway.tool
        ids = count(1)

        @tool(idempotent=True, effect="read")
        def search(q: Any) -> Any:
            return {"found": q}

        @tool(idempotent=True)
        def refund(amount: Any) -> Any:
            return {"refunded": amount}

        def model(request: Any) -> Any:
            message = {"role": "assistant", "content": "refund it"}
            return {"id": f"chatcmpl-{next(ids)}", "choices": [{"index": 0, "message": message}]}

        def agent(amount: Any, extra: Any = None) -> Any:
            request = {"model": "m-1", "messages": [{"role": "user", "content": "a broken lamp"}]}
            antiphon.current_run().llm(request, model)
            for number in range(5):
                search(q=f"policy {number}")
            refund(amount=amount)
            if extra is not None:
                search(q=extra)
            return f"refunded {str(amount)[:80]}"

        def recorded(name: str, *given: Any) -> str:
            with app.run(name) as run, using(app):
                run.output = agent(*given)
            return run.id

        recording, other = recorded("refund", 100), recorded("refund", 900)
        evil = recorded(kit.EVIL, [kit.EVIL, "x" * 1_000_000], kit.EVIL)
        options: Any = {"app": app, "sandbox": False}
        strict = antiphon.replay(recording, mode="strict", function=lambda: agent(900), **options)
        explored = antiphon.replay(recording, mode="explore", function=lambda: agent(100, "more"), llm=model, **options)
        yield Made(app, recording, other, strict["replayRun"], explored["replayRun"], evil)


@pytest.fixture(scope="module")
def address(made: Made) -> Iterator[str]:
    with kit.served(made.app) as found:
        yield found


@pytest.fixture(scope="module")
def page(chromium: str, address: str) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser: Browser = playwright.chromium.launch(executable_path=chromium, args=[*FLAGS])
        with opened(browser, address, bypass_csp=True) as found:
            yield found
        browser.close()


def test_run_beside_run_has_the_first_difference_on_top_and_hides_ids(page: Page, made: Made) -> None:
    go(page, f"#/compare/{made.recording}/{made.other}")
    expect(page.locator(".card h2").first).to_have_text("First difference")
    expect(page.locator(".card").first).to_contain_text("arguments.amount")
    expect(page.locator(".pair.changed")).to_have_count(1)
    expect(page.locator(".pair.changed pre:visible").first).to_contain_text("100")
    expect(page.get_by_text("1 that differ in every response")).to_be_visible()
    expect(page.locator(".ring")).to_have_count(1)
    assert page.locator(".part").count() == 2, "the score has its parts"
    page.get_by_label("Show ids and times").check()
    expect(page.locator(".pair.changed")).to_have_count(2)
    expect(page.locator(".command")).to_contain_text(f"antiphon diff {made.recording} {made.other} --all")


def test_a_strict_replay_stands_beside_its_recording(page: Page, made: Made) -> None:
    go(page, f"#/runs/{made.strict}")
    page.get_by_role("link", name="compare", exact=True).click()
    expect(page.locator(".card h2").first).to_have_text("First divergence")
    expect(page.locator(".card").first).to_contain_text("the recording has no answer for")
    expect(page.locator(".card").first.locator("ins")).to_have_text("900")
    expect(page.locator("h1 .badge")).to_have_text("fail")


def test_an_exploring_replay_shows_what_it_did_more(page: Page, made: Made) -> None:
    go(page, "#/compare")
    page.get_by_label("Run").fill(made.explored)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".pair.added")).to_contain_text("search")
    expect(page.locator(".pair.added")).to_contain_text("not in the recording")
    expect(page.get_by_text("Determinism score")).to_be_visible()


def test_hostile_runs_are_text_and_fit_a_phone(page: Page, made: Made) -> None:
    page.set_viewport_size({"width": 375, "height": 700})
    page.emulate_media(color_scheme="dark")
    go(page, f"#/compare/{made.evil}/{made.recording}")
    expect(page.locator("h1")).to_contain_text("<img src=x onerror=alert(1)>\\u202egnp.\\u0007<script>")
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert serious(page) == []
