"""D49: a call that needs a person runs once, with the arguments that the person approved, or not at all."""

from __future__ import annotations

import asyncio
import json
import queue
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon._drive import drive
from antiphon._gateway.ids import Fingerprints
from antiphon.cli import main
from antiphon.contract.approval import ASKING
from antiphon.errors import ApprovalRequired, ConfigError, InvalidInput, NotFound, StoreUnavailable
from antiphon.ops.app import Antiphon
from antiphon.ops.approvals import Approvals, Link, visible
from antiphon.ports import Claimed, ClaimTemplate, Clock, StaticClaimRequest
from antiphon.stores import MemoryStore, SQLiteStore
from tests.approval_cases import Desk, attacks, check_attacks, check_flows
from tests.unit.gateway.kit import Rig, envelope, eventually

FACES = ("sync", "async")


def test_the_corpus_is_large_enough() -> None:
    assert len(list(attacks())) >= 60


@pytest.mark.parametrize("face", FACES)
def test_every_attack_is_refused_in_memory(face: str) -> None:
    check_attacks(MemoryStore(), face)


@pytest.mark.parametrize("face", FACES)
def test_every_attack_is_refused_on_a_file(face: str, tmp_path: Path) -> None:
    assert check_attacks(SQLiteStore(tmp_path / "claims.db"), face, every=False) >= 60


@pytest.mark.parametrize(("face", "number"), [("sync", 200), ("async", 50)])
def test_legitimate_flows_run_once(face: str, number: int) -> None:
    assert check_flows(MemoryStore, face, number) == number


def _digest_not_compared(found: Any, need: Any, now: int) -> bool:
    same = (found.policy, found.policy_version) == (need.policy, need.version)
    return same and now < found.expires_at_ms


async def _whoever_opens_it_approves(self: Any, link: Any) -> Any:
    return await self.decide(link.approval, "approve")


@pytest.mark.parametrize(
    ("planted", "instead", "caught_by"),
    [
        (["antiphon.decide.claim.may_spend"], _digest_not_compared, "changed_volatile_field"),
        (["antiphon.decide.claim.may_spend"], _digest_not_compared, "defaults_changed"),
        (
            ["antiphon.ops.approvals.Approvals.approval_of_link"],
            _whoever_opens_it_approves,
            "a_scanner_follows_the_link",
        ),
        (["antiphon._gateway.approval.applies"], lambda *_: True, "a_blanket_approval_of_a_framework"),
    ],
)
def test_planted_bugs_are_caught(
    planted: list[str], instead: Any, caught_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest is checked twice, by the rules and where the claim is won; either alone keeps the promise."""
    (case,) = (case for name, _, case in attacks() if name == caught_by)
    desk = Desk(MemoryStore(), "sync")
    for place in planted:
        monkeypatch.setattr(place, instead)
    if instead is _digest_not_compared:
        _tried(case, desk)
        monkeypatch.setattr("antiphon._gateway.approval.may_spend", instead)
        desk.session = "another"
    with pytest.raises(AssertionError):
        _tried(case, desk)
    desk.close()


def _tried(case: Any, desk: Desk) -> None:
    case(desk)
    assert desk.ran == []


# -- what the corpus cannot show -------------------------------------------------------------------------------------


def _asked(function: Any, *args: Any) -> str:
    with pytest.raises(ApprovalRequired) as caught:
        function(*args)
    return caught.value.approval_id


def _id(answer: Any) -> str:
    return str(answer.error.approval_id)


def _desk(store: Any) -> Approvals:
    return Approvals(Antiphon(store=store), actor="grace", where="test")


def test_a_decorated_function_raises_and_runs_once_it_is_approved() -> None:
    store = MemoryStore()
    ran: list[int] = []
    gateway = antiphon.Gateway(store)
    pay = gateway.tool("pay", idempotent=False, approve="always")(_pay(ran))
    approval = _asked(pay, 10)
    drive(_desk(store).decide(approval, "approve"))
    assert (pay(10), ran) == ("paid", [10])
    assert _asked(pay, 10) != approval


def _pay(ran: list[int]) -> Any:
    def pay(amount: int) -> str:
        ran.append(amount)
        return "paid"

    return pay


def test_two_workers_spend_one_approval_once() -> None:
    store = MemoryStore()
    ran: list[int] = []
    workers = [antiphon.Gateway(store) for _ in range(8)]
    for one in workers:
        one.tool("pay", idempotent=False, approve="always")(_pay(ran))
    wire = envelope("pay", {"amount": 10}, call_id="call-1")
    approval = _id(workers[0].execute(wire))
    drive(_desk(store).decide(approval, "approve"))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: one.execute(wire), workers))
    assert [answer.content for answer in answers] == ["paid"] * 8
    assert ran == [10]


def test_an_approval_that_was_spent_in_the_meantime_is_not_spent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower of two deliveries has read the approval, and replaces what followed it: it asks."""
    store = MemoryStore()
    ran: list[int] = []
    slow, fast = ([antiphon.Gateway(store).tool("pay", idempotent=False, approve="always")(_pay(ran))] for _ in "ab")
    approval = _asked(slow[0], 10)
    drive(_desk(store).decide(approval, "approve"))
    journal = type(store.open_sync())
    take_over = journal.take_over

    def late(self: Any, *args: Any, **more: Any) -> Any:
        if fast:
            assert fast.pop()(10) == "paid"
        return take_over(self, *args, **more)

    monkeypatch.setattr(journal, "take_over", late)
    assert _asked(slow[0], 10) != approval
    assert ran == [10]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, StoreUnavailable])
