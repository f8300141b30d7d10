"""The pages of operators in a real browser: what waits for a person is settled there, with the role, and in the log."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

import antiphon
from antiphon._drive import drive
from antiphon.contract.spec import DidNotHappen, Happened, RetryPolicy
from antiphon.host.api_keys import KeyRing
from antiphon.ops.admin import Admin
from antiphon.ops.app import Antiphon
from antiphon.stores._adapters import AsyncFromSync
from tests.integration.console import kit
from tests.integration.console.test_pages import AXE, browser, go, opened  # noqa: F401 - a fixture

QUICK = {"resultTypes": ["violations"]}
SHOWN = "<img src=x onerror=alert(1)>\\u202egnp.\\u0007<script>"
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Antiphon]:
    folder = tmp_path_factory.mktemp("inbox")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTIPHON_API_KEY", kit.KEY)
        patch.setenv("ANTIPHON_HOME", str(folder / "state"))
        yield kit.application(folder)


@pytest.fixture(scope="module")
def shop(app: Antiphon) -> antiphon.Gateway:
    """Unknown outcomes, some of which reconcile knows, and calls that wait for a person."""
    gateway = antiphon.Gateway(app.store)

    def paid(params: dict[str, object]) -> object:
        order = str(params["order"])
        return Happened({"receipt": order}) if order == "o-1" else DidNotHappen() if order == "o-2" else None

    @gateway.tool(idempotent=False, key=lambda order: order, reconcile=paid)
    def charge(order: str) -> str:
        raise RuntimeError("the connection was lost")

    @gateway.tool(idempotent=False, approve="always")
    def wire(to: str, cents: int) -> str:
        return f"sent to {to}"

    for number in range(1, 6):
        with contextlib.suppress(RuntimeError):
            charge(f"o-{number}")
    for name in ("ada", "bob", kit.EVIL):
        with contextlib.suppress(antiphon.errors.ApprovalRequired):
            wire(name, 500)

    @gateway.tool(idempotent=False, key=lambda order: order)
    def ship(order: str) -> str:
        return "shipped"

    @gateway.tool(idempotent=True, retry=RetryPolicy(max_attempts=3, base_ms=1, max_delay_ms=1))
    def search(text: str) -> str:
        if text.startswith("bad"):
            raise ConnectionResetError(104, "reset by peer")
        return "found"

    with app.run("searches"):
        for number in range(20):
            with contextlib.suppress(OSError):
                search(f"{'bad' if number in (3, 8, 14) else 'good'} {number}")
    kit.hostile_run(app, "evil-run")
    for number in range(60):
        ship(f"early-{number}")
    with app.run("orders"):
        for _ in range(3):
            ship("o-9")
    kit.unknown(app, 1, kit.EVIL)
    kit.open_breaker(app)
    kit.open_run(app, "lost-run", kit.EVIL, "interrupted")
    return gateway


@pytest.fixture(scope="module")
def address(app: Antiphon, shop: antiphon.Gateway) -> Iterator[str]:
    with kit.served(app) as found:
        yield found


@pytest.fixture(scope="module")
def signed_in(browser: Browser, address: str) -> Iterator[Page]:  # noqa: F811
    with opened(browser, address) as found:
        yield found


@pytest.fixture
def page(signed_in: Page) -> Page:
    go(signed_in, "#/runs")
    go(signed_in, "#/inbox")
    return signed_in


def acts(app: Antiphon) -> list[tuple[str, str]]:
    return [(one["act"], one.get("verdict") or one.get("reason", "")) for one in drive(Admin(app).audit())]


def states(app: Antiphon) -> dict[str, int]:
    found: dict[str, int] = {}
    for (_, state), number in app.journal.counts(app.tenant).items():
        found[state] = found.get(state, 0) + number
    return found


def a_viewer_sees_what_waits_and_cannot_act(browser: Browser, address: str, app: Antiphon) -> None:  # noqa: F811
    ring = KeyRing(AsyncFromSync(app.journal), app.clock, default_tenant=app.tenant)
    token, _ = drive(ring.create(role="read", tenant=app.tenant, name="viewer"))
    with opened(browser, address, token) as page:
        go(page, "#/inbox")
        expect(page.get_by_label("Unknown outcomes")).to_contain_text("the connection was lost")
        expect(page.get_by_text("yours has read")).to_be_visible()
        assert page.get_by_role("button", name="…").count() == 0
        assert page.get_by_role("checkbox").count() == 0
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        assert page.get_by_role("dialog").count() == 0
    headers = {"Authorization": f"Bearer {token}"}
    claim = drive(Admin(app).claims(state="unknown"))[0]["key"]
    for path, body in (
        ("/v1/admin/tool-reliability", {"action": "resolve", "key": claim, "verdict": "did-not-happen"}),
        ("/v1/approvals", {"approvals": ["x"], "decision": "approve"}),
    ):
        assert httpx.post(address + path, json=body, headers=headers).status_code == 403
    assert acts(app) == [("force_open", "the provider is down")]


def unknown_outcomes_are_settled_after_a_dry_run(page: Page, app: Antiphon) -> None:
    group = page.get_by_label("Unknown outcomes", exact=True)
    expect(group.locator("li")).to_have_count(6)
    group.locator("li", has_text="o-5").get_by_role("button", name="Resolve…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Arguments")).to_contain_text("o-5")
    expect(dialog.get_by_role("button", name="Do it")).to_be_disabled()
    dialog.get_by_label("It happened").check()
    dialog.get_by_label("It returned").fill(f'{{"receipt": {kit.EXACT}}}')
    dialog.get_by_label("Reason").fill("seen at the bank")
    expect(dialog.locator(".command")).to_contain_text(
        f"""--happened --value '{{"receipt": {kit.EXACT}}}' --reason 'seen at the bank'"""
    )
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.get_by_role("status")).to_contain_text("1 unknown outcome would be settled")
    assert states(app)["unknown"] == 6
    assert len(acts(app)) == 1
    with page.expect_request(lambda asked: '"dryRun":false' in (asked.post_data or "")) as sent:
        dialog.get_by_role("button", name="Resolve 1").click()
    assert f'"receipt":{kit.EXACT}' in (sent.value.post_data or "")
    expect(page.locator("main > p[role=status]")).to_contain_text("1 unknown outcome: done.")
    expect(group.locator("li")).to_have_count(5)
    expect(page.get_by_label("Audit log")).to_contain_text("happened: seen at the bank")
    assert states(app)["unknown"] == 5
    assert acts(app)[0] == ("resolve", "happened")


def several_are_settled_as_reconcile_says(page: Page, app: Antiphon, shop: antiphon.Gateway) -> None:
    group = page.get_by_label("Unknown outcomes", exact=True)
    group.get_by_label("All 5").check()
    group.get_by_role("button", name="Resolve 5 selected…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Ask the tool's reconcile function").check()
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.get_by_role("status")).to_contain_text("reconcile is certain about 2 of 5.")
    expect(dialog.get_by_role("status")).to_contain_text('{"receipt":"o-1"}')
    expect(dialog.get_by_role("status")).to_contain_text("it cannot tell")
    dialog.get_by_role("button", name="Resolve as it says").click()
    expect(group.locator("li")).to_have_count(3)
    assert shop.tools["tools/charge"].reconcile is not None
    assert acts(app)[:2] in (
        [("resolve", "did-not-happen"), ("resolve", "happened")],
        [("resolve", "happened"), ("resolve", "did-not-happen")],
    )


def a_claim_that_changed_since_it_was_shown_is_refused(page: Page, app: Antiphon) -> None:
    group = page.get_by_label("Unknown outcomes", exact=True)
    group.locator("li", has_text="o-3").get_by_role("button", name="Resolve…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("It did not happen").check()
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.get_by_role("status")).to_contain_text("would be settled")
    key = next(one["key"] for one in drive(Admin(app).claims(state="unknown")) if "o-3" in (one["arguments"] or ""))
    drive(Admin(app, actor="somebody else").resolve(key, "happened", value="by hand"))
    dialog.get_by_role("button", name="Resolve 1").click()
    expect(page.locator("main > p[role=status]")).to_contain_text("Refused")
    read = app.journal.read(key)
    assert read is not None
    assert read.current.state == "done"


def a_call_that_waits_for_approval_says_so_among_the_effects(page: Page) -> None:
    go(page, "#/effects")
    page.get_by_label("State").select_option("failed")
    row = page.get_by_role("region", name="Effects").locator("tbody tr", has_text="tools/wire").first
    expect(row.locator("td").nth(1)).to_have_text("waits for approval")
    expect(row.locator("td").nth(6)).to_have_text("nobody yet")
    row.get_by_role("button").click()
    page.get_by_role("complementary").get_by_role("link", name="Decide on it in the inbox").click()
    expect(page.locator("h1")).to_have_text("Inbox")


def calls_are_approved_and_denied(page: Page, app: Antiphon, shop: antiphon.Gateway) -> None:
    group = page.get_by_label("Approvals", exact=True)
    expect(group.locator("li")).to_have_count(3)
    group.locator("li", has_text="bob").get_by_role("button", name="Decide…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Deny").check()
    dialog.get_by_label("Reason").fill("paid already")
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.get_by_role("status")).to_contain_text("1 call would be denied")
    expect(dialog.locator(".command")).to_contain_text("antiphon approvals deny")
    dialog.get_by_role("button", name="Deny 1").click()
    expect(group.locator("li")).to_have_count(2)
    group.get_by_label("All 2").check()
    group.get_by_role("button", name="Decide 2 selected…").click()
    dialog.get_by_label("Approve").check()
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.get_by_role("status")).to_contain_text("2 calls would be approved")
    dialog.get_by_role("button", name="Approve 2").click()
    expect(group.get_by_text("No call waits for a person.")).to_be_visible()
    expect(page.get_by_label("Audit log")).to_contain_text("approve")
    assert [act for act, _ in acts(app)[:3]] == ["approve", "approve", "deny"]
    go(page, "#/effects")
    page.get_by_label("State").select_option("failed")
    wires = page.get_by_role("region", name="Effects").locator("tbody tr", has_text="tools/wire")
    expect(wires.locator("td:nth-child(2)")).to_have_text(["approved", "denied", "approved"])
    expect(wires.nth(1)).to_contain_text("environment: deny")
    wire = shop.find("tools", "wire")
    assert wire is not None


def a_breaker_is_reset_and_a_new_one_comes_by_itself(page: Page, app: Antiphon) -> None:
    group = page.get_by_label("Open breakers", exact=True)
    group.get_by_role("button", name="Reset…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.get_by_role("status")).to_contain_text("The breaker is FORCED_OPEN and would be CLOSED.")
    dialog.get_by_role("button", name="Reset").click()
    expect(group.get_by_text("Every breaker is closed.")).to_be_visible()
    kit.open_breaker(app, "dependency/search")
    expect(group).to_contain_text("dependency/search")
    assert "antiphon show lost-run" in page.get_by_label("Interrupted runs").inner_text()


def effects_say_what_was_sent_once_and_who_settled_it(page: Page, app: Antiphon) -> None:
    go(page, "#/effects")
    table = page.get_by_role("region", name="Effects")
    expect(table.locator("tbody tr")).to_have_count(50)
    shipped = table.locator("tbody tr", has_text="tools/ship").first
    expect(shipped.locator("td").nth(2)).to_have_text("once")
    expect(shipped.locator("td").nth(3)).to_have_text("2")
    expect(page.locator("#looked")).to_contain_text("runs; calls outside a run")
    shipped.get_by_role("button").click()
    expect(page.get_by_role("complementary")).to_contain_text("default in")
    expect(page.get_by_role("complementary").locator("a[href^='#/runs/']")).to_have_count(1)
    newest = table.locator("tbody tr").first.text_content() or ""
    page.get_by_role("button", name="Older").click()
    expect(page.get_by_role("button", name="Older")).to_be_disabled()
    expect(table.locator("tbody tr").first).not_to_have_text(newest)
    expect(table.locator("tbody tr", has_text="environment: happened").first).to_contain_text("tools/charge")
    page.get_by_role("button", name="Newer").click()
    key = kit.unknown(app, 3, "tools/late")
    expect(table.locator("tbody tr").first).to_contain_text("tools/late")
    app.journal.clear(key)
    page.get_by_label("Tool").fill("CHAR")
    expect(table.locator("tbody tr")).to_have_count(5)
    expect(table.locator("tbody tr", has_text="tools/charge")).to_have_count(5)
    page.get_by_label("Tool").fill("")
    expect(table.locator("tbody tr")).to_have_count(50)
    page.get_by_label("State").select_option("unknown")
    expect(table.locator("tbody tr")).not_to_have_count(50)
    expect(table).to_contain_text(SHOWN)


def test_what_waits_is_worked_off_step_by_step(
    browser: Browser,  # noqa: F811
    address: str,
    signed_in: Page,
    app: Antiphon,
    shop: antiphon.Gateway,
) -> None:
    """One test: each step finds what the ones before have left."""

    def inbox() -> Page:
        go(signed_in, "#/runs")
        go(signed_in, "#/inbox")
        return signed_in

    a_viewer_sees_what_waits_and_cannot_act(browser, address, app)
    unknown_outcomes_are_settled_after_a_dry_run(inbox(), app)
    several_are_settled_as_reconcile_says(inbox(), app, shop)
    a_claim_that_changed_since_it_was_shown_is_refused(inbox(), app)
    a_call_that_waits_for_approval_says_so_among_the_effects(inbox())
    calls_are_approved_and_denied(inbox(), app, shop)
    a_breaker_is_reset_and_a_new_one_comes_by_itself(inbox(), app)
    effects_say_what_was_sent_once_and_who_settled_it(inbox(), app)


def test_health_shows_retries_and_what_tighter_limits_would_have_sent(page: Page, app: Antiphon) -> None:
    go(page, "#/health")
    tools = page.get_by_role("region", name="Tools")
    row = tools.locator("tr", has_text="tools/search")
    expect(row.locator("td").nth(2)).to_have_text("20")
    expect(row.locator("td").nth(5)).to_have_text("1.3")
    expect(tools).to_contain_text(SHOWN)
    expect(page.locator("figure canvas")).to_have_count(2)
    page.get_by_label("Plots of").select_option("tools/search")
    expect(page.get_by_label("over time: attempts at most")).to_be_visible()
    page.get_by_label("Attempts of one call").fill("2")
    page.get_by_label("Failures in a row").fill("500")
    page.get_by_role("button", name="Try").click()
    found = page.get_by_role("region", name="Before and after")
    expect(found.locator("tr", has_text="Retries").locator("td")).to_have_text(["6", "3"])
    expect(page.get_by_label("What if")).to_contain_text("Looser than recorded, so left as they were: consecutive.")
    with app.run("more"):
        app.gateway.tool("late", idempotent=True)(lambda text: text)("now")
    expect(tools).to_contain_text("tools/late")


DRAWN = """parts => {
  const shown = document.querySelector("figure canvas"), canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [shown.width, shown.height];
  const pen = canvas.getContext("2d", {willReadFrequently: true});
  pen.drawImage(shown, 0, 0);
  const color = getComputedStyle(document.querySelector("figure .swatch.dash")).borderTopColor.match(/\\d+/g);
  const [from, to] = parts.map(part => Math.round(part * canvas.width));
  const found = pen.getImageData(from, 0, to - from, canvas.height).data;
  let number = 0;
  for (let at = 0; at < found.length; at += 4)
    number += found[at + 3] > 200 && color.every((one, place) => Math.abs(found[at + place] - one) < 12);
  return number;
}"""
"""Pixels in the colour of the 95th percentile between two places of the width."""


def test_health_draws_nothing_over_hours_without_calls(page: Page, app: Antiphon) -> None:
    later = kit.BEGAN + 36_000_000
    kit.open_run(app, "night", "night", "completed", kit.BEGAN, events=4)
    rows = kit.call("night", 1, "tool", "tools/night", kit.BEGAN), kit.call("night", 2, "tool", "tools/night", later)
    app.journal.append("night", [one for call in rows for one in call])
    go(page, "#/health")
    expect(page.get_by_role("region", name="Tools")).to_contain_text("tools/night")
    page.get_by_label("Plots of").select_option("tools/night")
    expect(page.get_by_label("over time: attempts at most 1,")).to_be_visible()
    ends = time.monotonic() + 60
    while page.evaluate(DRAWN, [0.3, 0.8]) or not page.evaluate(DRAWN, [0.05, 1]):
        assert time.monotonic() < ends, "a line over hours without calls, or no point at all"
        page.wait_for_timeout(50)


def test_runs_are_found_by_tool_and_text_and_have_tokens_and_cost(page: Page, app: Antiphon) -> None:
    kit.open_run(app, "asked", "asks a model", "completed", kit.BEGAN + 90_000, events=2)
    usage = {"inputTokens": 1_200_000, "outputTokens": 34_000}
    app.journal.append("asked", kit.call("asked", 1, "llm", "m-1", kit.BEGAN, ["weather in Oslo"], usage=usage))
    go(page, "#/runs")
    row = page.locator("tbody tr", has_text="asks a model")
    expect(row.locator("td").nth(4)).to_have_text("1,234,000")
    expect(row.locator("td").nth(5)).to_have_text("2.5360")
    page.get_by_label("Text").fill("OSLO")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Text").fill("")
    page.get_by_label("Tool").fill("ship")
    expect(page.locator("tbody tr")).to_have_text([re.compile("^orders")])
    expect(page.get_by_label("Tool")).to_have_value("ship")


def test_it_is_accessible_fits_a_phone_and_shows_hostile_names_as_text(
    browser: Browser,  # noqa: F811
    address: str,
    app: Antiphon,
) -> None:
    kit.unknown(app, 2, kit.EVIL)
    with opened(browser, address, viewport={"width": 375, "height": 700}, bypass_csp=True) as page:
        page.evaluate(AXE.read_text(encoding="utf-8"))
        go(page, "#/effects")
        page.get_by_label("State").select_option("unknown")
        expect(page.locator("tbody")).to_contain_text(SHOWN)
        page.locator("tbody button").first.click()
        fits(page)
        go(page, "#/health")
        page.get_by_role("button", name="Try").click()
        expect(page.get_by_role("region", name="Before and after")).to_be_visible()
        fits(page)
        go(page, "#/inbox")
        expect(page.get_by_label("Unknown outcomes")).to_contain_text(SHOWN)
        fits(page)
        page.get_by_label("Unknown outcomes").get_by_role("button", name="Resolve…").first.click()
        page.get_by_label("It did not happen").check()
        page.get_by_role("button", name="Dry run").click()
        expect(page.get_by_role("dialog").get_by_role("status")).to_be_visible()
        fits(page)


def fits(page: Page) -> None:
    """No serious finding in light or dark, nothing wider than a phone, and no element that a name has made."""
    for scheme, options in (("light", QUICK), ("dark", {**QUICK, "runOnly": ["color-contrast"]})):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        found = page.evaluate("options => axe.run(document, options)", options)["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert page.locator("main img, main script").count() == 0
