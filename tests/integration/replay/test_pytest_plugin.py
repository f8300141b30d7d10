"""The pytest plugin as its users meet it: record once, replay ever after, also in parallel and asynchronously."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.another_pytest import PYTEST

TESTS = """
import asyncio
import os
from pathlib import Path

import anyio
import pytest

import antiphon
from antiphon.stores import MemoryStore

gateway = antiphon.Gateway(MemoryStore())


@gateway.tool(idempotent=False, effect="write")
def pay(amount: int) -> str:
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"{amount}\\n")
    return f"paid {amount}"


aio = antiphon.AsyncGateway(MemoryStore())


@aio.tool(idempotent=True, effect="read")
async def look(n: int) -> int:
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"look {n}\\n")
    return n * n


AMOUNT = int(os.environ.get("AMOUNT", "5"))


@pytest.mark.antiphon
def test_payment(antiphon_run):
    at = antiphon_run.now()
    assert pay(amount=AMOUNT).startswith("paid")
    assert antiphon_run.now() >= at


@pytest.mark.antiphon
@pytest.mark.parametrize("n", [1, 2, "a/b c"])
def test_each(n):
    assert pay(amount=len(str(n)))


@pytest.mark.asyncio
@pytest.mark.antiphon
async def test_parallel_in_asyncio():
    found = await asyncio.gather(*(look(n=n) for n in range(4)))
    assert found == [0, 1, 4, 9]


class TestInAClass:
    @pytest.mark.antiphon(path="mine.antiphon")
    def test_method(self):
        assert pay(amount=3) == "paid 3"


@pytest.mark.anyio
@pytest.mark.antiphon
async def test_with_anyio(anyio_backend_name):
    assert anyio_backend_name == "asyncio"
    assert await look(n=7) == 49


@pytest.fixture
def anyio_backend():
    return "asyncio"


def test_unmarked():
    assert pay(amount=1) == "paid 1"
"""


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = folder / "ledger.txt"
        (folder / "test_agent.py").write_text(TESTS)

    def run(self, *flags: str, **environment: str) -> tuple[int, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTIPHON_", "PYTEST_"))}
        done = subprocess.run(
            [*PYTEST, "-o", "asyncio_mode=strict", *flags],
            cwd=self.folder,
            env={**kept, "LEDGER": str(self.ledger), "ANTIPHON_HOME": str(self.folder / "home"), **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        return done.returncode, done.stdout + done.stderr

    def verdicts(self) -> list[tuple[str, str]]:
        """What the console is told of the tests."""
        found = [json.loads(path.read_text()) for path in (self.folder / "home" / "golden").iterdir()]
        return [(one["node"], one["status"]) for one in found]

    def effects(self) -> int:
        return len(self.ledger.read_text().splitlines()) if self.ledger.exists() else 0


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_record_replay_rewrite(project: Project) -> None:
    code, out = project.run()
    assert code == 1
    assert "pytest --antiphon-record" in out
    assert project.effects() == 1  # the unmarked one

    code, out = project.run("--antiphon-record")
    assert code == 0, out
    assert "7 recorded" in out
    recordings = sorted(path.name for path in project.folder.rglob("*.antiphon"))
    assert len(recordings) == 7
    assert "mine.antiphon" in recordings
    made = project.effects()

    code, out = project.run()
    assert code == 0, out
    assert "7 replayed" in out
    assert project.effects() == made + 1

    assert not (project.folder / "home").exists()
    (project.folder / "home").mkdir()
    code, out = project.run("-k", "payment", AMOUNT="6")
    assert code == 1
    assert "$.amount: 5 -> 6" in out
    assert project.verdicts() == [("test_agent.py::test_payment", "fail")]

    code, out = project.run("-k", "payment", "--antiphon-rewrite", AMOUNT="6")
    assert code == 0, out
    code, out = project.run("-k", "payment", AMOUNT="6")
    assert code == 0, out
    assert project.verdicts() == [("test_agent.py::test_payment", "pass")]


def test_an_address_in_a_new_project_is_replayed(project: Project) -> None:
    (project.folder / "test_mail.py").write_text(
        "import antiphon, pytest\n"
        "gateway = antiphon.Gateway()\n"
        "@gateway.tool(idempotent=False)\n"
        "def send(to): return 'sent to ' + to\n"
        "@pytest.mark.antiphon\n"
        "def test_greeting(): assert send('bob@example.com') == 'sent to bob@example.com'\n"
    )
    code, out = project.run("test_mail.py", "--antiphon-record")
    assert code == 0, out
    assert b"bob@" not in next(project.folder.rglob("test_greeting.antiphon")).read_bytes()
    code, out = project.run("test_mail.py")
    assert code == 0, out
    shutil.rmtree(project.folder / "home")
    code, out = project.run("test_mail.py")
    assert code == 1
    assert "ANTIPHON_REPLAY_KEY" in out


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "two workers"])
def test_two_tests_do_not_record_the_same_file(project: Project, workers: tuple[str, ...]) -> None:
    (project.folder / "test_agent.py").write_text(
        "import pytest, antiphon\n"
        "gateway = antiphon.Gateway()\n"
        "@gateway.tool(idempotent=False)\n"
        "def send(to): return f'sent to {to}'\n"
        "@pytest.mark.antiphon(path='shared.antiphon')\n"
        "@pytest.mark.parametrize('to', ['ada', 'bob'])\n"
        "def test_greeting(to): send(to)\n"
    )
    code, out = project.run("--antiphon-rewrite", *workers)
    assert code == 1, out
    ada, bob = (f"test_agent.py::test_greeting[{name}]" for name in ("ada", "bob"))
    first = "ada" if f"was just recorded by {ada}, and {bob} would replace it" in out else "bob"
    assert first == "ada" or f"was just recorded by {bob}, and {ada} would replace it" in out, out
    assert "1 failed, 1 passed" in out
    code, out = project.run("-k", first)
    assert code == 0, out
    code, out = project.run("--antiphon-rewrite", "-k", "bob", *workers)
    assert code == 0, out


@pytest.mark.parametrize(
    "secret", ["ghp_16C7e42F292c6912E7710c838347Ae178B4a", "grace.hopper@navy.example"], ids=("key", "address")
)
def test_a_secret_among_parameters_is_in_no_name_of_a_file(project: Project, secret: str) -> None:
    (project.folder / "test_agent.py").write_text(f"""
