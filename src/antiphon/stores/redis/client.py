"""From a command to its reply, with redis-py: retries, scripts unknown to the server, Clusters, errors in words.

Written once for both journals: the coroutines of :class:`BlockingClient` never suspend.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

import redis
from hiredis import pack_command
from redis.backoff import ExponentialWithJitterBackoff
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterError, MovedError, RedisClusterException, RedisError, ResponseError

from antiphon.errors import StoreUnavailable
from antiphon.stores.redis.schema import in_full
from antiphon.stores.redis.url import Target, open_redis, open_sentinels, open_server

Words = tuple[Any, ...]
"""A command and its arguments: ``str``, ``bytes`` or numbers."""

ASK_EVERY_S = 0.1
"""A command is preceded by a query to Sentinel if its last answer is older."""
_SHARE = 10
"""Slow or missing Sentinels are asked less often: that takes at most a tenth of the time."""
_BACKOFF = ExponentialWithJitterBackoff(cap=0.25, base=0.01)
_REDIRECTIONS = 5
"""How many are followed at once; more of them mean that servers disagree about a slot, and are retried for a time."""
_KEY_AT = {"EVALSHA": 3, "EVAL": 3, "MEMORY": 2}
_LOST = (redis.ConnectionError, redis.TimeoutError, OSError, RedisClusterException)
"""No reply: the command may have been executed."""

_TRANSIENT: Final = ("LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "BUSY ", "READONLY", "NOREPLICAS")
"""Replies that end with a failover, a start-up or a moved slot: the command is retried."""
_ON_THE_MOVE: Final = (AskError, ClusterError)
"""A slot between two servers: commands whose redirections redis-py stopped following were never executed."""

MOVING: Final = "moving"
"""The reason for an error about one slot: the others work, and the command was certainly not executed."""

_TOO_FEW_RIGHTS: Final = (
    "permission",
    "does not allow this user what the store needs",
    "The rules it takes are in docs/how-to/run-a-fleet-redis.md.",
)
_MOVES: Final = (MOVING, "is a Cluster that is moving a slot", "Try again in a moment.")
_MEANING: Final = {
    "NOAUTH": ("permission", "requires a password", "Put user and password into the URL."),
    "WRONGPASS": ("permission", "refused user or password", "Check user and password in the URL."),
    "ERR invalid password": ("permission", "refused the password", "Check the password in the URL."),
    "ERR AUTH": ("permission", "does not use a password", "Remove the password from the URL."),
    "NOPERM": _TOO_FEW_RIGHTS,
    "ERR ACL failure": _TOO_FEW_RIGHTS,
    "READONLY": ("readonly", "is a read-only replica", "Give the address of the primary, or of the Sentinels."),
    "OOM": ("full", "is full (maxmemory)", "Raise maxmemory; the policy must stay noeviction."),
    "MISCONF": ("full", "refuses writes because it cannot write its snapshot", "Look at the server's log and disk."),
    "LOADING": ("", "is still loading its data", "Try again in a moment."),
    "CLUSTERDOWN": ("", "is a Cluster that is down", "Check CLUSTER INFO."),
    "MASTERDOWN": ("", "has lost its primary", "Look at the replication state."),
    "NOREPLICAS": ("", "has too few replicas to accept writes", "Look at the replication state."),
    "TTL exhausted": _MOVES,
    "TRYAGAIN": _MOVES,
    "ASK ": _MOVES,
    "BUSY ": ("", "is busy with a script", "Look for slow scripts of others."),
    "ERR DB index": ("cannot_open", "does not have this database", "Check the number after the host in the URL."),
    "ERR unknown command": (
        "cannot_open",
        "does not know a command this store needs",
        "Use Redis 6.2 or newer, or Valkey.",
    ),
}
"""What an error reply says: what the server lacks (empty: it does not work at the moment), in words, and what to do."""


def pack(words: Words) -> bytes:
    """A command as it is sent.

    hiredis writes strings and bytes; given a number, it asks Python for its text and does not check whether it got one:
    a signal at that moment, whose handler raises, ends the process with a segmentation fault.
    """
    texts: Any = tuple([word if type(word) in _TEXTS else str(word) for word in words])
    packed: bytes = pack_command(texts)
    return packed


_TEXTS: Final = frozenset({str, bytes})


class Client:
    """Sends commands and retries them. What a server refuses is raised as ``StoreUnavailable``."""

    _library: ClassVar[str]
    _pause: ClassVar[Callable[[float], Any]]

    def __init__(self, target: Target, retry_timeout_s: float) -> None:
        self.target = target
        self.retry_timeout_s = retry_timeout_s
        self._cluster = target.mode == "cluster"
        self._one_server = target.mode == "single"
        self.slots: bool = self._cluster
        """Whether a single command can only touch keys of one slot."""
        self._opened: Any = None
        self._opening = threading.Lock()
        self._connections: dict[Any, Any] = {}
        self._closed = False
        self._new_nonces()

    def _new_nonces(self) -> None:
        """Also after a fork: parent and child must not mistake each other's operations for their own."""
        self._salt = secrets.token_urlsafe(6)
        self._counter = itertools.count()

    def nonce(self) -> str:
        """A name for one operation, the same for all of its attempts."""
        return f"{self._salt}{next(self._counter):x}"

    @property
    def _redis(self) -> Any:
        """The client of redis-py, or the Sentinels; a blocking one of a Cluster connects at once."""
        if self._closed:
            raise closed()
        if self._opened is None:
            with self._opening:
                if self._opened is None:
                    make = Sentinels if self.target.mode == "sentinel" else open_redis
                    self._opened = make(self.target, self._library)
        return self._opened

    async def execute(self, words: Words, *, again: Words = (), retry_timeout_s: float | None = None) -> Any:
        """The reply; *again* is sent instead if *words* may have been executed."""
        since = time.monotonic()
        (reply,) = await self._exchange((words,))
        if isinstance(reply, Exception):
            return await self._retry(reply, words, again or words, since, retry_timeout_s)
        return reply

    async def execute_and_wait(self, words: Words, replicas: int, wait_ms: int) -> tuple[Any, int]:
        """The reply, and how many replicas have confirmed the write: in one round trip."""
        since, failures, lost = time.monotonic(), 0, False
        while True:
            reply, confirmed = await self._exchange((words, ("WAIT", replicas, wait_ms)), dedicated=True)
            if not isinstance(reply, Exception):
                break
            failures += 1
            words = await self._next(reply, words, words, failures, since + self.retry_timeout_s, lost)
            lost = lost or isinstance(reply, _LOST)
        if isinstance(confirmed, Exception):
            raise _refused(self.target, confirmed)
        return reply, confirmed

    async def on_all(self, *words: Any) -> list[Any]:
        """The replies of all primaries."""
        if not self._cluster:
            return [await self.execute(words)]
        since, failures = time.monotonic(), 0
        while isinstance(reply := await self._follow(words, target_nodes="primaries"), Exception):
            failures += 1
            await self._next(reply, words, words, failures, since + self.retry_timeout_s)
        return list(reply.values()) if isinstance(reply, dict) and "redis_version" not in reply else [reply]

    async def _retry(self, reply: Any, words: Words, again: Words, since: float, timeout_s: float | None = None) -> Any:
        until, failures, lost = since + (self.retry_timeout_s if timeout_s is None else timeout_s), 0, False
        while isinstance(reply, Exception):
            failures += 1
            if reply.__class__ is AskError and failures <= _REDIRECTIONS:
                reply = await self._follow(words)
            else:
                words = await self._next(reply, words, again, failures, until, lost)
                lost = lost or isinstance(reply, _LOST)
                (reply,) = await self._exchange((words,))
        return reply

    async def _next(
        self, error: Exception, words: Words, again: Words, failures: int, until: float, was_lost: bool = False
    ) -> Words:
        """What to send next, after a pause; raises if the error persists or the time is up.

        *was_lost*: an earlier attempt may have been executed.
        """
        if isinstance(error, redis.exceptions.NoScriptError):
            return in_full(words)
        if self._cluster and isinstance(error, MovedError):
            await self._refresh(error)
            if failures <= _REDIRECTIONS:
                return words
        if isinstance(error, RedisClusterException) and isinstance(error.__cause__, Exception):
            error = error.__cause__  # the reason why the topology could not be read
        lost = isinstance(error, _LOST)
        transient = _reply_text(error).startswith(_TRANSIENT) or isinstance(error, _ON_THE_MOVE)
        if isinstance(error, redis.AuthenticationError) or (isinstance(error, ResponseError) and not transient):
            raise _refused(self.target, error) from None
        if not lost and not transient:
            raise error
        at_once = failures == 1 and isinstance(error, redis.ConnectionError) and not transient
        pause = 0.0 if at_once else _BACKOFF.compute(failures)
        if not at_once and time.monotonic() + pause > until:
            raise (_refused(self.target, error, was_lost) if transient else unreachable(self.target, error)) from None
        await maybe_await(type(self)._pause(pause))
        if transient:
            await self._disconnect()  # the server may no longer be a primary
        if not self._one_server:
            await self._refresh()
        return again if lost else words

    async def _server(self, words: Words) -> Any:
        """The primary that Sentinel names, or the node of the Cluster that has the first key of a command."""
        if not self._cluster:
            return (await self._primary()).connection_pool
        await maybe_await(self._redis.initialize() if hasattr(self._redis, "initialize") else None)
        return self._redis.nodes_manager.get_node_from_slot(key_slot(words[_KEY_AT.get(words[0], 1)].encode()))

    async def _primary(self) -> Any:
        """redis-py's client of the primary that Sentinel names."""
        if not self._redis.current:
            await self._ask_in_turn()
        return self._redis.primary

    async def _ask(self) -> None:
        """Ask Sentinel, unless another caller has done so meanwhile; leave a primary that it no longer names."""
        if not self._redis.current and (former := await self._redis.ask()) is not None:
            await self._disconnect()
            self._connections.pop(former.connection_pool, None)  # connections returned there are not used again
            with contextlib.suppress(RedisError, *_LOST):
                await close(former)

    async def _follow(self, words: Words, **options: Any) -> Any:
        """The reply as redis-py's own client gets it, following redirections."""
        try:
            return await maybe_await(self._redis.execute_command(*words, **options))
        except (RedisError, *_LOST) as error:
            return error

    async def _refresh(self, moved: MovedError | None = None) -> None:
        """Read the topology of the Cluster again, or correct one slot of it; make Sentinel be asked again."""
        with contextlib.suppress(RedisError, *_LOST):
            if not self._cluster:
                self._redis.doubt()
                return
            manager = self._redis.nodes_manager
            await maybe_await(manager.initialize() if moved is None else manager.move_slot(moved))

    async def close(self) -> None:
        self._closed = True
        await self._disconnect()
        if self._opened is not None:
            await close(self._opened)

    def execute_many(self, commands: Sequence[Words]) -> Awaitable[list[Any]]:
        """The replies to many commands."""
        raise NotImplementedError

    def _exchange(self, commands: Sequence[Words], *, dedicated: bool = False) -> Awaitable[list[Any]]:
        """The replies to commands for one server; errors are returned as values.

        *dedicated*: on a connection that no other caller waits for.
        """
        raise NotImplementedError

    def _ask_in_turn(self) -> Awaitable[None]:
        """Ask Sentinel, one caller at a time; the others wait for its answer."""
        raise NotImplementedError

    def _disconnect(self) -> Awaitable[None]:
        """Reconnect before the next command."""
        raise NotImplementedError


