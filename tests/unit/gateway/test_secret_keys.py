"""A claim holds no secret: not as the key that a caller gives, and not in a result that repeats what its run knows."""

from __future__ import annotations

import asyncio
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from antiphon import Antiphon, CallContext, DidNotHappen, Happened
from antiphon._drive import drive
from antiphon.ops.admin import Admin
from antiphon.stores import SQLiteStore

ADDRESS = "dora.privat@example.com"
ANYTHING: Any = None


def test_an_address_as_a_key_is_sealed_and_given_back(tmp_path: Path) -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=SQLiteStore(tmp_path / "a.db"))
    seen: list[str] = []

    def look(params: dict[str, Any], context: CallContext) -> Any:
        seen.append(f"reconciles {context.idempotency_key}")
        return DidNotHappen()

    @app.gateway.tool(idempotent=False, key="to", reconcile=look)
    def welcome(to: str, context: CallContext = ANYTHING) -> str:
        seen.append(context.idempotency_key)
        if len(seen) == 1:
            raise TimeoutError("no answer")
        return "sent"

    with pytest.raises(TimeoutError):
        welcome(ADDRESS)
    assert welcome(ADDRESS) == "sent"
    assert welcome(ADDRESS) == "sent"
    assert seen == [ADDRESS, f"reconciles {ADDRESS}", ADDRESS]
    (claim,) = asyncio.run(_claims(app))
    assert claim["idempotencyKey"].startswith("[email:")
    for file in tmp_path.iterdir():
        assert ADDRESS.encode() not in file.read_bytes()


def test_a_plain_key_stays_readable(tmp_path: Path) -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=SQLiteStore(tmp_path / "a.db"))
    app.gateway.tool("charge", idempotent=False, key="order")(lambda order: "charged")("order-1042")
    (claim,) = asyncio.run(_claims(app))
    assert claim["idempotencyKey"] == "order-1042"


class Part(Enum):
    PASSWORD = "password"


def test_a_password_under_a_member_of_an_enum_reaches_no_disk(tmp_path: Path) -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=SQLiteStore(tmp_path / "a.db"))

    @app.gateway.tool(idempotent=False, key="of")
    def look_up(of: str) -> dict[Part, str]:
        return {Part.PASSWORD: "hunter2secret"}

    look_up("the first")
    app.record(look_up, "the second")
    for file in tmp_path.iterdir():
        assert b"hunter2secret" not in file.read_bytes()


WORD = "blue-horse-7"
"""Nothing about it looks like a secret."""


@pytest.mark.parametrize("tool", ["note", "stream", "fail", "lines"])
def test_a_result_that_repeats_a_secret_of_its_run_is_sealed(tool: str, tmp_path: Path) -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=SQLiteStore(tmp_path / "a.db"))
    made: list[str] = []

    @app.gateway.tool(idempotent=False)
    def login(user: str, password: str) -> str:
        return "open"

    @app.gateway.tool(idempotent=False, key="text")
    def note(text: str) -> str:
        made.append(text)
        return f"saved: {text}"

    @app.gateway.tool(idempotent=False, key="text")
    def lines(text: str) -> list[str]:
        made.append(text)
        return ["saved"] * 100 + [text]

    @app.gateway.tool(idempotent=False, key="text")
    def stream(text: str) -> Any:
        made.append(text)
        yield from ("saved: ", text[:12], text[12:])

    @app.gateway.tool(idempotent=False, certain_errors=(LookupError,))
    def fail(text: str) -> str:
        raise LookupError(f"no room for {text}")

    def code(call: Any) -> Any:
        login("bob", password=WORD)
        found = [_as_list(call(f"bob has {WORD} here")) for _ in range(2)]
        assert found[0] == found[1], "the duplicate gets the real result"
        return found[0]

    call = {"note": note, "stream": stream, "fail": fail, "lines": lines}[tool]
    if tool == "fail":
        with pytest.raises(LookupError):
            app.record(code, call)
    else:
        assert WORD in "".join(app.record(lambda: code(call)).output)
        assert len(made) == 1
    for file in tmp_path.iterdir():
        assert WORD.encode() not in file.read_bytes(), file


def test_claims_show_no_secret_that_only_their_run_knows(tmp_path: Path) -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=SQLiteStore(tmp_path / "a.db"))
    journal, admin, shown, asked = app.journal, Admin(app), [], []

    def was_it_noted(params: dict[str, Any]) -> Happened:
        asked.append(params)
        return Happened("yes")

    @app.gateway.tool(idempotent=False)
    def login(user: str, password: str) -> str:
        return "open"

    @app.gateway.tool(idempotent=False, key="text", reconcile=was_it_noted)
    def note(text: str) -> str:
        [running] = drive(admin.claims(state="inflight"))
        journal.renew(running["key"], running["version"], 0)  # as if its worker were lost
        shown.extend([running, *drive(admin.claims(state="unknown")), *drive(admin.evidence(app.gateway.tools))])
        return "saved"

    def code() -> None:
        login("bob", password=WORD)
        note(f"bob has {WORD} here")

    app.record(code)
    assert asked == [{"text": f"bob has {WORD} here"}]
    assert [claim["arguments"].startswith('{"text":"bob has ') for claim in shown] == [True] * 3
    assert WORD not in str(shown)


def _as_list(result: Any) -> list[str]:
    return [result] if isinstance(result, str) else list(result)


async def _claims(app: Antiphon) -> list[dict[str, Any]]:
    return await Admin(app).claims()


TOKEN = "blue-horse-tw0"
"""Only the name of its argument says that it is a secret."""
KEYS: list[Any] = ["token", lambda token, **_: f"reset:{token}"]


@pytest.mark.parametrize("key", KEYS, ids=["by name", "computed"])
def test_a_key_made_from_a_secret_argument_is_sealed_and_shown_masked(key: Any, tmp_path: Path) -> None:
    app = Antiphon({"telemetry": {"logs": False}}, store=SQLiteStore(tmp_path / "a.db"))
    seen: list[str] = []

    @app.gateway.tool(idempotent=False, key=key)
    def reset(token: str, user: str, context: CallContext = ANYTHING) -> str:
        seen.append(context.idempotency_key)
        return "done"

    assert [reset(TOKEN, "ada"), reset(TOKEN, "ada")] == ["done", "done"]
    assert len(seen) == 1
    for file in tmp_path.iterdir():
        assert TOKEN.encode() not in file.read_bytes(), file
    (claim,) = asyncio.run(_claims(app))
    assert TOKEN not in str(claim)