import antiphon, pytest
from antiphon.stores import MemoryStore

gateway = antiphon.Gateway(MemoryStore())


@gateway.tool(idempotent=True)
def look(key: str) -> str:
    return key


@pytest.mark.antiphon
@pytest.mark.parametrize("key", [{secret!r}, "other"])
def test_it(key):
    assert look(key) == key
""")
    assert project.run("--antiphon-record")[0] == 0
    code, out = project.run()
    assert code == 0, out
    assert "2 replayed" in out
    kept = [path for folder in ("golden", "home") for path in (project.folder / folder).rglob("*")]
    assert len([path for path in kept if path.suffix == ".antiphon" and path.is_file()]) == 2
    for path in kept:
        assert secret not in path.name
        assert secret.replace("@", "_") not in path.name
        assert path.is_dir() or secret.encode() not in path.read_bytes()


CLASSES = """
import os
import unittest
from pathlib import Path

import antiphon, pytest
from antiphon.stores import MemoryStore

gateway, aio = antiphon.Gateway(MemoryStore()), antiphon.AsyncGateway(MemoryStore())
AMOUNT = int(os.environ.get("AMOUNT", "5"))


def note(amount):
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"{amount}\\n")


@gateway.tool(idempotent=False, effect="write")
def pay(amount: int) -> None:
    note(amount)


@aio.tool(idempotent=False, effect="write")
async def pay_later(amount: int) -> None:
    note(amount)


@pytest.mark.antiphon
class TestPlain:
    def test_pay(self):
        pay(AMOUNT)


@pytest.mark.antiphon
class TestCase(unittest.TestCase):
    def test_pay(self):
        pay(AMOUNT)


@pytest.mark.antiphon
class TestLoop(unittest.IsolatedAsyncioTestCase):
    async def test_pay(self):
        await pay_later(AMOUNT)
"""

RERUNS = """
from _pytest.runner import runtestprotocol


def pytest_runtest_protocol(item, nextitem):
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for number in range(2):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if number == 0 and any(report.failed for report in reports):
            item._initrequest()
            if item.cls is not None:
                item._obj = None
                item.__dict__.pop("_instance", None)
            continue
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        break
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""


def test_methods_are_replayed_at_each_run(project: Project) -> None:
    (project.folder / "test_agent.py").write_text(CLASSES)
    code, out = project.run("--antiphon-record")
    assert (code, project.effects()) == (0, 3), out
    code, out = project.run()
    assert (code, "3 replayed" in out, project.effects()) == (0, True, 3), out
    (project.folder / "conftest.py").write_text(RERUNS)
    code, out = project.run(AMOUNT="6")
    assert (code, "3 failed" in out, project.effects()) == (1, True, 3), out


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_client_that_is_not_wrapped_is_warned_of(project: Project, wrapped: bool) -> None:
    client = "openai.OpenAI(api_key='none')"
    (project.folder / "test_agent.py").write_text(
        "import antiphon, openai, pytest\n"
        "gateway = antiphon.Gateway()\n"
        f"client = {f'antiphon.wrap({client})' if wrapped else client}\n"
        "@gateway.tool(idempotent=True)\n"
        "def look(n): return n\n"
        "@pytest.mark.antiphon\n"
        "def test_it(): look(1)\n"
    )
    code, out = project.run("--antiphon-record")
    assert (code, "1 of its clients exist without it" in out, "is loaded, but" in out) == (0, not wrapped, not wrapped)


