"""What a call means, rule by rule, on four stores and both faces: keys, exceptions, unknown outcomes, conflicts.

The same tables are in docs/explanation/what-a-call-means.md. ``ROWS`` names the tests of each of their rows.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import antiphon
from antiphon._drive import drive
from antiphon._gateway import results
from antiphon.adapters._calls import CallIdentity, GuardedTools, specs_of
from antiphon.cli.admin import _resolve_all as resolve_all
from antiphon.config.wiring import open_store
from antiphon.contract.spec import DidNotHappen, Happened, RetryPolicy
from antiphon.errors import (
    CallTimeout,
    IdempotencyConflict,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    RecordedError,
    RetryExhausted,
    ToolDeniedError,
)
from antiphon.ops.admin import Admin
from antiphon.ports import Clock, Settlement, Store
from antiphon.stores import SQLiteStore
from tests.unit.stores.test_memory_bounds import (
    test_unknown_outcomes_are_counted_apart_and_half_the_store_is_warned_of,
)

QUIET: dict[str, Any] = {"telemetry": {"logs": False}, "retry": {"base_ms": 0}}


PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "what-a-call-means.md"


class CardDeclined(Exception):
    pass


class Wordy(Exception):
    """One that cannot be made from its message alone."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, unique: str) -> Store:
    if request.param == "memory":
        return open_store("memory:")
    if request.param == "sqlite":
        return open_store(f"sqlite:///{tmp_path / 'journal.db'}")
    if request.param == "postgres":
        return open_store(f"{request.getfixturevalue('postgres_database')}?antiphon_schema={unique}")
    return open_store(f"{request.getfixturevalue('valkey_url')}?antiphon_prefix={unique}")


class Refused(Exception):
    """No class that the tool declares."""


class Shop:
    """A tool that charges, on either face; it fails when it is told to."""

    def __init__(self, store: Store, asynchronous: bool, **declared: Any) -> None:
        self.store, self.asynchronous = store, asynchronous
        self.charges: list[tuple[str, int]] = []
        self.fails: list[Exception] = []
        kind: Any = antiphon.AsyncGateway if asynchronous else antiphon.Gateway
        self.gateway = kind(store, QUIET)
        self.loop = asyncio.new_event_loop() if asynchronous else None
        self.charge: Any = self.gateway.tool(
            "charge",
            **{"idempotent": False, "effect": "write", "key": "order", "key_ignore": ("note",), **declared},
        )(self._function())

    def _function(self) -> Callable[..., Any]:
        def charge(order: str, cents: int, note: str = "") -> str:
            if self.fails:
                raise self.fails.pop()
            self.charges.append((order, cents))
            return f"receipt {len(self.charges)}"

        async def charge_async(order: str, cents: int, note: str = "") -> str:
            return charge(order, cents, note)

        return charge_async if self.asynchronous else charge

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self.done(self.charge(*args, **kwargs))

    def done(self, reply: Any) -> Any:
        return reply if self.loop is None else self.loop.run_until_complete(reply)

    def turn(self, session: str, *args: Any, **kwargs: Any) -> Any:
        turn = self.gateway.session(session).turn()
        return self.done(turn.call(*args, **kwargs))

    def close(self) -> None:
        self.done(self.gateway.close())
        if self.loop is not None:
            self.loop.close()


@pytest.fixture(params=[False, True], ids=["threads", "loop"])
def shop(request: pytest.FixtureRequest, store: Store) -> Any:
    made: list[Shop] = []

    def make(kind: type[Shop] = Shop, **declared: Any) -> Shop:
        made.append(kind(store, request.param, **declared))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_key_means_once_whoever_asks_in_whatever_way(shop: Callable[..., Shop]) -> None:
    one = shop()
    assert one.call("o-1", 500) == "receipt 1"
    assert one.call("o-1", 500, note="again") == "receipt 1"  # ignored: the note
    assert one.turn("alice", "charge", {"order": "o-1", "cents": 500}).content == "receipt 1"
    assert one.turn("bob", "charge", {"order": "o-9", "cents": 500}, key="o-1").error.code == "idempotency_conflict"
    assert one.done(one.charge.once("o-1")("o-1", 500)) == "receipt 1"
    assert one.call("o-2", 500) == "receipt 2"
    assert one.charges == [("o-1", 500), ("o-2", 500)]


def test_other_arguments_are_a_conflict_and_nothing_runs(shop: Callable[..., Shop]) -> None:
    one = shop()
    one.call("o-1", 500)
    with pytest.raises(IdempotencyConflict, match="other parameters"):
        one.call("o-1", 501)
    assert one.turn("s", "charge", {"order": "o-1", "cents": 501}).error.code == "idempotency_conflict"
    assert one.charges == [("o-1", 500)]


def _envelope(request: str, cents: int, call_id: str | None = None) -> dict[str, Any]:
    """A call on the wire; without *call_id* the request's own id tells it from others."""
    given = {} if call_id is None else {"toolCallId": call_id}
    return {
        "contractVersion": "1.1",
        "requestId": request,
        "toolNamespace": "tools",
        "toolName": "charge",
        "target": {"sessionKey": "s1", "actorId": "a1"},
        "payload": {"version": "1.0", "params": {"order": "o-1", "cents": cents}},
        "transport": {"dedupeMode": "enforced", "retryBudget": {"maxAttempts": 1, "maxElapsedMs": 1000}},
        "control": {},
        "trace": {},
        **given,
    }


