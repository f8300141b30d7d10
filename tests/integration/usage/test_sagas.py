"""Undo: what a saga has done is taken back in order, once, whatever fails; on every store, in both faces."""

# ruff: noqa: PT012 - a saga is a block, and an exception leaves it

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon import AsyncGateway, DidNotHappen, Gateway, Happened
from antiphon._drive import drive
from antiphon._gateway import claim, undo
from antiphon.errors import ApprovalRequired, InvalidInput, SagaUndoing, Undone
from antiphon.ports import Claimed, ClaimTemplate, Settlement, StaticClaimRequest
from antiphon.stores import MemoryStore, PostgresStore, RedisStore, SQLiteStore
from tests.unit.gateway.kit import envelope

QUIET = {"telemetry": {"logs": False}}


class Shop:
    """Tools with undos, in one face, and what they did."""

    def __init__(self, store: Any, face: str) -> None:
        self.store, self.asynchronous = store, face == "async"
        self.app = antiphon.Antiphon(QUIET, store=store)
        self.gateway: Any = (AsyncGateway if self.asynchronous else Gateway)(store, QUIET)
        self.log: list[Any] = []
        self.fails: dict[str, Exception] = {}
        self.found: Any = None
        """What the read-back of ``book`` says."""
        tool = self.gateway.tool

        def book(hotel: str) -> dict[str, str]:
            self.did("book", hotel)
            return {"id": f"b-{hotel}"}

        self.book = tool(idempotent=False, reconcile=self._read_back)(self._faced(book))

        def unbook(result: dict[str, str], *, hotel: str) -> None:
            self.did("unbook", result["id"], hotel)

        self.unbook = self.book.undo(self._faced(unbook))

        def charge(order: str, cents: int) -> str:
            self.did("charge", order)
            return f"ch-{order}"

        def refund(result: str) -> None:
            self.did("refund", result)

        self.charge = tool(idempotent=False, key="order")(self._faced(charge))
        self.charge.undo(self._faced(refund))
        self.again = tool("again", idempotent=False, key="order", after_undo="run")(self._faced(charge))
        self.again.undo(self._faced(refund))

        def mail(to: str) -> None:
            self.did("mail", to)

        self.mail = tool(idempotent=False)(self._faced(mail))

        def look(hotel: str) -> str:
            return hotel

        self.look = tool(idempotent=True, effect="read")(self._faced(look))

    def did(self, *what: Any) -> None:
        self.log.append(what)
        name = f"{what[0]} {what[1]}"
        if name in self.fails:
            raise self.fails.pop(name)

    def _read_back(self, params: dict[str, Any]) -> Any:
        return self.found() if callable(self.found) else self.found

    def _faced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not self.asynchronous:
            return function

        async def faced(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return function(*args, **kwargs)

        faced.__name__ = function.__name__
        faced.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return faced

    def play(self, story: Callable[[Any], Awaitable[Any]], *, name: str = "trip") -> Any:
        """Tell *story* in a run of this face; the run is :attr:`run` afterwards."""
        self.run: Any = self.app.run(name)

        async def told() -> Any:
            if not self.asynchronous:
                with self.run:
                    return await story(self.run)
            try:
                async with self.run:
                    return await story(self.run)
            finally:
                await self.gateway.close()

        return asyncio.run(told()) if self.asynchronous else drive(told())

    @asynccontextmanager
    async def saga(self, name: str = "trip", **options: Any) -> AsyncIterator[Any]:
        saga = self.run.saga(name, **options)
        if self.asynchronous:
            async with saga as entered:
                yield entered
        else:
            with saga as entered:
                yield entered

    def undone(self) -> list[Any]:
        return [what for what in self.log if what[0] in ("unbook", "refund")]


async def given(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, unique: str) -> Iterator[Any]:
    match request.param:
        case "memory":
            yield MemoryStore()
        case "sqlite":
            yield SQLiteStore(tmp_path / "store.db")
        case "redis":
            yield RedisStore(request.getfixturevalue("valkey_url"), prefix=unique)
        case _:
            yield PostgresStore(request.getfixturevalue("postgres_dsn"))


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shop(face: str) -> Shop:
    return Shop(MemoryStore(), face)


class NoFlight(Exception):
    """What makes the trip fail."""


async def _trip(shop: Shop, order: str, *, fails: bool = True) -> None:
    async with shop.saga():
        await given(shop.book("a"))
        await given(shop.look("a"))
        await given(shop.charge(order, 500))
        await given(shop.book("b"))
        if fails:
            raise NoFlight("none left")


def test_a_failed_saga_is_undone_in_reverse_order_on_every_store(store: Any, face: str, unique: str) -> None:
    shop = Shop(store, face)
    with pytest.raises(NoFlight) as caught:
        shop.play(lambda run: _trip(shop, unique))
    assert shop.undone() == [("unbook", "b-b", "b"), ("refund", f"ch-{unique}"), ("unbook", "b-a", "a")]
    assert "3 undone" in caught.value.__notes__[0]

    async def again(run: Any) -> None:
        with pytest.raises(Undone, match="after_undo"):
            await given(shop.charge(unique, 500))
        with pytest.raises(Undone):
            await given(shop.charge.once(unique)(unique, 700))

    shop.play(again)
    assert len([what for what in shop.log if what[0] == "charge"]) == 1


def test_a_saga_that_succeeds_stays_done(shop: Shop) -> None:
    shop.play(lambda run: _trip(shop, "1", fails=False))
    assert shop.undone() == []
    assert [event.payload["state"] for event in shop.run.events() if event.type == "saga.finished"] == ["closed"]


def test_after_undo_run_lets_the_key_run_again_also_with_other_arguments(store: Any, face: str, unique: str) -> None:
    shop = Shop(store, face)

    async def story(run: Any) -> Any:
        with pytest.raises(NoFlight):
            async with shop.saga():
                await given(shop.again(unique, 500))
                raise NoFlight
        assert await given(shop.again(unique, 900)) == f"ch-{unique}"
        return await given(shop.again(unique, 900))

    assert shop.play(story) == f"ch-{unique}"
    assert [what[0] for what in shop.log] == ["charge", "refund", "charge"]


def test_what_others_dispatched_is_not_undone(shop: Shop) -> None:
    async def story(run: Any) -> None:
        await given(shop.charge("1", 500))
        with pytest.raises(NoFlight):
            async with shop.saga():
                await given(shop.charge("1", 500))
                await given(shop.charge("2", 500))
                raise NoFlight

    shop.play(story)
    assert shop.undone() == [("refund", "ch-2")]


def test_inner_sagas(shop: Shop) -> None:
    async def story(run: Any) -> None:
        with pytest.raises(NoFlight):
            async with shop.saga("outer"):
                await given(shop.book("a"))
                with pytest.raises(ValueError, match="inner"):
                    async with shop.saga("fails"):
                        await given(shop.book("b"))
                        raise ValueError("inner")
                assert shop.undone() == [("unbook", "b-b", "b")]
                async with shop.saga("succeeds"):
                    await given(shop.book("c"))
                await given(shop.book("d"))
                raise NoFlight

    shop.play(story)
    assert [what[2] for what in shop.undone()] == ["b", "d", "c", "a"]


def test_what_has_no_undo_needs_a_person_and_blocks_nobody(shop: Shop) -> None:
    async def story(run: Any) -> Any:
        async with shop.saga() as saga:
            await given(shop.book("a"))
            await given(shop.mail("ada"))
            return await given(saga.undo())

    report = shop.play(story)
    assert report.state == "stuck"
    assert shop.undone() == [("unbook", "b-a", "a")]
    assert [(write.tool, write.why) for write in report.needs_person] == [("tools/mail", "no undo is declared for it")]


def test_an_undo_of_unknown_outcome_blocks_those_before_it(shop: Shop) -> None:
    shop.fails["unbook b-b"] = TimeoutError("no answer")

    async def story(run: Any) -> Any:
        async with shop.saga() as saga:
            for hotel in "abc":
                await given(shop.book(hotel))
            return await given(saga.undo())

    report = shop.play(story)
    assert [what[2] for what in shop.undone()] == ["c", "b"]
    assert [write.state for write in report.writes] == ["undone", "needs a person", "needs a person"]
    assert "outcome_unknown" in report.writes[1].why
    assert "only after tools/book" in report.writes[2].why


def _follow(shop: Shop) -> None:
    """An equal call of somebody else comes after the one whose outcome is unknown."""
    journal = shop.store.open_sync()
    unknown, *_ = journal.list(tenant="default", state="failed")
    times: dict[str, Any] = {"ttl_ms": 60_000, "lease_ms": 60_000}
    template = ClaimTemplate(tool=unknown.tool, session=unknown.request.session_key, actor="", owner="other", **times)
    request = StaticClaimRequest(unknown.key, "other", template, unknown.idempotency_key, ("d", "d"), "r", "t")
    won = journal.take_over(request, unknown.version)
    assert isinstance(won, Claimed)
    journal.settle(unknown.key, won.version, Settlement("done", 60_000, payload=b"{}"))


@pytest.mark.parametrize(
    ("said", "undone", "state"),
    [
        (None, [], "stuck"),
        (DidNotHappen(), [("unbook", "b-a", "a")], "undone"),
        (Happened({"id": "late"}), [("unbook", "late", "b"), ("unbook", "b-a", "a")], "undone"),
    ],
)
@pytest.mark.parametrize("followed", [False, True])
def test_a_write_of_unknown_outcome_is_settled_first(
    store: Any, face: str, said: Any, undone: list[Any], state: str, followed: bool
) -> None:
    shop = Shop(store, face)
    shop.fails["book b"] = TimeoutError("no answer")

    async def story(run: Any) -> Any:
        async with shop.saga() as saga:
            await given(shop.book("a"))
            with pytest.raises(TimeoutError):
                await given(shop.book("b"))
            if followed:
                _follow(shop)
            shop.found = said
            return await given(saga.undo())

    report = shop.play(story)
    assert shop.undone() == undone
    assert report.state == state


def test_a_result_that_arrives_while_the_read_back_says_no_is_undone(store: Any, face: str) -> None:
    shop = Shop(store, face)
    shop.fails["book b"] = TimeoutError("no answer")

    def late() -> DidNotHappen:
        journal = store.open_sync()
        unknown, *_ = journal.list(tenant="default", state="failed")
        assert journal.settle(unknown.key, unknown.version, Settlement("done", 60_000, payload=b'{"id":"late"}'))
        return DidNotHappen()

    shop.found = late

    async def story(run: Any) -> Any:
        async with shop.saga() as saga:
            with pytest.raises(TimeoutError):
                await given(shop.book("b"))
            return await given(saga.undo())

    assert shop.play(story).state == "undone"
    assert shop.undone() == [("unbook", "late", "b")]


def test_a_write_that_certainly_failed_is_not_undone(shop: Shop) -> None:
    shop.fails["book b"] = DidNotHappen("full")

    async def story(run: Any) -> Any:
        async with shop.saga() as saga:
            await given(shop.book("a"))
            with pytest.raises(DidNotHappen):
                await given(shop.book("b"))
            return await given(saga.undo())

    assert shop.play(story).state == "undone"
    assert shop.undone() == [("unbook", "b-a", "a")]


def test_new_writes_are_refused_while_and_after_a_saga_is_undone(shop: Shop) -> None:
    async def story(run: Any) -> None:
        async with shop.saga() as saga:
            await given(shop.book("a"))
            await given(saga.undo())
            with pytest.raises(SagaUndoing, match="was not called"):
                await given(shop.book("b"))
            assert await given(shop.look("b")) == "b"
            with pytest.raises(SagaUndoing):
                await given(saga.undo())
        await given(shop.book("c"))

    shop.play(story)
    assert [what[1] for what in shop.log if what[0] == "book"] == ["a", "c"]


def test_a_thread_may_write_after_a_failed_saga_was_caught() -> None:
    shop = Shop(MemoryStore(), "sync")
    with ThreadPoolExecutor(1) as pool, shop.app.run("trip") as run:
        with pytest.raises(NoFlight), run.saga("outer"):
            with pytest.raises(NoFlight), run.saga("inner"):
                shop.book("a")
                raise NoFlight
            pool.submit(shop.book, "b").result()
            raise NoFlight
        pool.submit(shop.book, "c").result()
        with run.saga("asked") as saga:
            pool.submit(shop.book, "d").result()
            saga.undo()
            with pytest.raises(SagaUndoing):
                pool.submit(shop.book, "e").result()
    assert [what[1] for what in shop.log if what[0] == "book"] == ["a", "b", "c", "d"]
    assert [what[2] for what in shop.undone()] == ["a", "b", "d"]


def test_a_thread_that_a_failed_saga_has_started_writes_nothing_afterwards() -> None:
    shop = Shop(MemoryStore(), "sync")
    failed = threading.Event()
    told: list[type[BaseException]] = []

    def late() -> None:
        assert failed.wait(60)
        with pytest.raises(SagaUndoing) as refused:
            shop.book("late")
        told.append(refused.type)

    with ThreadPoolExecutor(1) as pool, shop.app.run("trip") as run:
        worker = threading.Thread(target=late)
        with pytest.raises(NoFlight), run.saga("trip"):
            worker.start()
            left = pool.submit(late)
            raise NoFlight
        failed.set()
        left.result(60)
        worker.join()
    assert told == [SagaUndoing] * 2


def test_writes_in_flight_settle_before_they_are_undone() -> None:
    shop = Shop(MemoryStore(), "sync")
    begun, go_on = threading.Event(), threading.Event()

    gateway = Gateway(shop.store, QUIET)

    @gateway.tool(idempotent=False)
    def slow(hotel: str) -> str:
        begun.set()
        assert go_on.wait(60)
        shop.did("slow", hotel)
        return hotel

    @slow.undo
    def back(result: str) -> None:
        shop.did("unbook", result)

    def slowly() -> None:
        slow("s")

    with pytest.raises(NoFlight), shop.app.run("trip") as run, run.saga("trip") as saga:
        shop.book("a")
        worker = threading.Thread(target=antiphon.wrap_context(slowly))
        worker.start()
        assert begun.wait(60)
        watcher = threading.Thread(target=lambda: _when(lambda: saga.state == "undoing", go_on.set))
        watcher.start()
        raise NoFlight
    worker.join()
    watcher.join()
    assert shop.log == [("book", "a"), ("slow", "s"), ("unbook", "s"), ("unbook", "b-a", "a")]


def _when(condition: Callable[[], bool], do: Callable[[], None]) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.005)
    do()


