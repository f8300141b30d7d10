"""D3, D5: outcomes nobody has seen, and how they are settled."""

from __future__ import annotations

import asyncio
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any, TypedDict

import pytest

from antiphon import Gateway
from antiphon._gateway.context import CallContext
from antiphon._gateway.settlement import NEVER_MS
from antiphon.contract.spec import DidNotHappen, Happened, RetryPolicy
from antiphon.decide.claim import is_unknown
from antiphon.errors import InvalidInput, OutcomeUnknown
from antiphon.ports import Claimed
from tests.unit.gateway.kit import NEVER_TRIPS, AsyncRig, HttpError, Rig, Script, request_of

_DAY_S = 24 * 3_600 + 1


class _Params(TypedDict):
    order: str


def _annotated(name: str, annotation: Any) -> Callable[..., Any]:
    """A ``reconcile`` whose only parameter has this name and type."""

    def reconcile(_: Any) -> None: ...

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    reconcile.__signature__ = inspect.Signature([inspect.Parameter(name, kind, annotation=annotation)])  # type: ignore[attr-defined]
    return reconcile


def test_the_model_is_told_to_verify() -> None:
    rig = Rig()
    rig.tool(TimeoutError())
    result = rig.execute()
    assert (result.status, result.code, result.error.terminal) == ("error", "outcome_unknown", True)
    assert "Verify" in result.error.message
    assert "do not make the same call again" in result.error.message


def test_unknown_blocks_every_identity_for_the_done_ttl() -> None:
    rig = Rig()
    script = rig.tool(TimeoutError(), "sent")
    rig.execute(call_id="c1")
    rig.clock.advance(3_600)  # far beyond the TTL of ordinary failures
    for call_id in ("c1", "c2"):
        blocked = rig.execute(call_id=call_id)
        assert blocked.code == "outcome_unknown"
        assert "antiphon claims resolve" in blocked.error.message
    assert len(script) == 1


def test_other_arguments_are_another_intent() -> None:
    rig = Rig()
    rig.tool(TimeoutError(), "sent")
    rig.execute(params={"to": "ada"})
    assert rig.execute(params={"to": "bob"}).content == "sent"


@pytest.mark.parametrize(
    ("answer", "content"),
    [(Happened({"id": 7}), {"id": 7}), (Happened(), None)],
)
def test_reconcile_that_finds_the_effect_settles_it_as_done(answer: Any, content: Any) -> None:
    rig = Rig()
    asked = Script(answer)
    script = rig.tool(TimeoutError(), "sent", reconcile=lambda params: asked(**params))
    rig.execute(call_id="c1")
    found = rig.execute(call_id="c2")
    assert (found.status, found.content, found.from_cache) == ("success", content, True)
    assert found.output.metadata["reconciled"] is True
    for call_id in ("c1", "c2"):
        again = rig.execute(call_id=call_id)
        assert (again.content, again.from_cache) == (content, True)
    assert (len(script), len(asked)) == (1, 1)
    assert asked.calls[0]["to"] == "ada"


@pytest.mark.parametrize("answer", [DidNotHappen(), Happened("read back")])
def test_an_unknown_call_that_others_have_followed_is_read_back_once(answer: Any) -> None:
    """Nothing can be written to its record any more: the gate ended, another call followed, and expired."""
    rig = Rig()
    asked: list[Any] = []

    def reconcile(params: dict[str, Any]) -> Any:
        asked.append(params)
        assert len(asked) < 3, "asked again and again"
        return answer

    script = rig.tool(TimeoutError(), "second", "first again", reconcile=reconcile)
    rig.execute(call_id="c1")
    rig.clock.advance(_DAY_S)
    assert rig.execute(call_id="c2").content == "second"
    rig.clock.advance(_DAY_S)
    expected = "read back" if isinstance(answer, Happened) else "first again"
    assert rig.execute(call_id="c1").content == expected
    assert (len(script), len(asked)) == (2 if isinstance(answer, Happened) else 3, 1)


