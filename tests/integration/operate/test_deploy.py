"""The systemd unit and the Containerfile of ``deploy/``: their steps run here, one by one, below an empty folder."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.docs.pages import ROOT
from tests.servers import free_port

UNIT = ROOT / "deploy" / "antiphon.service"
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
PAGE = ROOT / "docs" / "how-to" / "deploy-one-machine.md"
KEY = "the-key-of-the-environment-file"
TOOLS = """
import antiphon
gateway = antiphon.Gateway(store="memory:")

@gateway.tool(idempotent=False, namespace="mail", effect="write")
def send(to: str) -> str:
    return f"sent to {to}"
"""
AGENTS = """
import antiphon

@antiphon.agent
def triage(who: str = "ada") -> str:
    return f"hello {who}"
"""
HOLD = {
    "id": "hold",
    "variables": [{"name": "delayMs", "type": "number", "defaultValue": 0}],
    "nodes": [
        {"id": "send", "typeId": "tool:mail/send", "inputs": {"to": {"type": "static", "value": "ada"}}},
        {
            "id": "hold",
            "typeId": "core.delay",
            "inputs": {"delayMs": {"type": "variable", "variableName": "delayMs"}},
        },
    ],
    "edges": [{"id": "1", "sourceNodeId": "send", "targetNodeId": "hold"}],
}


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until ``/readyz`` says so: what an operator or a balancer asks."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(log.read_text())


# -- systemd -----------------------------------------------------------------------------------------------------------


class Machine:
    """An installation as the page describes it, below *root* instead of ``/``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = free_port()
        self.log = root / "journal"
        parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(UNIT.read_text())
        self.unit: dict[str, str] = {name: self.place(value) for name, value in parser["Service"].items()}
        program = root / "opt/antiphon/.venv/bin/antiphon"
        program.parent.mkdir(parents=True)
        code = "from antiphon.cli import main; raise SystemExit(main())"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
        program.chmod(0o755)
        (root / "opt/antiphon/tools.py").write_text(TOOLS)
        (root / "opt/antiphon/agents.py").write_text(AGENTS)
        flows = root / "etc/antiphon/workflows"
        flows.mkdir(parents=True)
        (flows / "hold.json").write_text(json.dumps(HOLD))
        (written,) = re.findall(r"`/etc/antiphon/antiphon.toml`:\n\n```toml\n(.*?)```", PAGE.read_text(), re.S)
        settings = self.place(written).replace("[host]\n", f"[host]\nport = {self.port}\n")
        (root / "etc/antiphon/antiphon.toml").write_text(settings)
        secret = root / "etc/antiphon/environment"
        secret.write_text(f"# for the host\nANTIPHON_API_KEY={KEY}\n")
        secret.chmod(0o600)
        state = root / "var/lib" / self.unit["StateDirectory"]
        state.mkdir(parents=True)
        state.chmod(int(self.unit["StateDirectoryMode"], 8))

    def place(self, text: str) -> str:
        return re.sub(r"/(opt|etc|var/lib)/antiphon", rf"{self.root}/\1/antiphon", text)

    def environment(self) -> dict[str, str]:
        """What systemd gives a service: hardly anything, then the file, then the unit."""
        found = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent"}
        for line in Path(self.unit["EnvironmentFile"].removeprefix("-")).read_text().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.partition("=")
                found[name] = value
        name, _, value = self.unit["Environment"].partition("=")
        return {**found, name: value}

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                shlex.split(self.unit["ExecStart"]),
                cwd=self.unit["WorkingDirectory"],
                env=self.environment(),
                umask=int(self.unit["UMask"], 8),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_for(self.port, process, self.log)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {KEY}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=30)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_systemd_takes_the_unit(machine: Machine) -> None:
    """``systemd-analyze verify`` where there is one: names of settings, paths and programs."""
    analyze = shutil.which("systemd-analyze")
    unit = machine.root / "antiphon.service"
    unit.write_text(machine.place(UNIT.read_text()))
    if analyze is not None:
        done = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
        said = [line for line in done.stderr.splitlines() if str(unit) in line or "antiphon" in line]
        assert said == [], done.stderr
    assert machine.unit["User"] not in ("", "root", "0")
    assert machine.unit["Restart"] == "on-failure"
    assert Path(machine.unit["WorkingDirectory"]) == machine.root / "var/lib" / machine.unit["StateDirectory"]