@pytest.mark.parametrize("way", ["turn", "envelope with a call id", "envelope with a request id"])
def test_one_call_id_is_for_one_set_of_arguments(shop: Callable[..., Shop], way: str) -> None:
    def ask(one: Shop, call_id: str, cents: int) -> Any:
        if way == "turn":
            return one.turn("alice", "charge", {"order": "o-1", "cents": cents}, call_id)
        if way == "envelope with a request id":
            return one.done(one.gateway.execute(_envelope(call_id, cents)))
        return one.done(one.gateway.execute(_envelope(str(uuid4()), cents, call_id)))

    one, other = shop(key=None, key_ignore=()), shop(key=None, key_ignore=())
    assert ask(one, "c-1", 500).content == "receipt 1"
    for gateway in (one, other):  # also after a restart, and on another machine
        again = ask(gateway, "c-1", 500)
        assert (again.content, again.from_cache) == ("receipt 1", True)
        refused = ask(gateway, "c-1", 501)
        assert refused.error.code == "idempotency_conflict"
        assert "'c-1'" in refused.error.message
    assert ask(one, "c-2", 501).content == "receipt 2"
    assert (one.charges, other.charges) == ([("o-1", 500), ("o-1", 501)], [])


def test_a_call_id_belongs_to_its_session_and_run(shop: Callable[..., Shop], store: Store) -> None:
    one = shop(key=None, key_ignore=())
    for number, session in enumerate(("alice", "bob"), 1):
        answer = one.turn(session, "charge", {"order": session, "cents": 500}, "call_0")
        assert answer.content == f"receipt {number}"
    app = antiphon.Antiphon(QUIET, store=store)
    for number in (3, 4):
        with app.run(f"day {number}"):
            answer = one.turn("alice", "charge", {"order": "o", "cents": number}, "call_0")
            assert answer.content == f"receipt {number}"


def test_ids_that_a_provider_counts_anew_in_each_message_are_told_apart(
    shop: Callable[..., Shop], store: Store
) -> None:
    one = shop(key=None, key_ignore=())
    sent: list[dict[str, Any]] = []

    async def body_async(params: dict[str, Any]) -> str:
        sent.append(params)
        return f"sent {len(sent)}"

    def body(params: dict[str, Any]) -> str:
        sent.append(params)
        return f"sent {len(sent)}"

    tools = GuardedTools(specs_of({"mail": {"idempotent": False}}), one.gateway)

    def ask(turn: str | None, to: str) -> Any:
        place, spec = CallIdentity("thread-1", "call_0", turn), tools.spec("mail")
        if one.asynchronous:
            return one.done(tools.call_async(spec, {"to": to}, place, body_async))
        return tools.call(spec, {"to": to}, place, body)

    assert ask("m1", "ada").value == "sent 1"
    assert (ask("m1", "ada").value, ask("m1", "ada").reused) == ("sent 1", True)  # resumed
    assert ask("m1", "bob").code == "idempotency_conflict"
    assert ask("m2", "bob").value == "sent 2"
    assert ask("m2", "bob").reused
    assert ask("m3", "bob").value == "sent 3"  # the same arguments in a later message are a new call
    assert ask(None, "eve").value == "sent 4"  # nobody says which message asks: the id alone ties nothing
    assert ask(None, "dan").value == "sent 5"


@pytest.mark.parametrize("bad", ["", "  ", None, (), True, 1.5])
def test_an_empty_key_is_an_error_and_nothing_runs(shop: Callable[..., Shop], bad: Any) -> None:
    one = shop()
    with pytest.raises(InvalidInput, match="needs a key"):
        one.call(bad, 500)
    with pytest.raises(InvalidInput, match="needs a key"):
        one.charge.once(bad)
    assert one.charges == []


def test_a_done_key_is_kept_for_thirty_days(shop: Callable[..., Shop], store: Store) -> None:
    one = shop()
    one.call("o-1", 500)
    [record] = store.open_sync().list(tenant="default")
    assert record.expires_at_ms - record.updated_at_ms == 30 * 86_400_000


@pytest.mark.parametrize("failure", [CardDeclined("no funds"), DidNotHappen("closed")], ids=["declared", "raised"])
def test_a_certain_failure_is_the_tools_own_and_frees_the_key(shop: Callable[..., Shop], failure: Exception) -> None:
    one = shop(certain_errors=(CardDeclined,))
    one.fails = [failure]
    with pytest.raises(type(failure)) as caught:
        one.call("o-1", 500)
    assert caught.value is failure
    assert one.call("o-1", 400) == "receipt 1"  # also for other arguments


class Till(Shop):
    """A tool that says where its effect begins."""

    before: Exception | None = None
    after: Exception | None = None

    def _function(self) -> Callable[..., Any]:
        def charge(order: str, cents: int, note: str = "") -> str:
            if self.before is not None:
                raise self.before
            with antiphon.effect():
                self.charges.append((order, cents))
            if self.after is not None:
                raise self.after
            return f"receipt {len(self.charges)}"

        async def charge_async(order: str, cents: int, note: str = "") -> str:
            if self.before is not None:
                raise self.before
            await asyncio.sleep(0)
            with antiphon.effect():
                await asyncio.sleep(0)
                self.charges.append((order, cents))
            if self.after is not None:
                raise self.after
            return f"receipt {len(self.charges)}"

        return charge_async if self.asynchronous else charge


