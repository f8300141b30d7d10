"""Runs of teammates, read from the bucket: by id, unique prefix or address, on a machine that never saw them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon import Antiphon
from antiphon.cli import main
from antiphon.config.wiring import objects_of
from antiphon.errors import InvalidInput, NotFound
from antiphon.ops import bucket, storage
from antiphon.ops.artifacts import open_run
from antiphon.ops.entry import load_entry
from antiphon.ops.runs import find_run
from antiphon.stores import MemoryStore
from tests.conftest import S3Access
from tests.integration.recording.kit import QUIET, application, small_run
from tests.integration.recording.test_storage import settings

AGENT = """\
import antiphon

@antiphon.agent
def main(word="hello"):
    return f"said {word}"
"""


@pytest.fixture
def signed_in(home: Path, monkeypatch: pytest.MonkeyPatch, s3_access: S3Access) -> S3Access:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_access.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_access.secret)
    return s3_access


def _config(access: S3Access, folder: Path) -> str:
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in settings(access)["artifacts"].items())
    path = folder / "antiphon.toml"
    path.write_text(f'[artifacts]\nprefix = "team"\n{lines}\n')
    return str(path)


def test_a_second_machine_reads_runs_by_id_prefix_and_address(
    signed_in: S3Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shared_agent.py").write_text(AGENT)

    def machine(name: str) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "shared_agent.py").write_text(AGENT)
        monkeypatch.setenv("ANTIPHON_HOME", str(folder / "home"))
        monkeypatch.chdir(folder)
        return _config(signed_in, folder)

    def said(*words: str) -> str:
        code = main(list(words))
        out = capsys.readouterr()
        assert code == 0, out
        return out.out

    config = machine("first")
    run = json.loads(said("run", "shared_agent.py:main", "--config", config, "--json"))["run"]
    run = run if isinstance(run, str) else run["id"]
    address = json.loads(said("export", run, "--upload", "--config", config, "--json"))["place"]
    assert address.startswith(f"s3://{signed_in.bucket}/team/")
    config = machine("second")
    with pytest.raises(NotFound):
        find_run(application(), run)
    listed = json.loads(said("runs", "--bucket", "--config", config, "--json"))
    assert [(row["id"], row["address"]) for row in listed["runs"]] == [(run, address)]
    assert run in said("runs", address.rpartition("/")[0], "--config", config)
    assert json.loads(said("show", address, "--config", config, "--json"))["id"] == run
    assert "pass" in said("test", address, "--config", config)
    assert "pass" in said("test", address.rpartition("/")[0] + "/", "--config", config)
    assert "pass" in said("test", run, "--config", config)
    assert "Verdict: pass" in said("replay", run[:24], "--strict", "--config", config)
    config = machine("third")
    assert json.loads(said("show", run, "--config", config, "--json"))["id"] == run
    config = machine("fourth")
    imported = json.loads(said("import", address, "--config", config, "--json"))["imported"]
    assert imported[0]["run"] == run
    config = machine("fifth")
    assert "Verdict: pass" in said("replay", address, "--strict", "--config", config)


def test_what_is_not_there_and_what_is_not_ours_is_said(signed_in: S3Access) -> None:
    app = application(settings(signed_in), tenant="acme")
    run = small_run(app, "mine")
    place = storage.keep(app, find_run(app, run.id)).place
    other = application(settings(signed_in), tenant="rival")
    for wanted, why in (
        ("s3://elsewhere/acme/x.antiphon", "is not in the configured bucket"),
        (place, "another tenant"),
    ):
        with pytest.raises(InvalidInput, match=why):
            open_run(other, wanted)
    with pytest.raises(NotFound, match="There is no run"):
        open_run(other, run.id)
    assert list(bucket.stored_runs(other)) == []
    with pytest.raises(NotFound, match="There is no s3://"):
        open_run(app, place.replace(run.id, "0123"))
    with pytest.raises(InvalidInput, match="no bucket is configured"):
        open_run(application(), place)


def test_a_prefix_of_several_runs_is_ambiguous(signed_in: S3Access) -> None:
    app = application(settings(signed_in))
    kept = [small_run(app, "many").id for _ in range(2)]
    for run in kept:
        storage.keep(app, find_run(app, run))
    fresh = Antiphon({**QUIET, **settings(signed_in)}, store=MemoryStore())
    with pytest.raises(NotFound, match="several runs in the bucket"):
        open_run(fresh, kept[0][:6])
    assert open_run(fresh, kept[1]).id == kept[1]


def test_artifacts_of_one_name_in_two_folders_are_both_tested(
    signed_in: S3Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "named_agent.py").write_text(AGENT)
    config = _config(signed_in, tmp_path)
    app = Antiphon(config)
    run = app.record(load_entry("named_agent.py:main"))
    address = storage.keep(app, find_run(app, run.id)).place
    objects = objects_of(app.config.artifacts)
    name = address.removeprefix(bucket.address_of(app))
    tenant, title, rest = name.split("/", 2)
    objects.put(f"{tenant}/copied/{rest}", objects.get(name))
    places = [bucket.address_of(app, f"{tenant}/{folder}/") for folder in (title, "copied")]
    assert main(["test", *places, "--json", "--config", config]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 2