@pytest.mark.parametrize("answer", [True, False, DidNotHappen, Happened, {"happened": False}, [], 0, "not found"])
def test_an_answer_of_reconcile_that_says_neither_settles_nothing(answer: Any) -> None:
    rig = Rig()
    script = rig.tool(TimeoutError(), "sent", reconcile=lambda params: answer)
    rig.execute(call_id="c1")
    found = rig.execute(call_id="c1")
    assert found.error.code == "outcome_unknown"
    assert "must return Happened(value), DidNotHappen() or None" in found.error.message
    assert len(script) == 1
    [record] = rig.records()
    assert is_unknown(record)


def test_a_decorated_function_tells_of_a_wrong_answer_of_reconcile() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=False, reconcile=lambda params: DidNotHappen)
    def pay() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        pay()
    with pytest.raises(TypeError, match="with parentheses"):
        pay()


def test_reconcile_that_finds_nothing_lets_the_call_run() -> None:
    rig = Rig()
    script = rig.tool(TimeoutError(), "sent", reconcile=lambda params: DidNotHappen("no such mail"))
    rig.execute(call_id="c1")
    assert rig.execute(call_id="c2").content == "sent"
    # c1 certainly did not happen: its redelivery is a call that has yet to be made
    assert rig.execute(call_id="c1").content == "sent"
    assert len(script) == 3


def _raise(params: Any) -> Any:
    raise ConnectionError("the read-back failed, too")


@pytest.mark.parametrize("reconcile", [lambda params: None, _raise])
def test_reconcile_that_does_not_know_leaves_it_unknown(reconcile: Any) -> None:
    rig = Rig()
    script = rig.tool(TimeoutError(), "sent", reconcile=reconcile)
    rig.execute(call_id="c1")
    assert rig.execute(call_id="c2").code == "outcome_unknown"
    assert len(script) == 1


def test_reconcile_may_ask_for_the_context_of_the_lost_call() -> None:
    rig = Rig()
    seen: list[CallContext] = []

    def look_up(params: dict[str, Any], lost: CallContext) -> Happened:
        seen.append(lost)
        return Happened("found")

    rig.tool(TimeoutError(), reconcile=look_up)
    rig.execute(call_id="c1", key="order-7")
    fence = rig.records()[0].fence
    assert rig.execute(call_id="c2", key="order-7").content == "found"
    assert (seen[0].idempotency_key, seen[0].fence, seen[0].call_id) == ("order-7", fence, "c1")


def test_an_asynchronous_reconcile_is_refused_by_the_synchronous_face() -> None:
    async def look_up(params: dict[str, Any]) -> None: ...

    with pytest.raises(InvalidInput, match="AsyncGateway"):
        Rig().tool(reconcile=look_up)


def _charge(order: str, details: dict[str, str], context: str, note=None, **more: Any) -> str:  # type: ignore[no-untyped-def]
    return order


def _charge_by_params(params: dict[str, str]) -> str:
    return params["order"]


@pytest.mark.parametrize(
    "reconcile",
    [
        lambda order: None,
        lambda order, /: None,
        lambda order, details=None: None,
        lambda order, **more: None,
        lambda details: None,
        lambda note: None,
        lambda params, order: None,
        lambda params, order=None: None,
        lambda params, *, order: None,
        lambda *, order=None: None,
        lambda **params: None,
        *(_annotated("order", annotation) for annotation in (str, "str", Any, dict[str, str] | str)),
        *(_annotated("details", annotation) for annotation in (dict, "dict[str, str]")),
        _annotated("note", dict),
    ],
)
def test_a_reconcile_with_the_parameters_of_the_tool_is_refused(reconcile: Callable[..., Any]) -> None:
    gateway = Gateway(store="memory:")
    with pytest.raises(InvalidInput, match=r"reconcile of '_charge' takes .*as one dict.*def reconcile\(params\)"):
        gateway.tool(idempotent=False, reconcile=reconcile)(_charge)