def test_an_exception_before_the_effect_frees_the_key(shop: Callable[..., Shop]) -> None:
    one: Any = shop(kind=Till)
    one.before = Refused("no such order")
    with pytest.raises(Refused) as caught:
        one.call("o-1", 500)
    assert caught.value is one.before
    assert "claims resolve" not in "".join(caught.value.__notes__)
    one.before = None
    assert one.call("o-1", 400) == "receipt 1"  # also for other arguments
    one.after = Refused("the printer is out of paper")
    with pytest.raises(Refused) as caught:
        one.call("o-2", 500)
    assert "claims resolve" in "".join(caught.value.__notes__)
    with pytest.raises(OutcomeUnknown):
        one.call("o-2", 500)
    with pytest.raises(IdempotencyConflict):
        one.call("o-2", 400)
    assert one.charges == [("o-1", 400), ("o-2", 500)]


def test_a_timeout_of_an_idempotent_tool_does_not_free_its_key_for_other_arguments(shop: Callable[..., Shop]) -> None:
    """It may run again, as the tool says; whether it has had its effect is open."""
    one = shop(idempotent=True)
    one.fails = [TimeoutError("no answer") for _ in range(10)]
    with pytest.raises(TimeoutError):
        one.call("o-1", 500)
    with pytest.raises(IdempotencyConflict):
        one.call("o-1", 501)
    one.fails = []
    assert one.call("o-1", 500) == "receipt 1"
    assert one.charges == [("o-1", 500)]


def test_any_other_failure_is_unknown_until_somebody_settles_it(shop: Callable[..., Shop], store: Store) -> None:
    one = shop(certain_errors=(CardDeclined,))
    one.fails = [ValueError("what?")]
    with pytest.raises(ValueError, match="what") as caught:
        one.call("o-1", 500)
    assert "antiphon claims resolve" in "".join(caught.value.__notes__)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            one.call("o-1", 500)
    assert one.charges == []
    admin = Admin(antiphon.Antiphon(QUIET, store=store))
    [claim] = drive(admin.claims(state="unknown"))
    assert (claim["expiresAtMs"], claim["idempotencyKey"]) == (None, "o-1")
    assert '"cents":500' in claim["arguments"]
    with pytest.raises(InvalidInput, match="--no-value"):
        drive(admin.resolve(claim["key"], "happened", has_value=False))
    drive(admin.resolve(claim["key"], "did-not-happen"))
    drive(admin.resolve(claim["key"], "happened", value="receipt by hand"))  # corrected
    assert one.call("o-1", 500) == "receipt by hand"
    with pytest.raises(InvalidInput, match="already answered"):
        drive(admin.resolve(claim["key"], "did-not-happen"))
    with pytest.raises(InvalidInput, match="already answered"):
        drive(admin.resolve(claim["key"], "happened", value="another receipt"))
    assert one.call("o-1", 500) == one.call("o-1", 500) == "receipt by hand"
    assert one.charges == []


class Tomorrow(Clock):
    def now_ms(self) -> int:
        return super().now_ms() + 86_400_000


class Watched(Shop):
    """Somebody looks while it charges."""

    look: Callable[[], None]

    def _function(self) -> Callable[..., Any]:
        charge = super()._function()

        def watched(order: str, cents: int, password: str) -> Any:
            self.look()
            return charge(order, cents)

        async def watched_async(order: str, cents: int, password: str) -> Any:
            self.look()
            return await charge(order, cents)

        return watched_async if self.asynchronous else watched


def test_a_write_whose_worker_is_lost_is_listed_with_its_arguments(shop: Callable[..., Shop], store: Store) -> None:
    one = shop(Watched, key_ignore=(), reconcile=lambda params: Happened(f"found {params['order']}"))
    seen: list[Any] = []

    admin = Admin(antiphon.Antiphon(QUIET, store=store))

    def end_lease() -> None:
        """As if the worker did not extend it."""
        [claim] = drive(admin.claims(state="inflight"))
        store.open_sync().renew(claim["key"], claim["version"], 1)
        time.sleep(0.05)

    def look() -> None:
        seen.append(drive(admin.claims(state="inflight")))
        seen.append(drive(admin.claims(state="unknown")))
        end_lease()
        seen.append(drive(admin.claims(state="unknown")))
        seen.append(drive(admin.evidence(one.gateway.tools)))

    one.look = look  # type: ignore[attr-defined]
    one.call("o-1", 500, "hunter2-the-second")
    [running], unknown, lost, evidence = seen
    assert (running["lost"], unknown) == (False, [])
    if store.in_process:  # a claim there ends with its process
        assert (running["arguments"], lost, evidence) == (None, [], [])
        return
    for claim in (running, *lost):
        assert '"order":"o-1","cents":500' in claim["arguments"]
        assert "hunter2" not in claim["arguments"]
    assert [(claim["key"], claim["lost"]) for claim in lost] == [(running["key"], True)]
    sealed = ("happened", "")  # an SQLite store has a seal key, so the arguments can be given back
    masked = (None, "the record keeps its arguments masked, shortened, or in another type")
    expected = [sealed if store.url.startswith("sqlite") else masked]
    assert [(claim["verdict"], claim["why"]) for claim in evidence] == expected

    def look_again() -> None:
        end_lease()
        seen.append(drive(admin.evidence(one.gateway.tools)))

    one.look = look_again  # type: ignore[attr-defined]
    one.call("o-2", 500, "")
    assert [(claim["verdict"], claim["value"]) for claim in seen[-1]] == [("happened", "found o-2")]
    [done, *_] = drive(admin.claims(state="done"))
    assert done["arguments"] is None


