"""Attacks on an approval, and legitimate flows, for any store and for both faces of the gateway.

An attack is a sequence of deliveries after which the tool must not have run. Each case has a session of its own, so all
of them can share one store.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from copy import copy
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

import antiphon
from antiphon._drive import drive
from antiphon._gateway.ids import Fingerprints
from antiphon._gateway.plan import Verdict
from antiphon.contract.approval import approval_of, written
from antiphon.errors import InvalidInput, NotFound, Refused
from antiphon.ops.app import Antiphon
from antiphon.ops.approval_page import ApprovalPage
from antiphon.ops.approvals import Approvals, Link
from antiphon.ports import Settlement, Store
from tests.unit.gateway.kit import envelope

_numbers = count(1)
_folder = tempfile.TemporaryDirectory(prefix="antiphon-approvals-")
"""Of the seal key, which servers do not have by themselves."""
FORM = "application/x-www-form-urlencoded"
PAY = {"account": "ada", "amount": 10, "note": "order 1042"}
CONFIG = {
    "approvals": {"policies": {"payments": {"version": "1", "above": {"amount": 100}}}},
    "redact": {},
}


class Desk:
    """A gateway with tools that need approval, the people who decide, and what ran."""

    def __init__(self, store: Store | str, face: str, tenant: str = "default", **declared: Any) -> None:
        self.config = {**CONFIG, "store": {"seal_key_file": str(Path(_folder.name) / "seal-key")}}
        self.app = Antiphon(self.config, store=store, tenant=tenant)
        self.face = face
        self.runner: asyncio.Runner | None = None
        self.session = f"session-{next(_numbers)}"
        self.ran: list[dict[str, Any]] = []
        self.raises: list[BaseException] = []
        self.people = Approvals(self.app, actor="grace", where="test")
        if face == "async":
            self.runner = asyncio.Runner()
            self.gateway: Any = self.runner.run(self._open())
        else:
            self.gateway = self._made(antiphon.Gateway)
        self.declare(**declared)

    async def _open(self) -> Any:
        return self._made(antiphon.AsyncGateway)

    def _made(self, kind: Any) -> Any:
        return kind(self.app.store, self.config, tenant=self.app.tenant)

    def declare(self, name: str = "pay", default: str = "EUR", **declared: Any) -> None:
        """Register a tool anew, as a deployment would."""

        def pay(account: Any, amount: Any, note: Any = "", trace: Any = "", currency: Any = default) -> str:
            if self.raises:
                raise self.raises.pop(0)
            self.ran.append({"account": account, "amount": amount})
            return "paid"

        async def pay_async(account: Any, amount: Any, note: Any = "", trace: Any = "", currency: Any = default) -> str:
            return pay(account, amount, note, trace, currency)

        function: Any = pay_async if self.face == "async" else pay
        options = {"approve": "always", "retry": {"max_attempts": 1}, **declared}
        function.__qualname__ = name
        self.gateway._plans.tools.pop(f"tools/{name}", None)
        self.gateway._plans.tools.pop(name, None)
        self.gateway.tool(name, idempotent=options.pop("idempotent", False), **options)(function)

    def switch(self, on: bool) -> None:
        """Switch the layer off, or on again."""
        plans = self.gateway._plans
        if plans.settings.enabled != on:
            plans.configure(msgspec.structs.replace(plans.settings, enabled=on))

    def call(self, params: Any = None, *, tool: str = "pay", call_id: str | None = "call-1", **more: Any) -> Any:
        """One delivery of a call."""
        wire = envelope(tool, params or PAY, call_id=call_id, **{"session": self.session, **more})
        if self.runner is None:
            return self.gateway.execute(wire)
        return self.runner.run(self.gateway.execute(wire))

    def framework(self, params: Any = None, *, call_id: str = "call-1", actor: str = "a1", **approving: Any) -> Any:
        """One delivery of a call by a framework that has approvals of its own."""
        wire = envelope("pay", params or PAY, call_id=call_id, session=self.session, actor=actor)

        async def run() -> Any:
            return await self.gateway.run(made)

        made = self.gateway.envelope_call(wire)
        made.options = made.options._replace(**approving)
        outcome = self.gateway.run(made) if self.runner is None else self.runner.run(run())
        return self.gateway.answer(made, outcome)

    def asked(self, params: Any = None, **more: Any) -> str:
        """The approval that a call asks for."""
        answer = self.call(params, **more)
        assert answer.code == "approval_required", answer
        assert answer.error.approval_id
        return str(answer.error.approval_id)

    def approved(self, params: Any = None, **more: Any) -> str:
        """The same, approved."""
        approval = self.asked(params, **more)
        self.decide(approval)
        return approval

    def decide(self, approval: str, verdict: str = "approve", **more: Any) -> Any:
        return drive(self.people.decide(approval, verdict, **more))

    def close(self) -> None:
        if self.runner is not None:
            self.runner.run(self.gateway.close())
            self.runner.close()
        else:
            self.gateway.close()


# -- other arguments than those approved -----------------------------------------------------------------------------

_DIFFERENCES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("amount", {"amount": 10}, {"amount": 1000}),
    ("one cent more", {"amount": 10}, {"amount": 10.01}),
    ("negative", {"amount": 10}, {"amount": -10}),
    ("number as text", {"amount": 1}, {"amount": "1"}),
    ("number as truth", {"amount": 1}, {"amount": True}),
    ("text as truth", {"amount": "true"}, {"amount": True}),
    ("nothing as nought", {"amount": None}, {"amount": 0}),
    ("nothing as text", {"note": None}, {"note": "null"}),
    ("empty as nothing", {"note": ""}, {"note": None}),
    ("list around", {"amount": 10}, {"amount": [10]}),
    ("order of a list", {"note": ["a", "b"]}, {"note": ["b", "a"]}),
    ("longer list", {"note": ["a"]}, {"note": ["a", "a"]}),
    ("text as object", {"note": "{}"}, {"note": {}}),
    ("text as list", {"note": "[]"}, {"note": []}),
    ("field more", {"note": {"a": 1}}, {"note": {"a": 1, "b": 2}}),
    ("field less", {"note": {"a": 1, "b": 2}}, {"note": {"a": 1}}),
    ("field renamed", {"note": {"a": 1}}, {"note": {"A": 1}}),
    ("deep inside", {"note": {"a": [{"b": 1}]}}, {"note": {"a": [{"b": 2}]}}),
    ("other account", {"account": "ada"}, {"account": "mallory"}),
    ("capital", {"account": "ada"}, {"account": "Ada"}),
    ("space before", {"account": "ada"}, {"account": " ada"}),
    ("space after", {"account": "ada"}, {"account": "ada "}),
    ("two spaces", {"note": "order 1042"}, {"note": "order  1042"}),
    ("no-break space", {"note": "order 1042"}, {"note": "order\u00a01042"}),
    ("line break", {"note": "order 1042"}, {"note": "order\n1042"}),
    ("tab", {"note": "order 1042"}, {"note": "order\t1042"}),
    ("Cyrillic a", {"account": "ada"}, {"account": "\u0430da"}),
    ("full width", {"account": "ada"}, {"account": "\uff41da"}),
    ("combining accent", {"account": "\u00e9"}, {"account": "e\u0301"}),
    ("zero-width space", {"account": "ada"}, {"account": "a\u200bda"}),
    ("zero-width joiner", {"account": "ada"}, {"account": "a\u200dda"}),
    ("direction override", {"account": "ada"}, {"account": "\u202eada"}),
    ("soft hyphen", {"account": "ada"}, {"account": "a\u00adda"}),
    ("byte order mark", {"account": "ada"}, {"account": "\ufeffada"}),
    ("control character", {"account": "ada"}, {"account": "ada\u0007"}),
    ("nul", {"account": "ada"}, {"account": "ada\u0000"}),
    ("escaped digits", {"account": "1"}, {"account": "\u0661"}),
    ("parameter added", {}, {"currency": "USD"}),
    ("swapped", {"account": "ada", "note": "bob"}, {"account": "bob", "note": "ada"}),
    ("large number", {"amount": 9007199254740991}, {"amount": 9007199254740990}),
]
CHANGED = [(name, {**PAY, **before}, {**PAY, **after}) for name, before, after in _DIFFERENCES]


# -- everything else -------------------------------------------------------------------------------------------------


def another_tool(desk: Desk) -> None:
    """Another tool with equal arguments."""
    desk.declare("donate")
    desk.approved()
    desk.asked(tool="donate")


def another_session(desk: Desk) -> None:
    desk.approved()
    desk.asked(session="another")


def another_actor(desk: Desk) -> None:
    desk.approved()
    desk.asked(actor="another")


def another_workspace(desk: Desk) -> None:
    desk.approved()
    desk.asked(workspaceId="another")


def planned_anew(desk: Desk) -> None:
    """The agent plans anew: an equal call with another id."""
    desk.approved()
    desk.asked(call_id="call-2")


def the_old_call_of_one_planned_anew(desk: Desk) -> None:
    """The newer question has replaced the older approval."""
    old = desk.approved()
    desk.asked(call_id="call-2")
    with pytest.raises(NotFound):
        desk.decide(old, "withdraw")
    desk.asked()


def request_without_id(desk: Desk) -> None:
    """A request that names no call id is known by its request id."""
    desk.approved(call_id=None, request_id=f"{desk.session}-1")
    desk.asked(call_id=None, request_id=f"{desk.session}-2")


def no_decision(desk: Desk) -> None:
    """Asking again and again is no approval; the question stays the same."""
    first = desk.asked()
    assert {desk.asked() for _ in range(5)} == {first}


def denied(desk: Desk) -> None:
    approval = desk.asked()
    desk.decide(approval, "deny", reason="paid already")
    answer = desk.call()
    assert answer.code == "approval_denied"
    assert "paid already" in answer.error.message


def denied_then_approved(desk: Desk) -> None:
    approval = desk.asked()
    desk.decide(approval, "deny")
    with pytest.raises(InvalidInput, match="is denied by grace"):
        desk.decide(approval)
    desk.call()


def withdrawn(desk: Desk) -> None:
    desk.decide(desk.approved(), "withdraw")
    assert desk.call().code == "approval_withdrawn"


def withdrawn_before(desk: Desk) -> None:
    approval = desk.asked()
    desk.decide(approval, "withdraw")
    with pytest.raises(InvalidInput, match="is withdrawn"):
        desk.decide(approval)
    desk.call()


def expired_approval(desk: Desk) -> None:
    desk.declare(approval_ttl=0.001)
    approval = desk.asked()
    _let_pass(2)
    with pytest.raises(InvalidInput, match="expired"):
        desk.decide(approval)
    assert desk.asked() != approval


def expired_after_the_approval(desk: Desk) -> None:
    """Approved in time, delivered too late; the store's time says so."""
    approval = desk.approved()
    _backdate(desk, approval)
    assert desk.asked() != approval


