"""``antiphon exec``: a program that knows nothing of us is recorded, and replayed behind a fence (D34)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.integration.adapters.world import World

_AGENT = """
import asyncio, os, sys
import openai

early = openai.OpenAI(api_key="none", base_url=os.environ["URL"] + "/v1", max_retries=0)

def ask(words):
    said = early.chat.completions.create(model="m", messages=[{"role": "user", "content": words}])
    return said.choices[0].message.content

async def main():
    client = openai.AsyncOpenAI(api_key="none", base_url=os.environ["URL"] + "/v1", max_retries=0)
    stream = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "stream"}], stream=True
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

print(ask(sys.argv[1]))
print(asyncio.run(main()))
sys.exit(int(sys.argv[2]))
"""

_PLAIN = """
import os, sys, httpx

client = httpx.Client(base_url=os.environ["URL"])

def ask(words):
    body = {"model": "m", "messages": [{"role": "user", "content": words}]}
    said = client.post("/v1/chat/completions", json=body).raise_for_status()
    return said.json()["choices"][0]["message"]["content"]

print(ask(sys.argv[1]))
"""
"""Without an SDK, whose import takes a second."""


class Program:
    """The program in a folder of its own."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder = folder
        self.world = world
        (folder / "agent.py").write_text(_AGENT)

    def run(self, *words: str, code: str = _AGENT, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        (self.folder / "agent.py").write_text(code)
        before, after = (list(words[: words.index("--")]), list(words[words.index("--") + 1 :]))
        command = [str(Path(sys.executable).parent / "antiphon"), "exec", *before, "--"]
        command += [sys.executable, *python, "agent.py", *after]
        env = {**os.environ, "URL": self.world.provider.url, "ANTIPHON_HOME": str(self.folder / ".antiphon")}
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=240)


@pytest.fixture
def program(tmp_path: Path, world: World) -> Program:
    return Program(tmp_path, world)


def test_recorded_without_a_change_and_replayed_without_a_provider(program: Program) -> None:
    provider = program.world.provider
    first = program.run("--", "hi", "7")
    assert first.returncode == 7, first.stderr
    assert first.stdout == "hello there, friend\nhello there, friend\n"
    assert "2 model calls" in first.stderr
    assert "exec does not record plain functions" in first.stderr
    assert provider.requests == 2
    provider.switch_off()
    again = program.run("--replay", "latest", "--", "hi", "7")
    assert again.returncode == 7, again.stderr
    assert again.stdout == first.stdout
    assert "2 calls answered from the recording · no divergence" in again.stderr
    assert provider.requests == 2


def test_a_divergence_is_exit_code_1(program: Program) -> None:
    assert program.run("--", "hi", code=_PLAIN).returncode == 0
    changed = program.run("--replay", "latest", "--", "something else", code=_PLAIN)
    assert changed.returncode == 1
    assert "the recording has no answer for this model request" in changed.stderr
    assert "1 divergence ·" in changed.stderr
    assert "'hi' -> 'something else'" in changed.stderr
    secret = program.run("--replay", "latest", "--", "mail ada.lovelace@example.org", code=_PLAIN)
    assert "-> 'mail [email:" in secret.stderr
    assert "lovelace" not in secret.stderr + secret.stdout


def test_a_replay_that_ends_otherwise_differs(program: Program) -> None:
    leaves = _PLAIN + "sys.exit(int(sys.argv[2]))\n"
    assert program.run("--", "hi", "7", code=leaves).returncode == 7
    changed = program.run("--replay", "latest", "--", "hi", "0", code=leaves)
    assert changed.returncode == 1
    assert "ended with exit code 0; when it was recorded, with 7" in changed.stderr


def test_a_replay_cannot_reach_the_world(program: Program) -> None:
    assert program.run("--", "hi", code=_PLAIN).returncode == 0
    escape = _PLAIN.replace(
        "print(ask",
        "import threading, urllib.request\n"
        "def out():\n"
        "    try:\n"
        "        urllib.request.urlopen(os.environ['URL'])\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__)\n"
        "worker = threading.Thread(target=out); worker.start(); worker.join()\n"
        "print(ask",
    )
    found = program.run("--replay", "latest", "--", "hi", code=escape)
    assert "ReplayBlocked" in found.stdout
    assert "the sandbox refused" in found.stderr
    assert program.world.provider.requests == 1


