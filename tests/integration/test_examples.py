"""Every program under examples/ runs offline and says what it should; they import public modules only."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scripts.site_pages import public_modules
from tests.another_pytest import PYTEST
from tests.docs.test_blocks import refused

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"
SAYS = {
    "fastapi_charge": r"3 requests, 1 charge, repeated: \[False, True, True\]",
    "fastapi_approval": r"paid 0 times\napproved twice: \[200, 409\]\n3 requests, 1 refund",
    "payment_service": r"1 charge, answers \[500, 201, 201, 422\]",
    "book_trip": r"saga 'trip' is undone: 2 undone(?s:.*)every booking was cancelled once",
    "queue_worker": r"3 deliveries, sent \['1042', '1043'\]",
    "redis_fleet": r"3 processes, 60 requests, 20 charges",
    "langgraph_checkpoints": r"after the restart:  \['1042'\], 'All done.'",
    "openai_agents_desk": r"Told Ada. 1 mail sent, replayed: pass",
    "pydantic_ai_desk": r"1 mail sent, unchanged: pass, other instructions: fail",
    "mcp_client": r"2 deliveries, 1 mail, replayed without a server: pass",
}


IN_PROCESS = {"fastapi_approval"}
"""These keep nothing on disk."""


def run(folder: Path, *words: str, **environment: str) -> tuple[int, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTIPHON_", "PYTEST_"))}
    home = {"ANTIPHON_HOME": str(folder / "home"), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**kept, **home, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", SAYS)
def test_program_runs_offline(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    if name in IN_PROCESS:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        assert re.search(SAYS[name], said.getvalue()), said.getvalue()
        return
    servers = {"REDIS_URL": request.getfixturevalue("valkey_url")} if "REDIS_URL" in text else {}
    for _ in range(2 if name == "fastapi_charge" else 1):  # what the first run left does not change the second
        code, out = run(tmp_path, str(EXAMPLES / f"{name}.py"), **servers)
        assert code == 0, out
        assert re.search(SAYS[name], out), out


def test_the_support_agent_is_run_shown_and_replayed(tmp_path: Path) -> None:
    target = f"{EXAMPLES / 'support_agent.py'}:main"
    code, out = run(tmp_path, "-m", "antiphon.cli", "run", target, "--input", '"My order 1042 never arrived"')
    assert code == 0, out
    assert "I am sorry. Done: refunded 49.9 for order 1042." in out
    assert run(tmp_path, "-m", "antiphon.cli", "show")[0] == 0
    code, out = run(tmp_path, "-m", "antiphon.cli", "replay", "--strict")
    assert code == 0, out


def test_golden_tests_pass_and_fail_when_an_argument_changes(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "golden_ci", tmp_path / "project")
    project = tmp_path / "project"
    code, out = run(project, *PYTEST[1:])
    assert code == 0, out
    assert "2 replayed" in out
    assert run(project, "-m", "antiphon.cli", "test", "golden/")[0] == 0
    assert run(project, "-m", "antiphon.cli", "scan", "golden/")[0] == 0
    agent = project / "agent.py"
    agent.write_text(agent.read_text().replace("count=2", "count=3"))
    assert "$.count: 2 -> 3" in run(project, *PYTEST[1:])[1]
    assert run(project, "-m", "antiphon.cli", "test", "golden/")[0] == 1
    assert not (project / "orders.txt").exists()


def test_the_workflow_file_can_be_used() -> None:
    workflow = yaml.safe_load((EXAMPLES / "golden_ci" / "workflow.yml").read_text(encoding="utf-8"))
    steps = [step["run"] for step in workflow["jobs"]["golden"]["steps"] if "run" in step]
    assert any(step.startswith("antiphon test") for step in steps)
    assert [refused(step) for step in steps] == [None] * len(steps)


IMPORT = re.compile(r"^\s*(?:from (antiphon[\w.]*) import|import (antiphon[\w.]*))", re.MULTILINE)


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.name)
def test_examples_use_public_modules_only(path: Path) -> None:
    used = {one or other for one, other in IMPORT.findall(path.read_text(encoding="utf-8"))}
    assert used <= set(public_modules())


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"({path.name})" in listed for path in EXAMPLES.glob("*.py"))
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SAYS, "support_agent"}
