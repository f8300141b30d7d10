"""An MCP proxy on stdio: records, replays and guards the messages between a client and its server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

import orjson

from antiphon._gateway.ids import uuid7
from antiphon._recording.boundary import Boundary
from antiphon._scope import RunScope
from antiphon.adapters import _mcp
from antiphon.adapters._calls import ToolAnswer
from antiphon.contract.spec import DidNotHappen
from antiphon.errors import AntiphonError, ReplayMiss
from antiphon.ops.app import Antiphon
from antiphon.proxy.clients import Refused
from antiphon.proxy.mcp import (
    CANCELLED_S,
    INVALID_REQUEST,
    McpGuard,
    Notifications,
    checked,
    digest_of,
    given_again,
    is_known,
    unknown,
    value_of,
)
from antiphon.proxy.options import ToolRules
from antiphon.proxy.runs import AnswerOrigin, Mode, OpenRun, Runs, run_name

log: logging.Logger = logging.getLogger("antiphon.proxy")

LONGEST_LINE = _mcp.LARGEST
_CLIENT = "stdio"
_ORDER_S = 1.0
"""How long a message waits for the previous call to be sent."""
_END_S = 10.0
"""How long a server may take to exit after its stdin was closed …"""
_STOP_S = 0.5
"""… and how much longer once we receive a signal: clients wait 2 seconds before they kill us."""
_SIGNAL_S = 1.0
"""How long it may take to exit after we signal it."""


class StdioProxy:
    """One client and its server process; a replay has no process."""

    def __init__(
        self,
        app: Antiphon,
        server: str,
        *,
        mode: Mode = "record",
        run: str | None = None,
        timeout_s: float = 600.0,
        identity: Sequence[str] = (),
        tools: Sequence[str] = (),
        command: Sequence[str] = (),
        write: Callable[[bytes], None],
    ) -> None:
        """*tools* are rules, ``TOOL:OPTIONS``; *write* sends one line to the client.

        Call identities are scoped to the server name and, if given, to *command*.
        """
        self._server = server
        self._name = f"mcp-{server}" if run is None else run_name(run)
        digest = hashlib.sha256(b"\0".join(map(os.fsencode, command))).hexdigest()
        self._scope = f"stdio:{self._name}:{server}" + (f":{digest}" if command else "")
        self.runs: Runs = Runs(app, mode)
        policies = app.config.approvals.policies
        rules = ToolRules(tools, window_s=0, policies=policies, one_server=True)
        self._guard = McpGuard(app, rules=rules, identity=identity, timeout_s=timeout_s)
        self._out = write
        self._unwritable: BrokenPipeError | None = None
        """Set once the client reads no more."""
        self._left = asyncio.Event()
        self._process: Any = None
        self._stopping = asyncio.Event()
        self._run: OpenRun | None = None
        self._waiting: dict[Any, asyncio.Future[tuple[bytes, Any]]] = {}
        """Guarded calls awaiting the server's answer, which comes as its line and the message in it."""
        self._asked: dict[Any, Boundary] = {}
        """Other requests awaiting its answer."""
        self._answered: set[Any] = set()
        """Requests that the recording has answered and the server must see all the same."""
        self._noting: dict[Any, tuple[Any, Callable[[Any], None]]] = {}
        """The progress token of a request, and what records the messages preceding its answer."""
        self._calls: dict[Any, tuple[asyncio.Task[None], asyncio.Event]] = {}
        """Guarded calls until they are answered, each with the event that is set once it has been sent."""
        self._equal: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Held by a call without identity that may need approval, so that no equal one shares its approval."""
        self._has_ended = False
        """Whether the server takes no more calls."""

    async def serve(self, command: Sequence[str], lines: asyncio.Queue[bytes | None]) -> tuple[int, dict[str, Any]]:
        """Forward messages until the client closes an end; return the server's exit code and a report.

        If it no longer reads, its calls are settled and recorded before the error is raised.
        """
        if self.runs.mode != "live":
            self._run = await self.runs.open(_CLIENT, self._name)
        reading: asyncio.Task[None] | None = None
        if self.runs.mode != "replay":
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, limit=LONGEST_LINE, start_new_session=True
            )
            reading = asyncio.ensure_future(self._read())
        stopping, leaving = (asyncio.ensure_future(one.wait()) for one in (self._stopping, self._left))
        try:
            await self._listen(lines, {stopping, leaving} if reading is None else {stopping, leaving, reading})
        finally:
            leaving.cancel()
            code = await self._close(reading, stopping)
            report = {} if self._run is None else await self.runs.end(_CLIENT, self._name)
        if self._unwritable is not None:
            raise self._unwritable
        return code, report

    def stop(self) -> None:
        """Begin to stop, after a signal."""
        self._stopping.set()

    def _write(self, line: bytes) -> None:
        """Send the client a line, unless it has left."""
        if self._unwritable is None:
            try:
                self._out(line)
            except BrokenPipeError as error:
                self._unwritable = error
                self._left.set()

    async def _listen(self, lines: asyncio.Queue[bytes | None], ending: set[asyncio.Task[Any]]) -> None:
        while True:
            coming = asyncio.ensure_future(lines.get())
            await asyncio.wait({coming, *ending}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():  # the server has exited or must be stopped
                coming.cancel()
                return
            line = coming.result()
            if line is None:
                return
            await self._from_client(line)

    async def _close(self, reading: asyncio.Task[None] | None, stopping: asyncio.Task[Any]) -> int:
        """After the client has gone, let the server exit and settle unanswered requests."""
        process = self._process
        if process is not None and reading is not None:
            process.stdin.close()
            await self._end(asyncio.gather(process.wait(), reading, return_exceptions=True), stopping)
        stopping.cancel()
        await self._settle()
        if reading is not None and not reading.cancelled():
            reading.result()
        return 0 if process is None else -signal.SIGKILL if process.returncode is None else int(process.returncode)

    async def _end(self, ended: asyncio.Future[Any], stopping: asyncio.Task[Any]) -> None:
        """Wait until the server and everything writing to its stdout has exited; terminate them if need be."""
        await asyncio.wait({ended, stopping}, timeout=_END_S, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            await asyncio.wait({ended}, timeout=_STOP_S)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not ended.done():
                self._signal(number)
                await asyncio.wait({ended}, timeout=_SIGNAL_S)
        if not ended.done():  # a process outside the group still holds stdout
            ended.cancel()
            await asyncio.wait({ended})
            self._process._transport.close()

    def _signal(self, number: int) -> None:
        """Signal the server's process group; macOS raises ``PermissionError`` if only zombies are left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _settle(self) -> None:
        self._has_ended = True
        for future in self._waiting.values():
            _fail_waiting(future, ConnectionResetError("The server ended without an answer."))
        if self._calls:
            await asyncio.wait([task for task, _ in self._calls.values()], timeout=10)
        lost = {"class": "", "code": "no_answer", "message": "The server ended without an answer."}
        for boundary in self._asked.values():
            await boundary.finish("error", error=lost)
        self._asked.clear()

    # -- from the client -----------------------------------------------------------------------------------------

    async def _from_client(self, line: bytes) -> None:
        try:
            asked = checked(line) if line.strip() else None
        except Refused as refused:
            self._write(orjson.dumps(refused.more["message"]) + b"\n")
            return
        if asked is None or asked.id is None:  # a notification or a response to the server
            await self._send(line)
            if asked is not None and asked.method == _mcp.CANCELLED:
                self._cancel(asked.params.get("requestId"))
            return
        if asked.id in self._calls or asked.id in self._asked:
            text = f"The id {asked.id!r} belongs to a request that is not answered yet."
            self._reply({"id": asked.id, "error": {"code": INVALID_REQUEST, "message": text}})
            return
        is_call = asked.method == "tools/call"
        try:
            named = self._guard.name_of(None, asked) if is_call else None
            recording = None if self._run is None else self._run.recording
            guarded = is_call and is_known(recording, self._server, asked)
            if self._run is not None:
                self._run.requests += 1
            asks = is_call and self._guard.spec(self._server, asked.params["name"]).approve is not None
            if guarded and (self._run is not None or named is not None or asks):
                await self._guarded(asked, line, named)
            elif self._run is None:
                await self._send(line)
            else:
                await self._recorded(asked, line, self._run.scope)
        except (AntiphonError, Refused) as error:
            self._fail(asked, error)

    async def _send(self, line: bytes) -> None:
        if self._process is not None:
            with contextlib.suppress(ConnectionError):
                self._process.stdin.write(line)
                await self._process.stdin.drain()

    async def _recorded(self, asked: _mcp.Request, line: bytes, scope: RunScope) -> None:
        scope.adopt()
        boundary = _mcp.open_request(scope, asked, asynchronous=True)
        answer = await boundary.answer()
        await boundary.start()
        if answer is None:
            self._asked[asked.id] = boundary
            self._note_for(asked, lambda message: boundary.chunk(message, 0.0))
            await self._send(line)
            return
        if self._process is not None and asked.method == "initialize":  # new calls need a server that was initialised
            self._answered.add(asked.id)
            await self._send(line)
        await boundary.give(answer)
        for message in answer.chunks or ():
            self._reply_notice(message, asked)
        if answer.outcome == "error":
            message = str((answer.error or {}).get("message", ""))
            self._reply({"id": asked.id, "error": {"code": _mcp.INTERNAL_ERROR, "message": message}})
        else:
            self._write(_mcp.content_of(answer, asked) + b"\n")

    async def _guarded(self, asked: _mcp.Request, line: bytes, named: str | None) -> None:
        spec = self._guard.spec(self._server, asked.params["name"])
        place = f"{self._scope}:{spec.name}"
        equal = f"{place}:{digest_of({name: value for name, value in asked.params.items() if name != '_meta'})}"
        own = None if named is None else hashlib.sha256(named.encode()).hexdigest()  # it may be anything, even a secret
        turn: asyncio.Lock | None = None
        if own is None and spec.approve is not None:
            turn = self._equal.setdefault(equal, asyncio.Lock())
        waits = turn is not None and turn.locked()
        begun = asyncio.Event()
        heard: list[tuple[bytes, Any]] = []
        origin, scope = AnswerOrigin(), None if self._run is None else self._run.scope

        async def body(params: dict[str, Any]) -> Any:
            future = self._waiting[asked.id] = asyncio.get_running_loop().create_future()
            notifications = Notifications()
            self._note_for(asked, notifications.add)
            try:
                if self._has_ended:
                    raise DidNotHappen("The server has ended.")
                await self._send(line)
                begun.set()
                heard.append(await future)
            finally:
                self._waiting.pop(asked.id, None)
                self._noting.pop(asked.id, None)
                await notifications.write()
            return value_of(heard[0][1])

        async def make() -> None:
            key = f"{place}:{own}" if own is not None else self._guard.unapproved_key(equal) or f"{place}:{uuid7()}"
            try:
                given: ToolAnswer | None = None
                failed: BaseException | None = None
                try:
                    given = await self._guard.make(spec, asked, key, body, scope, origin)
                    answer = given_again(given, asked)
                except _Cancelled as failure:
                    failed, answer = failure, None  # nobody waits for one
                except Exception as failure:
                    failed = failure
                    answer = unknown(failure, asked)
                finally:
                    if named is None:
                        self._guard.note_outcome(equal, key, given, failed)
                if heard:
                    self._write(heard[0][0])
                elif answer is not None:
                    for message, _ in origin.notifications:
                        self._reply_notice(message, asked)
                    self._reply({"id": asked.id, **answer})
            except (AntiphonError, Refused) as error:
                self._fail(asked, error)

        async def call() -> None:
            try:
                async with turn or contextlib.nullcontext():
                    await make()
            finally:
                begun.set()
                del self._calls[asked.id]

        self._calls[asked.id] = asyncio.ensure_future(call()), begun
        if waits:  # for an equal call, which may take long
            return
        with contextlib.suppress(TimeoutError):  # keep the order of messages to the server
            async with asyncio.timeout(_ORDER_S):
                await begun.wait()

    def _cancel(self, place: Any) -> None:
        """End a call that its client has cancelled: its outcome is unknown unless the server still answers."""
        if not isinstance(place, (str, int, float)) or place not in self._calls:
            return
        call, begun = self._calls[place]
        answer = self._waiting.get(place)
        if answer is not None:
            error = _Cancelled("The client cancelled the call.")
            asyncio.get_running_loop().call_later(CANCELLED_S, _fail_waiting, answer, error)
        elif not begun.is_set():
            call.cancel()

    def _fail(self, asked: _mcp.Request, error: AntiphonError | Refused) -> None:
        details: dict[str, Any] = {"code": error.code}
        if isinstance(error, ReplayMiss):
            if self._run is not None:
                self._run.note_miss(error)
            details |= {name: item for name, item in error.data.items() if name == "divergence"}
        self._reply(_mcp.failed(asked.id, str(error), details))

    def _reply_notice(self, message: Any, asked: _mcp.Request) -> None:
        notice = _mcp.notification_for(message, asked)
        if notice is not None:
            self._write(_mcp.encoded(notice) + b"\n")

    def _reply(self, message: dict[str, Any]) -> None:
        self._write(_mcp.encoded({"jsonrpc": "2.0", **message}) + b"\n")

    # -- from the server -----------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            try:
                line: bytes = await self._process.stdout.readline()
            except ValueError:
                log.error("the server wrote a line of over %d bytes; it is stopped", LONGEST_LINE)
                self._signal(signal.SIGKILL)
                return
            if not line:
                return
            await self._from_server(line if line.endswith(b"\n") else line + b"\n")

    async def _from_server(self, line: bytes) -> None:
        message = _mcp.message_in(line)
        place = message.get("id") if isinstance(message, dict) and "method" not in message else None
        if isinstance(place, (str, int, float)):
            future = self._waiting.get(place)
            if future is not None and not future.done():
                future.set_result((line, message))  # the call itself answers the client
                return
            if place in self._answered:
                self._answered.remove(place)
                return
            boundary = self._asked.pop(place, None)
            if boundary is not None:
                self._noting.pop(place, None)
                await boundary.finish("ok", value={name: item for name, item in message.items() if name != "id"})
        elif self._noting and _mcp.is_notification(message):
            self._note(message)
        self._write(line)

    def _note_for(self, asked: _mcp.Request, note: Callable[[Any], None]) -> None:
        meta = asked.params.get("_meta")
        self._noting[asked.id] = (meta.get("progressToken") if isinstance(meta, dict) else None), note

    def _note(self, message: dict[str, Any]) -> None:
        """Assign a message to a call: progress by its token, anything else to the latest call, as stdio cannot tell."""
        params = message.get("params")
        token = params.get("progressToken") if isinstance(params, dict) else None
        for known, note in reversed(self._noting.values()):
            if known == token or not isinstance(token, (str, int)):
                note(message)
                return


class _Cancelled(ConnectionAbortedError):
    """The client has cancelled the call."""


def _fail_waiting(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def pump(source: BinaryIO, loop: asyncio.AbstractEventLoop) -> asyncio.Queue[bytes | None]:
    """The lines of *source*, read by a daemon thread."""
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()

    def read() -> None:
        while line := source.readline():
            loop.call_soon_threadsafe(lines.put_nowait, line)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, name="antiphon-stdin", daemon=True).start()
    return lines
