"""Golden tests by HTTP and in a browser: verdicts of ``antiphon test``, and a new recording accepted with the role."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from antiphon._drive import drive
from antiphon.cli import main
from antiphon.config.place import test_stores
from antiphon.host.api_keys import KeyRing
from antiphon.ops import verdicts
from antiphon.ops.admin import Admin
from antiphon.ops.app import start
from antiphon.ops.artifacts import export_run, manifest_at
from antiphon.stores._adapters import AsyncFromSync
from tests.integration.console import kit
from tests.integration.console.test_pages import AXE, browser, opened  # noqa: F401 - a fixture

SECRET = "sk-proj-" + "Ab3dEf6hIj9lMn2pQr5t" * 2
AGENT = f"""
import os
import antiphon

@antiphon.agent
def main(order):
    cents = int(os.environ["GOLDEN_CENTS"])
    asked = {{"role": "user", "content": f"pay {{cents}} {SECRET}"}}
    antiphon.current_run().llm({{"model": "m-1", "messages": [asked]}},
        lambda body: {{"choices": [{{"message": {{"role": "assistant", "content": "ok"}}}}]}})
    return f"paid {{cents}}"
"""
expect.set_options(timeout=60_000)


class Project:
    """A project with an agent, whose golden runs are tested by the command."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.patch = patch
        patch.setenv("ANTIPHON_API_KEY", kit.KEY)
        patch.setenv("ANTIPHON_HOME", str(folder / "state"))
        patch.chdir(folder)
        patch.setattr(test_stores, "active", False)
        (folder / "state").mkdir()
        (folder / "golden").mkdir()
        (folder / "golden_shop.py").write_text(AGENT)
        self.app = kit.application(folder)
        self.run(500)
        for name in ("refund", "order"):
            self.export(name)

    def run(self, cents: int) -> str:
        self.patch.setenv("GOLDEN_CENTS", str(cents))
        made = start(self.app, "golden_shop.py:main", "o-1")
        assert made.status == "completed", made.error
        return made.id

    def export(self, name: str) -> None:
        (newest, *_) = self.app.journal.runs(tenant=self.app.tenant, limit=1)
        export_run(self.app, newest, self.folder / "golden" / f"{name}.antiphon")

    def test(self, cents: int) -> int:
        self.patch.setenv("GOLDEN_CENTS", str(cents))
        return main(["test", "golden", "--no-sandbox", "--json"])

    def ask(self, client: httpx.Client, path: str = "/v1/golden", **body: Any) -> Any:
        answer = client.post(path, json=body) if body else client.get(path)
        return answer.json()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    yield Project(tmp_path, monkeypatch)
    sys.modules.pop("golden_shop", None)


@pytest.fixture
def client(project: Project) -> Iterator[httpx.Client]:
    with (
        kit.served(project.app) as address,
        httpx.Client(base_url=address, headers={"Authorization": f"Bearer {kit.KEY}"}, timeout=60) as found,
    ):
        yield found


def test_verdicts_are_kept_read_and_accepted(project: Project, client: httpx.Client) -> None:
    assert project.ask(client) == {"tests": []}
    assert project.test(500) == 0
    assert {(one["path"], one["status"]) for one in project.ask(client)["tests"]} == {
        ("golden/order.antiphon", "pass"),
        ("golden/refund.antiphon", "pass"),
    }
    assert project.ask(client, "/v1/inbox")["golden"] == []

    assert project.test(700) == 1
    waiting = project.ask(client, "/v1/inbox")["golden"]
    assert {one["path"] for one in waiting} == {"golden/order.antiphon", "golden/refund.antiphon"}
    one = project.ask(client, f"/v1/golden/{waiting[0]['id']}")
    assert "pay 700" in one["reasons"][0]
    assert one["event"] is not None
    assert one["commands"] == {
        "test": f"antiphon test {one['path']}",
        "record": "antiphon run golden_shop.py:main",
        "accept": f"antiphon export RUN -o {one['path']}",
    }
    assert one["view"]["badge"] == "fail"
    assert one["candidates"] == []  # only the recorded run itself is there
    for path in (project.folder / "state" / "golden").iterdir():
        assert SECRET not in path.read_text()

    there = (project.folder / one["path"]).read_bytes()
    new = project.run(700)
    own = f"/v1/golden/{one['id']}"
    assert [run["id"] for run in project.ask(client, own)["candidates"]] == [new]
    tried = project.ask(client, own, run=new, dryRun=True)
    assert (tried["dryRun"], tried["equal"]) == (True, False)
    assert "pay 700" in str(tried["view"])
    assert (project.folder / one["path"]).read_bytes() == there
    assert drive(Admin(project.app).audit()) == []
    for run, digest in ((new, "0" * 64), (one["run"], ""), ("none", "")):
        refused = client.post(own, json={"run": run, "digest": digest})
        assert refused.status_code in (400, 404), refused.text
    assert (project.folder / one["path"]).read_bytes() == there
    done = project.ask(client, own, run=new, digest=tried["digest"], reason="the price rose")
    assert done["run"] == new
    head = manifest_at(project.folder / one["path"])
    assert head is not None
    assert head.id == new
    (act,) = drive(Admin(project.app).audit())
    assert (act["act"], act["run"], act["path"], act["reason"]) == ("accept", new, one["path"], "the price rose")
    assert project.ask(client, own)["status"] == "changed"
    assert [one["path"] for one in project.ask(client, "/v1/inbox")["golden"]] == [waiting[1]["path"]]
    assert project.test(700) == 1  # the other one
    assert {found["id"]: found["status"] for found in project.ask(client)["tests"]} == {
        one["id"]: "pass",
        waiting[1]["id"]: "fail",
    }
    (project.folder / waiting[1]["path"]).unlink()
    assert [found["id"] for found in project.ask(client)["tests"]] == [one["id"]]
    assert client.get("/v1/golden/none").status_code == 404