def policy_version_changed(desk: Desk) -> None:
    desk.declare(approve_version="1")
    desk.approved()
    desk.declare(approve_version="2")
    desk.asked()


def policy_changed(desk: Desk) -> None:
    desk.declare(approve=lambda amount, **_: amount > 1, approve_version="1")
    desk.approved()
    desk.declare(approve="always", approve_version="1")
    desk.asked()


def defaults_changed(desk: Desk) -> None:
    """The approver saw EUR; the code now means USD where the call says nothing."""
    desk.approved()
    desk.declare(default="USD")
    desk.asked()


def the_asker_approves(desk: Desk) -> None:
    approval = desk.asked(actor="grace")
    with pytest.raises(Refused, match="cannot approve it"):
        desk.decide(approval)
    desk.asked(actor="grace")


def another_tenant_approves(desk: Desk) -> None:
    approval = desk.asked()
    other = Antiphon(desk.config, store=desk.app.store, tenant="another")
    with pytest.raises(NotFound):
        drive(Approvals(other, actor="eve").decide(approval, "approve"))
    desk.asked()


def an_id_of_nobody(desk: Desk) -> None:
    desk.asked()
    for guess in ("", "0" * 16, "%", "*", "pay"):
        with pytest.raises(NotFound):
            desk.decide(guess)
    desk.asked()