def test_a_write_that_does_not_settle_in_time_needs_a_person() -> None:
    shop = Shop(MemoryStore(), "sync")
    begun, go_on = threading.Event(), threading.Event()

    gateway = Gateway(shop.store, QUIET)

    @gateway.tool(idempotent=False)
    def slow() -> None:
        begun.set()
        assert go_on.wait(60)

    slow.undo(lambda result: None)
    with shop.app.run("trip") as run, run.saga("trip", wait_s=0.05) as saga:
        shop.book("a")
        worker = threading.Thread(target=antiphon.wrap_context(slow))
        worker.start()
        assert begun.wait(60)
        report = saga.undo()
    go_on.set()
    worker.join()
    assert report.state == "stuck"
    assert "still in flight" in report.writes[0].why
    assert shop.undone() == []


def test_a_person_sees_the_arguments_of_a_write_whose_worker_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.ops.admin import Admin

    monkeypatch.setattr(undo, "certainly_dead", lambda owner: True)
    shop = Shop(MemoryStore(), "sync")
    begun, go_on = threading.Event(), threading.Event()
    gateway = Gateway(shop.store, QUIET)

    @gateway.tool(idempotent=False)
    def slow(hotel: str) -> None:
        begun.set()
        assert go_on.wait(60)

    slow.undo(lambda result: None)
    with shop.app.run("trip") as run, run.saga("trip", wait_s=0.05) as saga:
        worker = threading.Thread(target=antiphon.wrap_context(slow), args=("ritz",))
        worker.start()
        assert begun.wait(60)
        report = saga.undo()
        (row,) = drive(Admin(shop.app).claims(state="unknown"))
    go_on.set()
    worker.join()
    assert "outcome_unknown" in report.needs_person[0].why
    assert (row["tool"], row["arguments"]) == ("tools/slow", '{"hotel":"ritz"}')


