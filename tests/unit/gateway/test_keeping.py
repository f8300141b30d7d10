"""What is kept of a result: as it is, spilled, sealed, redacted, or not at all (R14, the effect happened)."""

from __future__ import annotations

import base64
import dataclasses
import gc
import hashlib
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest

from antiphon.contract._base import UNSET
from antiphon.errors import NotFound, ResultNotKept, StoreUnavailable
from antiphon.redact import Redactor, Rules
from antiphon.stores import MemoryStore
from tests.unit.gateway.kit import AsyncRig, Rig

SECRET = "sk-proj-" + "a1B2c3D4" * 6


class FakeBlobs:
    """Blobs in a dictionary; ``full`` stands for a disk without space, ``away`` for a bucket that does not answer."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.full = False
        self.away = False

    def put(self, tenant: str, data: bytes) -> str:
        if self.full:
            raise OSError(28, "No space left on device")
        ref = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.kept[ref] = data
        return ref

    def get(self, tenant: str, ref: str) -> bytes:
        if self.away:
            raise StoreUnavailable("The bucket s3://b answers with 503.")
        if ref not in self.kept:
            raise NotFound(f"no blob {ref}")
        return self.kept[ref]

    def delete(self, tenant: str, ref: str) -> None:
        self.kept.pop(ref, None)

    def refs(self, tenant: str) -> Iterator[str]:
        yield from self.kept


class FakeSealer:
    """Hides the bytes, so that a test can tell."""

    def seal(self, data: bytes, context: bytes = b"") -> str:
        return "sealed:" + base64.b64encode(data[::-1]).decode()

    def unseal(self, sealed: str, context: bytes = b"") -> bytes:
        return base64.b64decode(sealed.removeprefix("sealed:"))[::-1]


def keeping_rig(*, blobs: FakeBlobs | None = None, sealer: Any = None, redact: bool = True, **settings: Any) -> Rig:
    return Rig(
        parts={
            "redactor": Redactor(Rules(), salt="00" * 16) if redact else None,
            "sealer": lambda: sealer,
            "blobs": lambda: blobs,
        },
        **settings,
    )


def as_stored(rig: Rig) -> bytes:
    return msgspec.json.encode(rig.records()[0])


# -- results that have no JSON form ---------------------------------------------------------------------------------


@pytest.mark.parametrize("redact", [True, False])
def test_a_result_that_cannot_be_serialised_is_done_without_payload(redact: bool) -> None:
    rig = keeping_rig(redact=redact)
    value = object()
    script = rig.tool(lambda **_: value)
    first = rig.execute(call_id="c1")
    assert (first.status, first.content) == ("success", value)
    assert "not kept" in first.output.metadata["payload"]
    [record] = rig.records()
    assert (record.state, record.payload) == ("done", UNSET)
    again = rig.execute(call_id="c1")
    assert (again.status, again.from_cache, again.content) == ("success", True, None)
    assert "could not be stored" in again.output.metadata["payload"]
    assert len(script) == 1


def test_done_without_payload_is_never_evicted() -> None:
    from antiphon.stores import MemoryStore

    rig = Rig(store=MemoryStore(max_keys=4))
    script = rig.tool(lambda to, text: object() if to == "first" else to)
    rig.execute(call_id="c1", params={"to": "first"})
    for number in range(20):
        rig.execute(params={"to": str(number)})
    assert rig.execute(call_id="c1", params={"to": "first"}).from_cache
    assert len(script) == 21


# -- declared types come back ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Order(pydantic.BaseModel):
    id: int
    at: datetime


class Money(msgspec.Struct):
    amount: int


def test_declared_types_come_back() -> None:
    rig = Rig()
    tool = rig.gateway.tool

    @tool(idempotent=True, reuse="session")
    def point() -> Point:
        return Point(1, 2)

    @tool(idempotent=True, reuse="session")
    def order() -> Order:
        return Order(id=7, at=datetime(2026, 1, 2, tzinfo=UTC))

    @tool(idempotent=True, reuse="session")
    def money() -> Money:
        return Money(5)

    @tool(idempotent=True, reuse="session")
    def when() -> datetime:
        return datetime(2026, 1, 2, tzinfo=UTC)

    for function in (point, order, money, when):
        assert function() == function()
        assert type(function()) is type(function())


def test_a_declared_type_that_has_changed_gives_plain_data() -> None:
    rig = Rig()

    @rig.gateway.tool("order", idempotent=True, reuse="session")
    def order() -> Any:
        return {"number": 7}

    order()
    today = Rig(rig.store, clock=rig.clock)  # a later process: one gateway has one tool of a name

    @today.gateway.tool("order", idempotent=True, reuse="session")
    def order_of_today() -> Order:
        raise AssertionError("not run")

    found: Any = order_of_today()
    assert found == {"number": 7}


# -- size -----------------------------------------------------------------------------------------------------------


def test_a_large_result_is_spilled_and_comes_back() -> None:
    blobs = FakeBlobs()
    rig = keeping_rig(blobs=blobs, payload_limit=100)
    rig.tool("x" * 1_000)
    rig.execute(call_id="c1")
    [record] = rig.records()
    assert (record.payload, str(record.payload_ref)[:7]) == (UNSET, "sha256:")
    assert rig.execute(call_id="c1").content == "x" * 1_000


def test_a_result_over_the_limit_is_not_kept() -> None:
    rig = keeping_rig(result_limit=100)
    script = rig.tool("x" * 1_000)
    first = rig.execute(call_id="c1")
    assert first.content == "x" * 1_000
    assert "exceed the limit" in first.output.metadata["payload"]
    assert rig.execute(call_id="c1").content is None
    assert len(script) == 1


def test_a_full_disk_does_not_hide_that_the_call_took_effect() -> None:
    blobs = FakeBlobs()
    blobs.full = True
    rig = keeping_rig(blobs=blobs, payload_limit=100)
    script = rig.tool("x" * 1_000)
    first = rig.execute(call_id="c1")
    assert (first.status, first.content) == ("success", "x" * 1_000)
    assert "No space left" in first.output.metadata["payload"]
    assert rig.records()[0].state == "done"
    assert rig.execute(call_id="c1").from_cache
    assert len(script) == 1


def test_a_lost_blob_is_said_and_nothing_runs_again() -> None:
    blobs = FakeBlobs()
    rig = keeping_rig(blobs=blobs, payload_limit=100)
    script = rig.tool("x" * 1_000)
    rig.execute(call_id="c1")
    blobs.kept.clear()
    again = rig.execute(call_id="c1")
    assert (again.status, again.content) == ("success", None)
    assert "its result cannot be read. no blob" in again.output.metadata["payload"]
    assert rig.tally.counts["hits", "tools/send", "done"] == 1
    assert len(script) == 1


def test_a_result_that_cannot_be_read_now_is_not_called_lost() -> None:
    blobs = FakeBlobs()
    rig = keeping_rig(blobs=blobs, payload_limit=100)
    made: list[str] = []

    @rig.gateway.tool(idempotent=False, key="order")
    def pay(order: str) -> str:
        made.append(order)
        return "x" * 1_000

    pay("a")
    blobs.away = True
    with pytest.raises(ResultNotKept, match=r"kept, but cannot be read now\. The bucket s3://b answers") as refused:
        pay("a")
    assert "could not be stored" not in str(refused.value)
    assert "again when the store can be reached" in refused.value.hint
    blobs.away = False
    assert pay("a") == "x" * 1_000
    assert made == ["a"]


async def test_spilled_results_in_the_asynchronous_face() -> None:
    blobs = FakeBlobs()
    rig = AsyncRig(parts={"blobs": lambda: blobs}, payload_limit=100)
    rig.tool("x" * 1_000)
    await rig.execute(call_id="c1")
    assert (await rig.execute(call_id="c1")).content == "x" * 1_000
    assert len(blobs.kept) == 1


# -- secrets --------------------------------------------------------------------------------------------------------


def test_a_secret_result_is_sealed_and_comes_back_intact() -> None:
    rig = keeping_rig(sealer=FakeSealer())
    rig.tool({"token": SECRET})
    rig.execute(call_id="c1")
    assert SECRET.encode() not in as_stored(rig)
    assert rig.records()[0].payload_sealed is not UNSET
    assert rig.execute(call_id="c1").content == {"token": SECRET}


def test_a_large_secret_result_is_sealed_before_it_is_spilled() -> None:
    blobs = FakeBlobs()
    rig = keeping_rig(sealer=FakeSealer(), blobs=blobs, payload_limit=200)
    rig.tool({"token": SECRET, "text": "x" * 1_000})
    rig.execute(call_id="c1")
    assert all(SECRET.encode() not in data for data in blobs.kept.values())
    assert rig.execute(call_id="c1").content["token"] == SECRET


def test_without_a_seal_key_the_answer_says_that_it_was_redacted(caplog: pytest.LogCaptureFixture) -> None:
    rig = keeping_rig()
    rig.tool({"token": SECRET})
    assert rig.execute(call_id="c1").content == {"token": SECRET}
    rig.execute(call_id="c2")
    assert [record.message for record in caplog.records if "seal_key_file" in record.message] == [
        "a result that contains a secret is stored masked, and a repeated call gets the masked result: there is no "
        "seal key. Set [store] seal_key_file, see docs/how-to/keep-secrets-out.md"
    ]
    again = rig.execute(call_id="c1")
    assert SECRET not in str(again.content)
    assert again.output.metadata["outputRedacted"] is True
    assert SECRET.encode() not in as_stored(rig)


def test_a_lost_seal_key_is_said_and_nothing_runs_again() -> None:
    sealers: list[Any] = [FakeSealer()]
    rig = Rig(parts={"redactor": Redactor(Rules(), salt="00" * 16), "sealer": lambda: sealers[0]})
    script = rig.tool({"token": SECRET})
    rig.execute(call_id="c1")
    sealers[0] = None
    again = rig.execute(call_id="c1")
    assert (again.status, again.content) == ("success", None)
    assert "no seal key is configured here. Name its file" in again.output.metadata["payload"]
    assert len(script) == 1


def test_secrets_in_error_messages_do_not_reach_the_record() -> None:
    rig = keeping_rig()
    rig.tool(ValueError(f"bad token {SECRET}"), idempotent=True)
    rig.execute(call_id="c1")
    assert SECRET.encode() not in as_stored(rig)
    assert SECRET not in rig.execute(call_id="c1").error.message


def test_secrets_in_parameters_do_not_reach_the_record() -> None:
    rig = keeping_rig()
    rig.tool("fine")
    rig.execute(params={"to": SECRET})
    assert SECRET.encode() not in as_stored(rig)


# -- planted bug ------------------------------------------------------------------------------------------------------


def test_a_keeper_that_forgets_to_seal_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Redactor, "redact_bytes", lambda self, data: (data, False))
    rig = keeping_rig(sealer=FakeSealer())
    rig.tool({"token": SECRET})
    rig.execute(call_id="c1")
    assert SECRET.encode() in as_stored(rig)


def test_a_small_record_takes_little_memory() -> None:
    """orjson's own bytes hold on to a buffer of 4 KB, and a record has two such values."""
    rig = Rig(store=MemoryStore())

    @rig.gateway.tool(idempotent=True)
    def send(to: str, n: int) -> dict[str, Any]:
        return {"sent": to, "n": n}

    send("ana", 0)
    gc.collect()
    tracemalloc.start()
    try:
        for n in range(1, 301):
            send("ana", n)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] / 300 < 3000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("depth", [253, 254, 300, 2_000, 100_000])
def test_a_result_that_is_nested_too_deeply_is_given_once_and_never_made_twice(depth: int) -> None:
    rig, made = Rig(), []

    @rig.gateway.tool(idempotent=False, key="order")
    def nest(order: str) -> list[Any]:
        made.append(order)
        value: list[Any] = []
        for _ in range(depth):
            value = [value]
        return value

    assert isinstance(nest("o-1"), list)
    if depth < 254:
        assert isinstance(nest("o-1"), list)
    else:
        with pytest.raises(ResultNotKept, match="succeeded"):
            nest("o-1")
    assert made == ["o-1"]