def test_the_unit_starts_stops_and_recovers(machine: Machine) -> None:
    """Also after kill −9, which ``Restart=on-failure`` answers with the same command."""
    process = machine.start()
    try:
        with machine.client() as client:
            made = client.post("/v1/runs", json={"workflowId": "hold", "inputs": {"delayMs": 1500}})
            assert made.status_code == 201, made.text
            run = made.json()["runId"]
            until = time.monotonic() + 30
            while "node.completed" not in client.get(f"/v1/runs/{run}/events/poll", params={"timeout": 1}).text:
                assert time.monotonic() < until
            assert {tool["name"] for tool in client.get("/v1/tools").json()["tools"]} == {"send"}
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process = machine.start()
        with machine.client() as client:
            while not (seen := client.get(f"/v1/runs/{run}/events/poll", params={"timeout": 5}).json())["isComplete"]:
                assert time.monotonic() < until + 60
            kinds = [event["type"] for event in seen["events"]]
            assert kinds[-1] == "run.completed"
            assert kinds.count("node.completed") == 2, "what was done is not done again"
        for file in (machine.root / "var/lib/antiphon").rglob("*"):
            assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
        process.send_signal(getattr(signal, machine.unit["KillSignal"]))
        code = process.wait(float(machine.unit["TimeoutStopSec"]))
        assert code == 0 or code == -getattr(signal, machine.unit["SuccessExitStatus"]), machine.log.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    written = {file.relative_to(machine.root).parts[0] for file in machine.root.rglob("*.db*")}
    assert written == {"var"}, "ProtectSystem=strict lets it write nowhere else"


# -- the container -----------------------------------------------------------------------------------------------------