def test_a_write_whose_worker_was_lost_while_it_asked_a_person_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "certainly_dead", lambda owner: True)
    shop = Shop(MemoryStore(), "sync")
    asks, go_on = threading.Event(), threading.Event()
    gateway = Gateway(shop.store, QUIET)

    @gateway.tool(idempotent=False, approve="always")
    def slow(hotel: str) -> None:
        shop.did("slow", hotel)

    slow.undo(lambda result: None)
    journal = type(shop.store.open_sync())
    settle = journal.settle

    def lost(self: Any, *args: Any, **more: Any) -> Any:
        if threading.current_thread() is worker:
            asks.set()
            assert go_on.wait(60)
        return settle(self, *args, **more)

    def asked() -> None:
        with pytest.raises(ApprovalRequired):
            slow("ritz")

    with shop.app.run("trip") as run, run.saga("trip", wait_s=0.05) as saga:
        shop.book("a")
        worker = threading.Thread(target=antiphon.wrap_context(asked))
        monkeypatch.setattr(journal, "settle", lost)
        worker.start()
        assert asks.wait(60)
        report = saga.undo()
    go_on.set()
    worker.join()
    assert report.state == "undone", str(report)
    assert shop.undone() == [("unbook", "b-a", "a")]


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_write_that_is_approved_after_its_saga_was_undone_does_not_run(face: str) -> None:
    from antiphon.ops.approvals import Approvals

    shop = Shop(MemoryStore(), face)

    class Asked:
        def emit(self, event: str, fields: Any) -> None:
            if event == "approval.requested":
                asked.append(fields["approvalId"])

    asked: list[str] = []
    gateway: Any = (AsyncGateway if shop.asynchronous else Gateway)(shop.store, QUIET, listeners=(Asked(),))

    def pay(amount: int) -> str:
        shop.did("pay", amount)
        return "paid"

    tool = gateway.tool(idempotent=False, approve="always", approval_wait=60)(shop._faced(pay))
    tool.undo(shop._faced(lambda result: None))

    async def story(run: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            async with shop.saga(wait_s=0.05) as saga:
                await given(shop.book("a"))
                waits = asyncio.ensure_future(tool(5)) if shop.asynchronous else antiphon.submit(pool, tool, 5)
                while not asked:
                    await asyncio.sleep(0.005) if shop.asynchronous else threading.Event().wait(0.005)
                report = await given(saga.undo())
            assert report.state == "undone", str(report)
            desk = Approvals(shop.app, actor="grace", where="test")
            drive(desk.decide(asked[0], "approve"))
            with pytest.raises(SagaUndoing, match="was not called"):
                await waits if shop.asynchronous else waits.result(60)

    shop.play(story)
    assert shop.log == [("book", "a"), ("unbook", "b-a", "a")]


def test_the_saga_is_seen_in_the_log_the_metrics_show_and_the_page(shop: Shop) -> None:
    from antiphon.ops.lines import run_file
    from antiphon.ops.runs import timeline

    async def story(run: Any) -> None:
        async with shop.saga():
            await given(shop.book("a"))
            await given(shop.mail("ada"))
            raise NoFlight

    with pytest.raises(NoFlight):
        shop.play(story)
    manifest = shop.app.journal.manifest(shop.run.id)
    assert manifest is not None
    tree = timeline(shop.app, manifest)
    (saga,) = tree["sagas"]
    assert (saga["name"], saga["state"], saga["calls"]) == ("trip", "stuck", 2)
    assert {write["state"] for write in saga["writes"]} == {"undone", "needs a person"}
    lines = [(node["name"], node.get("undo"), node.get("undoes")) for node in tree["timeline"]]
    assert lines == [
        ("tools/book", "undone", None),
        ("tools/mail", "needs a person", None),
        ("tools/book.undo", None, tree["timeline"][0]["seq"]),
    ]
    page = run_file(shop.app, manifest)
    assert '"text":"undoing: NoFlight"' in page
    assert '"text":"undone"' in page
    assert '"text":"stuck, 1 undone, needs a person: tools/mail 0@1"' in page
    text = shop.gateway.metrics()
    assert 'antiphon_tool_undos_total{tool="tools/book",state="undone"} 1' in text
    assert 'antiphon_tool_undos_total{tool="tools/mail",state="needs a person"} 1' in text
    assert 'antiphon_sagas{state="stuck"}' in text


def _replayed(shop: Shop, *, other: bool = False) -> Any:
    def trip() -> None:
        with pytest.raises(NoFlight), antiphon.current_run().saga("trip"):
            shop.charge("1", 500)
            shop.book("a")
            shop.book("b")
            if other:
                shop.book("c")
            raise NoFlight

    async def trip_async() -> None:
        with pytest.raises(NoFlight):
            async with antiphon.current_run().saga("trip"):
                await shop.charge("1", 500)
                await asyncio.gather(shop.book("a"), shop.book("b"))
                if other:
                    await shop.book("c")
                raise NoFlight

    return trip_async if shop.asynchronous else trip


def test_a_strict_replay_replays_undos_and_touches_nothing(shop: Shop) -> None:
    run = shop.app.record(_replayed(shop))
    before = list(shop.log)
    assert len(shop.undone()) == 3
    report = antiphon.replay(run, app=shop.app, function=_replayed(shop), mode="strict", keep=False)
    assert report.verdict == "pass", report
    assert shop.log == before
    other = antiphon.replay(run, app=shop.app, function=_replayed(shop, other=True), mode="strict", keep=False)
    assert other.verdict == "fail"
    assert shop.log == before


def test_a_reused_write_is_not_undone_in_a_replay_either() -> None:
    shop = Shop(MemoryStore(), "sync")

    def trip() -> None:
        shop.charge("1", 500)
        with pytest.raises(NoFlight), antiphon.current_run().saga("trip"):
            shop.charge("1", 500)
            raise NoFlight

    run = shop.app.record(trip)
    assert antiphon.replay(run, app=shop.app, function=trip, mode="strict", keep=False).verdict == "pass"
    assert shop.undone() == []


def test_mistakes_are_told_when_an_undo_is_declared() -> None:
    gateway = Gateway(MemoryStore(), QUIET)

    @gateway.tool(idempotent=False)
    def book(hotel: str) -> str:
        return hotel

    with pytest.raises(InvalidInput, match="no parameter for the result"):
        book.undo(lambda: None)
    with pytest.raises(InvalidInput, match="takes room, which the tool does not have"):
        book.undo(lambda result, room: None)
    with pytest.raises(InvalidInput, match="is an argument of the tool"):
        book.undo(lambda hotel: None)


def test_an_asynchronous_tool_wants_an_asynchronous_saga() -> None:
    shop = Shop(MemoryStore(), "async")

    async def story(run: Any) -> None:
        with run.saga("trip"), pytest.raises(InvalidInput, match="async with"):
            await shop.book("a")

    shop.play(story)
    assert shop.log == []


def test_planted_bug_without_the_mark_a_refunded_charge_answers_as_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "_mark_undone", lambda call, record, is_current: claim.begin_named(call))
    shop = Shop(MemoryStore(), "sync")
    with pytest.raises(NoFlight):
        shop.play(lambda run: _trip(shop, "1"))
    assert shop.charge("1", 500) == "ch-1"