def without_dedupe(desk: Desk) -> None:
    """A caller that switches dedupe off does not switch approval off."""
    desk.asked(mode="disabled")


def best_effort(desk: Desk) -> None:
    desk.asked(mode="bestEffort")


def other_arguments_under_one_key(desk: Desk) -> None:
    desk.approved(call_id=None, key="order-1042")
    desk.asked({**PAY, "amount": 11}, call_id=None, key="order-1042")


def other_arguments_under_one_id(desk: Desk) -> None:
    desk.approved()
    assert desk.call({**PAY, "amount": 11}).code == "idempotency_conflict"


def gateway_off(desk: Desk) -> None:
    """Switching the layer off does not let through what needs a person."""
    desk.switch(False)
    assert desk.call().code == "approval_required"


def predicate_fails(desk: Desk) -> None:
    desk.declare(approve=lambda amount, **_: amount > "a", approve_version="1")
    desk.asked()


def policy_without_the_field(desk: Desk) -> None:
    desk.declare(approve="payments")
    desk.asked({"account": "ada", "amount": None})
    desk.asked({"account": "ada", "amount": "1"}, call_id="call-2")
    desk.asked({"account": "ada", "amount": True}, call_id="call-3")


def approver_denies(desk: Desk) -> None:
    desk.declare(approver=lambda asked: False)
    assert desk.call().code == "approval_denied"