@pytest.mark.parametrize(
    "reconcile",
    [
        lambda params: None,
        lambda p: None,
        lambda args, ctx: None,
        lambda params, context: None,
        lambda *args: None,
        lambda params, ctx=None, order=None: None,
        lambda params, *, order=None: None,
        functools.partial(lambda ledger, params: None, []),
        *(
            _annotated("order", annotation)
            for annotation in (dict, dict[str, Any], Mapping[str, Any], "dict[str, Any]")
        ),
        *(_annotated("order", annotation) for annotation in ("t.Mapping[str, Any]", typing.Dict[str, Any], _Params)),  # noqa: UP006
        _annotated("params", str),
    ],
)
@pytest.mark.parametrize("tool", [_charge, _charge_by_params])
def test_a_reconcile_that_takes_all_parameters_as_one_is_accepted(
    tool: Callable[..., Any], reconcile: Callable[..., Any]
) -> None:
    Gateway(store="memory:").tool(idempotent=False, reconcile=reconcile)(tool)


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_reconcile_in_the_asynchronous_face(asynchronous: bool) -> None:
    rig = AsyncRig()

    async def later(params: dict[str, Any]) -> Happened:
        await asyncio.sleep(0)
        return Happened("found")

    def now(params: dict[str, Any]) -> Happened:
        return Happened("found")

    script = rig.tool(TimeoutError(), reconcile=later if asynchronous else now)
    await rig.execute(call_id="c1")
    assert (await rig.execute(call_id="c2")).content == "found"
    assert len(script) == 1


# -- a worker that was lost ---------------------------------------------------------------------------------------


def abandoned_claim(rig: Rig, identity: str = "lost", lease_ms: int = 1_000) -> None:
    """A claim on ``send(to="ada")`` whose holder is never heard of again."""
    ask = request_of(rig, identity=identity, owner="another-machine.1.2", lease_ms=lease_ms)
    assert isinstance(rig.store.open_sync().begin(ask), Claimed)


@pytest.mark.parametrize("identity", ["lost", "c2"])
def test_a_lost_worker_leaves_an_unknown_outcome(identity: str) -> None:
    rig = Rig()
    script = rig.tool("sent")
    abandoned_claim(rig)
    rig.clock.advance(2)
    assert rig.execute(call_id=identity).code == "outcome_unknown"
    assert len(script) == 0
    [record] = rig.records()
    assert (record.state, record.request.identity) == ("failed", "lost")
    assert record.error.code == "outcome_unknown"  # type: ignore[union-attr]
    assert record.expires_at_ms - rig.clock.now_ms() == NEVER_MS


def test_an_idempotent_call_of_a_lost_worker_is_taken_over() -> None:
    rig = Rig()
    script = rig.tool("done", idempotent=True)
    abandoned_claim(rig)
    rig.clock.advance(2)
    assert rig.execute(call_id="c2").content == "done"
    again = rig.execute(call_id="lost")  # the takeover answers for the call that was taken over
    assert (again.content, again.from_cache) == ("done", True)
    assert len(script) == 1


def test_a_lost_worker_is_reconciled() -> None:
    rig = Rig()
    script = rig.tool("sent", reconcile=lambda params: Happened("it was sent"))
    abandoned_claim(rig)
    rig.clock.advance(2)
    assert rig.execute(call_id="c2").content == "it was sent"
    assert rig.execute(call_id="lost").content == "it was sent"
    assert len(script) == 0


# -- retries of tools that may not be repeated (D5) ----------------------------------------------------------------

NO_EFFECT = [ConnectionRefusedError(111, "refused"), HttpError(429), HttpError(503, Retry_After="1")]


@pytest.mark.parametrize("failure", NO_EFFECT, ids=lambda failure: type(failure).__name__)
def test_what_certainly_had_no_effect_is_tried_again(failure: Exception) -> None:
    rig = Rig()
    script = rig.tool(failure, "sent")
    result = rig.execute()
    assert (result.content, result.attempts) == ("sent", 2)
    assert len(script) == 2