def test_an_interrupted_saga_is_undone_when_asked_and_only_once(shop: Shop) -> None:
    from antiphon.ops.sagas import undo_run

    async def story(run: Any) -> None:
        async with shop.saga():
            await given(shop.book("a"))
            await given(shop.charge("1", 500))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shop.play(story)
    assert shop.undone() == []
    manifest = shop.app.journal.manifest(shop.run.id)
    assert manifest is not None
    planned = undo_run(shop.app, manifest, dry_run=True)
    assert [write["state"] for write in planned["sagas"][0]["writes"]] == ["would be undone"] * 2
    assert shop.undone() == []
    (saga,) = undo_run(shop.app, manifest)["sagas"]
    assert saga["state"] == "undone"
    assert [what[0] for what in shop.undone()] == ["refund", "unbook"]
    assert undo_run(shop.app, manifest)["sagas"] == []
    assert len(shop.undone()) == 2


def test_two_operators_at_once_undo_once() -> None:
    from antiphon.ops.sagas import undo_run

    shop = Shop(MemoryStore(), "sync")
    both = threading.Barrier(2)
    undone: list[str] = []
    gateway = Gateway(shop.store, QUIET)

    @gateway.tool(idempotent=False)
    def rent(car: str) -> str:
        return car

    @rent.undo
    def give_back(result: str) -> None:
        undone.append(result)

    with pytest.raises(KeyboardInterrupt), shop.app.run("trip") as run, run.saga("trip"):
        rent("a")
        rent("b")
        raise KeyboardInterrupt
    manifest = shop.app.journal.manifest(run.id)
    assert manifest is not None
    states: list[str] = []

    def meet(planned: dict[str, Any]) -> None:
        both.wait(60)

    def operator() -> None:
        found = undo_run(shop.app, manifest, confirm=meet)
        states.extend(saga["state"] for saga in found["sagas"])

    operators = [threading.Thread(target=operator) for _ in range(2)]
    for one in operators:
        one.start()
    for one in operators:
        one.join()
    assert states == ["undone", "undone"]
    assert undone == ["b", "a"]


