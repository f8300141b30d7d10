"""Bad artifacts: every one is a typed error with exit code 6, and the store is as it was, byte for byte of its rows."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon import Antiphon
from antiphon._recording import artifact
from antiphon.cli import main
from antiphon.errors import ArtifactError
from antiphon.ops.artifacts import export_run, import_artifact
from antiphon.ops.runs import find_run, list_runs, timeline
from antiphon.stores import MemoryStore
from tests.integration.recording.kit import application, small_run

SAMPLE = Path(__file__).parents[2] / "data" / "kurral" / "sample.kurral"
Change = Callable[[dict[str, Any]], None]


def rows(home: Path) -> list[Any]:
    """Everything the store holds."""
    connection = sqlite3.connect(home / "antiphon.db")
    try:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        return [(table, connection.execute(f"select * from {table}").fetchall()) for table in sorted(tables)]
    finally:
        connection.close()


@pytest.fixture
def app(home: Path) -> Antiphon:
    made = application()
    run = small_run(made)
    export_run(made, find_run(made, run.id), Path("good.antiphon"))
    return made


@pytest.fixture
def good(app: Antiphon) -> bytes:
    return Path("good.antiphon").read_bytes()


def refused(app: Antiphon, home: Path, data: bytes, name: str = "bad.antiphon") -> ArtifactError:
    """The error; nothing else may have changed."""
    Path(name).write_bytes(data)
    before = rows(home)
    with pytest.raises(ArtifactError) as caught:
        import_artifact(app, Path(name))
    assert rows(home) == before
    assert not (home / "blobs").exists()
    assert main(["import", name]) == 6
    assert rows(home) == before
    return caught.value


def changed(data: bytes, change: Change) -> bytes:
    """The document after *change*, in one line."""
    document = orjson.loads(data)
    change(document)
    return json.dumps(document).encode()


def line_changed(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new, 1)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.3, 0.5, 0.8, 0.95, 0.999])
def test_truncated(app: Antiphon, home: Path, good: bytes, share: float) -> None:
    refused(app, home, good[: int(len(good) * share)])


def test_truncated_at_every_line(app: Antiphon, home: Path, good: bytes) -> None:
    lines = good.splitlines(keepends=True)
    before = rows(home)
    for count in range(len(lines)):
        Path("cut.antiphon").write_bytes(b"".join(lines[:count]))
        with pytest.raises(ArtifactError):
            import_artifact(app, Path("cut.antiphon"))
    assert rows(home) == before


HEAD: dict[str, Change] = {
    "future version": lambda d: d.update(schema_version="2.0.0"),
    "no version": lambda d: d.pop("schema_version"),
    "a version that is none": lambda d: d.update(schema_version={"a": 1}),
    "another format": lambda d: d.update(format="other"),
    "no manifest": lambda d: d.pop("manifest"),
    "a manifest that is a list": lambda d: d.update(manifest=[]),
    "a manifest with more": lambda d: d["manifest"].update(extra=1),
    "a manifest without an id": lambda d: d["manifest"].pop("id"),
    "a manifest of the future": lambda d: d["manifest"].update(v=9),
    "an impossible status": lambda d: d["manifest"].update(status="winning"),
    "a negative time": lambda d: d["manifest"].update(startedAtMs=-1),
    "a time after all time": lambda d: d["manifest"].update(startedAtMs=2**53 - 1),
    "an end after all time": lambda d: d["manifest"].update(finishedAtMs=2**53 - 1),
    "a name without end": lambda d: d["manifest"].update(name="x" * 100_000),
    "an id that is a path": lambda d: d["manifest"].update(id="../../../etc/passwd"),
    "an absolute id": lambda d: d["manifest"].update(id="/etc/passwd"),
    "an id with a zero": lambda d: d["manifest"].update(id="a\0b"),
    "an id like an option": lambda d: d["manifest"].update(id="--force"),
    "an id for the terminal": lambda d: d["manifest"].update(id="\x1b[2Jgone"),
    "an empty id": lambda d: d["manifest"].update(id=""),
    "an id without end": lambda d: d["manifest"].update(id="x" * 500),
    "no events": lambda d: d.pop("events"),
    "events that are text": lambda d: d.update(events="none"),
    "a deep head": lambda d: d.update(outputs=deep(900)),
}


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("name", HEAD)
def test_a_bad_head(app: Antiphon, home: Path, good: bytes, name: str) -> None:
    refused(app, home, changed(good, HEAD[name]))


EVENT: dict[str, Callable[[list[Any]], None]] = {
    "missing": lambda events: events.pop(1),
    "twice": lambda events: events.insert(1, events[1]),
    "out of order": lambda events: events.reverse(),
    "not an object": lambda events: events.__setitem__(1, 7),
    "with more": lambda events: events[1].update(extra=1),
    "of the future": lambda events: events[1].update(v=3),
    "with text for a number": lambda events: events[1].update(atMs="soon"),
    "with a huge number": lambda events: events[1].update(atMs=10**30),
    "with a huge index": lambda events: events[1].update(index=2**60),
    "with a negative index": lambda events: events[1].update(index=-1),
    "after all time": lambda events: events[1].update(atMs=2**53 - 1),
    "with a payload that is a list": lambda events: events[1].update(payload=[]),
    "with a number that cannot be kept": lambda events: events[1].update(payload={"n": 10**40}),
    "nested deeply": lambda events: events[1].update(payload={"deep": deep(300)}),
    "nested very deeply": lambda events: events[1].update(payload={"deep": deep(900)}),
}


@pytest.mark.parametrize("in_lines", [True, False])
@pytest.mark.parametrize("name", EVENT)
def test_a_bad_event(app: Antiphon, home: Path, good: bytes, name: str, in_lines: bool) -> None:
    def change(document: dict[str, Any]) -> None:
        EVENT[name](document["events"])

    data = changed(good, change)
    if in_lines:
        events = json.loads(data)["events"]
        head = good[: good.index(b'  "events": [')]
        lines = b",\n".join(b"    " + json.dumps(event, separators=(",", ":")).encode() for event in events)
        data = head + b'  "events": [\n' + lines + b'\n  ],\n  "integrity": {}\n}\n'
    refused(app, home, data)


RAW: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda good: b"",
    "no JSON": lambda good: b"hello",
    "a list": lambda good: b"[]",
    "null": lambda good: b"null",
    "bytes": lambda good: bytes(range(256)) * 10,
    "not UTF-8": lambda good: line_changed(good, b'"small"', b'"\xff\xfe"'),
    "half a character": lambda good: line_changed(good, b'"hello"', b'"\\ud800"'),
    "not a number": lambda good: line_changed(good, b'"value":"A"', b'"value":NaN'),
    "infinity": lambda good: line_changed(good, b'"value":"A"', b'"value":1e999'),
    "brackets without end": lambda good: b"[" * 100_000,
    "objects without end": lambda good: b'{"a":' * 100_000,
    "a key twice in an event": lambda good: line_changed(good, b'"value":"A"', b'"value":"A","value":"B"'),
    "a key twice in the head": lambda good: line_changed(good, b'  "run_id"', b'  "format": "antiphon",\n  "run_id"'),
    "a broken seal": lambda good: line_changed(good, b'"integrity": {', b'"integrity": {{'),
    "something after the end": lambda good: good + b'{"more": 1}\n',
    "two documents": lambda good: good + good,
    "a list that ends early": lambda good: line_changed(good, b'  "integrity"', b'  "other"'),
    "zip": lambda good: b"PK\x03\x04" + good,
}


@pytest.mark.parametrize("name", RAW)
def test_bad_bytes(app: Antiphon, home: Path, good: bytes, name: str) -> None:
    refused(app, home, RAW[name](good))


def test_oversized(app: Antiphon, home: Path, good: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "MAX_DOCUMENT", 1000)
    assert "too large" in str(refused(app, home, changed(good, lambda d: None)))
    monkeypatch.setattr(artifact, "MAX_LINE", 200)
    refused(app, home, good)
    monkeypatch.setattr("antiphon.ops.artifacts._MAX_FOREIGN", 1000)
    assert "too large" in str(refused(app, home, SAMPLE.read_bytes(), "large.kurral"))


def test_what_is_no_file(app: Antiphon, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = rows(home)
    Path("folder.antiphon").mkdir()
    assert main(["import", "missing.antiphon"]) == 4
    for name in ("folder.antiphon", "a" * 300 + ".antiphon"):
        assert main(["import", name]) == 6
    assert "There is no file missing.antiphon" in capsys.readouterr().err
    assert rows(home) == before


def test_random_damage(app: Antiphon, home: Path, good: bytes) -> None:
    """Bytes are changed anywhere: the import is refused, or what it brings in is a run that can be shown."""
    chance = random.Random(5)
    refusals = 0
    for number in range(300):
        data = bytearray(good)
        for _ in range(chance.choice([1, 1, 3])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        Path("damaged.antiphon").write_bytes(data)
        fresh = application(store=MemoryStore())
        try:
            made = import_artifact(fresh, Path("damaged.antiphon"))
        except ArtifactError:
            refusals += 1
            assert not list_runs(fresh), number
        else:
            timeline(fresh, made)
            export_run(fresh, made, Path("again.antiphon"))
            export_run(fresh, made, Path("again.kurral"))
    assert 100 < refusals < 300


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted(json.loads(SAMPLE.read_bytes()))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), st.dictionaries(st.text(max_size=12), JSON, max_size=3)
)
def test_any_kurral_document_is_read_or_refused(home: Path, fields: dict[str, Any], call: dict[str, Any]) -> None:
    document = json.loads(SAMPLE.read_bytes()) | fields
    if isinstance(document.get("tool_calls"), list):
        document["tool_calls"] = [*document["tool_calls"], call]
    Path("any.kurral").write_text(json.dumps(document))
    fresh = application(store=MemoryStore())
    try:
        made = import_artifact(fresh, Path("any.kurral"))
    except ArtifactError:
        assert not list_runs(fresh)
    else:
        timeline(fresh, made)
        export_run(fresh, made, Path("back.kurral"))
        export_run(fresh, made, Path("back.antiphon"))
        import_artifact(application(store=MemoryStore()), Path("back.antiphon"))


KURRAL: dict[str, Change] = {
    "future version": lambda d: d.update(schema_version="9.0.0"),
    "no inputs": lambda d: d.pop("inputs"),
    "calls that are text": lambda d: d.update(tool_calls="none"),
    "a call that is text": lambda d: d.update(tool_calls=["none"]),
    "a configuration that is a list": lambda d: d.update(llm_config=[1]),
    "parameters that are a list": lambda d: d["llm_config"].update(parameters=[1]),
    "a graph that is text": lambda d: d.update(graph_version="x"),
    "nested deeply": lambda d: d["inputs"].update(deep=deep(252)),
    "a huge number": lambda d: d["inputs"].update(n=10**40),
}


@pytest.mark.parametrize("name", KURRAL)
def test_a_bad_kurral_document(app: Antiphon, home: Path, name: str) -> None:
    refused(app, home, changed(SAMPLE.read_bytes(), KURRAL[name]), "bad.kurral")


@pytest.mark.parametrize("given_id", ["../../../etc/passwd", "", "a\0b", "\x1b[2J", "--force", "x" * 1000, 7, None])
def test_a_kurral_id_that_cannot_be_used_is_replaced(home: Path, given_id: Any) -> None:
    document = json.loads(SAMPLE.read_bytes()) | {"kurral_id": given_id}
    Path("odd.kurral").write_text(json.dumps(document))
    app = application()
    made = import_artifact(app, Path("odd.kurral"))
    assert artifact.USABLE_ID.fullmatch(made.id)
    assert made.id != "None"
    export_run(app, made, Path("back.kurral"))
    assert json.loads(Path("back.kurral").read_bytes()) == document


def test_a_name_cannot_speak_to_the_terminal(
    app: Antiphon, home: Path, good: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(document: dict[str, Any]) -> None:
        document["manifest"].update(name="\x1b[2J\x1b]0;evil\x07 name", id="other")
        document["events"][1]["payload"]["name"] = "\x1b[31mtool"
        document["events"][-1]["payload"]["output"] = "\x1b[2Jgone"

    Path("odd.antiphon").write_bytes(changed(good, change))
    assert main(["import", "odd.antiphon"]) == 0
    for words in (["runs"], ["show", "other"], ["gc", "--keep", "0", "--force", "--dry-run"]):
        assert main(words) == 0
    out = capsys.readouterr()
    assert "\x1b" not in out.out + out.err
    assert "evil" in out.out
