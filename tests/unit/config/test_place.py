"""One store per project, whatever folder a program is started from."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from antiphon.config import place
from antiphon.config.load import load
from antiphon.config.wiring import ensure_home, open_store, store_of
from antiphon.errors import ConfigError
from antiphon.similarity import model_folder

Start = Callable[[str], None]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with a repository in it; no ``ANTIPHON_HOME``."""
    monkeypatch.delenv("ANTIPHON_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for folder in ("home/projects/shop/app/jobs", "home/projects/shop/other", "home/loose/deep", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "home/projects/shop/.git").mkdir()
    return tmp_path.resolve()


@pytest.fixture
def start(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Be a program whose main script lies in a folder of the tree, or one without a script."""

    def be(folder: str) -> None:
        module = ModuleType("__main__")
        if folder:
            script = tree / folder / "main.py"
            script.touch()
            module.__file__ = str(script)
        monkeypatch.setitem(sys.modules, "__main__", module)
        monkeypatch.setattr(sys, "argv", [""])

    return be


def home() -> Path:
    return place.state_place().folder


def test_a_script_has_one_place_wherever_it_is_started(
    tree: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("home/projects/shop/app/jobs")
    found = set()
    for folder in ("home/projects/shop", "home/projects/shop/other", "elsewhere", "home", "/"):
        monkeypatch.chdir(tree / folder)
        found.add(home())
    assert found == {tree / "home/projects/shop/.antiphon"}


def test_the_nearest_configuration_comes_before_the_repository_and_that_before_a_package(
    tree: Path, start: Start
) -> None:
    repo = tree / "home/projects/shop"
    start("home/projects/shop/app/jobs")
    (repo / "app/pyproject.toml").touch()
    assert home() == repo / ".antiphon"
    (repo / "app/antiphon.toml").touch()
    assert home() == repo / "app/.antiphon"
    (repo / ".git").rmdir()
    (repo / "app/antiphon.toml").unlink()
    assert home() == repo / "app/.antiphon"
    (repo / "app/pyproject.toml").unlink()
    assert home() == repo / "app/jobs/.antiphon"


def test_a_module_of_a_package_belongs_to_the_folder_that_holds_the_package(
    tree: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree / "home/loose")
    start("home/loose/deep")
    assert home() == tree / "home/loose/deep/.antiphon"
    (tree / "home/loose/deep/__init__.py").touch()
    assert home() == tree / "home/loose/.antiphon"
    (tree / "home/loose/deep/.antiphon").mkdir()
    (tree / "home/loose/deep/.antiphon/antiphon.db").touch()
    assert home() == tree / "home/loose/deep/.antiphon", "what was kept there stays in use"


def test_the_root_of_a_repository_is_no_folder_for_state(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_HOME", str(tree / "home/projects/shop"))
    with pytest.raises(ConfigError, match="root of a repository"):
        ensure_home()
    assert not (tree / "home/projects/shop/.gitignore").exists()


def test_without_a_script_the_working_folder_counts(tree: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start("")
    monkeypatch.chdir(tree / "home/projects/shop/other")
    assert home() == tree / "home/projects/shop/.antiphon"


def test_an_installed_program_works_for_the_project_it_is_started_in(
    tree: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("home/loose")
    monkeypatch.setattr(place, "_installed", lambda: {tree / "home/loose"})
    monkeypatch.chdir(tree / "home/projects/shop")
    assert home() == tree / "home/projects/shop/.antiphon"


def test_the_home_folder_and_the_root_are_never_a_project(
    tree: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("antiphon.toml", "pyproject.toml"):
        (tree / "home" / name).touch()
    start("home/loose/deep")
    assert home() == tree / "home/loose/deep/.antiphon"
    for folder in (tree / "home", Path("/")):
        start("")
        monkeypatch.chdir(folder)
        with pytest.raises(ConfigError, match="ANTIPHON_HOME"):
            home()
    monkeypatch.setenv("ANTIPHON_HOME", str(tree / "state"))
    assert home() == tree / "state"


def test_a_folder_of_0_1_0_further_down_is_used_and_told(
    tree: Path, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old = tree / "home/projects/shop/app/jobs/.antiphon"
    old.mkdir()
    (old / "antiphon.db").touch()
    start("home/projects/shop/app/jobs")
    monkeypatch.chdir(tree / "elsewhere")
    assert ensure_home() == old
    assert "earlier release" in caplog.text
    assert str(tree / "home/projects/shop") in caplog.text
    start("home/projects/shop")  # 0.1.0 put it into the working folder
    monkeypatch.chdir(tree / "home/projects/shop/app/jobs")
    assert home() == old


def test_the_first_use_says_where_and_later_ones_say_nothing(
    tree: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    start("home/projects/shop")
    folder = ensure_home()
    assert caplog.messages == [f"claims and runs are kept in {folder} (ANTIPHON_HOME sets another folder)"]
    assert (folder / ".gitignore").read_text() == "*\n"
    ensure_home()
    assert len(caplog.messages) == 1


def test_a_folder_that_cannot_be_written_is_an_error_that_names_the_variable(
    tree: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("home/projects/shop")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="ANTIPHON_HOME"):
        ensure_home()


def test_a_place_that_is_a_file_is_an_error_that_names_the_variable(tree: Path, start: Start) -> None:
    start("home/projects/shop")
    (tree / "home/projects/shop/.antiphon").touch()
    with pytest.raises(ConfigError, match="ANTIPHON_HOME"):
        ensure_home()


def test_the_configuration_of_the_project_is_found_and_names_files_from_its_own_folder(
    tree: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = tree / "home/projects/shop"
    (repo / "antiphon.toml").write_text('[store]\nurl = "sqlite:///claims.db"\n')
    start("home/projects/shop/app")
    urls = set()
    for folder in ("home/projects/shop", "home/projects/shop/app", "elsewhere"):
        monkeypatch.chdir(tree / folder)
        urls.add(store_of(load(None, {}).config).url)
    assert len(urls) == 1
    assert str(repo / "claims.db") in urls.pop()


def test_a_tilde_in_a_path_is_the_home_folder(tree: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start("")
    monkeypatch.chdir(tree / "elsewhere")
    monkeypatch.setenv("ANTIPHON_HOME", "~/state")
    assert home() == tree / "home/state"
    assert model_folder() == tree / "home/state/models/minilm-l6-v2"
    assert model_folder({"ANTIPHON_MODELS": "~/models"}) == tree / "home/models/minilm-l6-v2"
    file = tree / "home/antiphon.toml"
    file.write_text("""
        [store]
        url = "sqlite:///~/claims.db"
        log = "sqlite:///~runs.db"
        seal_key_file = "~/seal-key"
        [artifacts]
        folder = "~/exports"
        [host]
        agents = ["~/agents.py:main", "package.module:main"]
    """)
    monkeypatch.setenv("ANTIPHON_CONFIG", "~/antiphon.toml")
    monkeypatch.setenv("ANTIPHON_WORKFLOWS", "~/workflows")
    config = load().config
    assert config.store.log == f"sqlite:///{tree}/home/~runs.db"  # no user has that name
    assert config.store.url is not None
    assert open_store(config.store.url).url == f"sqlite:///{tree}/home/claims.db"
    assert open_store("sqlite:///~/claims.db").url == f"sqlite:///{tree}/home/claims.db"
    assert config.store.seal_key_file == f"{tree}/home/seal-key"
    assert config.artifacts.folder == f"{tree}/home/exports"
    assert config.host.workflows == f"{tree}/home/workflows"
    assert config.host.agents == (f"{tree}/home/agents.py:main", "package.module:main")


PROGRAM = """
import multiprocessing, os, sys
from antiphon import Gateway
gateway = Gateway()
if __name__ == "__main__":
    os.chdir("/")
    multiprocessing.set_start_method("spawn")
    child = multiprocessing.Process(target=print, args=())
    child.start(); child.join()
else:
    print(gateway._plans.store.url, flush=True)
if __name__ == "__main__":
    print(gateway._plans.store.url, flush=True)
"""


def test_a_spawned_worker_uses_the_store_of_its_parent(tree: Path) -> None:
    script = tree / "home/loose/deep/main.py"
    script.write_text(PROGRAM)
    env = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=env, cwd=tree / "elsewhere", check=True
    )
    urls = done.stdout.split()
    assert len(urls) == 2
    assert set(urls) == {f"sqlite:///{tree / 'home/loose/deep/.antiphon/antiphon.db'}"}


def test_another_planted_place_would_be_noticed(tree: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule of 0.1.0: the working folder decides."""
    monkeypatch.setattr(place, "_main_script", lambda: None)
    with pytest.raises((AssertionError, ConfigError)):
        test_a_script_has_one_place_wherever_it_is_started(tree, start, monkeypatch)
