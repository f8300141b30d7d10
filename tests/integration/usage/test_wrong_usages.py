"""Wrong usages: the last line that the user sees says what to do, nothing runs, and the right call works afterwards.

A case is a wrong usage and the words its last line must have: an option, a spelling or a command that puts it right.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import antiphon
from antiphon.cli import main
from antiphon.hooks import HookReply
from antiphon.stores import SQLiteStore


class World:
    """A gateway on a file, a tool that is right, and what it did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SQLiteStore(folder / "claims.db")
        self.gateway: Any = antiphon.Gateway(store=self.store)  # a type checker would refuse most of this
        self.effects: list[str] = []
        self.right: Any = self.gateway.tool("right", idempotent=False, effect="write")(self.charge)

    def charge(self, order: str, cents: int = 100) -> str:
        self.effects.append(order)
        return f"charged {cents}"

    async def charge_async(self, order: str, cents: int = 100) -> str:
        return self.charge(order, cents)

    def tool(self, function: Any = None, **options: Any) -> Any:
        """Declare `charge` in some way."""
        declared = {"idempotent": False, "effect": "write", **options}
        return self.gateway.tool("charge", **declared)(function or self.charge)

    @property
    def turn(self) -> Any:
        return self.gateway.session("s").turn()

    def envelope(self, **changed: Any) -> Any:
        wire: dict[str, Any] = {
            "contractVersion": "1.1",
            "requestId": "r-1",
            "toolName": "right",
            "toolNamespace": "tools",
            "target": {"sessionKey": "s", "actorId": "a"},
            "payload": {"version": "1.0", "params": {"order": "1"}},
            "transport": {"dedupeMode": "enforced", "retryBudget": {"maxAttempts": 1, "maxElapsedMs": 1000}},
            "control": {},
            "trace": {},
        }
        return self.gateway.execute({**wire, **changed})

    def cli(self, *words: str) -> str:
        """A command in the folder; what it says on standard error."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            try:
                code = main(list(words))
            except SystemExit as stop:
                code = int(stop.code or 0)
        assert code != 0, "the command should have failed"
        return said.getvalue()

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name


class Case(NamedTuple):
    """A wrong usage, and what its last line must say."""

    name: str
    wrong: Callable[[World], Any]
    says: str


def _other(order: str) -> str:
    return order


class _Opaque:
    """Nobody can write it down."""

    __slots__ = ("handle",)


def _raises(order: str, **_: Any) -> str:
    raise KeyError(order)


def _bare(world: World) -> Any:
    decorate: Any = world.gateway.tool
    return decorate(world.charge)


def _not_called(world: World) -> Any:
    decorate: Any = world.gateway.tool()
    return decorate(world.charge)


def _same_name(world: World) -> None:
    world.tool()
    world.gateway.tool("charge", idempotent=True)(_other)


def _hook(world: World, hook: Any) -> Any:
    world.tool()
    world.gateway.before(hook)
    try:
        return world.turn.call("charge", {"order": "1"}, call_id="c")
    finally:
        world.gateway = antiphon.Gateway(store=world.store)
        world.right = world.gateway.tool("right", idempotent=False, effect="write")(world.charge)


def _reconcile(world: World, answer: Any) -> Any:
    """The provider is asked and answers nonsense: the outcome stays unknown."""

    def lost(order: str) -> str:
        raise ConnectionResetError("the line went dead")

    tool = world.gateway.tool("lost", idempotent=False, key="order", reconcile=lambda params: answer)(lost)
    with contextlib.suppress(ConnectionResetError):
        tool("1")
    return tool("1")


def _home(world: World) -> Any:
    (world.folder / "taken").write_text("a file")
    return antiphon.Gateway(store=f"sqlite:///{world.folder}/taken/claims.db").tool("charge", idempotent=True)(
        world.charge
    )("1")


CASES = [
    # declarations
    Case("decorator without parentheses", _bare, r"@gateway\.tool\(idempotent="),
    Case("decorator without idempotent", _not_called, r"@gateway\.tool\(idempotent="),
    Case("idempotent is a text", lambda w: w.tool(idempotent="no"), r"`bool`.*idempotent"),
    Case("an option that does not exist", lambda w: w.tool(retries=3), r"Did you mean retry"),
    Case("an option that is misspelt", lambda w: w.tool(timout=3), r"timeout"),
    Case("a name that is empty", lambda w: w.gateway.tool("", idempotent=True)(w.charge), r"name"),
    Case("a namespace that is empty", lambda w: w.gateway.tool(idempotent=True, namespace="")(w.charge), r"namespace"),
    Case("effect misspelt", lambda w: w.tool(effect="writes"), r"'write'|\"write\""),
    Case("scope misspelt", lambda w: w.tool(effect="read", scope="all"), r"'global'|\"global\""),
    Case("scope global on a write", lambda w: w.tool(scope="global"), r"effect=.read"),
    Case("reuse on a write", lambda w: w.tool(reuse=60), r"key="),
    Case("negative reuse", lambda w: w.tool(idempotent=True, effect="read", reuse=-1), r"0"),
    Case("negative timeout", lambda w: w.tool(timeout=-1), r"> 0|above 0|greater"),
    Case("negative ttl", lambda w: w.tool(ttl={"done_ms": -1}), r"done_ms.*0|0.*done_ms"),
    Case("negative key_ttl", lambda w: w.tool(key="order", key_ttl=-1), r"key_ttl|keyTtl"),
    Case("unknown field of retry", lambda w: w.tool(retry={"attempts": 3}), r"max_attempts"),
    Case("no attempts", lambda w: w.tool(retry={"max_attempts": 0}), r"max_attempts.*|1"),
    Case("retry is a number", lambda w: w.tool(retry=3), r"max_attempts|RetryPolicy"),
    Case("breaker is misspelt", lambda w: w.tool(breaker={"failures": 3}), r"consecutive"),
    Case("certain_errors is a name", lambda w: w.tool(certain_errors=("ValueError",)), r"class"),
    Case("certain_errors without a tuple", lambda w: w.tool(certain_errors=ValueError), r"\(ValueError,\)|tuple"),
    Case("two tools of one name", _same_name, r"name"),
    Case("a coroutine in a sync gateway", lambda w: w.tool(w.charge_async), r"AsyncGateway"),
    Case(
        "a partial of a coroutine in a sync gateway",
        lambda w: w.tool(functools.partial(w.charge_async, cents=1)),
        r"AsyncGateway",
    ),
    Case("no function", lambda w: w.tool("charge"), r"function"),
    Case(
        "spec and keywords",
        lambda w: w.gateway.register(w.charge, antiphon.ToolSpec(name="c", idempotent=True), effect="read"),
        r"spec",
    ),
    # keys
    Case("key names no parameter", lambda w: w.tool(key="invoice"), r"order"),
    Case("key_ignore names no parameter", lambda w: w.tool(key="order", key_ignore=("note",)), r"order|cents"),
    Case("key is a number", lambda w: w.tool(key=1042), r"function|name of a parameter"),
    Case("key function takes other arguments", lambda w: w.tool(key=lambda invoice: invoice)("1"), r"key"),
    Case("key function raises", lambda w: w.tool(key=_raises)("1"), r"key"),
    Case("key is None", lambda w: w.tool(key=lambda order, **_: None)("1"), r"text"),
    Case("key is empty", lambda w: w.tool(key="order")(""), r"key"),
    Case("key is a float", lambda w: w.tool(key="cents")("1", 4.5), r"text|whole"),
    Case("once without a key", lambda w: w.right.once(None)("1"), r"text"),
    Case("once with an object", lambda w: w.right.once(_Opaque())("1"), r"string, such as an order number"),
    # calls
    Case("an argument that nobody can write", lambda w: w.right(_Opaque()), r"serialisers"),
    Case("arguments as a list", lambda w: w.turn.call("right", ["1"], call_id="c"), r"object|dict|mapping"),
    Case("an unknown tool", lambda w: w.turn.call("rigth", {"order": "1"}, call_id="c"), r"right"),
    Case("an argument of another name", lambda w: w.turn.call("right", {"ordr": "1"}, call_id="c"), r"order"),
    Case("a call id that is empty", lambda w: w.turn.call("right", {"order": "1"}, call_id=""), r"call_id|callId"),
    Case("a call id that is a number", lambda w: w.turn.call("right", {"order": "1"}, call_id=7), r"must be a string"),
    Case("a session that is empty", lambda w: w.gateway.session(""), r"session"),
    Case("a session that is a number", lambda w: w.gateway.session(1042), r"text|str"),
    Case("an actor that is None", lambda w: w.gateway.session("s", actor=None), r"actor"),
    # envelopes
    Case("an older contract version", lambda w: w.envelope(contractVersion="1.0"), r"1\.1"),
    Case("an envelope without a target", lambda w: w.envelope(target={}), r"sessionKey|actorId"),
    Case("an unknown field", lambda w: w.envelope(payloads={}), r"payloads"),
    Case("an unknown dedupeMode", lambda w: w.envelope(transport={"dedupeMode": "always"}), r"enforced"),
    Case("an envelope that is no JSON", lambda w: w.gateway.execute("{"), r"JSON"),
    # hooks and reconcile
    Case("a hook without a parameter", lambda w: _hook(w, lambda: None), r"def hook\(call"),
    Case("a hook that returns a text", lambda w: _hook(w, lambda call: "key-1"), r"HookReply"),
    Case("a hook with an empty key", lambda w: _hook(w, lambda call: HookReply(idempotency_key="")), r"key"),
    Case(
        "reconcile with the parameters of the tool",
        lambda w: w.tool(reconcile=lambda order, cents: None),
        r"def reconcile\(params\)",
    ),
    Case("reconcile without a parameter", lambda w: w.tool(reconcile=lambda: None), r"def reconcile\(params\)"),
    Case("reconcile answers with a text", lambda w: _reconcile(w, "yes"), r"antiphon claims resolve|Happened"),
    # stores and settings
    Case(
        "a store of an unknown kind", lambda w: antiphon.Gateway(store="mysql://localhost/x"), r"postgresql://|sqlite"
    ),
    Case("a store that is misspelt", lambda w: antiphon.Gateway(store="redi://localhost"), r"redis://"),
    Case("a folder that is a file", _home, r"folder|path|directory"),
    Case(
        "an unknown table", lambda w: antiphon.Gateway(store="memory:", config={"retrys": {}}), r"Did you mean retry\?"
    ),
    Case(
        "an unknown setting",
        lambda w: antiphon.Gateway(store="memory:", config={"retry": {"max_atempts": 2}}),
        r"max_attempts",
    ),
    Case(
        "a setting out of range",
        lambda w: antiphon.Gateway(store="memory:", config={"retry": {"max_attempts": 0}}),
        r"1",
    ),
    Case("a config that is not there", lambda w: antiphon.Gateway(config="nowhere.toml"), r"nowhere\.toml"),
    # commands
    Case("an unknown command", lambda w: w.cli("reply"), r"replay|--help"),
    Case("an unknown option", lambda w: w.cli("runs", "--jsn"), r"--json"),
    Case("a run that is not there", lambda w: w.cli("show", "nothing"), r"antiphon run "),
    Case("a replay of an unknown run", lambda w: w.cli("replay", "0197-no-such-run"), r"antiphon run "),
    Case(
        "an artifact that is not one",
        lambda w: w.cli("import", w.write("a.antiphon", "{}")),
        r"antiphon export|artifact",
    ),
    Case("an artifact that is not there", lambda w: w.cli("import", "nothing.antiphon"), r"nothing\.antiphon"),
    Case(
        "input that is no JSON",
        lambda w: w.cli("run", f"{w.write('a.py', 'def main(x): return x')}:main", "--input", "tea"),
        r"'\"hello\"'",
    ),
    Case(
        "an entry without a function",
        lambda w: w.cli("run", w.write("b.py", "def main(x): return x")),
        r"file\.py:function",
    ),
    Case(
        "an entry of another name", lambda w: w.cli("run", f"{w.write('c.py', 'def main(x): return x')}:mian"), r"main"
    ),
    Case("an entry that is not there", lambda w: w.cli("run", "nowhere.py:main"), r"path from the working folder"),
    Case(
        "a claim that is not there",
        lambda w: w.cli("claims", "resolve", "ffff", "--did-not-happen"),
        r"antiphon claims list",
    ),
    Case("resolve without a verdict", lambda w: w.cli("claims", "resolve", "ffff"), r"--happened|--did-not-happen"),
    Case("no golden runs", lambda w: w.cli("test", "golden"), r"folder of \.antiphon files"),
]


def last_line(wrong: Callable[[World], Any], world: World) -> str:
    """What the user sees last: of a traceback, of a result's message, of what a command says."""
    try:
        got = wrong(world)
    except Exception as error:
        text = "".join(traceback.format_exception(error))
    else:
        if asyncio.iscoroutine(got):
            got.close()
        text = got if isinstance(got, str) else "" if got is None or getattr(got, "ok", True) else got.error.message
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "(nothing)"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_COLOR", "1")
    return World(tmp_path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "_"))
def test_the_last_line_says_what_to_do(case: Case, world: World) -> None:
    said = last_line(case.wrong, world)
    assert re.search(case.says, said), said
    assert world.effects == []
    if "reconcile answers" not in case.name:  # the outcome is unknown, and stays so
        assert antiphon_claims(world) == []
    assert world.right("1") == "charged 100"
    assert world.effects == ["1"]


def antiphon_claims(world: World) -> list[Any]:
    """Records that could block a call."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["claims", "list", "--store", f"sqlite:///{world.folder}/claims.db", "--json"]) == 0
    return list(json.loads(said.getvalue())["claims"])


def test_there_are_more_than_forty() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 40
