"""K7: artifacts and large payloads in a local folder or any S3-compatible bucket; nothing is lost while it is away."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import orjson
import pytest

import antiphon
from antiphon import Antiphon
from antiphon.blobs.local import PART_BYTES
from antiphon.blobs.s3 import Bucket, S3Objects
from antiphon.cli import main
from antiphon.config.model import ArtifactsSection
from antiphon.config.wiring import bucket_of
from antiphon.contract.events import RunManifest
from antiphon.errors import ConfigError, StoreError, StoreUnavailable
from antiphon.ops import bucket, storage
from antiphon.ops.artifacts import import_artifact
from antiphon.ops.doctor import examine
from antiphon.ops.runs import delete_old_runs, find_run, list_runs, one_event
from tests.conftest import S3Access
from tests.faultproxy import FaultProxy
from tests.integration.recording.kit import QUIET, application, small_run, stored
from tests.ticks import Ticks

T = TypeVar("T")


def settings(access: S3Access, **more: Any) -> dict[str, Any]:
    return {
        "artifacts": {
            "backend": "s3",
            "bucket": access.bucket,
            "endpoint_url": access.endpoint,
            "region": access.region,
            "timeout_s": 5.0,
            **more,
        }
    }


def remote(access: S3Access) -> S3Objects:
    return S3Objects(Bucket(access.bucket, access.endpoint, access.region, access.key, access.secret), timeout=5.0)


@pytest.fixture
def signed_in(home: Path, monkeypatch: pytest.MonkeyPatch, s3_access: S3Access) -> S3Access:
    """The standard names in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_access.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_access.secret)
    return s3_access


@pytest.fixture
def cut(signed_in: S3Access, fault_proxy: Callable[[int], FaultProxy]) -> tuple[FaultProxy, S3Access]:
    """The bucket behind a network that fails on order."""
    port = urlsplit(signed_in.endpoint).port
    assert port is not None
    proxy = fault_proxy(port)
    return proxy, signed_in._replace(endpoint=f"http://127.0.0.1:{proxy.port}")


def manifest(app: Antiphon, run: Any) -> RunManifest:
    return find_run(app, run.id)


def test_local_is_the_default(home: Path) -> None:
    app = application()
    run = small_run(app)
    kept = storage.keep(app, manifest(app, run))
    assert kept == (f"artifacts/{run.id}.antiphon", Path(kept.place).stat().st_size, 0, "")
    replay = msgspec.structs.replace(manifest(app, run), source_run="other")
    assert storage.local_path(app, replay, "kurral") == Path(f"replay_runs/{run.id}.kurral")


def test_a_bucket_keeps_artifacts_under_tenant_name_and_month(signed_in: S3Access) -> None:
    app = application(settings(signed_in, prefix="team/a"), tenant="acme")
    run = small_run(app)
    kept = storage.keep(app, manifest(app, run))
    month = time.strftime("%Y/%m", time.gmtime(manifest(app, run).started_at_ms / 1000))
    name = f"team/a/acme/small/artifacts/{month}/{run.id}.antiphon"
    assert kept == (f"s3://{signed_in.bucket}/{name}", kept.bytes, 0, "")
    document = remote(signed_in).get(name)
    assert orjson.loads(document)["run_id"] == run.id
    Path("back.antiphon").write_bytes(document)
    other = application(store=antiphon.stores.MemoryStore(), tenant="acme")
    assert len(stored(other, import_artifact(other, Path("back.antiphon")).id)) == len(run.events())


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", ".hidden", "ü ñ", "x" * 300, "..", ""])
def test_no_name_leaves_its_place(name: str) -> None:
    made = RunManifest(id=name or "x", name=name, status="completed", started_at_ms=0, tenant="t")
    parts = storage.object_name(made, "antiphon").split("/")
    assert len(parts) == 6
    assert not any(part in ("", ".", "..") or part.startswith(".") for part in parts)
    assert all(len(part) <= 130 for part in parts)