def test_arguments_that_cannot_be_unsealed_are_not_shown(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "shop.db")
    app = antiphon.Antiphon(QUIET, store=store)
    seen: list[Any] = []

    @app.gateway.tool(idempotent=False)
    def charge(order: str) -> None:
        seen.extend(drive(Admin(antiphon.Antiphon(QUIET, store=store)).claims(state="inflight")))
        for key in tmp_path.glob("*.seal-key"):
            key.unlink()
        seen.extend(drive(Admin(antiphon.Antiphon(QUIET, store=store)).claims(state="inflight")))

    charge("o-1")
    assert [claim["arguments"] for claim in seen] == ['{"order":"o-1"}', None]
    assert b"o-1" not in b"".join(file.read_bytes() for file in tmp_path.glob("shop.db*"))


def test_a_resolution_that_has_let_a_call_run_is_over(shop: Callable[..., Shop], store: Store) -> None:
    one = shop()
    one.fails = [ValueError("what?")]
    with pytest.raises(ValueError, match="what"):
        one.call("o-1", 500)
    admin = Admin(antiphon.Antiphon(QUIET, store=store))
    [claim] = drive(admin.claims(state="unknown"))
    drive(admin.resolve(claim["key"], "happened", value="receipt by hand"))
    drive(admin.resolve(claim["key"], "did-not-happen"))  # corrected
    assert one.call("o-1", 500) == "receipt 1"
    with pytest.raises(InvalidInput, match="is known: done"):
        drive(admin.resolve(claim["key"], "happened", value="receipt by hand"))


def test_unknown_outcomes_are_settled_in_bulk_by_what_reconcile_says(shop: Callable[..., Shop], store: Store) -> None:
    answers = {"o-1": Happened("found"), "o-2": DidNotHappen(), "o-3": None, "o-4": True}
    asked: list[tuple[str, str]] = []

    def was_it_charged(params: dict[str, Any], context: antiphon.CallContext) -> Any:
        asked.append((params["order"], context.idempotency_key))
        return answers[params["order"]]

    one = shop(reconcile=was_it_charged)
    for order in answers:
        one.fails = [ValueError("what?")]
        with pytest.raises(ValueError, match="what"):
            one.call(order, 500)
    admin = Admin(antiphon.Antiphon(QUIET, store=store))
    said = {claim["idempotencyKey"]: claim for claim in drive(admin.claims(state="unknown"))}
    evidence = drive(admin.evidence(one.gateway.tools, tool="tools/charge"))
    assert sorted(asked) == [(order, order) for order in answers]
    verdicts = {claim["key"]: (claim["verdict"], claim["value"]) for claim in evidence}
    assert [verdicts[said[order]["key"]] for order in answers] == [
        ("happened", "found"),
        ("did-not-happen", None),
        (None, None),
        (None, None),
    ]
    for claim in evidence:
        if claim["verdict"] is not None:
            drive(admin.resolve(claim["key"], claim["verdict"], value=claim["value"], version=claim["version"]))
    assert one.call("o-1", 500) == "found"
    assert one.call("o-2", 500) == "receipt 1"
    assert {claim["idempotencyKey"] for claim in drive(admin.claims(state="unknown"))} == {"o-3", "o-4"}


def test_reconcile_settles_an_unknown_outcome(shop: Callable[..., Shop]) -> None:
    answers: list[Any] = [Happened("found"), None, True]
    one = shop(reconcile=lambda params: answers.pop())
    one.fails = [ValueError("what?")]
    with pytest.raises(ValueError, match="what"):
        one.call("o-1", 500)
    with pytest.raises(TypeError, match="Happened"):
        one.call("o-1", 500)
    with pytest.raises(OutcomeUnknown):
        one.call("o-1", 500)
    assert one.call("o-1", 500) == "found"
    assert one.charges == []


def test_flush_and_clear_leave_unknown_outcomes_alone_unless_told(shop: Callable[..., Shop], store: Store) -> None:
    one = shop()
    one.call("o-1", 500)
    one.fails = [ValueError("what?")]
    with pytest.raises(ValueError, match="what"):
        one.call("o-2", 500)
    admin = Admin(antiphon.Antiphon(QUIET, store=store))
    assert drive(admin.flush(tool="tools/charge")) == {"flushed": 1, "kept": {"inFlight": 0, "unknown": 1}}
    [claim] = drive(admin.claims())
    with pytest.raises(InvalidInput, match="--unknown"):
        drive(admin.clear(claim["key"]))
    with pytest.raises(OutcomeUnknown):
        one.call("o-2", 500)
    assert drive(admin.clear(claim["key"], unknown=True))["cleared"] is True
    [tombstone] = drive(admin.claims())
    assert tombstone["error"]["code"] == "cleared"
    assert one.call("o-2", 500) == "receipt 2"
    with pytest.raises(NotFound):
        drive(admin.claim("nothing"))