@pytest.mark.parametrize(
    "failure", [TimeoutError(), HttpError(500), HttpError(502), ConnectionResetError(104, "reset")]
)
def test_everything_else_is_unknown_at_once(failure: Exception) -> None:
    rig = Rig()
    script = rig.tool(failure, "sent")
    result = rig.execute()
    assert (result.code, result.attempts) == ("outcome_unknown", 1)
    assert len(script) == 1


@pytest.mark.parametrize(
    ("spec", "hints"), [({"forward_key": True}, None), ({}, {"expectedRetrySafe": True})], ids=["forward", "hint"]
)
def test_a_key_that_goes_downstream_or_the_callers_word_allows_retries(
    spec: dict[str, Any], hints: dict[str, Any] | None
) -> None:
    rig = Rig()
    script = rig.tool(TimeoutError(), HttpError(500), "sent", **spec)
    assert rig.execute(hints=hints).content == "sent"
    assert len(script) == 3


def test_doubt_of_an_earlier_attempt_stays_when_the_last_one_had_no_effect() -> None:
    rig = Rig()
    rig.tool(TimeoutError(), ConnectionRefusedError(111, "refused"), forward_key=True, breaker=NEVER_TRIPS)
    result = rig.execute()
    assert (result.code, result.attempts) == ("outcome_unknown", 4)


def test_doubt_stays_when_the_breaker_opens_during_the_pause() -> None:
    rig = Rig()
    rig.tool(TimeoutError(), "sent", forward_key=True)
    real = rig.clock.sleep

    def sleep(seconds: float) -> None:
        real(seconds)
        rig.breaker().force_open(rig.clock.seconds, "maintenance")

    rig.clock.sleep = sleep  # type: ignore[method-assign]
    result = rig.execute()
    assert (result.code, result.attempts) == ("outcome_unknown", 1)


def test_a_definite_answer_keeps_its_own_code() -> None:
    rig = Rig()
    rig.tool(HttpError(404), "sent")
    assert rig.execute(call_id="c1").code == "http_404"
    assert rig.execute(call_id="c2").content == "sent"


def test_the_tools_own_list_makes_an_exception_definite() -> None:
    rig = Rig()
    rig.tool(KeyError("no such account"), "sent", retry=RetryPolicy(terminal_codes=("KeyError",)))
    result = rig.execute(call_id="c1")
    assert (result.status, result.code) == ("error", "KeyError")
    assert rig.execute(call_id="c2").content == "sent"


def test_lists_of_the_configuration_count_too() -> None:
    rig = Rig(retry=RetryPolicy(terminal_codes=("KeyError",)))
    rig.tool(KeyError("no such account"))
    assert rig.execute().code == "KeyError"


def test_a_decorated_function_raises_its_own_exception_and_then_outcome_unknown() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=False)
    def pay(amount: int) -> str:
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError) as caught:
        pay(3)
    [note] = caught.value.__notes__
    assert "It is not known whether the call took effect" in note
    assert "antiphon claims resolve" in note
    with pytest.raises(OutcomeUnknown):
        pay(3)


@pytest.mark.parametrize("option", ["unknown_ttl", "key_ttl", "approval_ttl"])
@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e16])
def test_nothing_is_kept_for_longer_than_a_store_can_say(option: str, seconds: float) -> None:
    gateway: Any = Gateway(store="memory:")

    def pay(order: str) -> None:
        raise AssertionError

    with pytest.raises(InvalidInput, match=option):
        gateway.tool(idempotent=False, key="order", **{option: seconds})(pay)


def test_a_decision_that_always_fails_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(store="memory:")

    @gateway.tool(idempotent=False)
    def pay(order: str) -> None:
        raise ValueError("declined")

    def fails(*_: object) -> None:
        raise OverflowError("a bug of ours")

    monkeypatch.setattr("antiphon._gateway.drivers.broke_off", fails)
    with pytest.raises(OverflowError, match="a bug of ours"):
        copy_context().run(pay, "7")  # nothing says there that the call is over
