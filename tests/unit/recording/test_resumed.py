"""A resumed run goes the way it went: what it had drawn and heard from its models is given again (D2, D19)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

import antiphon
from antiphon._recording.resumed import EarlierAttempt
from antiphon.config.model import RedactSection
from antiphon.errors import InvalidInput
from tests.unit.replay.kit import memory_app, says

SECRET = "sk-proj-" + "a1B2c3D4" * 6


class Stop(Exception):
    """Stands for the end of the process."""


class World:
    """A model that never says the same twice, a tool that pays what it is told, and code that can be stopped."""

    def __init__(self, text: Callable[[int], str] = str) -> None:
        self.app = memory_app()
        self.asked: list[Any] = []
        self.paid: list[tuple[str, str]] = []
        self.stop_after = 99
        self.text = text

        @self.app.gateway.tool(idempotent=False, effect="write")
        def pay(amount: str, reference: str) -> str:
            self.paid.append((amount, reference))
            return f"receipt {len(self.paid)}"

        self.pay = pay

    def model(self, body: Any) -> Any:
        self.asked.append(body)
        return says(self.text(len(self.asked)))

    def main(self, run: Any) -> list[str]:
        out = []
        for step in range(4):
            if step == self.stop_after:
                raise Stop
            request = {"model": "m", "messages": [{"role": "user", "content": "how much?"}]}
            amount = run.llm(request, self.model)["choices"][0]["message"]["content"]
            out += [amount, self.pay(amount, str(run.uuid4())), str(run.random()), run.now().isoformat()]
        return out

    def attempt(self, resume: str | None = None, stop_after: int = 99) -> Any:
        self.stop_after = stop_after
        run = self.app.run("payments", resume=resume)
        with suppress(Stop), run:
            run.finish(self.main(run))
        return run


def test_the_code_takes_the_way_it_took() -> None:
    world = World()
    run = world.attempt(stop_after=2)
    before = list(world.paid)
    assert len(before) == 2
    again = world.attempt(resume=run.id)
    assert again.id == run.id
    assert world.paid[:2] == before
    assert [amount for amount, _ in world.paid] == ["1", "2", "3", "4"], "each payment once, each model answer once"
    assert len(world.asked) == 4
    report = antiphon.replay(run.id, app=world.app, mode="strict", function=lambda: world.main(antiphon.current_run()))
    assert report.passed, report.text()


def test_an_attempt_that_stops_early_forgets_nothing_of_the_one_before() -> None:
    world = World()
    run = world.attempt(stop_after=3)
    world.attempt(resume=run.id, stop_after=1)
    last = world.attempt(resume=run.id)
    assert [amount for amount, _ in world.paid] == ["1", "2", "3", "4"]
    assert len({reference for _, reference in world.paid}) == 4
    assert len(last.output) == 16


def test_planted_bug_a_resume_that_asks_again_pays_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EarlierAttempt, "_read", lambda self, events: None)
    with pytest.raises(AssertionError):
        test_the_code_takes_the_way_it_took()


def test_an_answer_that_was_masked_is_given_again_as_it_was() -> None:
    world = World(lambda n: f"{n} {SECRET}")
    run = world.attempt(stop_after=1)
    world.attempt(resume=run.id, stop_after=1)
    assert len(world.asked) == 1
    assert all(SECRET in amount for amount, _ in world.paid), "no pseudonym reaches a live tool"


def _chat(text: str) -> list[dict[str, Any]]:
    delta = [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}]
    stop = [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return [{**head, "choices": delta}, {**head, "choices": stop}]


def _ask_chat(client: Any) -> str:
    messages = [{"role": "user", "content": "how much?"}]
    with client.chat.completions.create(model="m", messages=messages, stream=True) as stream:
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def _message(text: str) -> list[dict[str, Any]]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    whole = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    return [
        {"type": "message_start", "message": {**whole, "stop_reason": None, "stop_sequence": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]


def _ask_message(client: Any) -> str:
    messages = [{"role": "user", "content": "how much?"}]
    with client.messages.stream(model="m", max_tokens=9, messages=messages) as stream:
        return "".join(stream.text_stream)


@pytest.mark.parametrize(
    ("sdk", "kind", "events", "ask"),
    [("openai", "OpenAI", _chat, _ask_chat), ("anthropic", "Anthropic", _message, _ask_message)],
)
def test_a_stream_of_an_sdk_that_was_read_to_its_end_is_given_again(
    sdk: str, kind: str, events: Callable[[str], list[dict[str, Any]]], ask: Callable[[Any], str]
) -> None:
    httpx = pytest.importorskip("httpx2")
    app, asked, paid = memory_app(), list[Any](), list[str]()

    def reply(request: Any) -> Any:
        asked.append(request)
        sent = [f"event: {one.get('type', 'message')}\ndata: {json.dumps(one)}\n\n" for one in events(f"{len(asked)}")]
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, text="".join(sent))

    make = getattr(pytest.importorskip(sdk), kind)
    client = antiphon.wrap(make(api_key="none"), inner=httpx.MockTransport(reply))

    @app.gateway.tool(idempotent=False, effect="write")
    def pay(amount: str) -> None:
        paid.append(amount)

    run = app.run("payments")
    with suppress(Stop), run:
        pay(ask(client))
        raise Stop
    with app.run("payments", resume=run.id):
        pay(ask(client))
        pay(ask(client))
    assert paid == ["1", "2"]
    assert len(asked) == 2


def test_an_answer_whose_original_is_not_kept_is_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    app = memory_app()
    app.config = msgspec.structs.replace(app.config, redact=RedactSection(keep_sealed=False))
    asked: list[Any] = []
    request = {"model": "m", "messages": [{"role": "user", "content": "q"}]}

    def model(body: Any) -> Any:
        asked.append(body)
        return says(SECRET)

    run = app.run("r")
    with suppress(Stop), run:
        run.llm(request, model)
        raise Stop
    with app.run("r", resume=run.id) as again:
        answer = again.llm(request, model)["choices"][0]["message"]["content"]
    assert (len(asked), answer) == (2, SECRET)
    assert "originals of event" in caplog.text


def test_a_run_that_would_make_a_masked_write_again_is_not_resumed() -> None:
    world = World(lambda n: f"{n} {SECRET}")
    world.app.config = msgspec.structs.replace(world.app.config, redact=RedactSection(keep_sealed=False))
    run = world.attempt(stop_after=1)
    with pytest.raises(InvalidInput, match=f"Run {run.id} cannot be resumed.*Nothing was called"):
        world.attempt(resume=run.id)
    assert len(world.paid) == 1


def test_failures_are_asked_for_again_and_a_cache_stands_behind() -> None:
    app = memory_app()
    asked: list[str] = []
    request = {"model": "m", "messages": [{"role": "user", "content": "q"}]}

    async def model(body: Any) -> Any:
        asked.append("model")
        if len(asked) == 1:
            raise ConnectionResetError("gone")
        return says("well")

    async def main(resume: str | None) -> Any:
        async with app.run("r", resume=resume, llm_cache=True) as run:
            run.finish(await run.llm(request, model))
        return run

    with pytest.raises(ConnectionResetError):
        asyncio.run(main(None))
    (failed,) = app.journal.runs(tenant=app.tenant)
    done = asyncio.run(main(failed.id))
    assert done.output == says("well")
    assert len(asked) == 2
    other = asyncio.run(main(None))
    assert other.output == says("well")
    assert len(asked) == 2, "kept for other runs, too"


class Streams:
    """A model that answers in pieces, never the same twice, and code that stops after some answers."""

    def __init__(self, text: Callable[[int], list[Any]] = lambda n: ["a", str(n)], *, flagged: bool = True) -> None:
        self.app = memory_app()
        self.asked = 0
        self.text = text
        self.request: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "q"}]}
        if flagged:
            self.request["stream"] = True

    def model(self, body: Any) -> Iterator[Any]:
        self.asked += 1
        yield from self.text(self.asked)

    async def model_async(self, body: Any) -> AsyncIterator[Any]:
        for piece in self.model(body):
            yield piece

    def attempt(self, resume: str | None = None, answers: int = 3) -> Any:
        run = self.app.run("r", resume=resume)
        with suppress(Stop), run:
            run.finish([list(run.llm(self.request, self.model)) for _ in range(answers)])
            if resume is None:
                raise Stop
        return run

    async def attempt_async(self, resume: str | None = None, answers: int = 3) -> Any:
        run = self.app.run("r", resume=resume)
        with suppress(Stop):
            async with run:
                found = []
                for _ in range(answers):
                    stream = await run.llm(self.request, self.model_async)
                    found.append([piece async for piece in stream])
                run.finish(found)
                if resume is None:
                    raise Stop
        return run


@pytest.mark.parametrize("flagged", [True, False])
def test_streams_that_were_read_to_their_end_are_given_again(flagged: bool) -> None:
    world = Streams(flagged=flagged)
    run = world.attempt(answers=2)
    again = world.attempt(resume=run.id)
    assert again.output == [["a", "1"], ["a", "2"], ["a", "3"]]
    assert world.asked == 3
    ends = [event for event in again.events() if event.type == "call.finished"]
    assert [bool(event.meta.get("fromCache")) for event in ends] == [False, False, True, True, False]


async def test_streams_are_given_again_to_asynchronous_code() -> None:
    world = Streams()
    run = await world.attempt_async(answers=2)
    again = await world.attempt_async(resume=run.id)
    assert (again.output, world.asked) == ([["a", "1"], ["a", "2"], ["a", "3"]], 3)


def test_bytes_of_a_stream_are_given_again_as_bytes() -> None:
    world = Streams(lambda n: [b"\xffa", str(n).encode()])
    run = world.attempt(answers=1)
    again = world.attempt(resume=run.id, answers=1)
    assert (again.output, world.asked) == ([[b"\xffa", b"1"]], 1)


class Piece(BaseModel):
    text: str


def test_objects_of_an_sdk_are_given_again_as_objects() -> None:
    world = Streams(lambda n: [Piece(text="a"), "b", Piece(text=str(n))])
    run = world.attempt(answers=1)
    again = world.attempt(resume=run.id, answers=1)
    assert (again.output, world.asked) == ([[Piece(text="a"), "b", Piece(text="1")]], 1)


def test_a_stream_that_broke_off_or_was_redacted_is_asked_for_again() -> None:
    def text(n: int) -> Any:
        yield "a"
        if n == 1:
            raise ConnectionResetError("gone")
        yield f" {SECRET} " if n == 2 else str(n)

    world = Streams(text)
    run = world.app.run("r")
    with pytest.raises(ConnectionResetError), run:
        list(run.llm(world.request, world.model))
    assert world.attempt(resume=run.id, answers=1).output == [["a", f" {SECRET} "]]
    assert world.attempt(resume=run.id, answers=1).output == [["a", f" {SECRET} "]]
    assert world.asked == 2


# -- calls that begin alike ------------------------------------------------------------------------------------------


class Payments:
    """Tasks that begin with the same call and then pay, in an order that is another one in each attempt."""

    def __init__(self) -> None:
        self.app = memory_app()
        self.paid: list[str] = []

        @self.app.async_gateway.tool(idempotent=True, effect="read")
        async def rate(day: str) -> int:
            return 3

        @self.app.async_gateway.tool(idempotent=False, effect="write")
        async def pay(to: str) -> str:
            self.paid.append(to)
            return f"receipt {len(self.paid)}"

        self.rate, self.pay = rate, pay

    async def main(self, order: Sequence[str], stop: bool) -> list[str]:
        async def one(place: int, to: str) -> str:
            for _ in range(place * 50):  # in the order that is asked for, by turns of the loop
                await asyncio.sleep(0)
            await self.rate("today")
            return await self.pay(to)

        found = await asyncio.gather(*(one(place, to) for place, to in enumerate(order)))
        if stop:
            raise Stop
        return found

    def attempt(self, order: Sequence[str], resume: str | None = None, *, stop: bool = False) -> tuple[str, list[str]]:
        async def run() -> tuple[str, list[str]]:
            found: list[str] = []
            run = self.app.run("payments", resume=resume)
            with suppress(Stop):
                async with run:
                    found = await self.main(order, stop)
            return run.id, found

        return asyncio.run(run())


def test_tasks_that_begin_alike_and_come_in_another_order_pay_once() -> None:
    world = Payments()
    run, _ = world.attempt(["ada", "bob", "cyd"], stop=True)
    assert world.paid == ["ada", "bob", "cyd"]
    world.attempt(["cyd", "bob", "ada"], run, stop=True)
    _, found = world.attempt(["bob", "cyd", "ada"], run, stop=True)
    assert found == []
    _, found = world.attempt(["cyd", "ada", "bob"], run)
    assert world.paid == ["ada", "bob", "cyd"], "nobody is paid twice, in whatever order they come"
    assert found == ["receipt 3", "receipt 1", "receipt 2"], "each gets the receipt of its own payment"


def test_equal_calls_are_made_as_often_as_the_code_makes_them() -> None:
    world = Payments()
    run, _ = world.attempt(["ada", "bob"], stop=True)
    _, found = world.attempt(["bob", "ada", "ada", "bob", "ada"], run)
    assert sorted(world.paid) == ["ada", "ada", "ada", "bob", "bob"]
    assert len(set(found)) == 5


def test_a_call_inside_of_a_tool_is_not_taken_for_one_of_the_code() -> None:
    app, paid = memory_app(), [0]

    @app.gateway.tool(idempotent=False, effect="write")
    def pay(to: str) -> int:
        paid[0] += 1
        return paid[0]

    @app.gateway.tool(idempotent=False, effect="write")
    def order(to: str) -> int:
        return pay(to)

    def attempt(stop: bool, resume: str | None = None) -> str:
        run = app.run("orders", resume=resume)
        with suppress(Stop), run:
            order("ada")
            if stop:
                raise Stop
            pay("ada")
        return run.id

    attempt(False, attempt(True))
    assert paid == [2], "the code's own payment has not been made before"


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=6), min_size=2, max_size=4))
@settings(max_examples=40, deadline=None)
def test_however_often_a_run_is_resumed_calls_are_made_as_often_as_one_attempt_makes_them(
    attempts: list[list[str]],
) -> None:
    world = Payments()
    run: str | None = None
    for order in attempts:
        run, _ = world.attempt(order, run, stop=True)
    most = {to: max(order.count(to) for order in attempts) for to in "abc"}
    assert {to: world.paid.count(to) for to in "abc"} == most


def test_planted_bug_calls_that_are_known_by_their_place_alone_are_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EarlierAttempt, "place", lambda self, name, digest, site: (site.lane, site.nth))
    with pytest.raises(AssertionError):
        test_tasks_that_begin_alike_and_come_in_another_order_pay_once()
