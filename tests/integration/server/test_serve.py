"""``antiphon serve``: what it logs, and what it says and returns when it cannot start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.cli import main
from tests.integration.server import workflows
from tests.integration.server.harness import KEY, Served
from tests.servers import free_port

SECRET = "sk-ant-api03-" + "Qz7rTy2uWx" * 9
CODE = """
import antiphon

gateway = antiphon.Gateway(store="memory:")

@gateway.tool(idempotent=False, namespace="mail", effect="write")
def send(to: str) -> str:
    return "sent"

@gateway.tool(idempotent=True, namespace="mail", effect="read")
def fail(token: str) -> str:
    raise ValueError(f"bad token {token}")

@antiphon.agent
def greeter(name: str) -> str:
    return send(name)
"""


def _serve(tmp_path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from antiphon.cli import main; raise SystemExit(main())", "serve", *words]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    env = {**kept, "ANTIPHON_HOME": str(tmp_path / "state"), "ANTIPHON_API_KEY": KEY, **environment}
    return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)


def _config(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "antiphon.toml"
    file.write_text(text)
    return ["--config", str(file), "--port", str(free_port())]


def _refused(done: subprocess.CompletedProcess[str], *expected: str) -> None:
    assert done.returncode not in (0, 3), done.stderr
    assert "Traceback" not in done.stderr
    for text in expected:
        assert text in done.stderr.lower()
    greetings = ("antiphon: serving on", "claims and runs are kept in")
    lines = [line for line in done.stderr.splitlines() if not line.startswith(greetings)]
    said = {line.partition("Z ")[2] or line for line in lines}  # each worker says it
    assert len([line for line in said if not line.startswith("  ")]) == 1, done.stderr


def test_a_missing_folder(tmp_path: Path) -> None:
    words = _config(tmp_path, '[host]\nworkflows = "nowhere"\n')
    _refused(_serve(tmp_path, *words, "--workers", "2"), "no folder")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_agent_that_cannot_be_imported(tmp_path: Path, workers: str) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    words = _config(tmp_path, '[host]\nagents = ["broken.py:agent"]\n')
    _refused(_serve(tmp_path, *words, "--workers", workers), "could not start", "nothing_of_that_name")


def test_a_damaged_store(tmp_path: Path) -> None:
    (tmp_path / "host.db").write_bytes(b"this is no database, and never was one" * 100)
    words = _config(tmp_path, f'[store]\nurl = "sqlite:///{tmp_path}/host.db"\n')
    _refused(_serve(tmp_path, *words), "host.db")


def test_a_store_that_is_a_folder_or_cannot_be_made(tmp_path: Path) -> None:
    for place in (tmp_path, "/proc/nowhere/host.db"):
        _refused(_serve(tmp_path, *_config(tmp_path, f'[store]\nurl = "sqlite:///{place}"\n')))


def test_workers_cannot_share_a_memory_store(tmp_path: Path) -> None:
    _refused(_serve(tmp_path, *_config(tmp_path, '[store]\nurl = "memory:"\n'), "--workers", "2"), "memory")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[host]\nrequest_timeout_s = inf\n", "request_timeout_s"),
        ("[host]\nshutdown_grace_s = nan\n", "shutdown_grace_s"),
        ("[host]\nheader_timeout_s = 0\n", "header_timeout_s"),
        ('[[redact.rules]]\nname = "odd"\npattern = "(unclosed"\n', "odd"),
        ('[host.providers.x]\ndialect = "anthropic"\nbase_url = "file:///etc/passwd"\n', "base_url"),
        ('[host.providers.x]\ndialect = "anthropic"\nbase_url = "https://"\n', "base_url"),
        ("[host]\ntenant_runs = 0\n", "tenant_runs"),
    ],
    ids=["inf", "nan", "zero", "regex", "file", "no host", "no runs"],
)
def test_settings_that_cannot_work(
    tmp_path: Path, text: str, named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text(text)
    monkeypatch.chdir(tmp_path)
    for words in (["config", "show"], ["serve"]):
        assert main([*words, "--config", str(file)]) == 2
        assert named in capsys.readouterr().err


# -- the log ---------------------------------------------------------------------------------------------------------


def _served(tmp_path: Path, *words: str) -> Served:
    code = tmp_path / "code.py"
    code.write_text(CODE)
    bound = {"token": {"type": "variable", "variableName": "token"}}
    failing = workflows.node("fail", "tool:mail/fail", None, bound)
    flow = workflows.workflow("failing", [failing], [workflows.variable("token", "string", required=True)])
    folder = workflows.write(tmp_path / "flows", flow)
    (folder / "odd.json").write_text(json.dumps(workflows.workflow("odd", [workflows.node("x", "core.nobody")])))
    environment = {"ANTIPHON_HOST_TOOLS": str(code), "ANTIPHON_HOST_AGENTS": f"{code}:greeter"}
    return Served(tmp_path, folder, environment).start(*words)


def _work(served: Served) -> str:
    headers = {"Authorization": f"Bearer {KEY}", "X-Request-ID": "request-of-this-test"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=30) as client:
        runs = []
        for workflow, inputs in (("agent:greeter", {"name": "ada"}), ("failing", {"token": SECRET})):
            answer = client.post(f"/v1/runs?api_key={SECRET}", json={"workflowId": workflow, "inputs": inputs})
            runs.append(answer.json()["runId"])
            until = time.monotonic() + 30
            while client.get(f"/v1/runs/{runs[-1]}").json()["status"] == "running":
                assert time.monotonic() < until
        client.get(f"/v1/runs/{SECRET}")
        client.get("/v1/runs", headers={"Authorization": f"Bearer {SECRET}"})
    return str(runs[0])


def test_the_log_says_what_happened(tmp_path: Path) -> None:
    served = _served(tmp_path, "--log-format", "json", "--log-level", "debug")
    try:
        run = _work(served)
    finally:
        served.stop()
    text = (tmp_path / "serve.log").read_text()
    assert SECRET not in text
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert len(lines) >= len(text.splitlines()) - 1, "all but the greeting is JSON"
    assert all({"time", "level", "logger"} <= line.keys() for line in lines)
    access = [line for line in lines if line.get("event") == "http_request"]
    started = next(line for line in access if line["method"] == "POST")
    assert (started["status"], started["path"], started["requestId"]) == (201, "/v1/runs", "request-of-this-test")
    assert started["tenant"] == "default"
    assert any(line["status"] == 401 for line in access)
    assert any(line.get("runId") == run for line in access)
    assert {line["level"] for line in access if line["path"] == "/readyz"} == {"debug"}, "probes are for debugging"
    assert {"node.started", "tool_call_start"} <= {line.get("event") for line in lines if line["level"] == "debug"}
    of_run = [line for line in lines if line.get("runId") == run]
    assert {"run.started", "run.completed", "tool_call_end"} <= {line.get("event") for line in of_run}
    tool = next(line for line in of_run if line.get("event") == "tool_call_end")
    assert (tool["toolName"], tool["tenant"]) == ("send", "default"), "tool events of agents as well"
    assert any(line.get("event") == "node.failed" and line["level"] == "warning" for line in lines)
    assert any("odd.json is not offered" in line.get("message", "") for line in lines)


def test_the_level_is_heeded_and_people_can_read_it(tmp_path: Path) -> None:
    served = _served(tmp_path, "--log-level", "warning")
    try:
        _work(served)
        metrics = httpx.get(f"{served.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text
        assert 'antiphon_tool_calls_total{tool="mail/send",status="success",scope="session"} 1' in metrics
        assert 'tool_calls_total{tool="conformance/side-effect"' not in metrics, (
            "the self-test at the start is not counted"
        )
    finally:
        served.stop()
    text = (tmp_path / "serve.log").read_text()
    assert SECRET not in text
    assert "odd.json is not offered" in text
    assert "http_request" not in text
    assert "run.completed" not in text
    assert " WARNING " in text