def test_a_marked_test_that_others_run_fails(project: Project) -> None:
    (project.folder / "conftest.py").write_text("def pytest_pyfunc_call(pyfuncitem): return True\n")
    (project.folder / "test_agent.py").write_text(
        "import pytest\n"
        "@pytest.mark.antiphon\ndef test_it(): pass\n"
        "@pytest.mark.skip\n@pytest.mark.antiphon\ndef test_other(): pass\n"
    )
    code, out = project.run()
    assert (code, "test_it ran, but it was neither recorded nor replayed" in out) == (1, True), out
    assert "1 failed, 1 skipped" in out


SUBTESTS = """
import os
from unittest import TestCase

import pytest

import antiphon
from antiphon.stores import MemoryStore

gateway = antiphon.Gateway(MemoryStore())
WRONG = "WRONG" in os.environ


@gateway.tool(idempotent=True)
def look(n: int) -> int:
    return n


@pytest.mark.antiphon
def test_pytest(subtests):
    with subtests.test("first"):
        assert look(n=1) + WRONG == 1


class TestUnittest(TestCase):
    @pytest.mark.antiphon
    def test_it(self):
        with self.subTest("first"):
            self.assertEqual(look(n=1) + WRONG, 1)
"""


def test_a_failed_subtest_leaves_the_old_recordings(project: Project) -> None:
    (project.folder / "test_agent.py").write_text(SUBTESTS)
    code, out = project.run("--antiphon-record", WRONG="1")
    assert code == 1, out
    assert not list(project.folder.rglob("*.antiphon"))
    assert "recorded" not in out

    code, out = project.run("--antiphon-record")
    assert code == 0, out
    assert "2 recorded" in out
    before = {path: path.read_bytes() for path in project.folder.rglob("*.antiphon")}
    assert len(before) == 2
    code, out = project.run("--antiphon-rewrite", WRONG="1")
    assert code == 1, out
    assert {path: path.read_bytes() for path in project.folder.rglob("*.antiphon")} == before


def test_a_subtest_that_is_expected_to_fail_is_not_recorded(project: Project) -> None:
    (project.folder / "test_agent.py").write_text(SUBTESTS + "\n\npytestmark = pytest.mark.xfail\n")
    code, out = project.run("--antiphon-record", WRONG="1")
    assert (code, list(project.folder.rglob("*.antiphon"))) == (0, []), out
    code, out = project.run("--antiphon-record")
    assert (code, "2 recorded" in out) == (0, True), out


def test_workers_do_not_disturb_each_other(project: Project) -> None:
    code, out = project.run("--antiphon-record", "-n", "2")
    assert code == 0, out
    assert len(list(project.folder.rglob("*.antiphon"))) == 7
    assert not list(project.folder.rglob("*.part"))
    assert "antiphon: 7 recorded" in out
    code, out = project.run("-n", "2")
    assert code == 0, out
    assert "antiphon: 7 replayed" in out
    code, out = project.run("-n", "2", AMOUNT="6")
    assert code == 1
    assert "antiphon: 1 diverged, 6 replayed" in out


def failure(out: str) -> list[str]:
    """The lines that pytest prints for the one failed test."""
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("____")) + 1
    stop = next(i for i, line in enumerate(lines) if i > start and line.startswith("===="))
    return lines[start:stop]


