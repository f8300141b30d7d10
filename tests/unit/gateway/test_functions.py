"""Decorated functions: signature and types stay, Python calls become named parameters."""

from __future__ import annotations

import functools
import inspect
from typing import Annotated, Any, Optional

import pytest

from antiphon._gateway.context import CallContext
from antiphon.contract.spec import RetryPolicy, ToolSpec
from antiphon.errors import InvalidInput, StoreUnavailable
from tests.unit.gateway.kit import NEVER_TRIPS, AsyncRig, HttpError, Rig
from tests.unit.gateway.test_outage import Faulty


def test_signature_name_and_docstring_stay() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=False)
    def send(to: str, *, copies: int = 1) -> list[str]:
        """Send a mail.

        More text.
        """
        return [to] * copies

    assert str(inspect.signature(send)) == "(to: 'str', *, copies: 'int' = 1) -> 'list[str]'"
    assert send.__name__ == "send"
    assert rig.gateway.tools["tools/send"].description == "Send a mail."
    assert send("ada", copies=2) == ["ada", "ada"]


def test_idempotent_has_no_default() -> None:
    gateway = Rig().gateway
    for bare in ((), (print,), ("send",)):  # @gateway.tool() and @gateway.tool without parentheses among them
        with pytest.raises(TypeError, match=r"^Write @gateway\.tool\(idempotent=False\) above the function"):
            gateway.tool(*bare)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match=r"gateway\.tool\(idempotent=\.\.\.\)\(function\)"):
        gateway.tool(print, idempotent=True)  # type: ignore[call-overload]


def test_a_method_is_registered_with_its_object() -> None:
    gateway = Rig().gateway

    class Desk:
        fee = 7

        def price(self, n: int) -> int:
            return self.fee * n

    with pytest.raises(InvalidInput, match=r"price is an unbound method.*\(thing\.method\)"):
        gateway.tool(idempotent=True)(Desk.price)
    assert gateway.tool(idempotent=True)(Desk().price)(2) == 14


def test_a_classmethod_is_registered_with_its_class() -> None:
    gateway = Rig().gateway
    with pytest.raises(InvalidInput, match=r"classmethod.* is not a function.*bound one, below the class"):

        class Wrong:
            @gateway.tool(idempotent=True)
            @classmethod
            def price(cls, n: int) -> int:
                return n

    class Desk:
        @classmethod
        def price(cls, n: int) -> int:
            return 7 * n

    assert gateway.tool(idempotent=True)(Desk.price)(2) == 14


def test_a_callable_without_a_name_needs_one() -> None:
    gateway = Rig().gateway
    for function in (functools.partial(max, 3), lambda n: max(3, n)):
        with pytest.raises(InvalidInput, match=r"@gateway\.tool\('name', idempotent=\.\.\.\)"):
            gateway.tool(idempotent=True)(function)
        assert gateway.tool("largest", idempotent=True)(lambda n: max(3, n))(n=4) == 4


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1, 2), {}),
        ((1,), {"b": 2}),
        ((), {"a": 1, "b": 2}),
        ((), {"b": 2, "a": 1}),
        ((1, 2, 3), {}),
        ((1, 2), {"c": 3}),
    ],
)
def test_equal_calls_written_differently_are_equal(args: Any, kwargs: Any) -> None:
    rig = Rig()
    calls: list[Any] = []

    @rig.gateway.tool(idempotent=True, reuse="session")
    def add(a: int, b: int, c: int = 3) -> int:
        calls.append((a, b, c))
        return a + b + c

    assert add(1, 2, 3) == 6
    assert add(*args, **kwargs) == 6
    assert calls == [(1, 2, 3)]


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1,), {"a": 1}), ((1, 2, 3), {}), ((1,), {"x": 1})])
def test_wrong_arguments_raise_as_python_would(args: Any, kwargs: Any) -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=False)
    def one(a: int, b: int = 0) -> int:
        return a

    with pytest.raises(TypeError):
        one(*args, **kwargs)
    assert rig.records() == []


def test_all_kinds_of_parameters() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=True)
    def odd(a: int, /, b: int, *rest: int, c: int = 1, **more: int) -> Any:
        return a, b, rest, c, more

    assert odd(1, 2, 3, 4, c=5, d=6) == (1, 2, (3, 4), 5, {"d": 6})
    assert odd(1, b=2) == (1, 2, (), 1, {})


def test_arguments_that_are_not_json_raise_the_typed_error() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=True)
    def look(what: Any) -> int:
        return 1

    with pytest.raises(InvalidInput):
        look(object())
    assert rig.records() == []


def test_a_callable_object_and_a_partial_can_be_tools() -> None:
    import functools

    rig = Rig()

    class Adder:
        def __call__(self, a: int) -> int:
            return a + 1

    add = rig.gateway.register(Adder(), ToolSpec(name="add", idempotent=True))
    twice = rig.gateway.register(functools.partial(lambda a, b: a * b, 2), ToolSpec(name="twice", idempotent=True))
    assert add(1) == 2
    assert twice(3) == 6


def test_registering_a_name_again_replaces_it_everywhere() -> None:
    rig = Rig()
    first, second = rig.tool("old"), rig.tool("new")
    turn = rig.gateway.session("s").turn()
    assert turn.call("send", {}, "c1").content == "new"
    assert rig.execute().content == "new"
    assert (len(first), len(second)) == (0, 2)


