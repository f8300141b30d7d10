"""A matrix on real workers: processes of this machine, and a Dask cluster with workers that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.errors import InvalidInput
from antiphon.ops.entry import load_entry
from antiphon.ops.executors import Dask, LocalProcesses, executor_of
from antiphon.ops.matrix import Status, resumed

AGENT = (Path(__file__).parents[3] / "bench" / "cases" / "matrix.py").read_text(encoding="utf-8")
"""The agent that is measured, too; its provider notes what it is paid for in the file ``paid``."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "side_effect").mkdir()
    (tmp_path / "side_effect" / "side_effects.yaml").write_text("tools: {}\ndone: true\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BENCH_PAID", str(tmp_path / "paid"))
    monkeypatch.setenv("BENCH_MODEL_SECONDS", "0")
    return tmp_path


def recorded(project: Path, count: int) -> list[str]:
    """Runs of the agent, recorded by another process, as runs are."""
    script = f"""
import antiphon
from antiphon.ops.entry import load_entry
main = load_entry("agent.py:main")
for number in range({count}):
    print(antiphon.record(main, number).id)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=project)
    (project / "paid").unlink()
    return done.stdout.split()


def paid(project: Path) -> list[str]:
    return (project / "paid").read_text().splitlines()


def plan_of(runs: list[str], **more: Any) -> Any:
    return antiphon.matrix(runs, ["new"], 1, baseline=True, llm="agent.py:ask", app=antiphon.Antiphon(), **more)


def test_processes_of_this_machine_survive_the_kill_of_one(project: Path) -> None:
    runs = recorded(project, 8)
    plan = plan_of(runs)
    executor = LocalProcesses(2)
    kills: list[int] = []

    def kill(status: Status) -> None:
        if status.done >= 3 and not kills:
            kills.append(executor.processes[0])
            os.kill(kills[-1], signal.SIGKILL)

    rows = plan.run(executor, progress=kill).to_dicts()
    assert len(kills) == 1
    assert sorted((row["variant"], row["run"]) for row in rows) == sorted(
        (lane, run) for lane in ("baseline", "new") for run in runs
    )
    assert {row["status"] for row in rows} == {"pass"}
    assert len(paid(project)) <= 8 * 2 * 2 + len(kills) * 2, "at most what was in flight in two processes"


PLACE = """
from antiphon.similarity import model_folder
def main(number):
    return str(model_folder())
