"""An exception that quotes a secret argument: nobody hears the secret but the caller, who gets the exception itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from antiphon._gateway.hooks import HookCall
from antiphon.ops.app import Antiphon
from antiphon.redact import Redactor, Rules, without_values
from antiphon.stores import MemoryStore
from tests.unit.gateway.kit import AsyncRig, Rig, fast_retry

PASSWORD = "correct horse battery"
SHAPES: dict[str, Callable[[str], str]] = {
    "plain": lambda secret: secret,
    "repr": lambda secret: repr({"password": secret}),
    "JSON": lambda secret: json.dumps({"password": secret}),
    "url": lambda secret: f"GET /login?password={secret.replace(' ', '%20')} failed",
    "form": lambda secret: f"password={secret.replace(' ', '+')}",
}
TELLTALES = (PASSWORD, PASSWORD.replace(" ", "%20"), PASSWORD.replace(" ", "+"))


def rig_of(kind: str) -> Any:
    parts = {"redactor": Redactor(Rules(), salt="00" * 16)}
    return (Rig if kind == "threads" else AsyncRig)(parts=parts, retry=fast_retry())


def everything(rig: Any) -> str:
    return repr(rig.ears.heard) + repr(rig.records())


def leaks(text: str) -> list[str]:
    return [secret for secret in TELLTALES if secret in text]


def wait(answer: Any) -> Any:
    async def whole() -> Any:
        return await answer

    return answer if not hasattr(answer, "__await__") else asyncio.run(whole())


@pytest.mark.parametrize("kind", ["threads", "loop"])
@pytest.mark.parametrize("idempotent", [True, False], ids=["repeatable", "once"])
@pytest.mark.parametrize("shape", SHAPES)
def test_nobody_hears_it_but_the_caller(
    kind: str, idempotent: bool, shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = rig_of(kind)
    error = ConnectionError(f"cannot log in: {SHAPES[shape](PASSWORD)}")

    def login(user: str, password: str) -> None:
        raise error

    async def login_async(user: str, password: str) -> None:
        raise error

    guarded = rig.gateway.tool("login", idempotent=idempotent)(login if kind == "threads" else login_async)
    with pytest.raises(ConnectionError) as caught:
        wait(guarded("ada", PASSWORD))
    assert caught.value is error
    assert PASSWORD.split()[0] in str(caught.value)
    turn = rig.gateway.session("s").turn()
    answer = wait(turn.call("login", {"user": "ada", "password": PASSWORD}, "c1"))
    assert "cannot log in" in answer.error.message
    said = everything(rig) + json.dumps(answer.to_wire()) + caplog.text
    assert "cannot log in" in said
    assert leaks(said) == []


def test_nor_if_the_exception_is_certain_a_streams_or_a_hooks() -> None:
    rig = rig_of("threads")

    class Declined(Exception):
        pass

    def charge(password: str) -> None:
        raise Declined(f"no: {PASSWORD}")

    def pieces(password: str) -> Any:
        yield 1
        raise OSError(f"no: {PASSWORD}")

    def deny(call: HookCall) -> None:
        if call.tool == "denied":
            raise RuntimeError(f"no: {PASSWORD}")

    rig.gateway.before(deny)
    rig.gateway.tool("charge", idempotent=False, certain_errors=(Declined,))(charge)
    rig.gateway.tool("pieces", idempotent=False)(pieces)
    rig.gateway.tool("denied", idempotent=False)(lambda password: None)
    said = ""
    for name in ("charge", "pieces", "denied"):
        answer = rig.execute(tool=name, params={"password": PASSWORD})
        assert "no: " in answer.error.message
        said += json.dumps(answer.to_wire())
    assert leaks(said + everything(rig)) == []


def test_nor_if_reconcile_quotes_it(caplog: pytest.LogCaptureFixture) -> None:
    rig = rig_of("threads")

    def lost(password: str) -> None:
        raise TimeoutError("no answer")

    def read_back(params: dict[str, Any]) -> None:
        raise OSError(f"cannot look for {params['password']}")

    rig.gateway.tool("lost", idempotent=False, reconcile=read_back)(lost)
    for _ in range(2):
        rig.execute(tool="lost", params={"password": PASSWORD}, call_id="c1")
    assert "cannot look for" in caplog.text
    assert leaks(caplog.text + everything(rig)) == []


def test_the_end_of_a_run_leaves_it_out() -> None:
    app = Antiphon(store=MemoryStore())

    @app.gateway.tool(idempotent=False)
    def login(password: str) -> None:
        raise OSError(f"cannot log in with {password}")

    def agent() -> None:
        try:
            login(PASSWORD)
        except OSError as error:
            raise RuntimeError(f"gave up: {error}") from error

    run = app.run("r")
    with pytest.raises(RuntimeError, match=PASSWORD), run:
        agent()
    written = repr(app.journal.events(run.id))
    assert "gave up" in written
    assert "cannot log in" in written
    assert leaks(written) == []


def test_a_short_one_counts_only_where_it_stands_by_itself() -> None:
    assert without_values("cvc 737 of order 17370", {"737": "[cvc]"}) == "cvc [cvc] of order 17370"
    assert without_values("pin 12", {}) == "pin 12"
