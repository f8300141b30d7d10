"""Exceptions are the tool's own; the record says how certain they are. Wrong declarations and ids stop at the door."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from antiphon._drive import drive
from antiphon.contract.spec import DidNotHappen
from antiphon.decide.claim import is_unknown
from antiphon.errors import InvalidInput, OutcomeUnknown, RecordedError, ToolDeniedError
from tests.unit.gateway.kit import AsyncRig, Rig


class CardDeclined(Exception):
    pass


class Wordy(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")


@dataclass(frozen=True)
class Frozen(Exception):
    reason: str


FACES = [Rig, AsyncRig]


def tool(rig: Rig, function: Callable[..., Any], **declared: Any) -> Callable[..., Any]:
    """The function as a tool of either face, called without an event loop."""
    if not isinstance(rig, AsyncRig):
        return rig.gateway.tool(**declared)(function)

    @functools.wraps(function)
    async def asynchronous(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    made = rig.gateway.tool(**declared)(asynchronous)
    import asyncio

    return lambda *args, **kwargs: asyncio.run(made(*args, **kwargs))


@pytest.mark.parametrize("make", FACES, ids=["threads", "loop"])
@pytest.mark.parametrize(
    ("raised", "declared", "unknown"),
    [
        (CardDeclined("no funds"), {"certain_errors": (CardDeclined,)}, False),
        (CardDeclined("no funds"), {}, True),
        (DidNotHappen("closed"), {}, False),
        (ValueError("bad"), {}, True),
        (TimeoutError("late"), {"certain_errors": (CardDeclined,)}, True),
        (Wordy(3, "x"), {"certain_errors": (Wordy,)}, False),
        (Frozen("no funds"), {"certain_errors": (Frozen,)}, False),
    ],
    ids=["declared", "undeclared", "did not happen", "other", "a timeout", "wordy", "frozen"],
)
def test_a_tool_raises_what_it_raised_and_the_record_says_how_certain_it_is(
    make: Any, raised: Exception, declared: dict[str, Any], unknown: bool
) -> None:
    rig = make()
    effects: list[int] = []

    def pay() -> None:
        effects.append(1)
        raise raised

    call = tool(rig, pay, idempotent=False, effect="write", **declared)
    with pytest.raises(type(raised)) as caught:
        call()
    assert caught.value is raised
    assert any("not known whether" in note for note in caught.value.__notes__) is unknown
    [record] = rig.records()
    assert is_unknown(record) is unknown
    if unknown:
        with pytest.raises(OutcomeUnknown):
            call()
        assert effects == [1]
    else:
        with pytest.raises(type(raised)):  # a new call runs: nothing has happened
            call()
        assert effects == [1, 1]


@pytest.mark.parametrize(("kind", "raises"), [(CardDeclined, CardDeclined), (Wordy, RecordedError)])
def test_an_answer_from_a_record_raises_the_declared_class_or_a_stand_in(
    kind: type[Exception], raises: type[Exception]
) -> None:
    rig = Rig()
    calls: list[int] = []

    @rig.gateway.tool(idempotent=False, certain_errors=(kind,))
    def pay() -> None:
        calls.append(1)
        raise CardDeclined("no funds") if kind is CardDeclined else Wordy(3, "no funds")

    for _ in range(2):
        answer = rig.execute(tool="pay", params={}, call_id="c1")
        assert answer.error.code == kind.__name__
    assert calls == [1]
    call: Any = rig.gateway.envelope_call(_envelope_of_pay())
    outcome = rig.gateway.run(call)
    from antiphon._gateway import results

    with pytest.raises(raises, match="no funds"):
        results.raise_for(call, outcome)
    assert calls == [1]


def _envelope_of_pay() -> Any:
    from tests.unit.gateway.kit import envelope

    return envelope(tool="pay", params={}, call_id="c1")


@pytest.mark.parametrize("make", FACES, ids=["threads", "loop"])
def test_a_denied_function_raises(make: Any) -> None:
    rig = make()
    call = tool(rig, lambda: 1, name="look", idempotent=True)

    def deny(_: Any) -> None:
        raise ToolDeniedError("not today")

    rig.gateway.before(deny)
    with pytest.raises(ToolDeniedError, match="not today"):
        call()


# -- at the door ---------------------------------------------------------------------------------------------------


async def _send(to: str) -> str:
    return f"sent {to}"


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def passed_on(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return passed_on


@pytest.mark.parametrize("function", [functools.partial(_send, "ada"), functools.partial(_plain(_send), "ada")])
async def test_a_coroutine_behind_a_partial_or_a_decorator_is_awaited(function: Any) -> None:
    rig = AsyncRig()
    assert await rig.gateway.tool("send", idempotent=False)(function)() == "sent ada"
    assert await rig.gateway.tool("send2", idempotent=False)(_plain(_send))("bob") == "sent bob"


def test_a_coroutine_that_nobody_awaits_is_an_error_and_no_success() -> None:
    rig = Rig()
    with pytest.raises(InvalidInput, match="asynchronous"):
        rig.gateway.tool("send", idempotent=False)(functools.partial(_send, "ada"))
    send = rig.gateway.tool("send", idempotent=False)(_plain(_send))
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"it did not run\. Register the function with an AsyncGateway"):
            send("ada")
    [record] = rig.records()
    assert (record.state, record.dispatched) == ("cancelled", False)


def test_a_decorator_that_drives_the_coroutine_itself_is_a_plain_function() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=False)
    @functools.wraps(_send)
    def send(to: str) -> Any:
        return drive(_send(to))

    assert send("ada") == "sent ada"


def test_two_tools_of_one_name_are_an_error_unless_it_is_the_same_function_again() -> None:
    rig = Rig()

    def first() -> int:
        return 1

    def second() -> int:
        return 2

    rig.gateway.tool("same", idempotent=True)(first)
    with pytest.raises(InvalidInput, match="There is a tool tools/same already"):
        rig.gateway.tool("same", idempotent=True)(second)
    rig.gateway.tool("same", idempotent=True, namespace="other")(second)
    for _ in range(2):  # as after a reload

        def again() -> int:
            return 3

        rig.gateway.tool("again", idempotent=True)(again)


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"idempotent": False, "scope": "global"}, "declare effect='read'"),
        ({"idempotent": True, "scope": "global", "effect": "write"}, "declare effect='read'"),
        ({"idempotent": False, "reuse": 3600.0}, "has no effect"),
        ({"idempotent": False, "reuse": "session"}, "has no effect"),
        ({"idempotent": False, "certain_errors": (ValueError("x"),)}, "not an exception class"),
        ({"idempotent": False, "ttl": {"lease_ms": 0}}, "lease"),
    ],
)
def test_a_declaration_that_says_nothing_useful_is_refused(declared: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Rig().gateway.tool("pay", **declared)(lambda: None)


@pytest.mark.parametrize("bad", [5, "", "  ", None, b"x", "\ud800"])
def test_sessions_and_actors_are_texts(bad: Any) -> None:
    rig = Rig()
    with pytest.raises(InvalidInput, match="session"):
        rig.gateway.session(bad)
    with pytest.raises(InvalidInput, match="actor"):
        rig.gateway.session("s", actor=bad)


@pytest.mark.parametrize(
    ("name", "arguments", "call_id"),
    [("send", {}, ""), ("send", {}, 5), ("send", {}, "\ud800"), ("send", None, "c"), ("send", [], None), (5, {}, None)],
)
def test_a_wrong_call_in_a_turn_is_answered_and_nothing_is_dispatched(name: Any, arguments: Any, call_id: Any) -> None:
    rig = Rig()
    script = rig.tool("sent")
    with rig.gateway.session("s") as session, session.turn() as turn:
        answer: Any = turn.call(name, arguments, call_id)
    assert answer.error.code == "validation_error"
    assert (len(script), rig.records()) == (0, [])