def test_a_stuck_saga_goes_on_after_a_person_has_looked(shop: Shop) -> None:
    from antiphon.ops.admin import Admin
    from antiphon.ops.sagas import undo_run

    shop.fails["unbook b-b"] = TimeoutError("no answer")

    async def story(run: Any) -> None:
        async with shop.saga():
            await given(shop.book("a"))
            await given(shop.book("b"))
            raise NoFlight

    with pytest.raises(NoFlight):
        shop.play(story)
    manifest = shop.app.journal.manifest(shop.run.id)
    assert manifest is not None
    (saga,) = undo_run(shop.app, manifest)["sagas"]
    assert saga["state"] == "stuck"
    assert len(shop.undone()) == 1
    admin = Admin(shop.app)
    (claim,) = drive(admin.claims(state="unknown"))
    drive(admin.resolve(claim["key"], "happened", value=None))
    (saga,) = undo_run(shop.app, manifest)["sagas"]
    assert saga["state"] == "undone"
    assert [what[1] for what in shop.undone()] == ["b-b", "b-a"]


def _paid(shop: Shop, said: Any, approve: Any) -> Any:
    """A payment whose answer is lost, and whose undo may need a person."""

    def pay(order: str) -> int:
        shop.did("pay", order)
        raise TimeoutError("no answer")

    def refund(result: int) -> None:
        shop.did("refund", result)

    tool = shop.gateway.tool(idempotent=False, reconcile=lambda _: said)(shop._faced(pay))
    tool.undo(approve=approve, approve_version="1")(shop._faced(refund))
    return tool