def test_volatile_arguments_are_no_part_of_what_a_key_stands_for(shop: Callable[..., Shop]) -> None:
    one = shop(key_ignore=(), volatile=("note",))
    assert one.call("o-1", 500) == one.call("o-1", 500, note="again") == "receipt 1"
    assert one.charges == [("o-1", 500)]


class Slow(Shop):
    """A tool that waits until it may go on, before or behind its point of no return, or without one."""

    def __init__(self, *args: Any, before: bool | None = None, **declared: Any) -> None:
        self.before = before
        self.begun, self.go = threading.Event(), threading.Event()
        super().__init__(*args, **declared)

    def _function(self) -> Callable[..., Any]:
        if self.before is None:
            return self._plain()

        def charge(order: str, cents: int, note: str = "") -> str:
            if self.before:
                self.wait(cents)
            with antiphon.effect():
                if not self.before:
                    self.wait(cents)
                self.charges.append((order, cents))
            return f"receipt {len(self.charges)}"

        return charge  # on a thread, also in an event loop

    def _plain(self) -> Callable[..., Any]:
        def charge(order: str, cents: int, note: str = "") -> str:
            self.wait(cents)
            self.charges.append((order, cents))
            return f"receipt {len(self.charges)}"

        return charge

    def wait(self, cents: int) -> None:
        self.begun.set()
        if cents == 500:
            self.go.wait(60)

    def close(self) -> None:
        self.go.set()
        super().close()


def test_the_same_key_while_the_first_call_runs_waits(shop: Callable[..., Shop]) -> None:
    one: Any = shop(kind=Slow)
    if one.asynchronous:

        async def both() -> Any:
            first = asyncio.ensure_future(one.charge("o-1", 500))
            await asyncio.to_thread(one.begun.wait, 60)
            second = asyncio.ensure_future(one.charge("o-1", 500))
            await asyncio.sleep(0)
            one.go.set()
            return await asyncio.gather(first, second)

        found = one.done(both())
    else:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(one.charge, "o-1", 500)
            assert one.begun.wait(60)
            second = pool.submit(one.charge, "o-1", 500)
            one.go.set()
            found = [first.result(60), second.result(60)]
    assert found == ["receipt 1", "receipt 1"]
    assert one.charges == [("o-1", 500)]


def test_flush_and_clear_leave_calls_in_flight_alone_unless_told(store: Store) -> None:
    """An equal call would be dispatched beside the one that runs."""
    one = Slow(store, False)
    admin = Admin(antiphon.Antiphon(QUIET, store=store))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(one.charge, "o-1", 500)
        assert one.begun.wait(60)
        assert drive(admin.flush(tool="tools/charge")) == {"flushed": 0, "kept": {"inFlight": 1, "unknown": 0}}
        [claim] = drive(admin.claims())
        with pytest.raises(InvalidInput, match="--in-flight"):
            drive(admin.clear(claim["key"]))
        second = pool.submit(one.charge, "o-1", 500)
        one.go.set()
        assert [first.result(60), second.result(60)] == ["receipt 1", "receipt 1"]
    assert one.charges == [("o-1", 500)]
    one.close()


def test_a_call_that_runs_out_of_time_before_its_effect_frees_the_key(shop: Callable[..., Shop]) -> None:
    one: Any = shop(kind=Slow, before=True, timeout=0.5, retry=RetryPolicy(max_attempts=1))
    with pytest.raises(CallTimeout):
        one.call("o-1", 500)
    assert one.call("o-1", 400) == "receipt 1"
    assert one.charges == [("o-1", 400)]


def test_a_call_that_runs_out_of_time_is_unknown(shop: Callable[..., Shop]) -> None:
    for before in (None, False):
        one: Any = shop(kind=Slow, before=before, timeout=0.5)
        with pytest.raises(OutcomeUnknown):
            one.call(f"o-{before}", 500)
        with pytest.raises(IdempotencyConflict):
            one.call(f"o-{before}", 400)
        assert one.charges == []


def test_a_refusal_that_cannot_have_had_an_effect_frees_the_key(shop: Callable[..., Shop]) -> None:
    one = shop()
    one.fails = [ConnectionRefusedError("nobody listens") for _ in range(10)]
    with pytest.raises((ConnectionRefusedError, RetryExhausted)):
        one.call("o-1", 500)
    one.fails = []
    assert one.call("o-1", 400) == "receipt 1"


@pytest.mark.parametrize(("kind", "raises"), [(CardDeclined, CardDeclined), (Wordy, RecordedError)])
def test_an_answer_from_a_record_raises_the_declared_class_or_a_stand_in(
    shop: Callable[..., Shop], kind: type[Exception], raises: type[Exception]
) -> None:
    one = shop(key=None, key_ignore=(), certain_errors=(kind,))
    one.fails = [CardDeclined("no funds") if kind is CardDeclined else Wordy(3, "no funds")]

    def ask() -> tuple[Any, Any]:
        call = one.gateway.envelope_call(_envelope(str(uuid4()), 500, "c-1"))
        return call, one.done(one.gateway.run(call))

    ask()
    call, outcome = ask()
    assert outcome.from_cache
    with pytest.raises(raises, match="no funds"):
        results.raise_for(call, outcome)
    assert one.charges == []