@pytest.mark.parametrize("tenant", ["ü" * 100, ".acme", "a/b"])
def test_a_tenant_of_any_name_reads_its_own_artifacts(signed_in: S3Access, tenant: str) -> None:
    app = application(settings(signed_in), tenant=tenant)
    run = small_run(app)
    kept = storage.keep(app, manifest(app, run))
    assert [found.run for found in bucket.stored_runs(app)] == [run.id]
    with bucket.fetched(app, kept.place) as path:
        assert orjson.loads(path.read_bytes())["run_id"] == run.id


def test_two_long_names_stay_two() -> None:
    made = [RunManifest(id="x" * 200 + end, name="n", status="completed", started_at_ms=0) for end in ("a", "b")]
    assert len({storage.object_name(one, "antiphon") for one in made}) == 2


def test_while_the_bucket_is_away_artifacts_wait_and_are_reported(
    cut: tuple[FaultProxy, S3Access], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy, access = cut
    app = application(settings(access, timeout_s=2.0))
    runs = [small_run(app, f"agent{n}") for n in range(3)]
    proxy.refuse()
    kept = [storage.keep(app, manifest(app, run)) for run in runs]
    assert [one.waiting for one in kept] == [1, 2, 3]
    assert "cannot be reached" in kept[-1].trouble
    lying = list((home / "outbox").rglob("*.antiphon"))
    assert len(lying) == 3
    old = time.time() - 3 * 3600
    os.utime(lying[0], (old, old))
    told, refused = [one for one in examine(app) if one["check"] == "uploads"]
    assert (told["level"], refused["level"]) == ("warning", "error")
    assert "cannot be reached" in refused["message"]
    assert re.fullmatch(r"3 artifacts wait for the bucket \(\d+ bytes\), the oldest for 3 h", told["message"])
    assert "antiphon export --waiting" in told["hint"]
    assert "No bucket is configured here" in next(
        one["hint"] for one in examine(application({})) if one["check"] == "uploads"
    )
    proxy.heal()
    assert storage.send_waiting(app).waiting == 0
    names = list(remote(access._replace(endpoint=access.endpoint)).names())
    assert sorted(Path(name).stem for name in names) == sorted(run.id for run in runs)
    assert not list((home / "outbox").rglob("*.antiphon"))
    assert [one["level"] for one in examine(app) if one["check"] == "uploads"] == ["ok"]
    assert not [one for one in examine(application({})) if one["check"] == "uploads"]


def test_the_next_upload_takes_up_what_an_earlier_process_left(cut: tuple[FaultProxy, S3Access]) -> None:
    proxy, access = cut
    proxy.refuse()
    app = application(settings(access, timeout_s=2.0))
    first = small_run(app, "first")
    assert storage.keep(app, manifest(app, first)).waiting == 1
    storage.outbox_of(app).close()
    proxy.heal()
    later = application(settings(access, timeout_s=5.0))
    second = small_run(later, "second")
    assert storage.keep(later, manifest(later, second)).waiting == 0
    assert {Path(name).stem for name in remote(access).names()} == {first.id, second.id}


def test_a_large_upload_that_breaks_off_goes_on(cut: tuple[FaultProxy, S3Access]) -> None:
    proxy, access = cut
    app = application(settings(access, timeout_s=5.0))
    with app.run("large") as run:
        for part in range(12):
            run.prompt(f"p{part}", f"{part} " + "lorem ipsum " * (PART_BYTES // 60))
    proxy.truncate(3 * PART_BYTES // 2, "up")
    assert storage.keep(app, manifest(app, run)).waiting == 1
    storage.outbox_of(app).close()
    proxy.heal()
    assert storage.send_waiting(application(settings(access, timeout_s=20.0))).waiting == 0
    (name,) = remote(access).names()
    document = orjson.loads(remote(access).get(name))
    assert len(document["events"]) == len(run.events()) == 14


def test_wrong_credentials_are_named_and_nothing_is_lost(
    signed_in: S3Access, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    app = application(settings(signed_in))
    kept = storage.keep(app, manifest(app, small_run(app)))
    assert (kept.waiting, "refuses these credentials" in kept.trouble) == (1, True)
    assert "wrong" not in kept.trouble
    assert [(one["level"], one["message"]) for one in examine(app) if one["check"] == "uploads"] == [
        ("warning", f"1 artifact waits for the bucket ({kept.bytes} bytes), the oldest for 0 min"),
        ("error", kept.trouble),
    ]


# -- ways to say it -------------------------------------------------------------------------------------------------


def uploaded(app: Antiphon, access: S3Access) -> None:
    run = small_run(app)
    assert storage.keep(app, manifest(app, run)).waiting == 0
    assert [Path(name).stem for name in remote(access).names()] == [run.id]


def test_by_the_keywords_of_the_document(home: Path, s3_access: S3Access, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("R2_ACCESS_KEY_ID", "R2_SECRET_ACCESS_KEY", "R2_ACCOUNT_ID"):
        monkeypatch.setenv(name, "")  # restored after the test
    app = antiphon.configure(
        storage_backend="r2",
        r2_endpoint_url=s3_access.endpoint,
        r2_bucket_name=s3_access.bucket,
        r2_access_key_id=s3_access.key,
        r2_secret_access_key=s3_access.secret,
        r2_region=s3_access.region,
    )
    uploaded(app, s3_access)


def test_by_the_environment_of_the_document(home: Path, s3_access: S3Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KURRAL_STORAGE_BACKEND", "r2")
    monkeypatch.setenv("R2_BUCKET_NAME", s3_access.bucket)
    monkeypatch.setenv("R2_ENDPOINT_URL", s3_access.endpoint)
    monkeypatch.setenv("R2_ACCESS_KEY_ID", s3_access.key)
    monkeypatch.setenv("R2_SECRET_ACCESS_KEY", s3_access.secret)
    uploaded(Antiphon(), s3_access)


def test_by_a_file_called_dot_env(home: Path, s3_access: S3Access) -> None:
    Path(".env").write_text(
        "# storage\n"
        "KURRAL_STORAGE_BACKEND=r2\n"
        f'export R2_BUCKET_NAME="{s3_access.bucket}"\n'
        f"R2_ENDPOINT_URL={s3_access.endpoint}   # the server\n"
        f"R2_ACCESS_KEY_ID='{s3_access.key}'\n"
        f"R2_SECRET_ACCESS_KEY={s3_access.secret}\n"
        "ANTIPHON_TENANT=not-read-from-here\n"
    )
    app = Antiphon()
    assert app.tenant == "default"
    uploaded(app, s3_access)


def test_the_standard_names_win_for_s3_and_those_of_the_document_for_r2() -> None:
    env = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "R2_ACCESS_KEY_ID": "c", "R2_SECRET_ACCESS_KEY": "d"}
    section = ArtifactsSection(backend="s3", bucket="x")
    assert bucket_of(section, env).access_key == "a"
    assert bucket_of(msgspec.structs.replace(section, backend="r2"), env).access_key == "c"
    account = bucket_of(msgspec.structs.replace(section, backend="r2"), {**env, "R2_ACCOUNT_ID": "acc"})
    assert account.endpoint == "https://acc.r2.cloudflarestorage.com"
    amazon = ArtifactsSection(backend="r2", bucket="x", endpoint_url="https://s3.amazonaws.com")
    assert bucket_of(amazon, env).region == "us-east-1"


def test_a_backend_without_a_bucket_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="No bucket"):
        bucket_of(ArtifactsSection(backend="s3"), {})
    with pytest.raises(ConfigError, match="backend is 'local'"):
        bucket_of(ArtifactsSection(), {})


# -- the command ------------------------------------------------------------------------------------------------------


def test_export_upload(
    cut: tuple[FaultProxy, S3Access], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, access = cut
    table = settings(access, timeout_s=2.0)["artifacts"]
    lines = "\n".join(f"{name} = {orjson.dumps(value).decode()}" for name, value in table.items())
    Path("antiphon.toml").write_text(f"[telemetry]\nlogs = false\n[artifacts]\n{lines}\n")
    run = small_run(Antiphon())
    antiphon.configure()
    assert main(["export", run.id, "--upload"]) == 0
    assert f"s3://{access.bucket}/default/small/artifacts/" in capsys.readouterr().out
    proxy.refuse()
    antiphon.configure()
    assert main(["export", run.id, "--upload", "--json"]) == 1
    told = orjson.loads(capsys.readouterr().out)
    assert (told["waiting"], told["run"]) == (1, run.id)
    antiphon.configure()
    assert main(["export", "--waiting"]) == 1
    assert "1 object waits for the bucket" in capsys.readouterr().err
    proxy.heal()
    antiphon.configure()
    assert main(["export", "--waiting"]) == 0
    assert "no uploads pending" in capsys.readouterr().out


def test_export_upload_without_a_bucket(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_run(antiphon.configure(QUIET))
    assert main(["export", "--latest", "--upload"]) == 2
    assert "No bucket is configured" in capsys.readouterr().err


# -- large payloads ---------------------------------------------------------------------------------------------------


def test_large_payloads_in_the_bucket(cut: tuple[FaultProxy, S3Access], home: Path, ticks: Ticks) -> None:
    proxy, access = cut
    app = application(settings(access, payloads="bucket", timeout_s=2.0))
    text = "lorem ipsum " * 20_000
    with app.run("large") as run:
        run.prompt("before", text)
    blobs: Any = app.blobs
    deadline = time.monotonic() + 60
    while blobs.outbox.status().pending:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len([name for name in remote(access).names() if name.startswith("payloads/")]) >= 1
    assert one_event(app, run.id, 1).payload["text"] == text
    proxy.refuse()
    proxy.reset()
    with pytest.raises(StoreUnavailable):
        one_event(app, run.id, 1)
    with app.run("while it is away") as second:
        began = time.monotonic()
        second.prompt("during", "other " + text)
        assert ticks.since(began) < 1, "a run does not wait for a bucket that is away"
    assert one_event(app, second.id, 1).payload["text"] == "other " + text
    assert any("1 payload waits" in one["message"] for one in examine(app))
    proxy.heal()
    assert storage.send_waiting(app).waiting == 0
    assert blobs.outbox.status().pending == 0
    assert one_event(app, second.id, 1).payload["text"] == "other " + text
    blobs.outbox.close()


AGENT = """
import antiphon

@antiphon.Gateway().tool(idempotent=True, effect="read")
def letter():
    return "x"

@antiphon.agent
def main(size):
    return letter() * size
"""


def _recorded(folder: Path, access: S3Access, size: int) -> subprocess.CompletedProcess[str]:
    """What ``antiphon run`` said that recorded a text of *size*, in a process of its own."""
    config = settings(access, payloads="bucket")["artifacts"]
    lines = [f"{name} = {value if isinstance(value, float) else repr(value)}" for name, value in config.items()]
    (folder / "antiphon.toml").write_text("\n".join(("[artifacts]", *lines, "")))
    (folder / "agent.py").write_text(AGENT)
    line = [sys.executable, "-m", "antiphon.cli", "run", "agent.py:main", "--input", str(size)]
    environment = {**os.environ, "ANTIPHON_HOME": str(folder / "state")}
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done


def _payloads(access: S3Access) -> int:
    return sum("/t=" in name for name in remote(access).names("payloads/"))


def test_a_short_process_sends_its_payloads_before_it_ends(cut: tuple[FaultProxy, S3Access], tmp_path: Path) -> None:
    proxy, access = cut
    proxy.delay(0.2)
    said = _recorded(tmp_path, access, 120_000)
    proxy.heal()
    assert _payloads(access) == 1
    assert "export --waiting" not in said.stderr
    assert not any(path.is_file() for path in (tmp_path / "state" / "outbox").rglob("*"))


def test_a_process_says_what_has_not_arrived_and_the_next_one_that_records_sends_it(
    cut: tuple[FaultProxy, S3Access], tmp_path: Path
) -> None:
    proxy, access = cut
    proxy.refuse()
    said = _recorded(tmp_path, access, 120_000)
    assert re.search(r"before all payloads have arrived in s3://.*: 1 of them \(\d+ bytes\) are kept in", said.stderr)
    assert "cannot be reached" in said.stderr
    assert "antiphon export --waiting" in said.stderr
    proxy.heal()
    assert _payloads(access) == 0
    said = _recorded(tmp_path, access, 1)
    assert _payloads(access) == 1
    assert "export --waiting" not in said.stderr


def test_gc_in_a_bucket_that_stores_share(signed_in: S3Access, home: Path) -> None:
    """Each store leaves a note, once, and one of the day; with notes of more than one store, payloads are kept."""

    def record(app: Antiphon, text: str) -> None:
        with app.run("large") as run:
            run.prompt("before", text * 20_000)
        blobs: Any = app.blobs
        assert blobs.outbox.flush().pending == 0
        blobs.outbox.close()

    def payloads() -> list[str]:
        return [name for name in remote(signed_in).names("payloads/") if "/t=" in name]

    config = settings(signed_in, payloads="bucket")
    app = application(config)
    record(app, "first ")
    note, renewed = sorted(remote(signed_in).names("payloads/stores/"))
    since = remote(signed_in).written_ms(note)
    while time.time() * 1000 < since + 1_500:  # the server counts seconds
        time.sleep(0.05)
    record(application(config), "second ")
    assert remote(signed_in).written_ms(note) == since, "a later process leaves the note as it is"
    other = application(config, store=f"sqlite:///{home / 'other.db'}")
    record(other, "first ")
    assert len(payloads()) == 2
    result = delete_old_runs(app, keep=0, force=True)
    assert (result["blobs"], len(result["blobsSharedWith"])) == (0, 1)
    assert result["blobsSharedWith"][0].endswith("other.db")
    assert len(payloads()) == 2
    for name in remote(signed_in).names("payloads/stores/"):
        if name not in (note, renewed):
            remote(signed_in).delete(name)
    assert delete_old_runs(app)["blobs"] == 2
    assert payloads() == []


def test_gc_asks_the_bucket_before_it_deletes_and_says_what_was_deleted(
    cut: tuple[FaultProxy, S3Access], home: Path
) -> None:
    proxy, access = cut
    app = application(settings(access, payloads="bucket", timeout_s=2.0))
    for name in ("one", "two"):
        with app.run(name) as run:
            run.prompt("before", f"{name} " * 20_000)
    blobs: Any = app.blobs
    assert blobs.outbox.flush().pending == 0

    def cutting(items: Iterable[T], total: int | None, label: str, /) -> Iterator[T]:
        yield from items
        if label == "deleting, runs":
            proxy.refuse()
            proxy.reset()

    proxy.refuse()
    proxy.reset()
    with pytest.raises(StoreUnavailable) as before:
        delete_old_runs(app, keep=0, force=True)
    assert "eleted" not in str(before.value)
    assert len(list_runs(app)) == 2
    proxy.heal()
    with pytest.raises(StoreError, match=r"Deleted before the failure: 1 run; some .*run antiphon gc again") as later:
        delete_old_runs(app, keep=1, force=True, progress=cutting)
    assert later.value.code == before.value.code
    proxy.heal()
    assert [run["name"] for run in list_runs(app)] == ["two"]
    assert delete_old_runs(app)["blobs"] == 1
    blobs.outbox.close()


def test_a_process_that_lives_on_renews_its_note(signed_in: S3Access, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule of the bucket that deletes what is old finds one of its notes young."""
    app = application(settings(signed_in, payloads="bucket"))
    blobs: Any = app.blobs

    def put(text: str) -> dict[str, bytes]:
        blobs.put("default", text.encode())
        assert blobs.outbox.flush().pending == 0
        return {name: remote(signed_in).get(name) for name in sorted(remote(signed_in).names("payloads/stores/"))}

    before = put("one")
    assert put("two") == before
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86_400)
    after = put("three")
    note, renewed = before
    assert after[note] == before[note]
    assert after[renewed] != before[renewed]
    for name in after:
        remote(signed_in).delete(name)
    monkeypatch.setattr(time, "time", lambda: now + 2 * 86_400)
    assert list(put("four")) == [note, renewed], "what such a rule deleted is there again"
    blobs.outbox.close()


def test_large_payloads_follow_a_shared_log(home: Path) -> None:
    from antiphon.config.load import load
    from antiphon.config.wiring import payloads_in_bucket

    def goes(**tables: Any) -> bool:
        return payloads_in_bucket(load(tables, {}).config)

    bucket = {"backend": "s3", "bucket": "b"}
    assert not goes()
    assert not goes(artifacts=bucket)
    assert goes(artifacts=bucket, store={"url": "postgresql://h/d"})
    assert not goes(artifacts={**bucket, "payloads": "local"}, store={"url": "postgresql://h/d"})
    assert goes(artifacts={**bucket, "payloads": "bucket"})