@pytest.mark.parametrize("approve", ["always", lambda result: (result or 0) > 100])
@pytest.mark.parametrize("said", [Happened(90_000), None])
def test_a_result_that_arrives_late_decides_whether_a_person_must_approve_its_undo(
    shop: Shop, said: Any, approve: Any
) -> None:
    from antiphon.ops.approvals import Approvals
    from antiphon.ops.sagas import undo_run

    pay = _paid(shop, said, approve)

    async def story(run: Any) -> None:
        async with shop.saga():
            await given(pay("1"))

    with pytest.raises(TimeoutError):
        shop.play(story)
    manifest = shop.app.journal.manifest(shop.run.id)
    assert manifest is not None
    desk = Approvals(shop.app, actor="grace", where="test")
    if said is None:
        (lost,) = (claim for claim in drive(desk.claims(state="unknown")) if claim["tool"] == "tools/pay")
        drive(desk.resolve(lost["key"], "happened", value=90_000))
        undo_run(shop.app, manifest)
    assert shop.log == [("pay", "1")]
    (waits,) = drive(desk.waiting())
    assert waits["arguments"] == '{"result":90000}'
    drive(desk.decide(waits["id"], "approve"))
    (saga,) = undo_run(shop.app, manifest)["sagas"]
    assert saga["state"] == "undone", saga
    assert shop.log == [("pay", "1"), ("refund", 90_000)]