_AT_THE_END = (
    _PLAIN
    + """
import logging, threading

go, done = threading.Event(), threading.Event()

def work():
    go.wait()
    try:
        for words in sys.argv[2:]:
            print(ask(words), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
    done.set()

class Last(logging.Handler):  # closed after all exit handlers of the program, and after the replay
    def close(self):
        go.set()
        done.wait(10)
        super().close()

logging.getLogger().addHandler(Last())
threading.Thread(target=work, daemon=True).start()
"""
)


def test_calls_after_the_end_are_part_of_the_verdict(program: Program) -> None:
    assert program.run("--", "hi", "bye", code=_AT_THE_END).stdout.count("hello there, friend") == 2
    same = program.run("--replay", "latest", "--", "hi", "bye", code=_AT_THE_END)
    assert same.returncode == 0, same.stderr
    assert "2 calls answered from the recording · no divergence" in same.stderr
    more = program.run("--replay", "latest", "--", "hi", "bye", "more", code=_AT_THE_END)
    assert more.stdout.endswith("ReplayMiss\n")
    assert more.returncode == 1
    assert "after the end of the replay, work that it had started tried: the recording has no answer" in more.stderr
    assert "1 divergence ·" in more.stderr
    less = program.run("--replay", "latest", "--", "hi", code=_AT_THE_END)
    assert less.returncode == 1
    assert "call.started llm did not happen" in less.stderr
    assert "1 divergence ·" in less.stderr
    assert program.world.provider.requests == 2


def test_a_coroutine_that_is_no_longer_awaited_is_a_divergence(program: Program) -> None:
    code = _PLAIN + "import asyncio\nasync def note(): pass\nasync def main(): await note()\nasyncio.run(main())\n"
    awaits, drops = code, code.replace("await note()", "note()")
    assert program.run("--", "hi", code=awaits).returncode == 0
    assert program.run("--replay", "latest", "--", "hi", code=awaits).returncode == 0
    changed = program.run("--replay", "latest", "--", "hi", code=drops)
    assert changed.returncode == 1
    assert "the coroutine note is never awaited now" in changed.stderr
    assert program.run("--", "hi", code=drops).returncode == 0
    assert program.run("--replay", "latest", "--", "hi", code=drops).returncode == 0


def test_a_failing_program_is_a_failed_run(program: Program) -> None:
    found = program.run("--", "hi", code=f"{_PLAIN}int('x')\n")
    assert found.returncode == 1
    assert "ValueError" in found.stderr
    assert " failed " in found.stderr


def _listed(program: Program, *words: str) -> str:
    command = [str(Path(sys.executable).parent / "antiphon"), *words]
    env = {**os.environ, "ANTIPHON_HOME": str(program.folder / ".antiphon")}
    return subprocess.run(command, cwd=program.folder, env=env, capture_output=True, text=True, timeout=240).stdout


@pytest.mark.parametrize("end", ["sys.exit(7)", "raise SystemExit(7)", "os._exit(7)"])
def test_a_program_that_leaves_with_an_exit_code_is_a_failed_run(program: Program, end: str) -> None:
    code = f"import os, sys\nprint('bye', flush=True)\n{end}\n"
    found = program.run("--", code=code)
    assert (found.returncode, found.stdout) == (7, "bye\n")
    run = json.loads(_listed(program, "runs", "--json"))["runs"][0]
    assert (run["status"], run["exitCode"]) == ("failed", 7)
    assert "failed, exit 7" in _listed(program, "runs")
    assert "The program ended with exit code 7." in _listed(program, "show")
    if end != "os._exit(7)":
        assert "failed with exit code 7" in found.stderr
        again = program.run("--replay", "latest", "--", code=code)
        assert (again.returncode, again.stdout) == (7, "bye\n")


def test_a_program_that_says_it_is_well_has_completed(program: Program) -> None:
    assert program.run("--", code="import sys\nsys.exit(0)\n").returncode == 0
    run = json.loads(_listed(program, "runs", "--json"))["runs"][0]
    assert (run["status"], "exitCode" in run) == ("completed", False)