def test_a_call_that_a_hook_denies_raises(shop: Callable[..., Shop]) -> None:
    one = shop()

    def deny(_: Any) -> None:
        raise ToolDeniedError("not today")

    one.gateway.before(deny)
    with pytest.raises(ToolDeniedError, match="not today"):
        one.call("o-1", 500)
    assert one.charges == []


def _followed(one: Shop) -> dict[str, Any]:
    """A call of unknown outcome that an equal one of another id has followed, and its arguments."""
    arguments = {"order": "o-1", "cents": 500}
    one.fails = [ValueError("what?")]
    assert one.turn("s", "charge", arguments, "c-1").error.code == "outcome_unknown"
    time.sleep(0.35)
    assert one.turn("s", "charge", arguments, "c-2").content == "receipt 1"
    return arguments


FOLLOWED: dict[str, Any] = {"key": None, "key_ignore": (), "ttl": {"done_ms": 300}}
"""So long an unknown outcome keeps equal calls from running."""


def test_an_unknown_outcome_that_others_have_followed_is_kept_listed_and_settled(
    shop: Callable[..., Shop], store: Store
) -> None:
    one = shop(**FOLLOWED)
    arguments = _followed(one)
    admin = Admin(antiphon.Antiphon(QUIET, store=store))
    [listed] = drive(admin.claims(state="unknown", tool="tools/charge"))
    assert (listed["callId"], drive(admin.claims(state="unknown", tool="tools/other"))) == ("c-1", [])
    assert drive(admin.flush(session="s")) in ({"flushed": 0, "kept": {"inFlight": 0, "unknown": 1}}, {"flushed": 0})
    with pytest.raises(InvalidInput, match="--unknown"):
        drive(admin.clear(listed["key"]))
    assert one.turn("s", "charge", arguments, "c-1").error.code == "outcome_unknown"
    drive(admin.resolve(listed["key"], "happened", value="receipt 0"))
    assert drive(admin.claims(state="unknown")) == []
    assert one.turn("s", "charge", arguments, "c-1").content == "receipt 0"
    assert len(one.charges) == 1


def test_of_two_unknown_outcomes_of_a_claim_one_is_named(shop: Callable[..., Shop], store: Store) -> None:
    one = shop(**FOLLOWED)
    arguments = {"order": "o-1", "cents": 500}
    for name in ("c-1", "c-2"):
        one.fails = [ValueError("what?")]
        assert one.turn("s", "charge", arguments, name).error.code == "outcome_unknown"
        time.sleep(0.35)
    admin = Admin(antiphon.Antiphon(QUIET, store=store))
    second, first = drive(admin.claims(state="unknown"))
    assert (first["callId"], second["callId"]) == ("c-1", "c-2")
    assert drive(admin.claims(state="unknown", before=f"{second['key']}@{second['fence']}"))[0]["callId"] == "c-1"
    assert drive(admin.claims(state="unknown", before=f"{first['key']}@{first['fence']}")) == []
    with pytest.raises(InvalidInput, match=r"2 calls of .* unknown") as refused:
        drive(admin.resolve(first["key"], "did-not-happen"))
    assert str(first["version"]) in (refused.value.hint or "")
    drive(admin.resolve(first["key"], "happened", value="receipt 0", version=first["version"]))
    assert one.turn("s", "charge", arguments, "c-1").content == "receipt 0"
    assert one.turn("s", "charge", arguments, "c-2").error.code == "outcome_unknown"
    drive(admin.resolve(first["key"], "did-not-happen"))
    assert one.turn("s", "charge", arguments, "c-2").content == "receipt 1"
    assert one.turn("s", "charge", arguments, "c-1").content == "receipt 0"


@pytest.mark.parametrize("way", ["clear", "flush"])
def test_unknown_outcomes_that_others_have_followed_are_forgotten_if_told(
    shop: Callable[..., Shop], store: Store, way: str
) -> None:
    one = shop(**FOLLOWED)
    arguments = _followed(one)
    time.sleep(0.35)
    admin = Admin(antiphon.Antiphon(QUIET, store=store))
    [listed] = drive(admin.claims(state="unknown"))
    if way == "clear":
        assert drive(admin.clear(listed["key"], unknown=True))["cleared"] is True
    else:
        assert drive(admin.flush(session="s", unknown=True))["flushed"] >= 1
    assert drive(admin.claims(state="unknown")) == []
    assert one.turn("s", "charge", arguments, "c-1").content == "receipt 2"


def test_a_claim_that_went_in_flight_since_it_was_listed_is_not_flushed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Shop(store, False)
    assert one.call("o-1", 500) == "receipt 1"
    admin = Admin(antiphon.Antiphon(QUIET, store=store))
    [claim] = drive(admin.claims())
    drop = Admin._drop
    taken: list[bool] = []

    async def late(self: Admin, record: Any) -> bool:
        unknown = Settlement("failed", 60_000, error=("outcome_unknown", "?", True, False))
        taken.append(store.open_sync().settle(record.key, record.version, unknown) is not None)
        return await drop(self, record)

    monkeypatch.setattr(Admin, "_drop", late)
    assert drive(admin.flush(tool="tools/charge")) == {"flushed": 0}
    [left] = drive(admin.claims(state="unknown"))
    assert (taken, left["key"]) == ([True], claim["key"])
    one.close()


