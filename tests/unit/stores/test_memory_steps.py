"""A claim in memory keeps values, not objects; its record is built when it is read; a settlement can be repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, overload

import pytest

from antiphon.ports import ClaimTemplate, Pin, Row, StaticClaimRequest
from antiphon.stores.memory.store import SyncMemoryJournal
from tests.unit.stores.kit import Kit, claimed, done, existing, failed


class Call:
    """A request that is used again for the next call."""

    def __init__(self, request: StaticClaimRequest) -> None:
        self.key: str = request.key
        self.identity: str = request.identity
        self.template: ClaimTemplate = request.template
        self.idempotency_key: str = request.idempotency_key
        self.params: bytes | tuple[str, str] = request.params
        self.request_id: str = request.request_id
        self.call_id: str | None = request.call_id
        self.token: str = request.token
        self.wait_replicas: int = request.wait_replicas
        self.shown: str = request.shown
        self.pin: Pin | None = request.pin


class Interrupted(Sequence[Row]):
    """Events whose writing is interrupted the first time."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.interrupts = 1

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return iter(self.rows)


def node(journal: SyncMemoryJournal, key: str = "a") -> Any:
    return journal._current[key]


def test_a_request_may_be_changed_once_it_was_answered() -> None:
    kit = Kit()
    first = kit.harness.request("a", "call-1", params=b'{"n":1}', token="t-1")
    call = Call(first)
    claimed(kit.journal.begin(call))
    call.key, call.identity, call.params, call.token = "b", "call-2", b'{"n":2}', "t-2"
    call.idempotency_key, call.request_id, call.call_id = "other", "other", None
    claimed(kit.journal.begin(call))
    record = existing(kit.journal.read("a", "call-1")).current
    assert record.owner == "t-1/process-1"
    assert record.request.params_digest == sha256(b'{"n":1}').hexdigest()
    assert (record.request.request_id, record.request.tool_call_id) == (first.request_id, first.call_id)


def test_the_record_is_built_when_it_is_read() -> None:
    kit = Kit()
    version = kit.claim("a")
    assert node(kit.journal).record is None
    kit.journal.settle("a", version, done())
    assert node(kit.journal).record is None
    assert existing(kit.journal.read("a")).current is node(kit.journal).record


@pytest.mark.parametrize("step", ["begin", "take_over"])
def test_long_parameters_are_kept_as_their_digests(step: str) -> None:
    kit = Kit()
    long, short = b"x" * 2_049, b"x" * 2_048
    for key, params in (("a", long), ("b", short)):
        version = kit.claim(key, "call-0")
        request = kit.harness.request(key, "call-1", params=params)
        if step == "take_over":
            claimed(kit.journal.take_over(request, version))
        else:
            kit.journal.clear(key)
            claimed(kit.journal.begin(request))
        assert existing(kit.journal.read(key)).current.request.params_digest == sha256(params).hexdigest()
    assert node(kit.journal, "a").params == (sha256(long).hexdigest(),) * 2
    assert node(kit.journal, "b").params == short


def test_a_settlement_that_was_interrupted_can_be_repeated() -> None:
    kit = Kit()
    version = kit.claim("a")
    settlement = done(b'"sent"', attempts=((1, 2, "", False),))
    events = Interrupted(kit.harness.rows("run", "ended"))
    with pytest.raises(KeyboardInterrupt):
        kit.journal.settle("a", version, settlement, events)
    assert not kit.journal.lock.locked()
    existing(kit.journal.read("a"))  # even if somebody looks in between
    settled = kit.journal.settle("a", version, settlement, events)
    assert settled is not None
    record = existing(kit.journal.read("a")).current
    assert (record.version, record.state) == (settled, "done")
    assert [event.type for event in kit.journal.events("run")] == ["ended"]


def test_a_repeated_settlement_may_say_something_else() -> None:
    kit = Kit()
    version = kit.claim("a")
    with pytest.raises(KeyboardInterrupt):
        kit.journal.settle("a", version, done(), Interrupted(kit.harness.rows("run", "ended")))
    assert kit.journal.settle("a", version, failed("outcome_unknown")) is not None
    record = existing(kit.journal.read("a")).current
    assert record.state == "failed"
    assert not record.payload
    assert node(kit.journal).kept


def test_a_begin_that_was_interrupted_is_told_by_its_token() -> None:
    kit = Kit()
    request = kit.harness.request("a", token="mine")
    with pytest.raises(KeyboardInterrupt):
        kit.journal.begin(request, Interrupted(kit.harness.rows("run", "started")))
    assert existing(kit.journal.begin(request)).current.owner == "mine/process-1"


def test_all_threads_share_one_journal() -> None:
    kit = Kit()
    assert kit.store.open_sync() is kit.journal
    assert kit.store.in_process