class PipelinedConnection:
    """A redis-py connection shared by the callers of one event loop; it connects when needed, also after it was lost.

    Commands given in one iteration of the loop are sent in one write; replies are matched in order. A cancelled caller
    only stops listening: its command is still answered, so replies never shift.
    """

    def __init__(self, make: Callable[[], Any], timeout_s: float, connect_timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._make = make
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._queue: list[tuple[bytes, asyncio.Future[Any]]] = []
        self._sent: deque[asyncio.Future[Any]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._scheduled = self._retired = False
        self._last_reply = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def send(self, data: bytes) -> asyncio.Future[Any]:
        """The reply to a packed command; an error reply or a lost connection is an exception returned as a value."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.append((data, future))
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        elif not self._sent:
            self._flush()  # nothing is pending: a lone caller need not wait for others to join
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return future

    async def disconnect(self, *, at_once: bool) -> None:
        """Accept no more commands: close when all are answered, or *at_once*."""
        self._retired = True
        task = self._task
        if task is not None and (at_once or not (self._sent or self._queue)):
            await cancel({task})

    async def _run(self) -> None:
        connection = self._make()
        error: Exception = ConnectionResetError("the connection was closed")
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await connection.connect()
            end_if_cancelled()
            async with asyncio.timeout(None) as self._limit:
                self._writer = connection._writer  # its send_packed_command() would take a task for each write
                self._flush()
                await self._read(connection.read_response)
        except asyncio.CancelledError:
            pass
        except TimeoutError:
            error = TimeoutError("no answer in time")
        except Exception as failure:
            error = failure
        finally:
            if not self._loop.is_closed():  # otherwise this task is only being collected
                self._end(error)
                await connection.disconnect(nowait=True)

    def _end(self, error: Exception) -> None:
        self._task = self._writer = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        unanswered = [*self._sent, *(future for _, future in self._queue)]
        self._sent.clear()
        self._queue.clear()
        for future in unanswered:
            if not future.done():
                future.set_result(error)

    def _flush(self) -> None:
        self._scheduled = False
        if self._writer is None:
            return
        batch = [entry for entry in self._queue if not entry[1].done()]  # a cancelled one was never sent
        self._queue.clear()
        if batch:
            if not self._sent:
                self._last_reply = self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(self._timeout_s, self._check)
            self._sent.extend([future for _, future in batch])
            with contextlib.suppress(RuntimeError):  # closed already, says uvloop; the reader reports what was lost
                self._writer.write(b"".join([data for data, _ in batch]))

    async def _read(self, read: Callable[[], Awaitable[Any]]) -> None:
        while self._sent or self._queue or not self._retired:
            try:
                reply = await read()
            except ResponseError as error:
                reply = error
            future = self._sent.popleft()
            self._last_reply = self._loop.time()
            if not future.done():
                future.set_result(reply)

    def _check(self) -> None:
        """Drop a connection on which a reply is overdue by the timeout."""
        self._timer = None
        if self._sent:
            due = self._last_reply + self._timeout_s
            if due <= self._loop.time():
                self._limit.reschedule(due)
            else:
                self._timer = self._loop.call_at(due, self._check)


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel until all have ended: ``wait_for`` of Python 3.11, with which redis-py writes, can lose a cancellation."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.05)


def end_if_cancelled() -> None:
    """Call this after redis-py has written: the same, for the single cancellation with which an event loop ends."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class AsyncClient(Client):
    """The callers of one event loop share one pipelined connection to each server."""

    _library = "redis.asyncio"
    _pause = asyncio.sleep

    def __init__(self, target: Target, retry_timeout_s: float) -> None:
        super().__init__(target, retry_timeout_s)
        self._asking = asyncio.Lock()

    async def pubsub(self) -> Any:
        """A new subscriber of redis-py."""
        if self._cluster:
            await self._redis.initialize()
        return (self._redis if self._one_server or self._cluster else await self._primary()).pubsub()

    async def execute_many(self, commands: Sequence[Words]) -> list[Any]:
        """The replies to many commands, in as few round trips as there are servers."""
        return await asyncio.gather(*map(self.execute, commands))

    async def _exchange(self, commands: Sequence[Words], *, dedicated: bool = False) -> list[Any]:
        try:
            server = self._redis.connection_pool if self._one_server else await self._server(commands[0])
        except (RedisError, *_LOST) as error:
            return [error] * len(commands)
        connection = self._connections.get((server, dedicated)) or self._connection(server, dedicated)
        replies = [connection.send(pack(words)) for words in commands]
        return [await reply for reply in replies]

    def _connection(self, server: Any, dedicated: bool) -> PipelinedConnection:
        options = {**server.connection_kwargs, "socket_timeout": None}  # an idle connection is not an error
        timeouts = (self.target.options["socket_timeout"], self.target.options["socket_connect_timeout"])
        connection = PipelinedConnection(lambda: server.connection_class(**options), *timeouts)
        self._connections[server, dedicated] = connection
        return connection

    async def _ask_in_turn(self) -> None:
        async with self._asking:
            await self._ask()

    async def _disconnect(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.disconnect(at_once=self._closed)


class BlockingClient(Client):
    """Threads take idle connections; taking one and returning it are atomic, so no lock is needed."""

    _library = "redis"
    _pause = time.sleep

    def __init__(self, target: Target, retry_timeout_s: float) -> None:
        super().__init__(target, retry_timeout_s)
        self._asking = threading.Lock()

    def after_fork(self) -> None:
        """In the child: the connections belong to the parent."""
        self._new_nonces()
        self._opened = None
        self._opening = threading.Lock()
        self._asking = threading.Lock()
        self._connections = {}

    async def execute_many(self, commands: Sequence[Words]) -> list[Any]:
        """The replies to many commands, in one round trip to each server."""
        since = time.monotonic()
        by_server: dict[Any, list[int]] = {}
        for at, words in enumerate(commands):
            server = None
            with contextlib.suppress(*_LOST):  # then the exchange fails, and is retried
                server = await self._server(words) if self._cluster else None
            by_server.setdefault(server, []).append(at)
        replies: list[Any] = [None] * len(commands)
        for places in by_server.values():
            for at, reply in zip(places, await self._exchange([commands[at] for at in places]), strict=True):
                lost = isinstance(reply, Exception)
                replies[at] = await self._retry(reply, commands[at], commands[at], since) if lost else reply
        return replies

    async def _exchange(self, commands: Sequence[Words], *, dedicated: bool = False) -> list[Any]:
        connection: Any = None
        try:
            server = self._redis.connection_pool if self._one_server else await self._server(commands[0])
            idle = self._connections.get(server) or self._connections.setdefault(server, deque())
            try:
                connection = idle.pop()
            except IndexError:
                pool = self._redis.get_redis_connection(server).connection_pool if self._cluster else server
                connection = pool.connection_class(**pool.connection_kwargs)
                connection.connect()
            connection.send_packed_command((b"".join(map(pack, commands)),), False)
            replies = [_read(connection) for _ in commands]
        except BaseException as error:
            if connection is not None:
                connection.disconnect()  # the next user would get the wrong reply
            if not isinstance(error, (RedisError, *_LOST)):
                raise
            await self._disconnect()  # whatever broke one connection has most likely broken all of them
            return [error] * len(commands)
        idle.append(connection)
        if self._closed:
            await self._disconnect()
        return replies

    async def _ask_in_turn(self) -> None:
        with self._asking:
            await self._ask()

    async def _disconnect(self) -> None:
        for idle in tuple(self._connections.values()):
            while idle:
                with contextlib.suppress(IndexError):
                    idle.pop().disconnect()


class Sentinels:
    """The redis-py client of the primary, and how it is found. Not for two concurrent askers.

    Sentinel is asked while the process runs: a demoted primary may answer for seconds.
    """

    def __init__(self, target: Target, library: str) -> None:
        self._target = target
        self._library = library
        self._sentinels = open_sentinels(target, library)
        self._address: tuple[str, int] | None = None
        self._ask_at = 0.0
        self.primary: Any = None

    @property
    def current(self) -> bool:
        """Whether the primary was confirmed a moment ago."""
        return time.monotonic() < self._ask_at

    def doubt(self) -> None:
        """The primary did not work: ask before the next command."""
        self._ask_at = 0.0

    async def ask(self) -> Any:
        """The client of the former primary, if there is a new one.

        If no Sentinel can name one, the known one stays, whether it answers or not.
        """
        began = time.monotonic()
        try:
            address = await self._named()
        except (RedisError, OSError):
            if self.primary is None:
                raise
            address = self._address
        now = time.monotonic()
        self._ask_at = now + max(ASK_EVERY_S, _SHARE * (now - began))
        if address is None or address == self._address:
            return None
        former, self.primary = self.primary, open_server(self._target, self._library, address)
        self._address = address
        return former

    async def _named(self) -> Any:
        """Sentinel's own answer takes precedence: the state that redis-py reads names the old primary for longer."""
        service = self._target.service
        # a Sentinel that sees a primary; it is now the first one
        await maybe_await(self._sentinels.discover_master(service))
        return await maybe_await(self._sentinels.sentinels[0].sentinel_get_master_addr_by_name(service))

    async def close(self) -> None:
        for client in (self.primary, self._sentinels):
            if client is not None:
                await close(client)


async def close(client: Any) -> None:
    """Close a client of redis-py."""
    await maybe_await(client.aclose() if hasattr(client, "aclose") else client.close())


async def maybe_await(result: Any) -> Any:
    """What redis-py returns, or what it lets us await."""
    return await result if inspect.isawaitable(result) else result


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def _reply_text(error: Exception) -> str:
    """An error reply as the server sent it: redis-py strips its code."""
    code = getattr(error, "status_code", None)
    return f"{code} {error}" if code else str(error)


def _refused(target: Target, error: Exception, was_lost: bool = False) -> StoreUnavailable:
    """An error reply in words: what it means, which setting to check."""
    text = _reply_text(error)
    for start, (reason, meaning, hint) in _MEANING.items():
        if text.startswith(start) or f" -{start}" in text:  # inside a script, older servers put words before it
            data = {"reason": reason} if reason and not (was_lost and reason == MOVING) else {}
            return _unavailable(target, meaning, f"{hint} Look at {target.setting}.", reply=text[:200], **data)
    return _unavailable(target, f"answered: {text[:200]}", f"Look at {target.setting}.", reply=text[:200])


def unreachable(target: Target, error: BaseException) -> StoreUnavailable:
    """A network error in words."""
    why = f"{error.__class__.__name__}: {error}"
    hint = f"Is it running, and is {target.setting} right?"
    if target.options.get("ssl"):
        hint += " The URL asks for TLS (rediss://): a server or port without TLS needs redis://."
    return _unavailable(target, f"cannot be reached ({why})", hint)


def closed() -> StoreUnavailable:
    """For calls on a journal after it was closed."""
    return StoreUnavailable("The store was closed.", hint="Open it again.", reason="closed")


def _unavailable(target: Target, what: str, hint: str, **data: Any) -> StoreUnavailable:
    return StoreUnavailable(f"The Redis at {target.safe_url} {what}.", hint=hint, store="redis", **data)