def approver_leaves_it(desk: Desk) -> None:
    desk.declare(approver=lambda asked: None)
    desk.asked()


def approver_fails(desk: Desk) -> None:
    def broken(asked: Any) -> bool:
        raise RuntimeError("no connection")

    desk.declare(approver=broken)
    desk.asked()


def approver_says_something_else(desk: Desk) -> None:
    desk.declare(approver=lambda asked: "yes")
    desk.asked()


def session_bound_but_other_arguments(desk: Desk) -> None:
    desk.declare(approve_bind="intent")
    desk.approved()
    desk.asked({**PAY, "amount": 11}, call_id="call-2")


def denied_intent(desk: Desk) -> None:
    """With ``approve_bind="intent"`` a denial answers the agent that plans anew, too."""
    desk.declare(approve_bind="intent")
    desk.decide(desk.asked(), "deny")
    assert desk.call(call_id="call-2").code == "approval_denied"


def changed_volatile_field(desk: Desk) -> None:
    """A field outside the intent is inside the approval."""
    desk.declare(volatile=["trace"])
    desk.approved({**PAY, "trace": "a"})
    desk.asked({**PAY, "trace": "b"})


def squeezed_white_space(desk: Desk) -> None:
    """White space that does not matter to the intent matters to the approval."""
    desk.declare(insensitive=["note"])
    desk.approved({**PAY, "note": "order 1042"})
    desk.asked({**PAY, "note": "order   1042"})


# -- signed links ----------------------------------------------------------------------------------------------------

PAGE = "https://desk.example.com/approve"


def opened(desk: Desk, method: str, query: str = "", form: dict[str, str] | None = None, kind: str = FORM) -> int:
    """One request to the page of signed links: its status."""
    body = urlencode(form).encode() if form is not None else b""
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": "/approve",
        "query_string": query.encode(),
        "headers": [(b"content-type", kind.encode())],
        "client": ("192.0.2.7", 4711),
    }
    said: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        said.append(message)

    asyncio.run(ApprovalPage(desk.app)(scope, receive, send))
    return int(said[0]["status"])