@pytest.mark.parametrize("executed", [True, False])
def test_an_approval_whose_spending_broke_off_can_be_spent(
    raised: type[BaseException], executed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller is interrupted, or the store fails, while the claim is requested: nothing was sent."""
    store, ran = MemoryStore(), list[int]()
    pay = antiphon.Gateway(store).tool("pay", idempotent=False, approve="always")(_pay(ran))
    approval = _asked(pay, 10)
    drive(_desk(store).decide(approval, "approve"))
    journal = type(store.open_sync())
    take_over, failures = journal.take_over, [raised("gone")]

    def broken(self: Any, *args: Any, **more: Any) -> Any:
        if failures:
            error = failures.pop()
            if executed:
                take_over(self, *args, **more)
            raise error
        return take_over(self, *args, **more)

    monkeypatch.setattr(journal, "take_over", broken)
    with pytest.raises(raised):
        pay(10)
    assert ran == []
    eventually(lambda: store.open_sync().list(tenant="default")[0].state != "inflight", "the claim is given back")
    assert pay(10) == "paid"
    assert ran == [10]
    assert _asked(pay, 10) != approval


def test_an_approval_is_given_back_if_the_claim_cannot_be_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, ran = Rig(store=SQLiteStore(tmp_path / "claims.db")), list[int]()
    pay = rig.gateway.tool("pay", idempotent=False, approve="always")(_pay(ran))
    approval = _asked(pay, 10)
    drive(_desk(rig.store).decide(approval, "approve"))
    journal = type(rig.store.open_sync())
    take_over, renew, failures = journal.take_over, journal.renew, [StoreUnavailable("gone")]

    def slow(self: Any, *args: Any, **more: Any) -> Any:
        rig.clock.advance(60)
        return take_over(self, *args, **more)

    def broken(self: Any, *args: Any) -> Any:
        if failures:
            raise failures.pop()
        return renew(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(journal, "take_over", slow)
        patched.setattr(journal, "renew", broken)
        with pytest.raises(StoreUnavailable):
            pay(10)
    assert pay(10) == "paid"
    assert ran == [10]


def test_an_approval_that_another_call_has_spent_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store, ran = MemoryStore(), list[int]()
    slow, fast = (antiphon.Gateway(store).tool("pay", idempotent=False, approve="always")(_pay(ran)) for _ in "ab")
    approval = _asked(slow, 10)
    drive(_desk(store).decide(approval, "approve"))
    journal = type(store.open_sync())
    take_over, others = journal.take_over, [fast]

    def late(self: Any, *args: Any, **more: Any) -> Any:
        if others:
            assert others.pop()(10) == "paid"
            raise KeyboardInterrupt
        return take_over(self, *args, **more)

    monkeypatch.setattr(journal, "take_over", late)
    with pytest.raises(KeyboardInterrupt):
        slow(10)
    assert _asked(slow, 10) != approval
    assert ran == [10]


@pytest.mark.parametrize("verdict", ["deny", "withdraw"])
@pytest.mark.parametrize("named", [{"call_id": "call-1"}, {"key": "order-1042"}])
def test_a_refused_call_asks_again_when_its_question_would_have_expired(verdict: str, named: dict[str, str]) -> None:
    rig = Rig()
    script = rig.tool("sent", approve="always", approval_ttl=600)
    first = _id(rig.execute(**named))
    people = Approvals(Antiphon(store=rig.store, clock=rig.clock), actor="grace", where="test")
    drive(people.decide(first, verdict))
    rig.clock.advance(599)
    assert rig.execute(**named).code in ("approval_denied", "approval_withdrawn")
    rig.clock.advance(2)
    again = rig.execute(**named)
    assert (again.code, len(script)) == ("approval_required", 0)
    assert _id(again) != first


def test_a_waiting_call_goes_on_when_a_person_decides() -> None:
    store = MemoryStore()
    ran: list[int] = []
    gateway = antiphon.Gateway(store, listeners=(asked := _Told(),))
    pay = gateway.tool("pay", idempotent=False, approve="always", approval_wait=60)(_pay(ran))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pay, 10)
        drive(_desk(store).decide(asked.ids.get(timeout=60), "approve"))
        assert waiting.result(timeout=60) == "paid"
    assert ran == [10]


def test_a_waiting_task_goes_on_when_a_person_decides() -> None:
    store = MemoryStore()
    ran: list[int] = []

    async def main() -> Any:
        gateway = antiphon.AsyncGateway(store, listeners=(asked := _Told(),))
        pay = gateway.tool("pay", idempotent=False, approve="always", approval_wait=60)(_pay(ran))
        waiting = asyncio.ensure_future(pay(10))
        approval = await asyncio.to_thread(asked.ids.get, timeout=60)
        drive(_desk(store).decide(approval, "approve"))
        return await waiting

    assert (asyncio.run(main()), ran) == ("paid", [10])


class _Told:
    """Hears who has to decide; the arguments of a listener are masked."""

    def __init__(self) -> None:
        self.ids: queue.Queue[str] = queue.Queue()

    def emit(self, event: str, fields: Mapping[str, Any]) -> None:
        if event == "approval.requested":
            self.ids.put(fields["approvalId"])


def test_a_worker_that_is_lost_while_it_asks_leaves_no_unknown_outcome(tmp_path: Path) -> None:
    """It holds a claim of a call that was not sent: whoever comes next asks."""
    store = SQLiteStore(tmp_path / "claims.db")
    gateway = antiphon.Gateway(store)
    ran: list[int] = []
    gateway.tool("pay", idempotent=False, approve="always", ttl={"lease_ms": 1})(_pay(ran))
    wire, journal = envelope("pay", {"amount": 10}, call_id="call-1"), store.open_sync()
    gateway.execute(wire)
    (record,) = journal.list(tenant="default")
    assert journal.clear(record.key)
    template = ClaimTemplate(tool=record.tool, session="s1", actor="a1", ttl_ms=1, lease_ms=0, owner="lost")
    params = (record.request.params_digest, record.request.params_digest_exact)
    ids = (record.key, record.request.identity, template, record.idempotency_key, params, "request", "token")
    assert isinstance(journal.begin(StaticClaimRequest(*ids, shown=ASKING)), Claimed)
    assert gateway.execute(wire).code == "approval_required"
    journal.clear(record.key)
    assert isinstance(journal.begin(StaticClaimRequest(*ids, shown="the arguments")), Claimed)
    assert gateway.execute(wire).code == "outcome_unknown"  # one that did more than ask
    assert ran == []


def test_a_lost_worker_keeps_the_approval_spent_until_reconcile_gives_it_back(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "claims.db")
    said: list[Any] = [None, antiphon.DidNotHappen()]
    gateway = antiphon.Gateway(store)
    ran: list[int] = []

    def pay(amount: int) -> str:
        ran.append(amount)
        if len(ran) == 1:
            raise TimeoutError("no answer")
        return "paid"

    gateway.tool("pay", idempotent=False, approve="always", retry={"max_attempts": 1}, reconcile=lambda _: said.pop(0))(
        pay
    )
    wire = envelope("pay", {"amount": 10}, call_id="call-1")
    drive(_desk(store).decide(_id(gateway.execute(wire)), "approve"))
    assert gateway.execute(wire).code == "outcome_unknown"
    assert gateway.execute(wire).code == "outcome_unknown"  # reconcile cannot tell
    assert gateway.execute(wire).content == "paid"  # it says: nothing happened, so the approval is good again
    assert ran == [10, 10]
    assert gateway.execute(wire).from_cache


def test_a_strict_replay_answers_with_the_decision_and_notices_another_policy() -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=MemoryStore())
    ran: list[int] = []

    def declare(**declared: Any) -> Any:
        app.gateway._plans.tools.clear()
        return app.gateway.tool("pay", idempotent=False, effect="write", **declared)(_pay(ran))

    def agent(pay: Any) -> Any:
        def main() -> str:
            try:
                return str(pay(10))
            except antiphon.AntiphonError as error:
                return error.code

        return main

    run = app.record(agent(declare(approve="always")))
    assert run.output == "approval_required"

    def replayed(**declared: Any) -> Any:
        return antiphon.replay(run, app=app, mode="strict", function=agent(declare(**declared)), keep=False)

    assert replayed(approve="always").passed
    assert not replayed().passed  # the code no longer asks
    assert not replayed(approve=lambda amount: amount > 1, approve_version="1").passed  # by another rule
    assert ran == []
    plain = app.record(agent(declare()))
    assert (plain.output, ran) == ("paid", [10])
    report = antiphon.replay(plain, app=app, mode="strict", function=agent(declare(approve="always")), keep=False)
    assert not report.passed  # the code asks where it did not
    assert ran == [10]


def test_an_approval_costs_one_more_round_trip() -> None:
    counted: list[str] = []
    store = MemoryStore()
    gateway = antiphon.Gateway(store)
    gateway.tool("pay", idempotent=False, approve="always")(_pay([]))
    gateway.tool("plain", idempotent=False)(_pay([]))

    def steps(tool: str) -> int:
        wire = envelope(tool, {"amount": 10}, call_id=f"{tool}-1")
        if tool == "pay":
            drive(_desk(store).decide(_id(gateway.execute(wire)), "approve"))
        counted.clear()
        with pytest.MonkeyPatch.context() as patch:
            _count(patch, type(store.open_sync()), counted)
            assert gateway.execute(wire).content == "paid"
        return len(counted)

    assert steps("pay") - steps("plain") <= 1


def _count(patch: pytest.MonkeyPatch, kind: Any, counted: list[str]) -> None:
    for name in ("begin", "take_over", "settle", "read", "alias", "renew"):
        inner = getattr(kind, name)

        def step(*args: Any, _inner: Any = inner, _name: str = name) -> Any:
            counted.append(_name)
            return _inner(*args)

        patch.setattr(kind, name, step)


def test_secrets_and_invisible_characters_are_shown_as_such() -> None:
    store = MemoryStore()
    gateway = antiphon.Gateway(store, listeners=(told := _Told(),))
    gateway.tool("pay", idempotent=False, approve="always")(lambda account, password: "paid")
    hidden = {"account": "ada\u202e\u200b\n", "password": "hunter2-hunter2"}
    gateway.execute(envelope("pay", hidden, call_id="call-1"))
    (shown,) = drive(_desk(store).waiting())
    assert shown["id"] == told.ids.get(timeout=30)
    assert "hunter2" not in shown["arguments"]
    assert "\\u202e\\u200b" in shown["arguments"]
    assert shown["arguments"].isprintable()


@pytest.mark.parametrize("store", [MemoryStore, SQLiteStore], ids=["memory", "sqlite"])
@pytest.mark.parametrize("size", [2_100, 40_000])
def test_a_person_sees_all_arguments_and_the_defaults_of_the_others(store: Any, size: int, tmp_path: Path) -> None:
    place = store() if store is MemoryStore else store(tmp_path / "claims.db")
    gateway = antiphon.Gateway(place)

    @gateway.tool(idempotent=False, approve="always")
    def refund(note: str, amount: int, to: str = "mallory") -> str:
        return "paid"

    approval = _asked(refund, "refund 5 " + "x" * size, 1_000_000)
    (shown,) = drive(_desk(place).waiting())
    assert shown["id"] == approval
    assert shown["arguments"].endswith('x","amount":1000000,"to":"mallory"}')


@pytest.mark.parametrize("store", [MemoryStore, SQLiteStore], ids=["memory", "sqlite"])
def test_a_person_sees_no_secret_that_only_another_call_of_the_run_revealed(store: Any, tmp_path: Path) -> None:
    place = store() if store is MemoryStore else store(tmp_path / "claims.db")
    app = Antiphon(store=place)
    gateway = antiphon.Gateway(place)

    @gateway.tool(idempotent=True, effect="read")
    def login(password: str) -> str:
        return "welcome"

    @gateway.tool(idempotent=False, approve="always", approve_bind="intent")
    def send(text: str) -> str:
        return "sent"

    def agent() -> str:
        with gateway.session("s1"):
            login("tulip-orbit-42")
            return send("it is tulip-orbit-42")

    with pytest.raises(ApprovalRequired):
        app.record(agent)
    (shown,) = drive(_desk(place).waiting())
    assert shown["tool"].endswith("send")
    assert "it is " in shown["arguments"]
    assert "tulip" not in shown["arguments"]
    drive(_desk(place).decide(shown["id"], "approve"))
    assert app.record(agent).output == "sent", "the approval is bound to the raw arguments"


def test_a_call_in_a_framework_is_shown_with_its_defaults() -> None:
    store = MemoryStore()
    gateway = antiphon.Gateway(store)

    @gateway.tool(idempotent=False, approve="always")
    def refund(amount: int, to: str = "mallory") -> str:
        return "paid"

    result = gateway.execute(envelope("refund", {"amount": 5}))
    (shown,) = drive(_desk(store).waiting())
    assert (shown["id"], shown["arguments"]) == (_id(result), '{"amount":5,"to":"mallory"}')


@pytest.mark.parametrize("text", "\u3164 \u115f \ufe0f \u034f \u2800 \u180b \U000e0100 \u202e \u200b".split())
def test_characters_without_a_picture_are_written_as_escapes(text: str) -> None:
    assert visible(f"pay{text}me") == f"pay{text.encode('unicode_escape').decode()}me"


def test_an_approval_is_found_behind_any_number_of_failed_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.ops.admin._SCAN", 7)
    store = MemoryStore()
    gateway = antiphon.Gateway(store)
    pay = gateway.tool("pay", idempotent=False, approve="always")(_pay([]))

    @gateway.tool(idempotent=False)
    def fail(number: int) -> None:
        raise antiphon.DidNotHappen("no")

    approvals = [_asked(pay, 1)]
    for number in range(20):
        with pytest.raises(antiphon.DidNotHappen):
            fail(number)
    approvals.append(_asked(pay, 2))
    desk = _desk(store)
    assert [one["id"] for one in drive(desk.waiting())] == approvals[::-1]
    assert drive(desk.decide(approvals[0], "approve"))["state"] == "approved"


def test_what_may_change_after_an_approval_stands_apart() -> None:
    store, told = MemoryStore(), list[dict[str, Any]]()
    gateway = antiphon.Gateway(store)

    @gateway.tool(idempotent=False, approve="always", approve_ignore=["trace", "note"], approver=told.append)
    def pay(to: str, amount: int = 5, trace: str = "", note: str = "") -> str:
        return "paid"

    with pytest.raises(ApprovalRequired) as caught:
        pay("ada", trace="t-1")
    wanted = {"to": "ada", "amount": 5, "(may change)": {"trace": "t-1", "note": ""}}
    assert json.loads(drive(_desk(store).show(caught.value.approval_id))["arguments"]) == wanted
    assert told[0]["arguments"] == {"to": "ada", "amount": 5, "trace": "t-1", "note": ""}, "code gets them as they are"


@pytest.mark.parametrize(
    "page", ["javascript:alert(1)//", "desk.example.com/approve", "https:///approve", "https://a b", "https://a/#top"]
)
def test_a_link_leads_to_a_page(page: str) -> None:
    store = MemoryStore()
    approval = _asked(antiphon.Gateway(store).tool("pay", idempotent=False, approve="always")(_pay([])), 1)
    with pytest.raises(InvalidInput, match="http:// or https://"):
        drive(_desk(store).link(approval, to="grace", url=page))


def test_a_store_without_a_key_signs_no_links() -> None:
    link = Link("default", "0" * 16, "0" * 32, 2**52, "grace", ("approve",))
    with pytest.raises(ConfigError, match="no key to sign links"):
        link.token(Fingerprints())
    with pytest.raises(NotFound):
        Link.read(link.token(Fingerprints(lambda: (b"a" * 32,))), Fingerprints())
    rotated = Fingerprints(lambda: (b"b" * 32, b"a" * 32))
    assert Link.read(link.token(Fingerprints(lambda: (b"a" * 32,))), rotated) == link


_DAYS_MS = 48 * 3_600_000


class _WrongClock(Clock):
    """Of a machine whose clock is wrong; the store's is right."""

    def __init__(self, skew_ms: int) -> None:
        super().__init__()
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._skew_ms


@pytest.mark.parametrize("skew_ms", [-_DAYS_MS, _DAYS_MS])
def test_a_wrong_clock_of_whoever_decides_changes_nothing(skew_ms: int, tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "claims.db")
    ran: list[int] = []
    gateway = antiphon.Gateway(store)
    pay = gateway.tool("pay", idempotent=False, approve="always")(_pay(ran))
    over = gateway.tool("over", idempotent=False, approve="always", approval_ttl=0.001)(_pay(ran))
    approval, expired = _asked(pay, 10), _asked(over, 10)
    desk = Approvals(Antiphon(store=store, clock=_WrongClock(skew_ms)), actor="grace", where="test")
    assert {one["id"]: one["state"] for one in drive(desk.waiting(state="all"))} == {
        approval: "waiting",
        expired: "expired",
    }
    assert drive(desk.show(approval))["ageMs"] < 3_600_000
    assert drive(desk.show(expired))["state"] == "expired"
    with pytest.raises(InvalidInput, match="expired"):
        drive(desk.decide(expired, "approve"))
    made = drive(desk.link(approval, to="ada", url="https://desk.example.com/approve", expires_in_s=3_600))
    link = Link.read(made["url"].partition("token=")[2], desk._fingerprints)
    assert drive(desk.approval_of_link(link))["state"] == "waiting"
    assert drive(desk.decide_with(link, "approve"))["state"] == "approved"
    assert (pay(10), ran) == ("paid", [10])


def test_decisions_are_in_the_audit_log() -> None:
    store = MemoryStore()
    gateway = antiphon.Gateway(store)
    pay = gateway.tool("pay", idempotent=False, approve="always")(_pay([]))
    approval = _asked(pay, 10)
    desk = _desk(store)
    drive(desk.decide(approval, "approve", reason="checked"))
    drive(desk.decide(approval, "withdraw"))
    acts = [(act["act"], act["by"], act["from"], act["approval"]) for act in drive(desk.audit())]
    assert acts == [("withdraw", "grace", "test", approval), ("approve", "grace", "test", approval)]


def test_what_an_approver_decides_is_in_the_audit_log() -> None:
    store = MemoryStore()

    def careful(asked: Mapping[str, Any]) -> bool:
        return bool(asked["arguments"]["amount"] < 100)

    gateway = antiphon.Gateway(store)
    pay = gateway.tool("pay", idempotent=False, approve="always", approver=careful)(_pay([]))
    assert pay(10) == "paid"
    with pytest.raises(antiphon.AntiphonError):
        pay(100)
    acts = [(act["act"], act["by"].rpartition(".")[2], act["from"], act["tool"]) for act in drive(_desk(store).audit())]
    assert acts == [("deny", "careful", "approver", "tools/pay"), ("approve", "careful", "approver", "tools/pay")]


def test_a_call_that_needs_nobody_takes_the_plain_way() -> None:
    gateway = antiphon.Gateway(MemoryStore())
    pay = gateway.tool("pay", idempotent=False, approve=lambda amount: amount > 10, approve_version="1")(_pay([]))
    assert pay(10) == "paid"
    _asked(pay, 11)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"approve": "unknown"}, "names no policy"),
        ({"approve": lambda amount: True}, "which version"),
        ({"approve": 3}, "must be 'always'"),
        ({"approve": "always", "approve_ignore": ["nothing"]}, "does not have"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(declared: dict[str, Any], said: str) -> None:
    gateway = antiphon.Gateway(MemoryStore())
    with pytest.raises(antiphon.AntiphonError, match=said):
        gateway.tool("pay", idempotent=False, **declared)(_pay([]))


def test_the_command_lists_and_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'claims.db'}"
    gateway = antiphon.Gateway(url)
    pay = gateway.tool("pay", idempotent=False, approve="always")(_pay([]))
    approval = _asked(pay, 10)
    assert main(["approvals", "list", "--store", url]) == 0
    assert approval in capsys.readouterr().out
    assert main(["approvals", "link", approval, "--to", "grace", "--store", url]) == 2  # nobody said where the page is
    assert "[approvals] url" in capsys.readouterr().err
    wanted = ["--to", "grace", "--may", "deny", "--expires", "60", "--url", "https://desk.example.com/approve"]
    assert main(["approvals", "link", approval, *wanted, "--json", "--store", url]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["url"].startswith("https://desk.example.com/approve?token=")
    assert (made["to"], made["may"]) == ("grace", ["deny"])
    assert main(["approvals", "show", approval, "--store", url]) == 0
    told = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert not [name for name in told if name.endswith("Ms")], "times are for people"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d [\d:]{8}", told["askedAt"])
    assert re.fullmatch(r"\d+ ms|[\d.]+ s", told["age"])
    assert main(["approvals", "approve", approval, "--as", "grace", "--json", "--store", url]) == 0
    assert json.loads(capsys.readouterr().out)["decidedBy"] == "grace"
    assert pay(10) == "paid"
    assert main(["approvals", "show", approval, "--store", url]) == 4
    assert main(["approvals", "approve", "--store", url]) == 2


def test_the_command_decides_several_alike_after_a_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'claims.db'}"
    pay = antiphon.Gateway(url).tool("pay", idempotent=False, approve="always")(_pay([]))
    ids = [_asked(pay, cents) for cents in (1, 2)]
    decide = ["approvals", "approve", *ids, "--as", "grace", "--json", "--store", url]
    assert main([*decide, "--dry-run"]) == 0
    tried = json.loads(capsys.readouterr().out)
    assert [(one["before"], one["state"]) for one in tried["approvals"]] == [("waiting", "approved")] * 2
    assert _asked(pay, 1) == ids[0], "it still waits"
    assert main([*decide[:2], "none", *decide[2:]]) == 1
    made = json.loads(capsys.readouterr().out)
    assert ([one["state"] for one in made["approvals"]], made["refused"][0]["id"]) == (["approved"] * 2, "none")
    assert [pay(cents) for cents in (1, 2)] == ["paid", "paid"]
    assert main(["approvals", "show", *ids, "--store", url]) == 2
