"""What somebody meets who types the commands for the first time: answers, messages and exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.cli import COMMANDS

AGENT = """
import os, time
import antiphon

gateway = antiphon.Gateway()


@gateway.tool(idempotent=True, effect="read")
def look(order: str) -> dict[str, object]:
    return {"order": order, "amount": 49.9}


@gateway.tool(idempotent=False)
def refund(order: str, amount: float) -> str:
    with open("world.txt", "a") as world:
        world.write(f"{order} {amount}\\n")
    if os.environ.get("HANG"):
        time.sleep(60)
    return f"refunded {amount}"


def main(question: str) -> str:
    found = look(order="1042")
    return refund(order="1042", amount=50 if os.environ.get("TYPO") else found["amount"])
"""

Type = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    return tmp_path


@pytest.fixture
def antiphon(folder: Path) -> Type:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}

    def run(*words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "antiphon.cli", *words],
            cwd=folder,
            env={**clean, **extra},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert "Traceback" not in done.stderr, f"antiphon {' '.join(words)}\n{done.stderr}"
        return done

    return run


def record(antiphon: Type) -> str:
    done = antiphon("run", "agent.py:main", "--input", '"hello"', "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(antiphon("runs", "--json").stdout)["runs"][0]["id"])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, antiphon: Type) -> None:
    done = antiphon(command, "--help")
    assert done.returncode == 0
    assert re.search(r"^examples?:\n  .*antiphon ", done.stdout, re.MULTILINE), done.stdout
    assert "{," not in done.stdout


def test_a_change_of_one_argument_is_named(antiphon: Type, folder: Path) -> None:
    record(antiphon)
    assert antiphon("replay", "--latest", "--strict").returncode == 0
    typo = antiphon("replay", "--latest", "--strict", TYPO="1")
    assert typo.returncode == 1
    assert "$.amount: 49.9 -> 50" in typo.stdout
    assert len((folder / "world.txt").read_text().splitlines()) == 1


def test_the_tools_of_a_gateway_of_ones_own_are_known(antiphon: Type, folder: Path) -> None:
    record(antiphon)
    looked = antiphon("doctor", "--entry", "agent.py").stdout
    assert "tools/refund: effect not declared" in looked
    assert "registers no tools" not in looked
    blocked = antiphon("replay", "--latest", "--explore")
    assert blocked.returncode == 3
    assert blocked.stderr.startswith("=====")
    review = (folder / "side_effect" / "side_effects.yaml").read_text()
    assert 'look: true    # The tool declares effect="read"' in review
    assert "refund: false" in review


@pytest.mark.parametrize("command", ["breakers", "claims"])
def test_a_bare_admin_command_lists(command: str, antiphon: Type) -> None:
    assert json.loads(antiphon(command, "--json").stdout) == json.loads(antiphon(command, "list", "--json").stdout)


def test_switches_of_the_environment_are_shown_with_their_source(antiphon: Type) -> None:
    switched = {"TOOL_RELIABILITY_ENABLED": "false", "TOOL_RELIABLE_DERIVE_IDEMPOTENCY": "off"}
    done = antiphon("config", "show", "--changed", "--json", **switched)
    shown = {row["name"]: (row["value"], row["source"]) for row in json.loads(done.stdout)["settings"]}
    assert shown["gateway.enabled"] == (False, "environment TOOL_RELIABILITY_ENABLED")
    assert shown["gateway.derive_keys"] == (False, "environment TOOL_RELIABLE_DERIVE_IDEMPOTENCY")
    assert "gateway.open_mode" not in shown


def test_the_presets_of_breakers_are_shown_where_no_table_replaces_them(antiphon: Type) -> None:
    shown = antiphon("config", "show").stdout
    assert re.search(r"^breaker, effect read +8 failures or rate 0\.5, open for 20\.0 s +default$", shown, re.MULTILINE)
    replaced = antiphon("config", "show", ANTIPHON_BREAKER_CONSECUTIVE="3").stdout
    assert re.search(r"^breaker\.consecutive +3 ", replaced, re.MULTILINE)
    assert "breaker, effect" not in replaced


def test_what_operators_did_is_no_run_of_an_agent(antiphon: Type) -> None:
    run = record(antiphon)
    assert antiphon("breakers", "force-open", "tools/look", "--reason", "incident").returncode == 0
    assert antiphon("show").stdout.split()[1] == run
    assert "audit" not in antiphon("runs").stdout
    assert antiphon("show", "audit-default").returncode == 0
    refused = antiphon("run", "agent.py:main", "--input", '"hello"')
    assert refused.returncode == 1
    said = "The circuit breaker of tools/look is open (incident): an operator or its settings forced it open."
    assert said in refused.stderr


def test_killed_in_a_tool_then_resumed_and_settled(antiphon: Type, folder: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    agent = subprocess.Popen(
        [sys.executable, "-m", "antiphon.cli", "run", "agent.py:main", "--input", '"hello"'],
        cwd=folder,
        env={**clean, "HANG": "1"},
        stderr=subprocess.DEVNULL,
    )
    deadline, world = time.monotonic() + 60, folder / "world.txt"
    while not (world.exists() and world.read_text()):  # it is there before it is written
        assert time.monotonic() < deadline
        time.sleep(0.02)
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    found = json.loads(antiphon("runs", "--json").stdout)["runs"][0]
    assert found["status"] == "interrupted"
    (lost,) = json.loads(antiphon("claims", "list", "--state", "unknown", "--json").stdout)["claims"]
    checked = json.loads(antiphon("doctor", "--json").stdout)["checks"]["claims"]
    assert lost["tool"] == "tools/refund"
    assert checked["findings"][0]["message"] == "1 outcome unknown (tools/refund: 1)"
    resume = ("run", "agent.py:main", "--resume", found["id"][:13])
    unknown = antiphon(*resume)
    assert unknown.returncode == 1
    command = re.search(r"antiphon claims resolve (\w+)", unknown.stderr)
    assert command is not None, unknown.stderr
    assert antiphon("claims", "resolve", command[1]).returncode == 2
    settled = antiphon("claims", "resolve", command[1], "--happened", "--value", '"refunded 49.9"')
    assert settled.returncode == 0
    assert antiphon(*resume).stdout.strip() == "refunded 49.9"
    assert len(world.read_text().splitlines()) == 1


def test_export_makes_its_folder_and_import_reads_it(antiphon: Type, folder: Path) -> None:
    run = record(antiphon)
    for ending in ("antiphon", "kurral"):
        assert antiphon("export", "-o", f"golden/x.{ending}").returncode == 0
    assert json.loads((folder / "golden/x.antiphon").read_text())["run_id"] == run
    assert antiphon("scan", "golden").returncode == 0
    assert antiphon("import", "golden/x.antiphon", "golden/x.kurral", ANTIPHON_HOME="elsewhere").returncode == 0


WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("repaly",), 2, "Did you mean 'antiphon replay'?"),
    (("run", "agent.py:main", "--input", "hello"), 2, "A plain text needs its quotes"),
    (("run", "agent.py"), 2, "Write file.py:function"),
    (("run", "agent.py:nope"), 5, "It has: look, main, refund."),
    (("run", "nope.py:main"), 5, "There is no file nope.py."),
    (("run", "agent.py:main"), 2, "missing a required argument: 'question'"),
    (("run", "agent.py:main", "--input", '"hello"', "--resume", "zzz"), 4, "There is no run 'zzz'."),
    (("show",), 4, "There is no recorded run yet."),
    (("show", "zzz"), 4, "There is no run 'zzz'."),
    (("replay", "nope.antiphon"), 4, "There is no file nope.antiphon."),
    (("replay", "agent.py"), 6, "agent.py is not"),
    (("import", "agent.py"), 6, "agent.py is not"),
    (("scan", "nope"), 4, "There is no nope."),
    (("claims", "clear", "zzz"), 4, "There is no claim 'zzz'."),
    (("claims", "flush"), 2, "Specify what to flush"),
    (("runs", "--config", "nope.toml"), 2, "nope.toml cannot be read"),
    (("exec",), 2, "Write: antiphon exec -- python agent.py"),
]


@pytest.mark.parametrize(("words", "code", "text"), WRONG, ids=[" ".join(words) for words, _, _ in WRONG])
def test_wrong_input_is_explained(words: tuple[str, ...], code: int, text: str, antiphon: Type) -> None:
    done = antiphon(*words)
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr


def test_a_failure_of_the_agent_shows_the_lines_of_its_code(antiphon: Type, folder: Path) -> None:
    (folder / "broken.py").write_text(
        "def main(value):\n    return helper(value)\n\n\ndef helper(value):\n    return 1 / 0\n"
    )
    done = antiphon("run", "broken.py:main", "--input", "1")
    assert done.returncode == 1
    assert 'broken.py", line 6, in helper' in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "antiphon/ops" not in done.stderr
    failed = json.loads(antiphon("runs", "--json").stdout)["runs"][0]
    assert failed["status"] == "failed"


def test_a_wrong_setting_is_named_with_its_line(antiphon: Type, folder: Path) -> None:
    (folder / "antiphon.toml").write_text("[gateway]\ntenannt = 'acme'\n")
    done = antiphon("runs")
    assert done.returncode == 2
    assert "line 2: there is no setting gateway.tenannt" in done.stderr


def test_credentials_of_a_store_are_never_printed(antiphon: Type) -> None:
    url = "redis://worker:hunter2@redis.internal:6379/0?password=hunter2&db=1"
    for form in ((), ("--json",)):
        shown = antiphon("config", "show", "--changed", *form, ANTIPHON_STORE_CLAIMS=url).stdout
        assert "hunter2" not in shown
        assert "redis.internal:6379" in shown