def test_cancelled_calls_of_idempotent_tools_are_not_unknown(store: Store) -> None:
    journal = store.open_sync()
    gateway = antiphon.Gateway(store, QUIET)

    @gateway.tool(idempotent=True)
    def look(n: int) -> int:
        return n

    session = gateway.session("s")
    assert session.turn().call("look", {"n": 1}, call_id="c-1").content == 1
    [record] = journal.list(tenant="default")
    journal.settle(record.key, record.version, Settlement("cancelled", 60_000))
    assert session.turn().call("look", {"n": 1}, call_id="c-2").content == 1
    admin = Admin(antiphon.Antiphon(QUIET, store=store))
    assert drive(admin.claims(state="unknown")) == []
    assert drive(admin.clear(record.key))["cleared"] is True


def test_a_lease_ends_by_the_clock_of_the_store(store: Store) -> None:
    gateway = antiphon.Gateway(store, QUIET)
    ahead = Admin(antiphon.Antiphon(QUIET, store=store, clock=Tomorrow()))

    @gateway.tool(idempotent=False, effect="write")
    def pay(order: str) -> None:
        [claim] = drive(ahead.claims(state="inflight"))
        assert claim["lost"] is False
        assert drive(ahead.claims(state="unknown")) == []
        with pytest.raises(InvalidInput, match="is running"):
            drive(ahead.resolve(claim["key"], "did-not-happen"))

    pay("o-1")


@pytest.mark.parametrize("happened", [True, False])
def test_reconcile_is_asked_about_an_unknown_outcome_that_others_have_followed(
    shop: Callable[..., Shop], happened: bool
) -> None:
    asked: list[Any] = []

    def reconcile(params: dict[str, Any]) -> Any:
        asked.append(params)
        if len(asked) < 2:
            return None
        return Happened("receipt 0") if happened else DidNotHappen()

    one = shop(**FOLLOWED, reconcile=reconcile)
    arguments = _followed(one)
    assert one.turn("s", "charge", arguments, "c-1").error.code == "outcome_unknown"
    for _ in range(2):
        assert one.turn("s", "charge", arguments, "c-1").content == ("receipt 0" if happened else "receipt 2")
    assert (len(asked), len(one.charges)) == (2, 1 if happened else 2)


def test_a_call_whose_worker_holds_the_lease_is_not_resolved_unless_told(store: Store) -> None:
    gateway = antiphon.Gateway(store, QUIET)
    admin = Admin(antiphon.Antiphon(QUIET, store=store))

    @gateway.tool(idempotent=False, effect="write")
    def pay(order: str) -> None:
        [claim] = drive(admin.claims(state="inflight"))
        with pytest.raises(InvalidInput, match="is running"):
            drive(admin.resolve(claim["key"], "did-not-happen"))
        [again] = drive(admin.claims(state="inflight"))
        assert again["version"] == claim["version"]
        assert drive(admin.resolve(claim["key"], "happened", value="by hand", in_flight=True))["resolved"] == "happened"

    pay("o-1")
    [claim] = drive(admin.claims())
    assert claim["error"]["code"].startswith("resolved")


def test_an_unknown_outcome_keeps_equal_calls_without_a_key_from_running(shop: Callable[..., Shop]) -> None:
    one = shop(key=None, key_ignore=())
    one.fails = [ValueError("what?")]
    assert one.turn("s", "charge", {"order": "o-1", "cents": 500}, "c-1").error.code == "outcome_unknown"
    for call_id in ("c-1", "c-2"):
        assert one.turn("s", "charge", {"order": "o-1", "cents": 500}, call_id).error.code == "outcome_unknown"
    assert one.turn("s", "charge", {"order": "o-1", "cents": 501}, "c-3").content == "receipt 1"
    assert one.charges == [("o-1", 501)]


def test_unknown_outcomes_of_a_tool_are_settled_at_once(shop: Callable[..., Shop], store: Store) -> None:
    one = shop()
    for order in ("o-1", "o-2"):
        one.fails = [ValueError("what?")]
        with pytest.raises(ValueError, match="what"):
            one.call(order, 500)
    admin = Admin(antiphon.Antiphon(QUIET, store=store))
    chosen = {"tool": "tools/charge", "session": "", "prefix": ""}
    words = {"happened": False, "did_not_happen": True, "value": None, "no_value": False, "reason": "", "yes": False}
    words |= {"dry_run": True, "in_flight": False}
    tried = drive(resolve_all(admin, Namespace(**words), chosen))
    assert tried == {"resolved": 2, "as": "did-not-happen", "dryRun": True}
    words["dry_run"] = False
    with pytest.raises(InvalidInput, match="2 unknown outcomes will be settled as did-not-happen"):
        drive(resolve_all(admin, Namespace(**words), chosen))
    settled = drive(resolve_all(admin, Namespace(**{**words, "yes": True}), chosen))
    assert settled == {"resolved": 2, "as": "did-not-happen"}
    assert [one.call(order, 500) for order in ("o-1", "o-2")] == ["receipt 1", "receipt 2"]