"""


def test_a_worker_finds_models_where_the_driver_does(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although its state folder is given by a variable, and that of the driver is not."""
    (project / "antiphon.toml").write_text("")
    (project / "agent.py").write_text(PLACE)
    monkeypatch.delenv("ANTIPHON_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "cache"))
    monkeypatch.setenv("ANTIPHON_STORE", f"sqlite:///{project}/runs.db")
    app = antiphon.Antiphon()
    run = app.record(load_entry("agent.py:main"), 1)
    assert str(project / "cache") in run.output
    (row,) = antiphon.matrix([run.id], ["new"], 1, app=app).run(LocalProcesses(1)).to_dicts()
    assert row["score"] == 1.0, "the folder that it returned is the recorded one"


DRIVER = """
import antiphon, os, sys
from antiphon.ops.executors import LocalProcesses
def main():
    executor = LocalProcesses(2)
    def kill(status):
        print(*executor.processes, flush=True)
        os.kill(os.getpid(), 9)
    plan = antiphon.matrix(sys.argv[1:], ["new"], 1, baseline=True, llm="agent.py:ask")
    plan.run(executor, progress=kill)
if __name__ == "__main__":
    main()
"""


def test_workers_end_when_their_driver_is_killed(project: Path) -> None:
    (project / "drive.py").write_text(DRIVER)
    command = [sys.executable, "drive.py", *recorded(project, 4)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        workers = [int(word) for word in driver.stdout.readline().split()]
        try:
            driver.communicate(timeout=60)  # waits for all who can write to its standard error
        except subprocess.TimeoutExpired:
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            raise
    assert driver.returncode == -signal.SIGKILL
    assert len(workers) == 2


DEADLY = """
    if question.startswith("0 "):
        os._exit(9)
    time.sleep(1)  # still under way when the other one ends its worker
"""


def test_only_the_cell_that_ends_its_worker_is_blamed(project: Path) -> None:
    runs = recorded(project, 4)
    head, sleep, tail = AGENT.partition("    time.sleep(LATENCY_S)\n")
    (project / "agent.py").write_text(f"{head}{DEADLY}{sleep}{tail}")
    plan = antiphon.matrix(runs, ["new"], 1, llm="agent.py:ask", app=antiphon.Antiphon())
    rows = {row["run"]: row for row in plan.run(LocalProcesses(2)).to_dicts()}
    assert rows[runs[0]]["code"] == "worker_died"
    asked = paid(project).count("new 0 0")
    assert asked >= 3
    assert (rows[runs[0]]["calls"], rows[runs[0]]["withoutUsage"]) == (asked, asked), "each was under way"
    assert [rows[run]["status"] for run in runs[1:]] == ["pass"] * 3


@pytest.fixture
def cluster(project: Path, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A real cluster with two workers, on a store that is shared."""
    monkeypatch.setenv("ANTIPHON_STORE", valkey_url)
    import distributed

    make: Any = distributed.LocalCluster
    with make(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1") as found:
        yield found


def test_a_cluster_whose_worker_is_killed_loses_no_cell(project: Path, cluster: Any) -> None:
    runs = recorded(project, 8)
    plan = plan_of(runs)
    executor = Dask(cluster.scheduler_address)
    kills: list[int] = []

    def kill(status: Status) -> None:
        if status.done >= 3 and not kills:
            kills.append(next(iter(executor.client.run(os.getpid).values())))
            os.kill(kills[0], signal.SIGKILL)

    result = plan.run(executor, progress=kill)
    rows = result.to_dicts()
    assert len(kills) == 1
    assert sorted((row["variant"], row["run"]) for row in rows) == sorted(
        (lane, run) for lane in ("baseline", "new") for run in runs
    )
    assert {row["status"] for row in rows} == {"pass"}
    assert len(paid(project)) <= 8 * 2 * 2 + len(kills)
    assert [json.loads(line) for line in result.path.read_text().splitlines()] == rows

    other = resumed(plan.id, plan.app)
    other.document.code = {target: dict.fromkeys(files, "other") for target, files in other.document.code.items()}
    other.document.salt = "again"
    result.path.unlink()
    refused = other.run(Dask(cluster.scheduler_address)).to_dicts()
    assert {row.get("code") for row in refused} == {"other_code"}


def test_workers_elsewhere_refuse_a_file_of_this_machine(project: Path) -> None:
    plan = plan_of(recorded(project, 1))

    class Remote:
        remote = True

    with pytest.raises(InvalidInput, match="cannot share the store sqlite"):
        plan.run(Remote())
    assert not (project / "paid").exists()


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """``antiphon matrix`` with the runs of the project."""
    asked = ["matrix", "--select", "name=main", "--model", "new", "--llm", "agent.py:ask", *words]
    quick = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s"}
    return subprocess.run(
        [sys.executable, "-m", "antiphon.cli", *asked],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **quick},
    )


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:port"])
def test_a_scheduler_that_cannot_be_reached_is_no_verdict(
    project: Path, valkey_url: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_STORE", valkey_url)
    recorded(project, 1)
    done = command("--on", f"dask://{address}")
    assert done.returncode == 2
    *_, said, hint = done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    assert said.startswith(f"antiphon: The Dask scheduler tcp://{address} cannot be reached: ")
    assert hint == "          Start it, or name another place: --on dask://host:8786, local or here."
    as_json = command("--on", f"dask://{address}", "--json")
    assert as_json.returncode == 2
    assert json.loads(as_json.stdout.splitlines()[-1])["error"] == "validation_error"


def test_a_matrix_waits_for_the_workers_of_a_cluster(project: Path, cluster: Any) -> None:
    plan = plan_of(recorded(project, 1))
    cluster.scale(0)
    executor = Dask(cluster.scheduler_address)
    while executor.capacity():
        time.sleep(0.1)
    threading.Timer(1.0, cluster.scale, [1]).start()
    assert {row["status"] for row in plan.run(executor).to_dicts()} == {"pass"}


def test_a_scheduler_that_ends_is_no_verdict(project: Path, cluster: Any) -> None:
    plan = plan_of(recorded(project, 8))

    def end(status: Status) -> None:
        if status.done == 3:
            cluster.close()

    with pytest.raises(InvalidInput, match="its workers can no longer be used") as refused:
        plan.run(Dask(cluster.scheduler_address), progress=end)
    assert refused.value.hint == f"Resume with: antiphon matrix --resume {plan.id}"
    assert len(resumed(plan.id, plan.app).run(LocalProcesses(2)).to_dicts()) == 16


def test_changed_code_is_never_mixed_into_a_table(project: Path) -> None:
    plan = plan_of(recorded(project, 1))
    plan.run(LocalProcesses(1))
    script = f"from antiphon.ops.matrix import resumed; resumed({plan.id!r})"
    again = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    (project / "agent.py").write_text(AGENT.replace("answer {question}", "reply {question}"))
    changed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "has changed since the matrix" in changed.stderr


def test_an_executor_is_named(project: Path) -> None:
    with pytest.raises(InvalidInput, match="no executor"):
        executor_of("cloud", antiphon.Antiphon())
