"""From a command to its reply, with redis-py: retries, scripts the server does not know, Clusters.

Written once for both journals: the coroutines of :class:`BlockingClient` never suspend.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from importlib import import_module
from typing import Any

import redis
import redis.asyncio
from hiredis import pack_command
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    MovedError,
    NoScriptError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from antiphon.stores.redis.connection import PipelinedConnection
from antiphon.stores.redis.errors import TRANSIENT, closed, refused, reply_text, unreachable
from antiphon.stores.redis.scripts import in_full
from antiphon.stores.redis.url import Target

Words = tuple[Any, ...]
"""A command and its arguments: ``str``, ``bytes`` or numbers."""

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.25
_BATCH = 256
_MOST_IDLE = 64
_KEY_AT = {"EVALSHA": 3, "EVAL": 3, "MEMORY": 2}
_LOST = (redis.ConnectionError, redis.TimeoutError, OSError, RedisClusterException)
"""No reply: the command may have been executed."""


def open_redis(target: Target, library: str) -> Any:
    """A client of redis-py; *library* is ``redis`` or ``redis.asyncio``. It must not retry by itself: we do."""
    lib: Any = import_module(library)
    options = {**target.options, "protocol": 2, "retry": lib.retry.Retry(NoBackoff(), 0)}
    if target.mode == "cluster":
        nodes = [lib.cluster.ClusterNode(host, port) for host, port in target.addresses]
        return lib.RedisCluster(startup_nodes=nodes, require_full_coverage=False, **options)
    if target.mode == "sentinel":
        asked = {**target.sentinel_options, "retry": options["retry"]}
        sentinel = lib.Sentinel(target.addresses, sentinel_kwargs=asked)
        return sentinel.master_for(target.service, **options)
    host, port = target.addresses[0]
    return lib.Redis(host=host, port=port, **options)


def pack(words: Words) -> bytes:
    """A command as it is sent."""
    data: bytes = pack_command(words)
    return data


class Client:
    """Sends commands and retries them. What a server refuses is raised as ``StoreUnavailable``."""

    def __init__(self, target: Target, retry_timeout_s: float) -> None:
        self.target = target
        self._retry_timeout_s = retry_timeout_s
        self._cluster = target.mode == "cluster"
        self._closed = False

    async def execute(self, words: Words, *, again: Words = (), retry_timeout_s: float = 0.0) -> Any:
        """The reply; *again* is sent instead if *words* may have been executed."""
        since = time.monotonic()
        reply = await self._send(words)
        if isinstance(reply, Exception):
            return await self._retry(reply, words, again or words, since, retry_timeout_s)
        return reply

    async def execute_many(self, commands: Sequence[Words]) -> list[Any]:
        """The replies to many commands, in as few round trips as there are servers."""
        since = time.monotonic()
        replies = await self._send_many(commands)
        for at, reply in enumerate(replies):
            if isinstance(reply, Exception):
                replies[at] = await self._retry(reply, commands[at], commands[at], since)
        return replies

    async def execute_and_wait(self, words: Words, replicas: int, wait_ms: int) -> tuple[Any, int]:
        """The reply, and how many replicas have confirmed the write: one round trip.

        ``WAIT`` holds its connection up, so it has one that no other command uses.
        """
        attempts = _Attempts(time.monotonic() + self._retry_timeout_s)
        while True:
            reply, confirmed = await self._send_and_wait(words, ("WAIT", replicas, wait_ms))
            if not isinstance(reply, Exception):
                break
            words = await self._next(attempts, reply, words, words)
        if isinstance(confirmed, Exception):
            raise refused(self.target, confirmed)
        return reply, confirmed

    async def on_all(self, *words: Any) -> list[Any]:
        """The replies of all primaries."""
        if not self._cluster:
            return [await self.execute(words)]
        attempts = _Attempts(time.monotonic() + self._retry_timeout_s)
        while isinstance(reply := await self._follow(words, target_nodes="primaries"), Exception):
            await self._next(attempts, reply, words, words)
        return list(reply.values()) if words[0] == "INFO" and "redis_version" not in reply else [reply]

    async def _retry(self, reply: Any, words: Words, again: Words, since: float, retry_timeout_s: float = 0.0) -> Any:
        attempts = _Attempts(since + max(retry_timeout_s, self._retry_timeout_s))
        while isinstance(reply, Exception):
            if reply.__class__ is AskError:
                reply = await self._follow(words)
            else:
                words = await self._next(attempts, reply, words, again)
                reply = await self._send(words)
        return reply

    async def _next(self, attempts: _Attempts, error: Exception, words: Words, again: Words) -> Words:
        """What to send next, after a pause; raises if the error stays or the time is up."""
        if isinstance(error, NoScriptError):
            return in_full(words)
        if self._cluster and isinstance(error, MovedError):
            await self._refresh(error)
            return words
        if isinstance(error, RedisClusterException) and isinstance(error.__cause__, Exception):
            error = error.__cause__  # why the topology could not be read
        lost, transient = isinstance(error, _LOST), reply_text(error).startswith(TRANSIENT)
        if isinstance(error, AuthenticationError) or (isinstance(error, ResponseError) and not transient):
            raise refused(self.target, error) from None
        if not lost and not transient:
            raise error
        pause = attempts.pause(at_once=isinstance(error, redis.ConnectionError) and not transient)
        if pause is None:
            raise (refused if transient else unreachable)(self.target, error) from None
        await self._sleep(pause)
        if transient:
            await self._reset()  # the server may be no primary any more
        if self._cluster:
            await self._refresh()
        return again if lost else words

    def _send(self, words: Words) -> Awaitable[Any]:
        """The reply to one command; whatever went wrong is a value."""
        raise NotImplementedError

    def _send_many(self, commands: Sequence[Words]) -> Awaitable[list[Any]]:
        raise NotImplementedError

    def _send_and_wait(self, words: Words, wait: Words) -> Awaitable[Sequence[Any]]:
        raise NotImplementedError

    def _follow(self, words: Words, **options: Any) -> Awaitable[Any]:
        """The reply as redis-py's own client gets it, which follows redirections."""
        raise NotImplementedError

    def _refresh(self, moved: MovedError | None = None) -> Awaitable[None]:
        """Read the topology of the Cluster again, or correct one slot of it."""
        raise NotImplementedError

    def _reset(self) -> Awaitable[None]:
        """Connect again before the next command."""
        raise NotImplementedError

    def _sleep(self, seconds: float) -> Awaitable[None]:
        raise NotImplementedError

    def close(self) -> Awaitable[None]:
        raise NotImplementedError