def test_a_reader_cannot_accept_and_another_tenant_sees_nothing(project: Project, client: httpx.Client) -> None:
    project.test(700)
    (one, *_) = project.ask(client)["tests"]
    ring = KeyRing(AsyncFromSync(project.app.journal), project.app.clock, default_tenant=project.app.tenant)
    reader, _ = drive(ring.create(role="read", tenant=project.app.tenant, name="viewer"))
    stranger, _ = drive(ring.create(role="admin", tenant="stranger", name="stranger"))
    path = f"/v1/golden/{one['id']}"
    headers = {"Authorization": f"Bearer {reader}"}
    assert client.get(path, headers=headers).status_code == 200
    assert client.post(path, headers=headers, json={"run": "x", "dryRun": True}).status_code == 403
    headers = {"Authorization": f"Bearer {stranger}"}
    assert client.get("/v1/golden", headers=headers).json() == {"tests": []}
    assert client.get(path, headers=headers).status_code == 404


def test_an_artifact_that_was_only_checked_is_no_verdict(project: Project, client: httpx.Client) -> None:
    path = project.folder / "golden" / "refund.antiphon"
    report = {"sourceRun": "r", "title": "test_refund", "verdictReasons": ["$.cents: 5 -> 6"]}
    verdicts.keep(path, "fail", ["$.cents: 5 -> 6"], report, tenant=project.app.tenant, node="test_a.py::test_refund")
    verdicts.keep(path, "pass", [], {"executed": False}, tenant=project.app.tenant)
    (one,) = project.ask(client, "/v1/inbox")["golden"]
    assert one["commands"] == {
        "test": "pytest test_a.py::test_refund",
        "accept": "pytest --antiphon-rewrite test_a.py::test_refund",
    }
    refused = client.post(f"/v1/golden/{one['id']}", json={"run": project.run(600)})
    assert refused.status_code == 400
    assert "pytest --antiphon-rewrite" in refused.text


def test_without_a_state_folder_nothing_is_kept(project: Project) -> None:
    project.patch.setenv("ANTIPHON_HOME", str(project.folder / "nowhere"))
    path = project.folder / "golden" / "refund.antiphon"
    assert not verdicts.keep(path, "fail", ["$.cents: 5 -> 6"], {"sourceRun": "r"}, tenant=project.app.tenant)
    assert not (project.folder / "nowhere").exists()


def test_a_failed_golden_test_in_a_browser(project: Project, client: httpx.Client, browser: Browser) -> None:  # noqa: F811
    project.test(700)
    new = project.run(700)
    with opened(browser, str(client.base_url)) as page:
        page.keyboard.press("g")
        page.keyboard.press("i")
        group = page.get_by_label("Failed golden tests", exact=True)
        expect(group.locator("li")).to_have_count(2)
        expect(group).to_contain_text("pay 700")
        expect(group).to_contain_text("antiphon test golden/refund.antiphon")
        page.keyboard.press("g")
        page.keyboard.press("t")
        expect(page.get_by_role("status")).to_have_text("2 of 2 golden tests failed.")
        page.evaluate(AXE.read_text(encoding="utf-8"))
        assert page.evaluate("axe.run().then(found => found.violations.map(one => one.id))") == []
        page.get_by_role("link", name="golden/refund.antiphon").click()
        expect(page.locator("main")).to_contain_text("pay 700")
        page.get_by_role("button", name="Accept a run").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.locator(".command")).to_contain_text(f"antiphon export {new} -o golden/refund.antiphon")
        expect(dialog.get_by_role("button", name="Accept this recording")).to_be_disabled()
        dialog.get_by_role("button", name="Dry run").click()
        expect(dialog.locator(".report")).to_contain_text("pay 700")
        assert page.evaluate("axe.run().then(found => found.violations.map(one => one.id))") == []
        dialog.get_by_role("button", name="Accept this recording").click()
        expect(page.get_by_text("changed, not tested since")).to_be_visible()
        assert page.evaluate("axe.run().then(found => found.violations.map(one => one.id))") == []
    head = manifest_at(project.folder / "golden" / "refund.antiphon")
    assert head is not None
    assert head.id == new