def _token(desk: Desk, approval: str, **more: Any) -> str:
    made = drive(desk.people.link(approval, **{"to": "grace", "url": PAGE, **more}))
    return str(made["url"].removeprefix(f"{PAGE}?token="))


def a_scanner_follows_the_link(desk: Desk) -> None:
    """Whatever only opens the link, or posts to it without the form, decides nothing."""
    approval = desk.asked()
    token = _token(desk, approval)
    assert [opened(desk, method, f"token={token}") for method in ("GET", "HEAD", "GET")] == [200] * 3
    assert opened(desk, "POST", f"token={token}") == 404
    assert opened(desk, "POST", f"token={token}&decision=approve", {}) == 404
    assert opened(desk, "POST", "", {"token": token, "decision": "approve"}, kind="application/json") == 400
    assert opened(desk, "PUT", f"token={token}", {"token": token, "decision": "approve"}) == 405
    assert desk.asked() == approval


def a_forged_link(desk: Desk) -> None:
    token = _token(desk, desk.asked())
    said, _, signature = token.partition(".")
    other = Link("default", desk.asked(), "0" * 32, 2**52, "eve", ("approve",)).token(
        Fingerprints(lambda: (b"x" * 32,))
    )
    for forged in (
        f"{said}.",
        f"{said[:-4]}AAAA.{signature}",
        f"{said}.{signature[::-1]}",
        other,
        "",
        "x" * 9000,
    ):
        assert opened(desk, "POST", "", {"token": forged, "decision": "approve"}) == 404
    desk.asked()


def a_link_for_other_arguments(desk: Desk) -> None:
    """The call asks anew with other arguments; the old link does not decide that."""
    desk.declare(volatile=["trace"])
    token = _token(desk, desk.asked({**PAY, "trace": "a"}))
    desk.asked({**PAY, "trace": "b"})
    assert opened(desk, "POST", "", {"token": token, "decision": "approve"}) == 404
    desk.asked({**PAY, "trace": "b"})


def a_link_that_may_only_deny(desk: Desk) -> None:
    token = _token(desk, desk.asked(), may=["deny"])
    assert opened(desk, "POST", "", {"token": token, "decision": "approve"}) == 400
    assert opened(desk, "POST", "", {"token": token, "decision": "withdraw"}) == 400
    assert opened(desk, "POST", "", {"token": token, "decision": "deny"}) == 200
    assert desk.call().code == "approval_denied"


def a_link_that_is_over(desk: Desk) -> None:
    token = _token(desk, desk.asked(), expires_in_s=0.000001)
    assert opened(desk, "POST", "", {"token": token, "decision": "approve"}) == 409
    desk.asked()


def a_link_for_the_asker(desk: Desk) -> None:
    approval = desk.asked(actor="grace")
    with pytest.raises(Refused, match="cannot approve it"):
        _token(desk, approval)
    desk.asked(actor="grace")


def a_link_of_another_tenant(desk: Desk) -> None:
    """One that is signed with the same key."""
    token = _token(desk, desk.asked())
    other = copy(desk)
    other.app = Antiphon(desk.config, store=desk.app.store, tenant="another")
    assert opened(other, "POST", "", {"token": token, "decision": "approve"}) == 404
    desk.asked()


# -- approvals of frameworks -----------------------------------------------------------------------------------------

YES = Verdict(True, "grace", "framework")


def a_blanket_approval_of_a_framework(desk: Desk) -> None:
    """Nobody was shown this call, however often it is delivered."""
    for _ in range(3):
        assert desk.framework(verdict=YES).code == "approval_required"


def a_blanket_approval_after_one_that_was_shown(desk: Desk) -> None:
    assert desk.framework(shown_in="framework", only_asks=True).code == "approval_required"
    assert desk.framework({**PAY, "amount": 11}, call_id="call-2", verdict=YES).code == "approval_required"
    assert desk.framework({**PAY, "amount": 11}, verdict=YES).code == "idempotency_conflict"