def test_the_exit_code_of_an_exception_is_kept_beside_it(program: Program) -> None:
    found = program.run("--", code="raise ValueError('no such order')\n")
    assert found.returncode == 1
    run = json.loads(_listed(program, "runs", "--json"))["runs"][0]
    assert (run["status"], run["exitCode"]) == ("failed", 1)
    assert "builtins.ValueError: no such order" in _listed(program, "show")


@pytest.mark.parametrize(("end", "code"), [("os.kill(os.getpid(), 9)", 137), ("os._exit(0)", 0)])
def test_a_program_that_is_cut_off_says_which_run_it_left(program: Program, end: str, code: int) -> None:
    found = program.run("--", "hi", code=f"{_PLAIN}{end}\n")
    assert found.returncode == code
    run = re.search(r"run (\S+) ended abruptly\. .* antiphon show \1", found.stderr)
    assert run is not None, found.stderr
    again = program.run("--replay", run[1], "--", "hi", code=f"{_PLAIN}{end}\n")
    assert again.returncode == (code or 1), "what was not compared has not passed"
    assert f"the replay of {run[1]} ended abruptly" in again.stderr


_THREADS = """
import json, os, threading, time, httpx

client = httpx.Client(base_url=os.environ["URL"])
said = {}

def ask(n):
    time.sleep(n * float(os.environ["STEP"]) + 0.5)
    body = {"model": "m", "messages": [{"role": "user", "content": f"question {n}"}]}
    said[n] = client.post("/v1/chat/completions", json=body).json()["id"]

threads = [threading.Thread(target=ask, args=(n,)) for n in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(sorted(said)))
"""


def test_threads_that_come_in_another_order_are_no_divergence(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEP", "0.2")
    found = program.run("--", code=_THREADS)
    assert found.returncode == 0, found.stderr
    monkeypatch.setenv("STEP", "-0.2")
    found = program.run("--replay", "latest", "--", code=_THREADS)
    assert (found.returncode, found.stdout) == (0, "[0, 1, 2]\n"), found.stderr


def test_an_unknown_run_and_a_missing_program_are_one_line(program: Program) -> None:
    assert program.run("--replay", "nothing-like-this", "--", "hi", "0").returncode == 4
    missing = subprocess.run(
        [str(Path(sys.executable).parent / "antiphon"), "exec", "--", "no-such-program"],
        capture_output=True,
        text=True,
        cwd=program.folder,
        timeout=240,
    )
    assert missing.returncode == 2
    assert "no program 'no-such-program'" in missing.stderr


def test_a_python_that_does_not_load_the_hook_is_told(program: Program) -> None:
    found = program.run("--", "hi", "0", python=("-I",), code="print('hi')")
    assert "nothing was recorded" in found.stderr


def test_a_replay_that_cannot_begin_does_not_run_the_program(program: Program, tmp_path: Path) -> None:
    """Under a Python without antiphon, nothing would answer its calls or confine it."""
    assert program.run("--", "hi", code=_PLAIN).returncode == 0
    venv.create(tmp_path / "bare", symlinks=True)
    command = [str(Path(sys.executable).parent / "antiphon"), "exec", "--replay", "latest", "--"]
    command += [str(tmp_path / "bare" / "bin" / "python"), "-c", "open('sent', 'w').close()"]
    env = {**os.environ, "ANTIPHON_HOME": str(tmp_path / ".antiphon")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert not (tmp_path / "sent").exists()
    assert done.returncode == 2
    assert "The replay cannot begin: ModuleNotFoundError: No module named 'antiphon'" in done.stderr
    assert f"{tmp_path}/bare/bin/python" in done.stderr


def test_another_sitecustomize_still_runs(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "theirs"
    place.mkdir()
    (place / "sitecustomize.py").write_text("print('theirs')")
    monkeypatch.setenv("PYTHONPATH", str(place))
    assert program.run("--", "hi", code=_PLAIN).stdout.startswith("theirs\n")


def test_a_program_finds_models_where_the_command_does(tmp_path: Path) -> None:
    """Although its state folder is given by a variable, and that of the command is not."""
    (tmp_path / "antiphon.toml").write_text("")
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env.pop("ANTIPHON_HOME", None)
    print_folder = "from antiphon.similarity import model_folder; print(model_folder())"
    command = [str(Path(sys.executable).parent / "antiphon"), "exec", "--", sys.executable, "-c", print_folder]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == str(tmp_path / "cache" / "antiphon" / "models" / "minilm-l6-v2")