class Stage:
    """One stage of a Containerfile."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.steps: list[tuple[str, str]] = []

    def all(self, name: str) -> list[str]:
        return [words for step, words in self.steps if step == name]


def stages() -> list[Stage]:
    text = re.sub(r"\\\n", " ", CONTAINERFILE.read_text())
    found: list[Stage] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, words = line.partition(" ")
        if name == "FROM":
            found.append(Stage(words))
        else:
            found[-1].steps.append((name, words.strip()))
    return found


class Container:
    """Runs the steps below a folder; packages come from the environment of the tests instead of an index."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cwd = root
        self.env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(root)}
        self.env["PYTHONPATH"] = sysconfig.get_path("purelib")
        self.user = "0"

    def place(self, text: str) -> str:
        return re.sub(r"(?<![\w/.])/(opt|src|var)\b", rf"{self.root}/\1", text)

    def step(self, name: str, words: str) -> None:
        if name == "WORKDIR":
            self.cwd = Path(self.place(words))
            self.cwd.mkdir(parents=True, exist_ok=True)
        elif name == "COPY" and not words.startswith("--from"):
            *sources, target = words.split()
            for source in sources:
                path, to = ROOT / source, self.cwd / target
                if path.is_dir():
                    shutil.copytree(path, to, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(path, to)
        elif name == "RUN":
            self.run(words)
        elif name == "USER":
            self.user = words
        elif name == "ENV":
            for one in shlex.split(words):
                variable, _, value = one.partition("=")
                self.env[variable] = self.place(value).replace("$PATH", self.env["PATH"])

    def run(self, words: str) -> None:
        if words.startswith("useradd"):
            options = shlex.split(words)
            Path(self.place(options[options.index("--home-dir") + 1])).mkdir(parents=True, exist_ok=True)
            return
        # One virtual environment and one installation of ours; the index is not asked.
        words = words.replace("python -m venv", "python -m venv --without-pip")
        assert "/bin/pip install" in words
        words = words.replace("/opt/antiphon/bin/pip install", "python -m pip --python /opt/antiphon install")
        words = words.replace("install --no-cache-dir", "install --no-deps --no-build-isolation -q")
        subprocess.run(["/bin/sh", "-ec", self.place(words)], cwd=self.cwd, env=self.env, check=True, timeout=120)


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    made = Container(tmp_path_factory.mktemp("container"))
    build, final = stages()
    for name, words in build.steps:
        made.step(name, words)
    shutil.rmtree(made.root / "src")  # the second stage does not have it
    for name, words in final.steps:
        made.step(name, words)
    return made


def test_the_steps_of_the_container_make_a_host_that_is_healthy(container: Container) -> None:
    _, final = stages()
    command: list[str] = json.loads(final.all("CMD")[-1])
    port = free_port()
    place = command.index("--port") + 1
    assert final.all("EXPOSE") == [command[place]]
    assert final.all("VOLUME") == ["/var/lib/antiphon"]
    command[place] = str(port)
    options, _, check = final.all("HEALTHCHECK")[-1].partition(" CMD ")
    assert "--interval" in options
    healthy: list[str] = json.loads(check.replace("8321", str(port)))

    program = shutil.which(command[0], path=container.env["PATH"])
    assert program is not None
    assert program.startswith(str(container.root)), "the installed one"
    log = container.root / "log"

    def started(**more: str) -> subprocess.Popen[bytes]:
        with log.open("wb") as out:
            return subprocess.Popen(
                [program, *command[1:]], cwd=container.cwd, env={**container.env, **more}, stdout=out, stderr=out
            )

    refused = started()
    assert refused.wait(60) != 0, "0.0.0.0 needs a key"
    assert "key" in log.read_text()
    assert subprocess.run(healthy, env=container.env, capture_output=True, check=False).returncode != 0
    process = started(ANTIPHON_API_KEY=KEY)
    try:
        wait_for(port, process, log)
        done = subprocess.run(healthy, env=container.env, capture_output=True, check=False, timeout=30)
        assert done.returncode == 0, done.stderr
        where = subprocess.run(
            [f"{container.root}/opt/antiphon/bin/python", "-c", "import antiphon; print(antiphon.__file__)"],
            env=container.env,
            capture_output=True,
            text=True,
            check=True,
        )
        assert where.stdout.startswith(str(container.root / "opt/antiphon"))
    finally:
        process.send_signal(getattr(signal, final.all("STOPSIGNAL")[-1]))
        assert process.wait(40) in (0, -signal.SIGTERM)
    assert list((container.root / "var/lib/antiphon/state").glob("*.db")), "its state is on the volume"


def test_the_container_does_not_run_as_root(container: Container) -> None:
    _, final = stages()
    assert container.user not in ("", "0", "root")
    (made,) = final.all("RUN")
    assert f"--uid {container.user}" in made
    names = [name for name, _ in final.steps]
    assert names.index("USER") < names.index("CMD")
    home: Any = shlex.split(made)
    assert home[home.index("--home-dir") + 1] == final.all("VOLUME")[0], "the volume is its own folder"


def test_the_page_names_both() -> None:
    page = PAGE.read_text()
    assert "deploy/antiphon.service" in page
    assert "deploy/Containerfile" in page


def test_the_page_says_what_workers_share() -> None:
    section = PAGE.read_text().partition("## Several workers")[2].partition("\n## ")[0]
    for shared in ("runs", "claims", "keys", "webhooks", "breakers"):
        assert shared in section.partition("Each has")[0], shared
    for own in ("counters", "limits", "deliveries", "mock model"):
        assert own in section.partition("Each has")[2], own