def an_approval_shown_in_another_framework(desk: Desk) -> None:
    assert desk.framework(shown_in="another", only_asks=True).code == "approval_required"
    assert desk.framework(verdict=YES).code == "approval_required"


def an_approval_that_names_another(desk: Desk) -> None:
    desk.asked({**PAY, "amount": 11}, call_id="call-2")
    other = desk.asked({**PAY, "amount": 11}, call_id="call-2")
    assert desk.framework(shown_in="framework", verdict=YES._replace(approval=other)).code == "approval_required"
    assert desk.framework(shown_in="framework", verdict=YES._replace(approval="*")).code == "approval_required"


def the_asker_approves_in_its_framework(desk: Desk) -> None:
    assert desk.framework(actor="grace", shown_in="framework").code == "approval_required"
    assert desk.framework(actor="grace", shown_in="framework", verdict=YES).code == "approval_required"


def an_answer_to_a_question_that_nobody_was_shown(desk: Desk) -> None:
    assert desk.framework(shown_in="framework", verdict=YES).code == "approval_required"


def an_answer_where_the_question_was_shown_elsewhere(desk: Desk) -> None:
    asked = desk.asked()
    assert desk.framework(shown_in="framework", verdict=YES).error.approval_id != asked
    assert [desk.framework(shown_in="framework").code for _ in range(2)] == ["approval_required"] * 2


def a_call_that_only_asks_dispatches_nothing(desk: Desk) -> None:
    desk.approved()
    assert [desk.framework(only_asks=True).code for _ in range(2)] == ["approval_granted"] * 2


NOTHING_RUNS: list[Callable[[Desk], None]] = [
    another_tool,
    another_session,
    another_actor,
    another_workspace,
    planned_anew,
    the_old_call_of_one_planned_anew,
    request_without_id,
    no_decision,
    denied,
    denied_then_approved,
    withdrawn,
    withdrawn_before,
    expired_approval,
    expired_after_the_approval,
    policy_version_changed,
    policy_changed,
    defaults_changed,
    the_asker_approves,
    another_tenant_approves,
    an_id_of_nobody,
    without_dedupe,
    best_effort,
    other_arguments_under_one_key,
    other_arguments_under_one_id,
    gateway_off,
    predicate_fails,
    policy_without_the_field,
    approver_denies,
    approver_leaves_it,
    approver_fails,
    approver_says_something_else,
    session_bound_but_other_arguments,
    denied_intent,
    changed_volatile_field,
    squeezed_white_space,
    a_blanket_approval_of_a_framework,
    a_blanket_approval_after_one_that_was_shown,
    an_approval_shown_in_another_framework,
    an_approval_that_names_another,
    the_asker_approves_in_its_framework,
    an_answer_to_a_question_that_nobody_was_shown,
    an_answer_where_the_question_was_shown_elsewhere,
    a_call_that_only_asks_dispatches_nothing,
    a_scanner_follows_the_link,
    a_forged_link,
    a_link_for_other_arguments,
    a_link_that_may_only_deny,
    a_link_that_is_over,
    a_link_for_the_asker,
    a_link_of_another_tenant,
]


def double_click(desk: Desk) -> None:
    approval = desk.approved()
    with pytest.raises(InvalidInput, match="is approved by grace"):
        desk.decide(approval)
    desk.call()
    with pytest.raises(NotFound):
        desk.decide(approval)
    assert desk.call().from_cache


def retried_after_a_lost_answer(desk: Desk) -> None:
    desk.approved()
    assert desk.call().status == "success"
    assert [desk.call().from_cache for _ in range(3)] == [True] * 3


def spent_by_another_id(desk: Desk) -> None:
    """With ``approve_bind="intent"`` one approval is good for one call, whoever makes it."""
    desk.declare(approve_bind="intent")
    desk.approved()
    assert desk.call(call_id="call-2").status == "success"
    desk.asked(call_id="call-3")