class AsyncClient(Client):
    """The callers of one event loop share one pipelined connection to each server."""

    def __init__(self, target: Target, retry_timeout_s: float) -> None:
        super().__init__(target, retry_timeout_s)
        self._redis = open_redis(target, "redis.asyncio")
        self._connections: dict[tuple[str, bool], PipelinedConnection] = {}
        self._only = None if self._cluster else self._connection("", self._redis.connection_pool)

    async def pubsub(self) -> Any:
        """A new subscriber of redis-py."""
        if self._cluster:
            await self._redis.initialize()
        return self._redis.pubsub()

    def _send(self, words: Words) -> Awaitable[Any]:
        return self._send_to_node(words) if self._only is None else self._only.send(pack(words))

    async def _send_to_node(self, words: Words) -> Any:
        try:
            connection = await self._of_key(words)
        except _LOST as error:
            return error
        return await connection.send(pack(words))

    async def _send_many(self, commands: Sequence[Words]) -> list[Any]:
        return await asyncio.gather(*map(self._send, commands))

    async def _send_and_wait(self, words: Words, wait: Words) -> Sequence[Any]:
        try:
            connection = await self._of_key(words, dedicated=True)
        except _LOST as error:
            return error, error
        return await asyncio.gather(connection.send(pack(words)), connection.send(pack(wait)))

    async def _of_key(self, words: Words, *, dedicated: bool = False) -> PipelinedConnection:
        if not self._cluster:
            return self._connection("", self._redis.connection_pool, dedicated=dedicated)
        await self._redis.initialize()
        node = self._redis.nodes_manager.get_node_from_slot(_slot(words))
        return self._connection(node.name, node, dedicated=dedicated)

    def _connection(self, name: str, pool: Any, *, dedicated: bool = False) -> PipelinedConnection:
        connection = self._connections.get((name, dedicated))
        if connection is None:
            options = {**pool.connection_kwargs, "socket_timeout": None}  # idle is no error: we check replies
            timeouts = self.target.options["socket_timeout"], self.target.options["socket_connect_timeout"]
            connection = PipelinedConnection(lambda: pool.connection_class(**options), *timeouts)
            self._connections[name, dedicated] = connection
        return connection

    async def _follow(self, words: Words, **options: Any) -> Any:
        try:
            return await self._redis.execute_command(*words, **options)
        except (RedisError, *_LOST) as error:
            return error

    async def _refresh(self, moved: MovedError | None = None) -> None:
        manager = self._redis.nodes_manager
        with contextlib.suppress(RedisError, *_LOST):
            await (manager.initialize() if moved is None else manager.move_slot(moved))

    async def _reset(self) -> None:
        for connection in tuple(self._connections.values()):
            await connection.disconnect()

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()
        await self._redis.aclose()
        if self.target.mode == "sentinel":
            await self._redis.connection_pool.sentinel_manager.aclose()


