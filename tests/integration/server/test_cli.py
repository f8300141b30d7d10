"""``antiphon apikeys`` and ``antiphon serve`` as people use them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from antiphon import Antiphon
from antiphon._drive import drive
from antiphon.cli import main
from antiphon.ops.admin import Admin
from tests.servers import free_port


@pytest.fixture
def config(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("ANTIPHON_API_KEY", raising=False)
    file = tmp_path / "antiphon.toml"
    file.write_text(f'[store]\nurl = "sqlite:///{tmp_path}/host.db"\n[host]\nworkflows = "{folder}"\n')
    return str(file)


def test_keys_are_created_listed_and_revoked(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", config]
    assert main(["apikeys", "list", *words]) == 0
    assert re.fullmatch(r"No API keys\. Looked in sqlite:///\S+ \(--store names another\)\.\n", capsys.readouterr().out)
    assert main(["apikeys", "create", "--role", "read", "--tenant", "acme", "--name", "ci", "--json", *words]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["token"].startswith("antiphon_")
    assert (made["role"], made["tenant"], made["name"]) == ("read", "acme", "ci")
    assert "digest" not in made
    assert made["createdAtMs"] == made["created_at_ms"] > 0
    assert main(["apikeys", "create", *words]) == 0
    assert "not shown again" in capsys.readouterr().out
    assert main(["apikeys", "list", *words]) == 0
    listed = capsys.readouterr().out
    assert made["id"] in listed
    assert made["token"] not in listed
    assert main(["apikeys", "revoke", made["id"], *words]) == 0
    capsys.readouterr()
    assert main(["apikeys", "list", "--json", *words]) == 0
    assert {key["id"]: key["revoked"] for key in json.loads(capsys.readouterr().out)}[made["id"]] is True
    assert main(["apikeys", "revoke", "nobody", *words]) == 4
    assert main(["apikeys", "revoke", *words]) == 2


def test_keys_that_are_created_and_revoked_are_in_the_audit_log(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", config]
    assert main(["apikeys", "create", "--tenant", "acme", "--name", "ci", "--json", *words]) == 0
    made = json.loads(capsys.readouterr().out)
    assert main(["apikeys", "revoke", made["id"], *words]) == 0
    assert main(["apikeys", "revoke", "nobody", *words]) == 4
    lines = drive(Admin(Antiphon(config)).audit())
    told = [(line["act"], line["id"], line["role"], line["tenant"], line["name"], line["by"]) for line in lines]
    assert told == [(act, made["id"], "run", "acme", "ci", "cli") for act in ("apikey-revoke", "apikey-create")]
    assert made["token"] not in json.dumps(lines)


def _serve(config: str, port: int, tmp_path: Path) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    command = [sys.executable, "-c", "from antiphon.cli import main; raise SystemExit(main())", "serve"]
    return subprocess.Popen(
        [*command, "--port", str(port), "--config", config],
        env={**env, "ANTIPHON_HOME": str(tmp_path / "state")},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait(url: str) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if httpx.get(f"{url}/readyz", timeout=1).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.05)
    raise AssertionError("the host did not start")


def test_without_a_key_one_is_made_for_the_process(config: str, tmp_path: Path) -> None:
    port = free_port()
    process = _serve(config, port, tmp_path)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url)
        assert httpx.get(f"{url}/v1/runs").status_code == 401
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
        token = said.split("with the admin role:\n")[1].split()[0]
        assert len(token) >= 40
        assert process.returncode in (0, -signal.SIGTERM)
    finally:
        if process.poll() is None:
            process.kill()


def test_a_stored_key_opens_the_host(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apikeys", "create", "--role", "run", "--json", "--config", config]) == 0
    token = json.loads(capsys.readouterr().out)["token"]
    port = free_port()
    process = _serve(config, port, tmp_path)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url)
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.post(f"{url}/v1/runs", json={"workflowId": "conformance-noop"}, headers=headers)
        assert answer.status_code == 201
        forbidden = httpx.post(f"{url}/v1/admin/tool-reliability", json={"action": "status"}, headers=headers)
        assert forbidden.status_code == 403
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.parametrize("words", [["--port", "70000"], ["--workers", "0"], ["--config", "/nowhere.toml"]])
def test_wrong_words_are_usage_errors(words: list[str], config: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "--config" not in words:
        words = [*words, "--config", config]
    if words[:2] == ["--workers", "0"]:
        words = ["--workers", "-1", *words[2:]]
    assert main(["serve", *words]) == 2
    assert "antiphon:" in capsys.readouterr().err