def unknown_keeps_it_spent(desk: Desk) -> None:
    desk.approved()
    desk.ran.append({})
    desk.raises.append(TimeoutError("no answer"))
    assert desk.call().code == "outcome_unknown"
    assert desk.call().code == "outcome_unknown"
    assert desk.call(call_id="call-2").code == "outcome_unknown"


def a_link_used_twice(desk: Desk) -> None:
    """Also when it is sent again after the call has run."""
    token = _token(desk, desk.asked())
    form = {"token": token, "decision": "approve"}
    assert [opened(desk, "POST", "", form) for _ in range(2)] == [200, 409]
    assert desk.call().status == "success"
    assert opened(desk, "POST", "", form) == opened(desk, "GET", f"token={token}") == 404
    assert desk.call().from_cache


def repeat_safe_tool(desk: Desk) -> None:
    """A second call of an idempotent tool needs an approval of its own."""
    desk.declare(idempotent=True, reuse="never")
    desk.approved()
    assert desk.call().status == "success"
    desk.asked(call_id="call-2")


ONCE: list[Callable[[Desk], None]] = [
    double_click,
    retried_after_a_lost_answer,
    spent_by_another_id,
    unknown_keeps_it_spent,
    a_link_used_twice,
    repeat_safe_tool,
]


def attacks(every: bool = True) -> Iterator[tuple[str, int, Callable[[Desk], None]]]:
    """Every attack: its name, how often the tool may have run afterwards, and what it does."""
    for name, before, after in CHANGED:
        yield f"changed: {name}", 0, _changed(before, after)
        if every:
            yield f"changed, planned anew: {name}", 0, _changed(before, after, bind="intent")
    for case in NOTHING_RUNS:
        yield case.__name__, 0, case
    for case in ONCE:
        yield case.__name__, 1, case


def _changed(before: dict[str, Any], after: dict[str, Any], bind: str = "call") -> Callable[[Desk], None]:
    def case(desk: Desk) -> None:
        if bind == "intent":
            desk.declare(approve_bind="intent")
        desk.approved(before)
        answer = desk.call(after, call_id="call-1" if bind == "call" else "call-2")
        assert answer.code == ("idempotency_conflict" if bind == "call" else "approval_required")

    return case


def check_attacks(store: Store | str, face: str, *, every: bool = True) -> int:
    """Try every attack, or all but those that differ little from others; the number of them."""
    number = 0
    desk = Desk(store, face)
    for name, may_run, case in attacks(every):
        desk.session, desk.ran, desk.raises = f"session-{next(_numbers)}", [], []
        desk.declare()
        try:
            case(desk)
            assert len(desk.ran) == may_run, desk.ran
        except BaseException as error:
            error.add_note(f"attack: {name}, {face}")
            raise
        finally:
            desk.switch(True)
        number += 1
    desk.close()
    return number


# -- legitimate flows ------------------------------------------------------------------------------------------------


def _plain(desk: Desk, n: int) -> None:
    desk.approved({**PAY, "amount": n})
    assert desk.call({**PAY, "amount": n}).status == "success"


def _float(desk: Desk, n: int) -> None:
    """1 and 1.0 are one value."""
    desk.approved({**PAY, "amount": n})
    assert desk.call({**PAY, "amount": float(n)}).status == "success"


def _intent(desk: Desk, n: int) -> None:
    desk.declare(approve_bind="intent")
    desk.approved({**PAY, "amount": n})
    assert desk.call({**PAY, "amount": n}, call_id="call-2").status == "success"


def _ignored(desk: Desk, n: int) -> None:
    desk.declare(approve_ignore=["trace"])
    desk.approved({**PAY, "trace": f"a{n}"})
    assert desk.call({**PAY, "trace": f"b{n}"}).status == "success"


def _given_back(desk: Desk, n: int) -> None:
    """A refused connection and ``DidNotHappen`` give the approval back."""
    desk.approved({**PAY, "amount": n})
    desk.raises.append(ConnectionRefusedError("no") if n % 2 else antiphon.DidNotHappen("closed"))
    assert desk.call({**PAY, "amount": n}).status != "success"
    assert desk.call({**PAY, "amount": n}).status == "success"


