"""A value that a tool returned is given again as what it was, or it is said that it cannot be: never as another one."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import orjson
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import antiphon
from antiphon import Antiphon
from antiphon._drive import drive
from antiphon._gateway import codec, tagged
from antiphon._replay.explore import ExploreInvoker
from antiphon._replay.recording import Recording, not_kept
from antiphon._scope import Site
from antiphon.decide.effects import BoundaryTable
from antiphon.errors import ReplayMiss, ResultNotKept
from antiphon.ops.app import using
from antiphon.ops.runs import load_recording
from antiphon.ports import Answer, Invocation
from antiphon.redact import Redactor, Rules
from antiphon.stores import MemoryStore, SQLiteStore
from tests.unit.gateway.kit import Rig
from tests.unit.replay.kit import memory_app

NAN, INF = float("nan"), float("inf")
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@dataclasses.dataclass
class Reading:
    at: datetime
    value: float
    raw: bytes = b"\xff"


class Model(pydantic.BaseModel):
    value: float
    note: str | None = None


class Raw(pydantic.BaseModel):
    raw: bytes


class Struct(msgspec.Struct):
    raw: bytes
    value: float = 1.0


UNDECLARED: list[Any] = [
    b"\xff\x00",
    bytearray(b"ab"),
    NOW,
    datetime(2026, 1, 2),
    date(2026, 1, 2),
    time(1, 2),
    timedelta(days=-1, microseconds=1),
    Decimal("1.10"),
    uuid.UUID(int=7),
    {1, "a"},
    frozenset({1}),
    (1, (2, "a")),
    [(1, "row"), (2, "row")],
    NAN,
    -INF,
    [1.0, NAN, None],
    {"a": {"b": INF}},
    2**70,
    -(2**64),
    "half \ud800",
    {1: "a", (2, 3): None},
    {"at": NOW, "raw": [b"x"]},
    {"$bytes": "mine"},
    [{"$float": "nan"}, {"$literal": {"$int": "1"}}],
    {"$bytes": "mine", "length": 1},
    {"plain": [1, 2.5, None, True, "é"]},
]
DECLARED: list[tuple[Any, Any]] = [
    (bytes, b"\xff"),
    (dict[str, bytes], {"a": b"x"}),
    (float, NAN),
    (list[float | None], [None, INF]),
    (dict[int, str], {1: "a"}),
    (Reading, Reading(NOW, NAN)),
    (list[Reading], [Reading(NOW, 1.0)]),
    (Model, Model(value=NAN)),
    (Model | None, Model(value=1.0)),
    (Raw, Raw(raw=b"\xff")),
    (Struct, Struct(b"\xff", -INF)),
    (tuple[Reading, float], (Reading(NOW, 1.0), NAN)),
]
VALUES = [(Any, value) for value in UNDECLARED] + DECLARED


def same(left: Any, right: Any) -> bool:
    """Equal, of the same types, and NaN is NaN."""
    return type(left) is type(right) and (repr(left) == repr(right) or bool(left == right))


def tool_of(gateway: Any, returns: Any, value: Any) -> Callable[[], Any]:
    def made() -> Any:
        return value

    made.__annotations__["return"] = returns
    return gateway.tool(idempotent=True, reuse="session")(made)  # type: ignore[no-any-return]


@pytest.mark.parametrize("redact", [False, True])
@pytest.mark.parametrize(("returns", "value"), VALUES, ids=range(len(VALUES)))
def test_a_reused_result_is_what_it_was(returns: Any, value: Any, redact: bool) -> None:
    rig = Rig(parts={"redactor": Redactor(Rules(), salt="00" * 16)} if redact else {})
    call = tool_of(rig.gateway, returns, value)
    call()
    assert same(call(), value)


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize(("returns", "value"), VALUES, ids=range(len(VALUES)))
def test_a_replayed_result_is_what_it_was(returns: Any, value: Any, on_disk: bool, tmp_path: Any) -> None:
    store = SQLiteStore(tmp_path / "a.db") if on_disk else MemoryStore()
    app = Antiphon({"replay": {"embedder": "lexical"}, "telemetry": {"logs": False}}, store=store)
    call = tool_of(app.gateway, returns, value)
    given_again: list[Any] = []

    def main() -> None:
        given_again[:] = [call(), call()]

    run = app.record(main)
    assert all(same(found, value) for found in given_again)
    given_again.clear()
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert report.passed, report.text()
    assert all(same(found, value) for found in given_again)


def test_a_large_result_is_replayed_as_what_it_was(tmp_path: Any) -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=SQLiteStore(tmp_path / "a.db"))
    value = [*map(float, range(20_000)), NAN]
    call = tool_of(app.gateway, list, value)
    got: list[Any] = []

    def main() -> None:
        got.append(call())

    run = app.record(main)
    assert antiphon.replay(run, app=app, mode="strict", function=main, keep=False).passed
    assert same(got[1], value)


@pytest.mark.parametrize(
    "pieces", [[b"one ", b"\xfftwo"], [NOW, NAN], [{"at": NOW}, (1, 2)]], ids=["bytes", "leaves", "nested"]
)
def test_the_pieces_of_a_stream_are_what_they_were(pieces: list[Any]) -> None:
    app = memory_app()

    @app.gateway.tool(idempotent=True, reuse="session")
    def stream() -> Iterator[Any]:
        yield from pieces

    got: list[Any] = []

    def main() -> None:
        got[:] = [list(stream()), list(stream())]

    run = app.record(main)
    assert all(same(found, pieces) for found in got)
    got.clear()
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert report.passed, report.text()
    assert all(same(found, pieces) for found in got)


# -- what cannot be given again is said -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [threading.Lock(), 1j, {"deep": [object()]}, memoryview(b"x")], ids=range(4))
def test_a_result_that_cannot_be_kept_is_never_another_one(value: Any) -> None:
    call = tool_of(Rig().gateway, Any, value)
    assert call() is value
    with pytest.raises(ResultNotKept, match="is not called again") as refused:
        call()
    assert refused.value.code == "result_not_kept"


def test_a_replay_is_told_of_a_result_that_was_not_kept() -> None:
    app = memory_app()
    call: Any = tool_of(app.gateway, Any, threading.Lock())
    call.once("order 7")()

    def main() -> str:
        with pytest.raises(ResultNotKept) as refused:
            call.once("order 7")()
        return str(refused.value)

    run = app.record(main)
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert report.passed, report.text()


def test_pieces_that_cannot_be_kept_are_never_other_ones() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=True, reuse="session")
    def stream() -> Iterator[Any]:
        yield object()

    assert len(list(stream())) == 1
    with pytest.raises(ResultNotKept):
        list(stream())


def test_a_result_that_was_not_recorded_is_never_another_one() -> None:
    app = memory_app()
    call = tool_of(app.gateway, Any, threading.Lock())
    got: list[Any] = []

    def main() -> None:
        got.append(call())

    run = app.record(main)
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert not report.passed
    assert "it returned a _thread.lock, which cannot be recorded" in report.text()
    recording = load_recording(app, run.manifest)
    invoker = ExploreInvoker(
        recording,
        BoundaryTable(),
        reviewed={"made": True},
        schemas={},
        embedder=None,
        threshold=0.85,
        exact_only=False,
        rewrite=None,
        llm=None,
        fork_at=None,
        realtime=False,
    )
    with using(app), pytest.raises(ReplayMiss, match="cannot be recorded"):
        drive(invoker.answer(_asked_again(recording)))
    assert len(got) == 1, "a replay may not hand out anything in its place"


def _asked_again(recording: Recording) -> Invocation:
    [recorded] = recording.calls.values()
    site = Site(recorded.lane, recorded.index, recorded.nth, recorded.call, None)
    return Invocation("tool", recorded.name, {}, recorded.digest, site)


def test_an_older_recording_that_says_not_serialisable_gives_nothing_either() -> None:
    old = {"antiphon": "not serialisable", "type": "Lock", "detail": "Lock: Lock"}
    assert "Lock" in str(not_kept(Answer("ok", old)))
    assert not_kept(Answer("ok", {"antiphon": "song"})) is None


def test_a_miss_that_the_code_swallows_is_still_reported() -> None:
    app = memory_app()
    call = tool_of(app.gateway, Any, threading.Lock())

    def main() -> None:
        with contextlib.suppress(ReplayMiss):
            call()

    run = app.record(main)
    assert not antiphon.replay(run, app=app, mode="strict", function=main, keep=False).passed


def test_a_kept_result_that_no_longer_fits_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert codec.decoder(Reading, "tools/read")(b'{"other":1}') == {"other": 1}
    assert "tools/read is returned as plain data" in caplog.text


# -- secrets --------------------------------------------------------------------------------------------------------

SECRET = b"sk-proj-" + b"a1B2c3D4" * 6


def test_a_secret_in_bytes_does_not_reach_the_disk(tmp_path: Any) -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=SQLiteStore(tmp_path / "a.db"))
    call = tool_of(app.gateway, bytes, b"\xfftoken " + SECRET)

    @app.gateway.tool(idempotent=True)
    def stream() -> Iterator[bytes]:
        yield b"token " + SECRET[:20]
        yield SECRET[20:] + b" end"

    def main() -> None:
        call()
        list(stream())

    app.record(main)
    for file in tmp_path.iterdir():
        assert SECRET not in file.read_bytes()
        assert SECRET[20:] not in file.read_bytes()


# -- always ---------------------------------------------------------------------------------------------------------

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary(max_size=8)
    | st.decimals()
    | st.datetimes(timezones=st.none() | st.just(UTC)).map(lambda at: at.replace(fold=0))
    | st.dates()
    | st.times().map(lambda at: at.replace(fold=0))
    | st.timedeltas()
    | st.uuids()
)
NAMES = st.text(max_size=5) | st.sampled_from(["$bytes", "$float", "$literal", "$items", "$tuple"])
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(NAMES, inner, max_size=3)
        | st.dictionaries(st.integers(), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@given(ANYTHING)
def test_tags_lose_nothing(value: Any) -> None:
    assert same(tagged.untagged(orjson.loads(orjson.dumps(tagged.tagged(value)))), value)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


@given(PLAIN)
def test_what_json_knows_comes_back_the_same(value: Any) -> None:
    assert same(codec.plain(codec.encode(value)), value)


def test_plain_data_costs_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def walked(value: Any) -> Any:
        raise AssertionError("plain data was walked through")

    monkeypatch.setattr(tagged, "tagged", walked)
    for value in ({"a": 1, "b": [1.5, "x"], "c": None}, "text", 7, None, [1, 2], True, 1.5):
        assert codec.encode(value) == orjson.dumps(value)


# -- planted bug ----------------------------------------------------------------------------------------------------


def test_an_encoder_that_trusts_null_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_NULL", b"\x00")
    assert codec.plain(codec.encode([NAN])) == [None]
