"""K1: artifacts that people and jq can read, that outlive releases, and go round through other formats unchanged."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from antiphon import Antiphon
from antiphon._recording import artifact
from antiphon.cli import main
from antiphon.contract.events import sum_holds
from antiphon.errors import StoreError
from antiphon.host.api_keys import KeyRing, digest_of
from antiphon.ops import artifacts
from antiphon.ops.admin import Admin
from antiphon.ops.artifacts import export_run, import_artifact, whole_events
from antiphon.ops.runs import find_run, list_runs
from antiphon.stores import MemoryStore
from tests.integration.recording.kit import application, small_run, stored

DATA = Path(__file__).parents[2] / "data"
GOLDEN = sorted((DATA / "golden").glob("*.antiphon"))
KURRAL = sorted((DATA / "kurral").glob("*.kurral"))
READABLE = (
    "run_id id inputs outputs llm_config tool_calls resolved_prompt graph_version duration_ms error errors token_usage"
).split()


def elsewhere() -> Antiphon:
    """An application with a store of its own."""
    return application(store=MemoryStore())


# -- golden files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_a_golden_artifact_is_read_and_written_again_line_by_line(home: Path, path: Path) -> None:
    app = application()
    made = import_artifact(app, path)
    assert "altered" not in made.tags
    export_run(app, find_run(app, made.id), Path("again.antiphon"))
    before, after = (
        # No digest of raw values is written any more, and the checksum of an event covers it.
        re.sub(rb'"keyFingerprint":"[0-9a-f]+",|,?"sum":"[0-9a-f]+"', b"", file.read_bytes()).splitlines()
        for file in (path, Path("again.antiphon"))
    )
    changed = {line.partition(b":")[0].strip(b' "') for line in set(before) ^ set(after)}
    assert changed <= {b"manifest", b"integrity"}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_a_golden_artifact_has_what_people_look_for(path: Path) -> None:
    document = json.loads(path.read_bytes())
    assert set(READABLE) <= document.keys()
    assert document["llm_config"] == {"model_name": "golden-1", "provider": "openai", "temperature": 0, "seed": 7}
    assert document["token_usage"]["total_tokens"] == 19
    names = [call["tool_name"] for call in document["tool_calls"]]
    assert names == ["look_up", "refund", "refuse", "look_up", "look_up", "read_aloud"]
    assert document["tool_calls"][1]["output"] == "refunded 49.9 of 1042"
    assert document["outputs"]["interactions"] == [{"input": "where is it?", "output": "refunded 49.9 of 1042"}]
    asked = subprocess.run(
        ["jq", "-r", ".tool_calls[] | select(.error_flag) | .error.message", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout == "order 1042 is closed\n"


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_a_golden_artifact_replays_strictly(
    home: Path, path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(DATA / "golden" / "agent.py", tmp_path / "agent.py")
    assert main(["import", str(path)]) == 0
    words = [sys.executable, "-m", "antiphon.cli", "replay", "--latest", "--strict", "--json"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)  # it gives up its process's network
    assert done.returncode == 0, done.stdout


# -- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", KURRAL, ids=lambda path: path.name)
def test_a_kurral_document_comes_back_equal(home: Path, path: Path) -> None:
    app = application()
    made = import_artifact(app, path)
    export_run(app, made, Path("back.kurral"))
    assert json.loads(Path("back.kurral").read_bytes()) == json.loads(path.read_bytes())
    export_run(app, made, Path("there.antiphon"))
    other = elsewhere()
    export_run(other, import_artifact(other, Path("there.antiphon")), Path("and_back.kurral"))
    assert json.loads(Path("and_back.kurral").read_bytes()) == json.loads(path.read_bytes())


def test_the_configuration_is_flat_here_and_nested_there(home: Path) -> None:
    app = application()
    made = import_artifact(app, DATA / "kurral" / "failed.kurral")
    assert made.llm_config == {"model_name": "gpt-4", "provider": "openai", "temperature": 0.2, "seed": 11}
    assert made.status == "failed"
    with app.run("own") as run:
        run.llm({"model": "m", "temperature": 0.5, "messages": []}, lambda body: {})
    export_run(app, find_run(app, run.id), Path("own.kurral"))
    config = json.loads(Path("own.kurral").read_bytes())["llm_config"]
    assert config == {"model_name": "m", "provider": "openai", "parameters": {"temperature": 0.5}}
    export_run(app, find_run(app, run.id), Path("own.antiphon"))
    config = json.loads(Path("own.antiphon").read_bytes())["llm_config"]
    assert config == {"model_name": "m", "provider": "openai", "temperature": 0.5}


def test_an_imported_sample_can_be_looked_at(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(DATA / "kurral" / "sample.kurral")]) == 0
    capsys.readouterr()
    assert main(["show", "--latest"]) == 0
    shown = capsys.readouterr().out
    assert "search" in shown
    assert "calculator" in shown
    assert "25 * 4 equals 100" in shown


def test_the_same_artifact_is_the_same_run_and_another_is_another(home: Path) -> None:
    app = application()
    run = small_run(app)
    export_run(app, find_run(app, run.id), Path("a.antiphon"))
    assert import_artifact(app, Path("a.antiphon")).id == run.id, "its own run"
    other = elsewhere()
    assert import_artifact(other, Path("a.antiphon")).id == run.id
    assert import_artifact(other, Path("a.antiphon")).id == run.id
    edited = Path("a.antiphon").read_bytes().replace(b'"value":"A"', b'"value":"B"')
    Path("b.antiphon").write_bytes(edited)
    second = import_artifact(other, Path("b.antiphon"))
    assert second.id != run.id
    assert second.tags["altered"] == "true"
    assert import_artifact(other, Path("b.antiphon")).id == second.id
    assert [event.payload for event in stored(other, run.id)] == [event.payload for event in run.events()]


def test_an_edited_manifest_makes_another_run(home: Path) -> None:
    app = application()
    run = small_run(app)
    export_run(app, find_run(app, run.id), Path("a.antiphon"))
    document = orjson.loads(Path("a.antiphon").read_bytes())
    found = []
    for entry in ("other.py:main", "another.py:main"):
        document["manifest"]["entry"] = entry
        Path("b.antiphon").write_bytes(orjson.dumps(document))
        made = import_artifact(app, Path("b.antiphon"))
        assert (made.entry, made.tags["altered"]) == (entry, "true")
        assert import_artifact(app, Path("b.antiphon")).id == made.id
        found.append(made.id)
    assert len({run.id, *found}) == 3


def forged(app: Antiphon, run_id: str, kind: str, payload: dict[str, Any]) -> Path:
    """An artifact that brings an event under an id that only the host and its operators write to."""
    export_run(app, find_run(app, small_run(app).id), Path("a.antiphon"))
    document = orjson.loads(Path("a.antiphon").read_bytes())
    document["manifest"] |= {"id": run_id, "events": 1, "tags": {"kind": "audit"}}
    document["events"] = [{**document["events"][0], "type": kind, "payload": payload, "meta": {}}]
    Path("forged.antiphon").write_bytes(orjson.dumps(document))
    return Path("forged.antiphon")


async def keys_in(app: Antiphon) -> KeyRing:
    ring = KeyRing(app.store.open_async(), app.clock, default_tenant="default")
    await ring.refresh()
    return ring


def planted_key() -> dict[str, Any]:
    digest = digest_of("attackers-token")
    return {"id": "0", "digest": digest, "role": "admin", "tenant": "acme", "name": "x", "created_at_ms": 1}


async def test_an_artifact_brings_no_api_key(home: Path) -> None:
    app = elsewhere()
    path = forged(app, "host-apikeys", "key.created", planted_key())
    made = import_artifact(app, path)
    assert import_artifact(app, path).id == made.id == "imported-host-apikeys"
    assert await (await keys_in(app)).find("attackers-token") is None
    assert "imported-host-apikeys" in [run["id"] for run in list_runs(app)], "nothing hides it"


async def test_a_key_that_release_0_1_0_imported_opens_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = elsewhere()
    monkeypatch.setattr(artifacts, "is_reserved", lambda run_id: False)
    import_artifact(app, forged(app, "host-apikeys", "key.created", planted_key()))
    ring = await keys_in(app)
    assert await ring.find("attackers-token") is None
    with pytest.raises(StoreError, match="Nothing was written"):
        await ring.create(role="read", tenant="acme", name="y")


async def test_an_artifact_writes_no_audit_log(home: Path) -> None:
    app = elsewhere()
    act = {"act": "approve", "by": "grace"}
    import_artifact(app, forged(app, f"audit-{app.tenant}", "admin.act", act))
    import_artifact(app, forged(app, "audit-acme", "admin.act", act))
    for tenant in (app.tenant, "acme"):
        assert await Admin(application(tenant=tenant, store=app.store)).audit() == []


def test_an_import_that_was_killed_is_not_taken_for_a_run_of_the_host(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = application()
    export_run(app, find_run(app, small_run(app).id), Path("a.antiphon"))
    document = orjson.loads(Path("a.antiphon").read_bytes())
    document["manifest"]["tags"] = {"kind": "workflow"}
    Path("a.antiphon").write_bytes(orjson.dumps(document))
    other, seen = elsewhere(), []

    def looked(self: Any, recorder: Any) -> int:
        seen.extend(other.journal.runs(tenant=other.tenant, status="running"))
        return 0

    monkeypatch.setattr(artifacts._Import, "_append", looked)
    import_artifact(other, Path("a.antiphon"))
    assert ["kind" in one.tags for one in seen] == [False]


@pytest.mark.parametrize("layout", ["jq", "one line"])
def test_a_document_in_another_layout(home: Path, layout: str) -> None:
    app = application()
    run = small_run(app)
    export_run(app, find_run(app, run.id), Path("a.antiphon"))
    document = orjson.loads(Path("a.antiphon").read_bytes())
    option = orjson.OPT_INDENT_2 if layout == "jq" else None
    Path("b.antiphon").write_bytes(orjson.dumps(document, option=option))
    other = elsewhere()
    made = import_artifact(other, Path("b.antiphon"))
    assert "altered" not in made.tags
    assert len(stored(other, made.id)) == len(run.events())


def test_check_sums_survive_spilling_and_bringing_back(home: Path) -> None:
    app = application()
    with app.run("large") as run:
        run.prompt("large", "lorem ipsum " * 10_000)
    assert all(sum_holds(event) for event in stored(app, run.id))
    assert all(sum_holds(event) for event in whole_events(app, run.id))
    export_run(app, find_run(app, run.id), Path("a.antiphon"))
    spilled = []
    for other in (elsewhere(), application(tenant="other")):
        made = import_artifact(other, Path("a.antiphon"))
        assert all(sum_holds(event) for event in stored(other, made.id))
        assert all(sum_holds(event) for event in whole_events(other, made.id))
        spilled = [event for event in stored(other, made.id) if "blobs" in event.meta]
    assert len(spilled) == 1, "also what is imported is spilled"


def test_an_event_that_was_changed_still_says_so_after_an_import(home: Path) -> None:
    app = application()
    run = small_run(app)
    export_run(app, find_run(app, run.id), Path("a.antiphon"))
    edited = Path("a.antiphon").read_bytes().replace(b'"value":"A"', b'"value":"B"')
    Path("b.antiphon").write_bytes(edited)
    other = elsewhere()
    held = [sum_holds(event) for event in stored(other, import_artifact(other, Path("b.antiphon")).id)]
    assert held.count(False) == 1


def test_secrets_of_a_foreign_document_are_redacted_on_the_way_in(home: Path) -> None:
    document = json.loads((DATA / "kurral" / "failed.kurral").read_bytes())
    secret = "sk-" + "proj-Ab3dEf6hIj9kLmN0pQrStUvWxYz12345678"
    document["tool_calls"][0]["input"]["note"] = f"use {secret}"
    document["run_id"] = f"agent {secret}"
    Path("leaky.kurral").write_text(json.dumps(document))
    app = application()
    made = import_artifact(app, Path("leaky.kurral"))
    assert import_artifact(app, Path("leaky.kurral")).id == made.id
    data = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert secret.encode() not in data
    assert b'"openai"' in data


def test_an_import_that_is_killed_can_be_made_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = application()
    run = small_run(app)
    export_run(app, find_run(app, run.id), Path("a.antiphon"))
    other = application(tenant="other", store=application({"store": {"url": f"sqlite:///{home}/other.db"}}).store)
    child = os.fork()
    if not child:
        append = artifacts._Import._append

        def killed(self: Any, recorder: Any) -> int:
            append(self, recorder)
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        monkeypatch.setattr(artifacts._Import, "_append", killed)
        import_artifact(other, Path("a.antiphon"))
        os._exit(1)
    os.waitpid(child, 0)
    assert find_run(other, run.id).status == "running"
    made = import_artifact(other, Path("a.antiphon"))
    assert (made.id, made.status) == (run.id, "completed")
    assert len(stored(other, run.id)) == len(run.events())


@pytest.mark.parametrize("depth", [252, 253, 300])
def test_a_run_with_deeply_nested_values_is_exported(home: Path, depth: int) -> None:
    app = application()

    def nested() -> Any:
        value: list[Any] = []
        for _ in range(depth - 1):
            value = [value]
        return value

    @app.gateway.tool(idempotent=False, key="order")
    def nest(order: str) -> Any:
        return nested()

    with app.run("deep") as run:
        nest("1")
        run.llm({"model": "m", "messages": []}, lambda _: {"deep": nested()})
    export_run(app, find_run(app, run.id), Path("deep.antiphon"))
    document = orjson.loads(Path("deep.antiphon").read_bytes())
    assert [call["tool_name"] for call in document["tool_calls"]] == ["nest"]
    there = elsewhere()
    made = import_artifact(there, Path("deep.antiphon"))
    assert len(list(whole_events(there, made.id))) == len(list(whole_events(app, run.id)))


def test_a_failed_export_leaves_no_half_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = application()
    run = small_run(app)
    Path("out.antiphon").write_text("before")

    def broken(*_: Any) -> int:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(artifact, "write_artifact", broken)
    with pytest.raises(RuntimeError):
        export_run(app, find_run(app, run.id), Path("out.antiphon"))
    assert Path("out.antiphon").read_text() == "before"
    assert [path.name for path in Path().iterdir() if path.is_file()] == ["out.antiphon"]


def test_a_kurral_document_carries_model_tokens_and_hashes(home: Path, tmp_path: Path) -> None:
    app = application()
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    request = {"model": "gpt-4", "temperature": 0.5, "messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    answer = {"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    with app.run("told") as run:
        run.llm(request, lambda body: answer)
        run.finish("x")
    path = tmp_path / "run.kurral"
    export_run(app, find_run(app, run.id), path)
    document = json.loads(path.read_text())
    config = document["llm_config"]
    assert (config["model_name"], config["provider"], config["parameters"]["temperature"]) == ("gpt-4", "openai", 0.5)
    assert document["token_usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    hashes = document["graph_version"]
    assert len(hashes["graph_hash"]) == len(hashes["tool_schemas_hash"]) == 64
    other = tmp_path / "other.kurral"
    with app.run("told") as run:
        run.llm({**request, "tools": []}, lambda body: answer)
    export_run(app, find_run(app, run.id), other)
    assert json.loads(other.read_text())["graph_version"]["tool_schemas_hash"] != hashes["tool_schemas_hash"]


def test_a_kurral_document_has_the_results_of_streamed_tools(home: Path, tmp_path: Path) -> None:
    app = application()

    @app.gateway.tool(idempotent=True, effect="read")
    def words(broken: bool) -> Iterator[str]:
        yield from ("one ", "two ")
        if broken:
            raise ValueError("no more words")

    with app.run("told") as run:
        list(words(False))
        with pytest.raises(ValueError, match="no more"):
            list(words(True))
    path = tmp_path / "run.kurral"
    export_run(app, find_run(app, run.id), path)
    good, bad = json.loads(path.read_text())["tool_calls"]
    assert good["output"] == {"output": ["one ", "two "]}
    assert good["output_hash"] == hashlib.sha256(b'["one ","two "]').hexdigest()
    assert bad["output"]["message"] == "no more words"


def test_a_stream_still_open_at_exit_is_recorded_with_its_end(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (tmp_path / "agent.py").write_text(
        "import antiphon\n"
        "from collections.abc import Iterator\n"
        "app = antiphon.Antiphon()\n"
        "@app.gateway.tool(idempotent=False)\n"
        "def words() -> Iterator[str]:\n"
        "    yield from 'abc'\n"
        "with app.run('kept') as run:\n"
        "    stream = words()\n"
        "    next(stream)\n"
        "print(run.id)\n"
    )
    done = subprocess.run([sys.executable, "agent.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    chunk, end = [event for event in stored(application(), done.stdout.strip()) if event.call][1:]
    assert (chunk.type, chunk.payload["data"]) == ("call.chunk", "a")
    assert (end.type, end.payload["error"]["code"]) == ("call.finished", "stream_broken_off")