@pytest.mark.parametrize(
    ("approve", "undone"),
    [(lambda result: (result or 0) > 100, []), (lambda result: result is None, [("refund", 90_000)])],
)
def test_a_strict_replay_makes_the_same_decision_about_an_undo_with_a_late_result(
    shop: Shop, approve: Any, undone: list[Any]
) -> None:
    pay = _paid(shop, Happened(90_000), approve)

    def trip() -> None:
        with pytest.raises(TimeoutError), antiphon.current_run().saga("trip"):
            pay("1")

    async def trip_async() -> None:
        with pytest.raises(TimeoutError):
            async with antiphon.current_run().saga("trip"):
                await pay("1")

    function: Any = trip_async if shop.asynchronous else trip
    run = shop.app.record(function)
    assert shop.undone() == undone
    report = antiphon.replay(run, app=shop.app, function=function, mode="strict", keep=False)
    assert report.verdict == "pass", report
    assert shop.undone() == undone


def test_an_approval_is_given_back_if_the_undo_finds_that_the_write_did_not_happen(shop: Shop) -> None:
    from antiphon.ops.approvals import Approvals

    lost: list[Exception] = [TimeoutError("no answer")]

    def pay(order: str) -> str:
        if lost:
            raise lost.pop()
        shop.did("pay", order)
        return "paid"

    tool = shop.gateway.tool(idempotent=False, key="order", approve="always", reconcile=lambda _: DidNotHappen())
    paid = tool(shop._faced(pay))
    paid.undo(shop._faced(lambda result: None))
    desk = Approvals(shop.app, actor="grace", where="test")

    async def story(run: Any) -> Any:
        with pytest.raises(ApprovalRequired):
            await given(paid("1"))
        (waits,) = drive(desk.waiting())
        drive(desk.decide(waits["id"], "approve"))
        with pytest.raises(TimeoutError):
            async with shop.saga():
                await given(paid("1"))
        (approved,) = drive(desk.waiting(state="approved"))
        assert approved["id"] == waits["id"]
        return await given(paid("1"))

    assert shop.play(story) == "paid"
    assert shop.log == [("pay", "1")]


