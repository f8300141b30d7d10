"""Streams come back piece by piece, errors come back as errors (D17, D18)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import urllib.error
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

import antiphon
from antiphon._recording.run import Run
from antiphon.errors import CallFailed, find_class, rebuild_exception
from tests.unit.replay.kit import OK, memory_app, says

STREAM = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "q"}]}


def _check(app: antiphon.Antiphon, main: Callable[[], Any]) -> Run:
    run: Run = app.record(main)
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert report.passed, report.text()
    assert report["outputsA"] == report["outputsB"]
    return run


def _never(body: Any) -> Any:
    raise AssertionError("a strict replay asked the model")


def test_pieces_of_a_model() -> None:
    app = memory_app()
    asked = []

    def send(body: Any) -> Iterator[Any]:
        asked.append(body)
        yield {"choices": [{"index": 0, "delta": {"content": "Hel"}}]}
        yield {"choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "stop"}]}

    _check(app, lambda: list(antiphon.current_run().llm(STREAM, send)))
    assert len(asked) == 1


def test_an_empty_stream_is_a_stream() -> None:
    app = memory_app()
    _check(app, lambda: list(antiphon.current_run().llm(STREAM, lambda body: iter(()))))


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("created", [1, "an unusual server's"])
def test_an_answer_that_is_an_object_of_an_sdk(created: Any) -> None:
    app = memory_app()
    body = {**says("Hello"), "id": "c1", "created": created, "model": "m-1", "object": "chat.completion"}

    def main() -> Any:
        answer = antiphon.current_run().llm(OK, lambda request: ChatCompletion.construct(**body))
        return answer.choices[0].message.content, answer.created

    run = _check(app, main)
    assert run.output == ("Hello", created)
    (end,) = (event for event in run.events() if event.type == "call.finished")
    assert end.meta["usage"] == {"inputTokens": 7, "outputTokens": 3}


def test_a_refusal_that_is_an_object_of_an_sdk_is_a_refusal() -> None:
    app = memory_app()
    body = {**says("", refusal="I cannot"), "id": "c1", "created": 1, "model": "m-1", "object": "chat.completion"}

    def main() -> Any:
        answer = antiphon.current_run().llm(OK, lambda request: ChatCompletion.construct(**body))
        return answer.choices[0].message.refusal

    run = _check(app, main)
    assert [event.payload["outcome"] for event in run.events() if event.type == "call.finished"] == ["refusal"]
    assert antiphon.replay(run, app=app, mode="strict", function=main, keep=False, verify=True).passed


class Delta(BaseModel):
    text: str


@pytest.mark.parametrize("read", [1, 4])
def test_pieces_that_are_objects_of_an_sdk(read: int) -> None:
    app = memory_app()
    piece: dict[str, Any] = {"id": "c1", "created": 1, "model": "m-1", "object": "chat.completion.chunk"}
    pieces = [{**piece, "choices": [{"index": 0, "delta": {"content": text}}]} for text in ("Hel", "lo")]

    def send(body: Any) -> Iterator[Any]:
        yield from (ChatCompletionChunk(**piece) for piece in pieces)
        yield {"text": "plain"}
        yield Delta(text="!")

    def main() -> list[Any]:
        stream = antiphon.current_run().llm(STREAM, send)
        found = [next(stream) for _ in range(read)]
        stream.close()
        return [(type(piece).__name__, piece) for piece in found]

    run = _check(app, main)
    assert [name for name, _ in run.output] == ["ChatCompletionChunk", "ChatCompletionChunk", "dict", "Delta"][:read]


def test_calls_between_the_pieces() -> None:
    app = memory_app()

    @app.gateway.tool(idempotent=True, effect="read")
    def words(n: int) -> Iterator[str]:
        yield from "abc"[:n]

    @app.gateway.tool(idempotent=True, effect="read")
    def upper(letter: str) -> str:
        return letter.upper()

    _check(app, lambda: [upper(letter=letter) for letter in words(n=3)])


def test_a_reader_that_stops() -> None:
    app = memory_app()

    @app.gateway.tool(idempotent=True, effect="read")
    def words() -> Iterator[str]:
        yield from "abcdef"

    def some() -> list[str]:
        stream: Any = words()
        found = [next(stream), next(stream)]
        stream.close()
        return found

    def model() -> list[Any]:
        stream = antiphon.current_run().llm(STREAM, lambda body: iter("xyz"))
        found = [next(stream)]
        stream.close()
        return found

    _check(app, some)
    run = _check(app, model)
    greedy = antiphon.replay(
        run,
        app=app,
        mode="strict",
        function=lambda: list(antiphon.current_run().llm(STREAM, lambda body: iter("xyz"))),
        keep=False,
    )
    assert not greedy.passed


@pytest.mark.parametrize("after", [lambda stream: stream.close(), list], ids=["closed", "read on"])
def test_a_stream_that_is_open_when_its_run_ends(after: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[str] = []
    monkeypatch.setattr("antiphon._lineage.on_late", [lambda replay, what: late.append(what)])
    app = memory_app()
    kept: list[Any] = []

    @app.gateway.tool(idempotent=True, effect="read")
    def words() -> Iterator[str]:
        yield from "abc"

    def main(reads: int = 1) -> list[str]:
        stream: Any = words()
        kept.append(stream)
        return [next(stream) for _ in range(reads)]

    run: Run = app.record(main)
    after(kept[0])
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert report.passed, report.text()
    kept.pop().close()  # as at the end of the process
    assert not late
    other = antiphon.replay(run, app=app, mode="strict", function=lambda: main(2), keep=False)
    assert not other.passed


def test_a_stream_that_broke() -> None:
    app = memory_app()

    def send(body: Any) -> Iterator[Any]:
        yield "one"
        raise ConnectionResetError("gone")

    def main() -> list[Any]:
        found: list[Any] = []
        try:
            for piece in antiphon.current_run().llm(STREAM, send):
                found.append(piece)
        except ConnectionResetError as error:
            found.append(str(error))
        return found

    assert _check(app, main).output == ["one", "gone"]


def test_asynchronous_pieces() -> None:
    app = memory_app()

    async def send(body: Any) -> AsyncIterator[Any]:
        yield "a"
        await asyncio.sleep(0)
        yield "b"

    @app.async_gateway.tool(idempotent=True, effect="read")
    async def letters(n: int) -> AsyncIterator[str]:
        for letter in "xyz"[:n]:
            yield letter

    async def main() -> Any:
        stream = await antiphon.current_run().llm(STREAM, send)
        return [piece async for piece in stream], [letter async for letter in letters(n=2)]

    _check(app, main)


@pytest.mark.parametrize("realtime", [False, True])
def test_realtime_keeps_the_pauses(realtime: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    app = memory_app()

    async def send(body: Any) -> AsyncIterator[Any]:
        yield "a"
        await asyncio.sleep(0.08)
        yield "b"

    async def main() -> Any:
        return [piece async for piece in await antiphon.current_run().llm(STREAM, send)]

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    slept: list[float] = []
    run = app.record(main)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    antiphon.replay(run, app=app, mode="strict", function=main, realtime=realtime, keep=False)
    assert [seconds for seconds in slept if seconds >= 0.07] == slept[-1:]
    assert bool(slept) is realtime


class Custom(Exception):
    """Takes a message."""


class Order:
    """Has an exception of its own, as models of Django do."""

    class DoesNotExist(Exception):
        """Is nested in another class."""


class Awkward(Exception):
    """Wants more than a message, and holds what has no JSON form."""

    def __init__(self, status: int, *, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.response = object()


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        KeyError("missing"),
        KeyError(("a", 1)),
        FileNotFoundError(2, "No such file"),
        Custom("own"),
        Order.DoesNotExist("own"),
        ZeroDivisionError("division by zero"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["tool", "llm"])
def test_errors_are_raised_again(error: Exception, kind: str) -> None:
    app = memory_app()

    @app.gateway.tool(idempotent=True, effect="read")
    def fails() -> None:
        raise error

    def send(body: Any) -> Any:
        raise error

    def main() -> str:
        try:
            if kind == "tool":
                fails()
            else:
                antiphon.current_run().llm({**STREAM, "stream": False}, send)
        except type(error) as caught:
            return f"{type(caught).__name__} {caught}"
        return "no error"

    _check(app, main)


def test_a_recorded_class_makes_no_package_import_its_submodule(monkeypatch: pytest.MonkeyPatch) -> None:
    package, requested = ModuleType("lazy_package"), list[str]()
    package.__getattr__ = requested.append  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_package", package)
    error = rebuild_exception({"class": "lazy_package.submodule.Failed", "message": "no"})
    assert type(error) is CallFailed
    assert find_class("lazy_package.submodule.Order") is None
    assert requested == []


class Held(Exception):
    """Takes more than a message, and holds more."""

    def __init__(self, status: int, *, body: Any) -> None:
        super().__init__("no", status)
        self.status = status
        self.body = body


@dataclass(eq=False)
class Fields(Exception):
    """Is a dataclass."""

    reason: str
    retry_after: float

    def __str__(self) -> str:
        return self.reason


class Slotted(Exception):
    """Has its attributes in slots."""

    __slots__ = ("place",)

    def __init__(self, message: str, place: int = 0) -> None:
        super().__init__(message)
        self.place = place


def _not_json() -> Exception:
    try:
        json.loads('{"a": }')
    except ValueError as error:
        return error
    raise AssertionError


def _retry_later() -> Exception:
    error = Custom("later")
    error.after = 3  # type: ignore[attr-defined]
    return error


_HELD = (
    *("errno", "strerror", "filename", "filename2", "object", "start", "returncode", "cmd", "stderr", "pos", "doc"),
    *("lineno", "status", "body", "retry_after", "place", "code", "url", "name", "value", "after"),
)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file or directory", "a.txt"),
        OSError(28, "No space left on device"),
        FileExistsError(17, "File exists", "a", None, "b"),
        UnicodeDecodeError("utf-8", b"\xff!", 0, 1, "invalid start byte"),
        subprocess.CalledProcessError(3, ["make", "all"], output="text", stderr="bad"),
        subprocess.TimeoutExpired("make", 2.5),
        urllib.error.URLError("no route"),
        _not_json(),
        ModuleNotFoundError("No module named 'x'", name="x"),
        KeyError(5),
        ValueError("bad", 404),
        ValueError(5),
        Held(418, body={"reasons": ["teapot"]}),
        Fields("full", 1.5),
        Slotted("here", 7),
        _retry_later(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["tool", "llm"])
def test_an_error_comes_back_with_what_it_held(error: Exception, kind: str) -> None:
    app = memory_app()
    caught: list[list[Any]] = []

    @app.gateway.tool(idempotent=True, effect="read", retry={"max_attempts": 1})
    def fails() -> None:
        raise error

    def send(body: Any) -> Any:
        raise error

    def main() -> str:
        try:
            _ = fails() if kind == "tool" else antiphon.current_run().llm({**STREAM, "stream": False}, send)
        except type(error) as again:
            caught.append([again.args, *(getattr(again, name, None) for name in _HELD)])
            return str(again)
        return "no error"

    _check(app, main)
    assert caught[1] == caught[0]


def test_an_error_of_an_earlier_release_comes_back_with_its_message() -> None:
    error = rebuild_exception({"class": "builtins.FileNotFoundError", "message": "[Errno 2] No such file: 'a'"})
    assert type(error) is FileNotFoundError
    assert str(error) == "[Errno 2] No such file: 'a'"
    assert isinstance(rebuild_exception({"class": f"{__name__}.Held", "message": "('no', 418)"}), CallFailed)


@pytest.mark.parametrize("changed", [{"args": 5}, {"attributes": []}, {"attributes": {"__class__": "x", "errno": []}}])
def test_a_damaged_error_is_still_an_error(changed: dict[str, Any]) -> None:
    recorded = {"class": "builtins.OSError", "message": "full", "attributes": {}, **changed}
    assert isinstance(rebuild_exception(recorded), (OSError, CallFailed))


def test_a_secret_that_an_error_holds_is_not_recorded() -> None:
    app = memory_app()
    password = "correct horse battery"

    @app.gateway.tool(idempotent=True, effect="read")
    def login(user: str, password: str) -> None:
        raise subprocess.CalledProcessError(1, ["login", "--with", password], stderr=f"no: {password}")

    def main() -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            login(user="ada", password=password)

    run: Run = app.record(main)
    (ended,) = [event for event in run.events() if event.type == "call.finished"]
    assert ended.payload["error"]["attributes"]["returncode"] == 1
    assert password not in json.dumps(ended.payload)


class Coded(Exception):
    """Has a number that its message does not tell."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Fixed(Exception):
    """Has a number that cannot be set."""

    @property
    def code(self) -> int:
        return 5


