"""Bare and wrapped clients of model SDKs against a provider that fails the first request of each call.

    python -m scripts.wrapped_retries [CALLS]

Prints, for each SDK and fault, how many of the calls succeeded and how many requests they took.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import antiphon
from antiphon._drive import drive
from antiphon.adapters import google
from tests.fake_provider import FakeProvider, Reply

FAULTS = ("500", "429 with Retry-After", "reset", "cut before the first chunk")
ASKED_S = 0.2
log = logging.getLogger(__name__)
_MESSAGES: Any = [{"role": "user", "content": "hello"}]


class Measured(NamedTuple):
    """What came of some calls."""

    succeeded: int
    requests: int


class FaultyProvider(FakeProvider):
    """Fails every other request: the first one of each call, if its caller tries again."""

    def __init__(self, fault: str) -> None:
        super().__init__(self._faulty)
        self.fault = fault
        self.failing = True
        self.lock = threading.Lock()
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # resets are what it is for

    def _faulty(self, body: dict[str, Any]) -> Reply:
        with self.lock:
            failing, self.failing = self.failing, not self.failing
        if not failing:
            return Reply("hello there")
        if self.fault == "500":
            return Reply(status=500)
        if self.fault.startswith("429"):
            return Reply(status=429, headers=(("Retry-After", str(ASKED_S)),))
        if self.fault == "reset":
            return Reply("hello", break_after=-1)
        return Reply("hello there", break_after=0)

    def _serve(self, handler: Any) -> None:
        if self.fault == "reset":
            with self.lock:
                reset = self.failing
            if reset:
                handler.rfile.read(int(handler.headers.get("content-length", 0)))
                self._next({})
                handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                handler.close_connection = True
                handler.connection.close()
                return
        super()._serve(handler)

    def next_call(self) -> None:
        """Whatever the last caller did, the next one meets the fault."""
        with self.lock:
            self.failing = True


class Client(NamedTuple):
    """How an SDK is asked for one answer, whole or as a stream, and closed."""

    ask: Callable[[bool], Any]
    close: Callable[[], Any]


def _openai(url: str, wrapped: bool, asynchronous: bool) -> Client:
    import openai

    kind: Any = openai.AsyncOpenAI if asynchronous else openai.OpenAI
    client = kind(base_url=f"{url}/v1", api_key="none")
    client = antiphon.wrap(client) if wrapped else client
    create = client.chat.completions.create
    return Client(lambda stream: create(model="m", messages=_MESSAGES, stream=stream), client.close)


def _anthropic(url: str, wrapped: bool, asynchronous: bool) -> Client:
    import anthropic

    kind: Any = anthropic.AsyncAnthropic if asynchronous else anthropic.Anthropic
    client = kind(base_url=url, api_key="none")
    client = antiphon.wrap(client) if wrapped else client
    create = client.messages.create
    return Client(lambda stream: create(model="m", max_tokens=9, messages=_MESSAGES, stream=stream), client.close)


def _google(url: str, wrapped: bool, asynchronous: bool) -> Client:
    from google import genai

    options: Any = google.http_options(base_url=url) if wrapped else genai.types.HttpOptions(base_url=url)
    client: Any = genai.Client(api_key="none", http_options=options)
    face = client.aio if asynchronous else client

    def ask(stream: bool) -> Any:
        make = face.models.generate_content_stream if stream else face.models.generate_content
        return make(model="m", contents="hello")

    return Client(ask, face.aclose if asynchronous else face.close)


SDKS: dict[str, Callable[[str, bool, bool], Client]] = {"openai": _openai, "anthropic": _anthropic, "google": _google}


def measure(sdk: str, fault: str, *, wrapped: bool, asynchronous: bool = False, calls: int = 3) -> Measured:
    """Make some calls, each of which meets the fault first."""
    with FaultyProvider(fault) as provider:
        work = _make_calls(sdk, provider, wrapped, asynchronous, calls)
        return Measured(asyncio.run(work) if asynchronous else drive(work), provider.requests)


async def _make_calls(sdk: str, provider: FaultyProvider, wrapped: bool, asynchronous: bool, calls: int) -> int:
    client, stream, good = SDKS[sdk](provider.url, wrapped, asynchronous), provider.fault.startswith("cut"), 0
    for _ in range(calls):
        provider.next_call()
        try:
            reply = await client.ask(stream) if asynchronous else client.ask(stream)
            if stream and asynchronous:
                async for _ in reply:
                    pass
            elif stream:
                list(reply)
            good += 1
        except Exception:
            log.debug("a call failed", exc_info=True)
    closed = client.close()
    if asynchronous:
        await closed
    return good


def main(words: list[str]) -> int:
    """Print the table; exit 1 if a wrapped client does worse than a bare one."""
    calls = int(words[0]) if words else 5
    worse = 0
    print(f"{calls} calls each, every one of which fails first; succeeded / requests")
    print(f"{'sdk':<10} {'face':<6} {'fault':<28} {'bare':>9} {'wrapped':>9}")
    for sdk in ("openai", "anthropic", "google"):
        for asynchronous in (False, True):
            for fault in FAULTS:
                bare, ours = (
                    measure(sdk, fault, wrapped=wrapped, asynchronous=asynchronous, calls=calls)
                    for wrapped in (False, True)
                )
                worse += ours.succeeded < bare.succeeded or (
                    ours.succeeded == bare.succeeded and ours.requests > bare.requests
                )
                cells = [f"{found.succeeded}/{found.requests}" for found in (bare, ours)]
                face = "async" if asynchronous else "sync"
                print(f"{sdk:<10} {face:<6} {fault:<28} {cells[0]:>9} {cells[1]:>9}", flush=True)
    print("a wrapped client is never worse" if not worse else f"worse in {worse} rows")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