class BlockingClient(Client):
    """Threads take idle connections; taking one and putting it back are atomic, so no lock is needed."""

    def __init__(self, target: Target, retry_timeout_s: float) -> None:
        super().__init__(target, retry_timeout_s)
        self.forget()

    def forget(self) -> None:
        """After a fork: the connections belong to the parent."""
        self._opened: Any = None
        self._opening = threading.Lock()
        self._idle: dict[str, deque[Any]] = {}

    @property
    def _redis(self) -> Any:
        if self._opened is None:
            with self._opening:
                if self._opened is None:
                    self._opened = open_redis(self.target, "redis")  # that of a Cluster connects at once
        return self._opened

    async def _send(self, words: Words) -> Any:
        return (await self._exchange((words,)))[0]

    async def _send_many(self, commands: Sequence[Words]) -> list[Any]:
        replies: list[Any] = [None] * len(commands)
        servers: dict[str, list[int]] = {}
        for at, words in enumerate(commands):
            servers.setdefault(self._pool(words)[0] if self._cluster else "", []).append(at)
        for places in servers.values():
            for start in range(0, len(places), _BATCH):
                batch = places[start : start + _BATCH]
                for at, reply in zip(batch, await self._exchange([commands[at] for at in batch]), strict=True):
                    replies[at] = reply
        return replies

    async def _send_and_wait(self, words: Words, wait: Words) -> Sequence[Any]:
        return await self._exchange((words, wait))

    async def _exchange(self, commands: Sequence[Words]) -> list[Any]:
        """Commands for one server in one write, and their replies."""
        if self._closed:
            raise closed()
        connection: Any = None
        idle: deque[Any] = deque()
        try:
            name, pool = self._pool(commands[0])
            idle = self._idle.setdefault(name, idle)
            try:
                connection = idle.pop()
            except IndexError:
                connection = pool.connection_class(**pool.connection_kwargs)
                connection.connect()
            connection.send_packed_command((b"".join(map(pack, commands)),), check_health=False)
            replies = [_read(connection) for _ in commands]
        except (RedisError, *_LOST) as error:
            _disconnect(connection)
            await self._reset()  # what broke one connection has most likely broken all of them
            return [error] * len(commands)
        except BaseException:
            _disconnect(connection)  # interrupted between question and answer: the next user would get the wrong reply
            raise
        self._put(idle, connection)
        return replies

    def _put(self, idle: deque[Any], connection: Any) -> None:
        if self._closed or len(idle) >= _MOST_IDLE:
            connection.disconnect()
        else:
            idle.append(connection)

    def _pool(self, words: Words) -> tuple[str, Any]:
        if not self._cluster:
            return "", self._redis.connection_pool
        node = self._redis.nodes_manager.get_node_from_slot(_slot(words))
        return node.name, self._redis.get_redis_connection(node).connection_pool

    async def _follow(self, words: Words, **options: Any) -> Any:
        try:
            return self._redis.execute_command(*words, **options)
        except (RedisError, *_LOST) as error:
            return error

    async def _refresh(self, moved: MovedError | None = None) -> None:
        with contextlib.suppress(RedisError, *_LOST):
            manager = self._redis.nodes_manager
            manager.initialize() if moved is None else manager.move_slot(moved)

    async def _reset(self) -> None:
        for idle in tuple(self._idle.values()):
            while idle:
                with contextlib.suppress(IndexError):
                    idle.pop().disconnect()

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def close(self) -> None:
        self._closed = True
        await self._reset()
        if self._opened is not None:
            self._opened.close()
            if self.target.mode == "sentinel":
                self._opened.connection_pool.sentinel_manager.close()


class _Attempts:
    """How often to try again: pauses that grow, until the time is up."""

    def __init__(self, until: float) -> None:
        self._until = until
        self._pause_s = _FIRST_PAUSE_S
        self._first = True

    def pause(self, *, at_once: bool) -> float | None:
        """How long to sleep; *at_once*: the first time, not at all. ``None`` when the time is up."""
        first, self._first = self._first, False
        if first and at_once:
            return 0.0
        pause, self._pause_s = self._pause_s, min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return None if time.monotonic() + pause > self._until else pause * random.uniform(0.5, 1.0)


def _slot(words: Words) -> int:
    """The Cluster slot of a command, by its first key."""
    return int(key_slot(words[_KEY_AT.get(words[0], 1)].encode()))


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def _disconnect(connection: Any) -> None:
    if connection is not None:
        connection.disconnect()