@pytest.mark.parametrize(
    "error",
    [Coded("bad", 7), Coded("bad"), Fixed("bad"), Custom(), Custom("Custom"), Custom(""), KeyError(), TimeoutError()],
    ids=repr,
)
def test_an_error_comes_back_with_its_number_and_without_a_message_it_did_not_have(error: Exception) -> None:
    app = memory_app()

    @app.gateway.tool(idempotent=True, effect="read", retry={"max_attempts": 1})
    def fails() -> None:
        raise error

    def main() -> Any:
        try:
            fails()
        except type(error) as caught:
            return [str(caught), getattr(caught, "code", None)]

    def ignores() -> None:
        with contextlib.suppress(type(error)):
            fails()

    _check(app, main)
    _check(app, ignores)


@pytest.mark.parametrize("kind", ["tool", "llm"])
def test_an_error_that_cannot_be_made_again_says_what_it_was(kind: str) -> None:
    app = memory_app()
    caught: list[BaseException] = []

    @app.gateway.tool(idempotent=True, effect="read")
    def fails() -> None:
        raise Awkward(418, body="teapot")

    def send(body: Any) -> Any:
        raise Awkward(418, body="teapot")

    def main() -> None:
        try:
            _ = fails() if kind == "tool" else antiphon.current_run().llm({**STREAM, "stream": False}, send)
        except Exception as error:
            caught.append(error)
            raise

    with pytest.raises(Awkward):
        app.record(main)
    report = antiphon.replay(app=app, mode="strict", function=main, keep=False)
    assert report.passed, report.text()
    assert isinstance(caught[1], CallFailed)
    assert caught[1].data["recorded"]["class"].endswith("Awkward")