# -- every row of the page is a test -------------------------------------------------------------------------------

ROWS: dict[str, Callable[..., Any]] = {
    "the same key and the same arguments": test_a_key_means_once_whoever_asks_in_whatever_way,
    "the same key, other `volatile` arguments or others listed in `key_ignore`": (
        test_volatile_arguments_are_no_part_of_what_a_key_stands_for
    ),
    "the same key, any other argument changed": test_other_arguments_are_a_conflict_and_nothing_runs,
    "a key that is `None`, empty, a float or a bool": test_an_empty_key_is_an_error_and_nothing_runs,
    "the same key while the first call runs": test_the_same_key_while_the_first_call_runs_waits,
    "the same key after a certain failure": test_a_certain_failure_is_the_tools_own_and_frees_the_key,
    "the same key after an unknown outcome": test_any_other_failure_is_unknown_until_somebody_settles_it,
    "the same id and the same arguments": test_one_call_id_is_for_one_set_of_arguments,
    "the same id, other arguments": test_one_call_id_is_for_one_set_of_arguments,
    "the same id in another session or run": test_a_call_id_belongs_to_its_session_and_run,
    "the same id in another message of the model (adapters)": (
        test_ids_that_a_provider_counts_anew_in_each_message_are_told_apart
    ),
    "raises a class in `certain_errors`": test_a_certain_failure_is_the_tools_own_and_frees_the_key,
    "raises `antiphon.DidNotHappen`": test_a_certain_failure_is_the_tools_own_and_frees_the_key,
    "raises anything before it enters `with antiphon.effect():`": test_an_exception_before_the_effect_frees_the_key,
    "runs out of time or is cancelled before it enters `with antiphon.effect():`": (
        test_a_call_that_runs_out_of_time_before_its_effect_frees_the_key
    ),
    "is refused in a way that cannot have had an effect (connection refused, 429, 4xx)": (
        test_a_refusal_that_cannot_have_had_an_effect_frees_the_key
    ),
    "raises anything else, and is not idempotent": test_any_other_failure_is_unknown_until_somebody_settles_it,
    "raises anything else, and is idempotent": (
        test_a_timeout_of_an_idempotent_tool_does_not_free_its_key_for_other_arguments
    ),
    "runs out of time": test_a_call_that_runs_out_of_time_is_unknown,
    "failed with a class in `certain_errors`": test_an_answer_from_a_record_raises_the_declared_class_or_a_stand_in,
    "failed otherwise": test_an_answer_from_a_record_raises_the_declared_class_or_a_stand_in,
    "unknown": test_any_other_failure_is_unknown_until_somebody_settles_it,
    "denied by a hook or by turn control": test_a_call_that_a_hook_denies_raises,
    "an unknown outcome of a key, or of one call id": test_any_other_failure_is_unknown_until_somebody_settles_it,
    "new calls with equal arguments and without a key": (
        test_an_unknown_outcome_keeps_equal_calls_without_a_key_from_running
    ),
    "`antiphon claims list --state unknown`": test_any_other_failure_is_unknown_until_somebody_settles_it,
    "a write whose worker was killed": test_a_write_whose_worker_is_lost_is_listed_with_its_arguments,
    "`antiphon claims resolve CLAIM --happened --value JSON`": (
        test_any_other_failure_is_unknown_until_somebody_settles_it
    ),
    "`antiphon claims resolve CLAIM --did-not-happen`": test_a_resolution_that_has_let_a_call_run_is_over,
    "a second `claims resolve` of the same claim": test_any_other_failure_is_unknown_until_somebody_settles_it,
    "`antiphon claims resolve --tool NAME --did-not-happen`": test_unknown_outcomes_of_a_tool_are_settled_at_once,
    "`antiphon claims resolve --reconcile --entry FILE`": (
        test_unknown_outcomes_are_settled_in_bulk_by_what_reconcile_says
    ),
    "an unknown outcome that an equal call has followed": (
        test_an_unknown_outcome_that_others_have_followed_is_kept_listed_and_settled
    ),
    "`claims flush` and `claims clear`": test_flush_and_clear_leave_unknown_outcomes_alone_unless_told,
    "a memory store half full of unknown outcomes": (
        test_unknown_outcomes_are_counted_apart_and_half_the_store_is_warned_of
    ),
    "`reconcile`": test_reconcile_settles_an_unknown_outcome,
}


def test_every_row_of_the_page_is_named() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rules = [number for number, line in enumerate(lines) if line.startswith("|---")]
    heads = {number - 1 for number in rules} | set(rules)
    rows = [line for number, line in enumerate(lines) if line.startswith("|") and number not in heads]
    assert [row.strip("|").split(" | ")[0].strip() for row in rows] == list(ROWS)


def test_every_row_is_tested_on_four_stores_and_both_faces() -> None:
    """Each of these tests takes a shop, of which there is one for every store and either face."""
    ours = {function for function in ROWS.values() if function.__module__ == __name__}
    assert all("shop" in inspect.signature(function).parameters for function in ours)
    of_one_store = set(ROWS.values()) - ours
    assert of_one_store == {test_unknown_outcomes_are_counted_apart_and_half_the_store_is_warned_of}