@pytest.mark.parametrize("then", ["", 'raise RuntimeError("the agent gave up")'])
def test_a_failure_says_what_where_and_how_in_twelve_lines(project: Project, then: str) -> None:
    body = f"""
import os, antiphon, pytest
from antiphon.stores import MemoryStore

gateway = antiphon.Gateway(MemoryStore())

@gateway.tool(idempotent=False, effect="write")
def pay(amount, note="x" * 2000):
    return amount

def agent():
    try:
        return pay(amount=int(os.environ.get("AMOUNT", "5")))
    except Exception:
        {then or "raise"}

@pytest.mark.antiphon
def test_it():
    assert agent() == 5
"""
    (project.folder / "test_agent.py").write_text(body)
    assert project.run("--antiphon-record")[0] == 0
    code, out = project.run(AMOUNT="6")
    shown = failure(out)
    assert code == 1
    assert len(shown) <= 12, out
    said = "\n".join(shown)
    assert "$.amount: 5 -> 6" in said
    assert "test_agent.py:19 test_it > test_agent.py:13 agent" in said or "test_agent.py:15 agent" in said
    assert "pytest --antiphon-rewrite test_agent.py::test_it" in said
    assert "lane" not in said
    look = next(line for line in shown if "look:" in line).partition("antiphon ")[2]
    done = subprocess.run(
        [sys.executable, "-m", "antiphon.cli", *look.split()],
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"amount": 5' in done.stdout
    assert "Traceback" not in out
    assert "frames folded" in said
    code, out = project.run("--full-trace", AMOUNT="6")
    assert len(failure(out)) > 12


@pytest.mark.parametrize("flags", [(), ("-vv", "--tb=line")])
def test_a_failure_prints_masks_in_place_of_originals(project: Project, flags: tuple[str, ...]) -> None:
    body = """
import os, antiphon, pytest
from antiphon.stores import MemoryStore

gateway = antiphon.Gateway(MemoryStore())
changed = "CHANGED" in os.environ

@gateway.tool(idempotent=False, effect="write")
def send(to, body):
    return to

@pytest.mark.antiphon
def test_it():
    try:
        send("bob.new@example.org" if changed else "ada.old@example.org", "n" if changed else "ghp_" + "a1B2c3D4" * 5)
    except Exception as error:
        raise RuntimeError(f"lost bob.new@example.org: {error}")
"""
    (project.folder / "test_agent.py").write_text(body)
    assert project.run("--antiphon-record")[0] == 0
    code, out = project.run(*flags, CHANGED="1")
    assert code == 1
    assert "[email:" in out
    assert "[github:" in out
    for original in ("ada.old@", "a1B2c3D4a1B2"):
        assert original not in out, out
    if not flags:
        assert "bob.new@" not in out, out


def test_a_failed_test_leaves_no_recording(project: Project) -> None:
    (project.folder / "test_agent.py").write_text(TESTS.replace('.startswith("paid")', '.startswith("stolen")'))
    code, _ = project.run("--antiphon-record", "-k", "payment")
    assert code == 1
    assert not list(project.folder.rglob("*.antiphon"))


OWN_STORES = """
import os

import antiphon

gateway = antiphon.Gateway()  # names no store, and lives longer than one test
sent = []


@gateway.tool(idempotent=False, effect="write")
def send(to):
    sent.append(to)
    return len(sent)


def deliver():
    with gateway.session("s") as session, session.turn() as turn:
        return turn.call("send", {"to": "ada"}, call_id="c1").output.content


def test_one():
    assert (deliver(), deliver()) == (1, 1)


def test_another():
    assert len(sent) == 1  # what the first one sent is not known any more
    assert deliver() == 2


def test_that_asks_otherwise(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path))
    assert antiphon.Gateway()._plans.store.url.startswith("sqlite:")
    assert antiphon.Gateway(store="memory:")._plans.store.url == "memory://"


def test_a_configured_store_of_production_is_not_used():
    assert antiphon.Gateway()._plans.store.url == "memory://"
"""


def test_each_test_has_a_memory_store_of_its_own(tmp_path: Path) -> None:
    """Also one that the project configures for production is left alone."""
    (tmp_path / "antiphon.toml").write_text('[store]\nurl = "postgresql://production.invalid/agents"\n')
    (tmp_path / "test_own.py").write_text(OWN_STORES)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ANTIPHON_", "PYTEST_"))}
    words = [*PYTEST, "test_own.py"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    assert not (tmp_path / ".antiphon").exists()


LATE = """
import os
import threading
import time

import antiphon
import pytest

gateway = antiphon.Gateway()


@gateway.tool(idempotent=False, effect="write")
def send(to: str) -> str:
    return f"sent {to}"


def later():
    time.sleep(0.05)
    send(to="ada")


@pytest.mark.antiphon
def test_late():
    if "DROPPED" not in os.environ:
        threading.Thread(target=antiphon.wrap_context(later)).start()
"""


def test_a_dropped_call_of_a_late_thread_fails_the_test(project: Project) -> None:
    (project.folder / "test_agent.py").write_text(LATE)
    assert project.run("--antiphon-record")[0] == 0
    code, out = project.run()
    assert code == 0, out
    code, out = project.run(DROPPED="1")
    assert code == 1
    assert "send did not happen" in out


@pytest.mark.parametrize(("given", "wrong"), [("pth='mine.antiphon'", "pth"), ("'a', 'b'", "more than one path")])
def test_a_marker_with_a_word_that_it_does_not_know_fails_the_test(tmp_path: Path, given: str, wrong: str) -> None:
    project = Project(tmp_path)
    (tmp_path / "test_agent.py").write_text(
        f"import pytest\n\n@pytest.mark.antiphon({given})\ndef test_nothing():\n    pass\n"
    )
    code, out = project.run("--antiphon-record")
    assert (code, f"does not know {wrong}. It knows: path, sandbox." in out) == (1, True), out