def test_a_run_that_failed_replays_as_failed() -> None:
    app = memory_app()

    def main(word: str = "late") -> None:
        raise Custom(word)

    with pytest.raises(Custom):
        app.record(main)
    assert antiphon.replay(app=app, mode="strict", function=main, keep=False).passed
    other = antiphon.replay(app=app, mode="strict", function=lambda: main("early"), keep=False)
    assert [found["what"] for found in other.divergences] == ["run.finished"]
    healed = antiphon.replay(app=app, mode="strict", function=lambda: None, keep=False)
    assert [found["kind"] for found in healed.divergences] == ["error"]


def test_a_recording_never_makes_us_import_anything() -> None:
    import sys

    from antiphon.errors import rebuild_exception

    error = rebuild_exception({"class": "this_is_not_loaded.Error", "message": "x", "code": "c"})
    assert isinstance(error, CallFailed)
    assert "this_is_not_loaded" not in sys.modules


def test_a_stream_that_is_read_on_is_a_divergence_even_of_an_agent_that_returns_nothing() -> None:
    app = memory_app()

    def send(body: Any) -> Iterator[Any]:
        yield {"choices": [{"index": 0, "delta": {"content": "Hel"}}]}
        yield {"choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "stop"}]}

    def short() -> None:
        stream = antiphon.current_run().llm(STREAM, send)
        next(stream)
        stream.close()

    def whole() -> None:
        list(antiphon.current_run().llm(STREAM, _never))

    run: Run = app.record(short)
    report = antiphon.replay(run, app=app, mode="strict", function=whole, keep=False)
    assert not report.passed
    assert "now it reads on" in report.text()