def _order(desk: Desk, n: int) -> None:
    desk.approved({"account": "ada", "amount": n, "note": "x"})
    assert desk.call({"note": "x", "amount": n, "account": "ada"}).status == "success"


def _default_given(desk: Desk, n: int) -> None:
    """A default that is said is the same as one that is not."""
    desk.declare(approve_bind="intent", volatile=["currency"])
    desk.approved({**PAY, "amount": n})
    assert desk.call({**PAY, "amount": n, "currency": "EUR"}, call_id="call-2").status == "success"


def _policy(desk: Desk, n: int) -> None:
    desk.declare(approve="payments")
    assert desk.call({**PAY, "amount": 100}).status == "success"
    desk.approved({**PAY, "amount": 101 + n}, call_id="call-2")
    assert desk.call({**PAY, "amount": 101 + n}, call_id="call-2").status == "success"
    desk.ran.pop()


def _link(desk: Desk, n: int) -> None:
    token = _token(desk, desk.asked({**PAY, "amount": n}))
    assert opened(desk, "GET", f"token={token}") == 200
    assert opened(desk, "POST", "", {"token": token, "decision": "approve", "reason": "checked"}) == 200
    assert desk.call({**PAY, "amount": n}).status == "success"


def _framework(desk: Desk, n: int) -> None:
    params = {**PAY, "amount": n}
    assert desk.framework(params, shown_in="framework", only_asks=True).code == "approval_required"
    assert desk.framework(params, verdict=YES).status == "success"


def _framework_after_a_question(desk: Desk, n: int) -> None:
    params = {**PAY, "amount": n}
    asked = desk.asked(params)
    shown = [desk.framework(params, shown_in="framework").error.approval_id for _ in range(2)]
    assert shown[0] == shown[1] != asked
    assert desk.framework(params, shown_in="framework", verdict=YES).status == "success"


def _approver(desk: Desk, n: int) -> None:
    desk.declare(approver=lambda asked: asked["arguments"]["amount"] == n)
    assert desk.call({**PAY, "amount": n}).status == "success"


def _keyed(desk: Desk, n: int) -> None:
    key = f"{desk.session}-{n}"
    desk.approved(call_id=None, key=key)
    assert desk.call(call_id=None, key=key).status == "success"


FLOWS = (
    _plain,
    _float,
    _intent,
    _ignored,
    _given_back,
    _order,
    _default_given,
    _policy,
    _approver,
    _keyed,
    _link,
    _framework,
    _framework_after_a_question,
)


def check_flows(store: Callable[[], Store], face: str, number: int = 500) -> int:
    """Make *number* legitimate flows, a hundred on each store; each runs its tool exactly once."""
    desk = Desk(store(), face)
    for n in range(number):
        if n % 100 == 99:
            desk.close()
            desk = Desk(store(), face)
        flow = FLOWS[n % len(FLOWS)]
        desk.session, desk.ran = f"session-{next(_numbers)}", []
        desk.declare()
        flow(desk, n)
        assert len(desk.ran) == 1, (flow.__name__, n, desk.ran)
    desk.close()
    return number


def _let_pass(milliseconds: int) -> None:
    over = time.time_ns() + milliseconds * 1_000_000
    while time.time_ns() < over:
        pass


def _backdate(desk: Desk, approval: str) -> None:
    """Let the time of an approval be over, as the store's clock sees it."""
    for record in desk.app.journal.list(tenant=desk.app.tenant, state="failed", session=desk.session):
        kept = approval_of(record)
        if kept is not None and kept.approval.id == approval:
            assert record.error
            old = msgspec.structs.replace(kept.approval, expires_at_ms=record.updated_at_ms - 1)
            error = (record.error.code, record.error.message, True, False)
            settlement = Settlement("failed", 60_000, payload=written(old), error=error, dispatched=False)
            assert desk.app.journal.settle(record.key, record.version, settlement)