def test_a_secret_among_the_arguments_comes_back_for_the_undo(tmp_path: Path) -> None:
    from antiphon.ops.sagas import undo_run

    shop = Shop(SQLiteStore(tmp_path / "store.db"), "sync")
    key = "sk-live-" + "a1B2c3D4" * 4
    seen: list[Any] = []

    gateway = Gateway(shop.store, QUIET)

    @gateway.tool(idempotent=False)
    def send(api_key: str, to: str) -> dict[str, str]:
        return {"token": api_key, "to": to}

    @send.undo
    def recall(result: dict[str, str], *, api_key: str) -> None:
        seen.append((result, api_key))

    with pytest.raises(KeyboardInterrupt), shop.app.run("trip") as run, run.saga("trip"):
        send(key, "ada")
        raise KeyboardInterrupt
    manifest = shop.app.journal.manifest(run.id)
    assert manifest is not None
    assert undo_run(shop.app, manifest)["sagas"][0]["state"] == "undone"
    assert seen == [({"token": key, "to": "ada"}, key)]
    for file in tmp_path.iterdir():
        assert key.encode() not in file.read_bytes()


def _deliver(shop: Shop, hotel: str, call_id: str) -> Any:
    return shop.gateway.execute(envelope("book", {"hotel": hotel}, call_id=call_id, request_id="request"))


@pytest.mark.parametrize("later", [False, True])
def test_executions_of_one_request_id_are_undone_each(shop: Shop, later: bool) -> None:
    """A request id names the request of a client, which may make several calls and be delivered twice."""
    from antiphon.ops.sagas import undo_run

    async def story(run: Any) -> None:
        async with shop.saga():
            for hotel, call in (("a", "1"), ("b", "2"), ("a", "3"), ("a", "1"), ("b", "2")):
                assert (await given(_deliver(shop, hotel, f"{run.id} {call}"))).status == "success"
            raise KeyboardInterrupt if later else NoFlight

    for _ in range(2):  # the request id of the second run is that of the first
        shop.log.clear()
        with pytest.raises(KeyboardInterrupt if later else NoFlight):
            shop.play(story)
        if later:
            manifest = shop.app.journal.manifest(shop.run.id)
            assert manifest is not None
            assert undo_run(shop.app, manifest)["sagas"][0]["state"] == "undone"
        assert [what[0] for what in shop.log] == ["book"] * 3 + ["unbook"] * 3
        assert [what[2] for what in shop.undone()] == ["a", "b", "a"]


def test_a_refused_key_says_so(shop: Shop) -> None:
    with pytest.raises(NoFlight):
        shop.play(lambda run: _trip(shop, "1"))

    async def again(run: Any) -> None:
        with pytest.raises(Undone) as caught:
            await given(shop.charge("1", 500))
        assert caught.value.code == "undone"

    shop.play(again)
