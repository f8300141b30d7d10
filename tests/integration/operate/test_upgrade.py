"""What release 0.1.0 left behind is used by today's code: claims, keys, runs, artifacts, golden runs, the host.

The fixtures in ``tests/fixtures/release_0_1_0`` were written by that release; see the README there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon._gateway.owner import owner_token
from antiphon.host.http.app import create
from tests.another_pytest import PYTEST
from tests.integration.server.harness import in_process

FIXTURES = Path(__file__).parents[2] / "fixtures" / "release_0_1_0" / "project"
MADE = json.loads((FIXTURES / "made.json").read_text())
Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project as 0.1.0 left it."""
    folder = tmp_path / "shop"
    shutil.copytree(FIXTURES, folder)
    (folder / "state").rename(folder / ".antiphon")
    (folder / ".antiphon" / "antiphon.db.seal-key").chmod(0o600)
    for name in ("ANTIPHON_HOME", "ANTIPHON_STORE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def python(project: Path) -> Python:
    def run(*words: str, expect: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=project,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def antiphon(python: Python) -> Python:
    def run(*words: str, expect: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        return python("-m", "antiphon.cli", *words, expect=expect, **env)

    return run


def run_id(status: str) -> str:
    return next(str(run["id"]) for run in MADE["runs"] if run["status"] == status)


def claim(state: str, tool: str, session: str) -> str:
    found = (c for c in MADE["claims"] if (c["state"], c["tool"], c["session"]) == (state, tool, session))
    return str(next(found)["fingerprint"])


def effects(project: Path) -> list[str]:
    """What the tools did since the upgrade."""
    before = (FIXTURES / "effects.txt").read_text().split("\n")
    after = (project / "effects.txt").read_text().split("\n")
    assert after[: len(before) - 1] == before[:-1]
    return after[len(before) - 1 : -1]


# -- claims ------------------------------------------------------------------------------------------------------------


def test_every_call_is_answered_as_0_1_0_answered_it(project: Path, python: Python) -> None:
    """Call ids, given keys, conflicts, reused reads, unknown outcomes and sealed results: nothing runs again."""
    assert json.loads(python("calls.py").stdout) == MADE["calls"]
    assert effects(project) == []


def test_without_its_record_a_call_does_run(project: Path, python: Python) -> None:
    """The planted bug: had the upgrade lost the store, the test above would see it."""
    shutil.rmtree(project / ".antiphon")
    python("calls.py")
    assert "charge turn 100" in effects(project)


def test_a_call_in_flight_when_0_1_0_was_killed_is_unknown(project: Path, python: Python) -> None:
    again = (
        "import shop\n"
        "turn = shop.gateway.session('crash').turn()\n"
        "print(turn.call('charge', {'order': 'crash', 'cents': 100}, call_id='call_1').code)"
    )
    assert python("-c", again).stdout == "outcome_unknown\n"
    assert effects(project) == []


def test_unknowns_are_listed_and_settled(project: Path, python: Python, antiphon: Python) -> None:
    listed = json.loads(antiphon("claims", "list", "--state", "unknown", "--json").stdout)["claims"]
    was = [c for c in MADE["claims"] if c["state"] == "unknown"]
    assert {c["key"][:16] for c in listed} == {c["fingerprint"] for c in was}
    assert len(listed) == 3

    antiphon("claims", "resolve", listed[0]["fingerprint"], "--happened", "--no-value")  # as today's release names it
    named = claim("unknown", "tools/charge", "conversation")  # as the log of 0.1.0 names it
    antiphon("claims", "resolve", named, "--happened", "--value", '"charged 100"')
    answers = json.loads(python("calls.py", SHOP_RECONCILES="1").stdout)
    assert answers["turn unknown"] == {"code": None, "content": "charged 100"}
    assert answers["key unknown"] == {"code": None, "content": None}
    assert answers["turn to settle"] == {"code": None, "content": "charged 100"}  # by reconcile
    assert effects(project) == []
    assert json.loads(antiphon("claims", "list", "--state", "unknown", "--json").stdout)["claims"] == []


def test_what_did_not_happen_runs_once(project: Path, python: Python, antiphon: Python) -> None:
    antiphon("claims", "resolve", claim("unknown", "tools/charge", "conversation"), "--did-not-happen")
    python("calls.py")
    python("calls.py")
    assert effects(project) == ["charge lost-turn 100"]


def _on_this_boot(project: Path) -> None:
    """Of a process that ran on another boot nobody can say whether it is gone: it could be another machine."""
    boot, namespace, *_ = owner_token().split(".")
    with contextlib.closing(sqlite3.connect(project / ".antiphon" / "antiphon.db")) as database, database:
        for run, manifest in database.execute("SELECT id, manifest FROM runs").fetchall():
            there = json.loads(manifest)
            if "owner" in there["tags"]:
                _, _, *process = there["tags"]["owner"].split(".")
                there["tags"]["owner"] = ".".join([boot, namespace, *process])
                database.execute("UPDATE runs SET manifest = ? WHERE id = ?", (json.dumps(there).encode(), run))


# -- runs and artifacts ------------------------------------------------------------------------------------------------


def test_runs_are_listed_shown_and_replayed(project: Path, antiphon: Python) -> None:
    _on_this_boot(project)
    listed = json.loads(antiphon("runs", "--json").stdout)["runs"]
    assert {(run["id"], run["status"]) for run in listed} == {(run["id"], run["status"]) for run in MADE["runs"]}
    assert "tools/issue_token" in antiphon("show", run_id("completed")).stdout
    strict = antiphon("replay", run_id("completed"), "--strict", "--json", SHOP_EFFECTS="forbidden")
    assert json.loads(strict.stdout)["verdict"] == "pass"
    assert effects(project) == []


def test_a_replay_still_sees_what_changed(project: Path, antiphon: Python) -> None:
    """The planted bug: the prompt, which holds an address that 0.1.0 masked, and the amount."""
    shop = project / "shop.py"
    shop.write_text(shop.read_text().replace("price(item) * 100", "price(item) * 101"))
    strict = antiphon("replay", run_id("completed"), "--strict", "--json", expect=1)
    assert json.loads(strict.stdout)["verdict"] == "fail"


def test_an_interrupted_run_goes_on(project: Path, antiphon: Python) -> None:
    """What was charged is answered from its record, what was being charged is unknown until it is settled."""
    resume = ("run", "shop.py:two_steps", "--input", '"pen"', "--resume", run_id("interrupted"))
    assert "OutcomeUnknown" in antiphon(*resume, expect=1).stderr
    listed = json.loads(antiphon("claims", "list", "--state", "unknown", "--json").stdout)["claims"]
    lost = next(c for c in listed if c["session"] == "default")
    assert json.loads(lost["arguments"]) == {"order": "pen-second", "cents": 200}
    antiphon("claims", "resolve", lost["fingerprint"], "--happened", "--value", '"charged 200"')
    assert "charged 100, charged 200" in antiphon(*resume).stdout
    assert effects(project) == []


def test_artifacts_are_imported_and_golden_runs_pass(project: Path, antiphon: Python) -> None:
    tested = antiphon("test", "golden", "--json", SHOP_EFFECTS="forbidden")
    assert json.loads(tested.stdout)["passed"] == 4
    shutil.rmtree(project / ".antiphon")
    imported = json.loads(antiphon("import", "golden/order.antiphon", "golden/order.kurral", "--json").stdout)
    assert [one["altered"] for one in imported["imported"]] == [False, False]
    replayed = antiphon("replay", imported["imported"][0]["run"], "--strict", "--json", SHOP_EFFECTS="forbidden")
    assert json.loads(replayed.stdout)["verdict"] == "pass"
    assert effects(project) == []


def test_marked_tests_are_replayed(project: Path, python: Python) -> None:
    done = python(*PYTEST[1:], "shop_tests.py", SHOP_EFFECTS="forbidden")
    assert "2 replayed" in done.stdout
    assert effects(project) == []


def test_reviewed_side_effects_stay_reviewed(project: Path, antiphon: Python) -> None:
    """With the file that 0.1.0 wrote, an explore replay needs no new review, and blocks what was marked."""
    explored = antiphon("replay", run_id("completed"), "--explore", "--llm", "shop.py:another_model", "--json")
    assert json.loads(explored.stdout)["verdict"] == "pass"
    assert not [line for line in effects(project) if line.startswith(("charge", "token"))]


# -- the host ----------------------------------------------------------------------------------------------------------


async def test_the_host_starts_on_the_store(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, webhooks and events stay; the run that was under way goes on."""
    monkeypatch.chdir(project)
    was = MADE["host"]
    application = create(
        {
            "store": {"url": f"sqlite:///{project}/.antiphon/antiphon.db"},
            "host": {"workflows": str(project / "workflows"), "webhooks": True, "webhooks_loopback": True},
        }
    )
    async with in_process(application, was["key"]) as client:
        hooks = (await client.get("/v1/webhooks")).json()["webhooks"]
        assert [hook["webhookId"] for hook in hooks] == [was["webhook"]]
        assert await client.events(was["done"]) == was["events"]
        assert (await client.ended(was["interrupted"], 60))["status"] == "completed"
        assert (await client.ended(await client.fork(was["done"]), 60))["status"] == "completed"
        fresh = await client.start("greet", {"payload": {"name": "eve"}})
        assert (await client.ended(fresh, 60))["status"] == "completed"
        assert (await client.get(f"/v1/runs/{fresh}", headers={"Authorization": "Bearer other"})).status_code == 401