def test_the_tools_own_exception_comes_out() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=True)
    def fail() -> None:
        raise HttpError(404)

    with pytest.raises(HttpError) as caught:
        fail()
    assert "http_404 after 1 attempt" in caught.value.__notes__[0]


def test_exhausted_retries_raise_the_last_error() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=True, breaker=NEVER_TRIPS)
    def fail() -> None:
        raise HttpError(503)

    with pytest.raises(HttpError) as caught:
        fail()
    assert caught.value.__notes__ == ["antiphon: tools/fail failed with http_503 after 4 attempt(s)"]


def test_a_store_outage_raises() -> None:
    store = Faulty()
    rig = Rig(store=store)

    @rig.gateway.tool(idempotent=False)
    def pay() -> None: ...

    store.fail("begin")
    with pytest.raises(StoreUnavailable):
        pay()


async def test_asynchronous_functions_stay_awaitable() -> None:
    rig = AsyncRig()

    @rig.gateway.tool(idempotent=True)
    async def look(q: str) -> str:
        return q

    @rig.gateway.tool(idempotent=True)
    def plain(q: str) -> str:
        return q

    assert inspect.iscoroutinefunction(look)
    assert await look("x") == "x"
    assert await plain("y") == "y"  # type: ignore[misc]


def test_an_asynchronous_tool_is_refused_by_the_synchronous_face() -> None:
    async def look() -> None: ...

    with pytest.raises(InvalidInput, match="AsyncGateway"):
        Rig().gateway.tool(idempotent=True)(look)


def test_outside_a_run_every_python_call_is_new() -> None:
    rig = Rig()
    calls: list[int] = []

    @rig.gateway.tool(idempotent=False)
    def send() -> int:
        calls.append(1)
        return len(calls)

    assert [send(), send()] == [1, 2]


def test_sessions_separate_functions_too() -> None:
    rig = Rig()
    calls: list[int] = []

    @rig.gateway.tool(idempotent=True, reuse="session")
    def look() -> int:
        calls.append(1)
        return len(calls)

    with rig.gateway.session("a"):
        assert look() == 1
    with rig.gateway.session("b"):
        assert look() == 2
    with rig.gateway.session("a"):
        assert look() == 1


def test_close_lets_go_of_the_store_and_opens_it_again() -> None:
    rig = Rig()
    rig.tool("sent")
    with rig.gateway:
        rig.execute(call_id="c1")
    assert rig.execute(call_id="c1").from_cache


def test_policies_may_be_written_as_mappings() -> None:
    rig = Rig()
    script = rig.tool(
        ConnectionResetError("gone"), "well", idempotent=True, retry={"max_attempts": 2}, ttl={"done_ms": 7}
    )
    assert rig.execute().ok
    assert len(script) == 2
    spec = rig.gateway.tools["tools/send"]
    assert (spec.retry, spec.ttl.done_ms) == (RetryPolicy(max_attempts=2), 7)
    for wrong, says in (
        ({"attempts": 2}, "retry has no field 'attempts'"),
        ({"max_attempts": 0}, ">= 1"),
        (5, "retry must be a mapping"),
    ):
        with pytest.raises(InvalidInput, match=says):
            rig.tool(name="other", idempotent=True, retry=wrong)


def test_named_parameters_reach_the_places_that_have_no_name() -> None:
    rig = Rig()

    @rig.gateway.tool(idempotent=True)
    def transfer(src: str = "main", dst: str = "savings", /) -> str:
        return f"{src}->{dst}"

    @rig.gateway.tool(idempotent=True)
    def several(a: int, b: int = 2, *rest: int) -> list[Any]:
        return [a, b, *rest]

    turn = rig.gateway.session("s").turn()
    assert turn.call("transfer", {"dst": "ada"}, call_id="1").content == "main->ada"
    assert turn.call("several", {"a": 1, "rest": [9]}, call_id="2").content == [1, 2, 9]
    assert turn.call("several", {"a": 1}, call_id="3").content == [1, 2]
    assert several(1, 3, 9) == [1, 3, 9]


def test_two_values_of_one_name_are_refused() -> None:
    @Rig().gateway.tool(idempotent=False, key="a")
    def pay(a: str, /, **more: str) -> str:
        raise AssertionError

    with pytest.raises(InvalidInput, match="two values named 'a'"):
        pay("real", a="fake")


@pytest.mark.parametrize("quoted", [False, True])
def test_a_context_that_may_be_none_is_given(quoted: bool) -> None:
    rig = Rig()
    kinds: list[Any] = [CallContext | None, Optional[CallContext], Annotated[CallContext, "mine"]]  # noqa: UP045
    if quoted:
        kinds = ["CallContext | None", "antiphon.CallContext | None", "Optional[CallContext]"]
    for number, kind in enumerate(kinds):

        def charge(cents: int, ctx: Any = None) -> str:
            return str(ctx.idempotency_key)

        charge.__annotations__["ctx"] = kind
        name = f"charge{number}"
        rig.gateway.tool(name, idempotent=False, forward_key=True)(charge)
        assert rig.gateway.session("s").turn().call(name, {"cents": 1}, call_id=name).content not in ("None", None)
