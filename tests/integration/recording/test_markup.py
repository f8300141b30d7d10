"""D45: any JSON of a tool, a model, an input or an artifact goes in and comes out equal, our own markers included."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import antiphon
from antiphon.ops.artifacts import export_run, import_artifact
from antiphon.ops.runs import load_recording
from antiphon.stores import MemoryStore, SQLiteStore

QUIET = {"telemetry": {"logs": False}, "replay": {"embedder": "lexical"}}
NAMES = st.sampled_from(
    "$blob bytes masks sealed blobs pseudonyms sum meta payload $bytes $literal $int $tuple seal key digest".split()
)
TEXTS = st.sampled_from(
    [
        "sha256:" + "0" * 64,
        "s2.00000000.AAAA",
        "[secret:pin]",
        "[email:3f9a]",
        "/value/0",
        "ada@example.org",
        "",
        "x" * 40,
        "\x00é\U0001f600",
    ]
)
LEAVES = st.none() | st.booleans() | st.integers(1 - 2**53, 2**53 - 1) | TEXTS | st.text(max_size=8)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=4)
)
MARKED = st.sampled_from(
    [
        {"$blob": 5, "bytes": 1},
        {"$blob": "sha256:" + "0" * 64, "bytes": 1},
        {"masks": [["/value", 0, 3, "pin"]], "sealed": "s2.00000000.AAAA"},
        {"blobs": {"value": "sha256:" + "0" * 64}},
        {"$bytes": "x"},
        {"$literal": {"$literal": 1}},
    ]
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(VALUES, MARKED), st.one_of(VALUES, MARKED))
def test_what_goes_in_comes_out_equal(monkeypatch: pytest.MonkeyPatch, value: Any, given_: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("ANTIPHON_HOME", folder)
        app = antiphon.Antiphon(QUIET, store=SQLiteStore(Path(folder, "a.db")))
        said = {"choices": [{"index": 0, "message": {"role": "assistant", "content": orjson.dumps(value).decode()}}]}

        @app.gateway.tool(idempotent=False)
        def act(what: Any) -> Any:
            return value

        def code(first: Any) -> Any:
            run = antiphon.current_run()
            heard = run.llm({"model": "m", "messages": [{"role": "user", "content": "go"}]}, lambda body: said)
            assert heard == said
            assert act(what=first) == value
            return [first, value]

        run = app.record(code, given_)
        manifest = app.journal.manifest(run.id)
        assert manifest is not None
        recording = load_recording(app, manifest)
        assert recording.output() == [given_, value]
        assert recording.input() == {"args": [given_]}
        report = antiphon.replay(run, app=app, mode="strict", function=code, keep=False, sandbox=False)
        assert report.passed, report.text()
        file = Path(folder, "run.antiphon")
        export_run(app, manifest, file)
        other = antiphon.Antiphon(QUIET, store=MemoryStore())
        made = import_artifact(other, file)
        again = Path(folder, "again.antiphon")
        export_run(other, made, again)
        first, second = (orjson.loads(path.read_bytes()) for path in (file, again))
        assert first["events"] == second["events"]
        assert "altered" not in made.tags


def test_a_reference_of_a_user_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of another run must not be read by naming its digest."""
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path))
    app = antiphon.Antiphon(QUIET, store=SQLiteStore(tmp_path / "a.db"))
    with app.run("large") as large:
        large.finish("lorem ipsum " * 20_000)
    manifest = app.journal.manifest(large.id)
    assert manifest is not None
    (last,) = [event for event in large.events() if event.type == "run.finished"]
    named = {"$blob": last.meta["blobs"]["output"], "bytes": 3}
    with app.run("small") as small:
        small.finish(named)
    found = app.journal.manifest(small.id)
    assert found is not None
    assert load_recording(app, found).output() == named
    old = msgspec.structs.replace(last, v=1, meta={}, payload={"output": named})
    from antiphon.contract.events import spilled

    assert spilled(old) == {"output": named["$blob"]}, "recordings of 0.1.0 are still read"
