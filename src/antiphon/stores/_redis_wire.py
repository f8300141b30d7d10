"""The Redis protocol as this store speaks it: packing, greeting, and what an error reply means."""

from __future__ import annotations

import binascii
import socket
import ssl
import struct
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from antiphon.errors import StoreError, StoreUnavailable, missing_extra
from antiphon.stores._redis_url import Target

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Orphan = Callable[[Any], None]
    """Told the answer of a command whose caller was cancelled before it came."""

try:
    from hiredis import Reader, ReplyError, pack_command
except ImportError:
    raise missing_extra("hiredis", "redis", "A Redis store") from None

__all__ = ["Node", "Reader", "ReplyError", "Wire", "pack"]

pack = cast("Callable[[tuple[Any, ...]], bytes]", pack_command)
"""A command as bytes; words are ``str``, ``bytes`` or numbers."""

SLOTS: Final = 16384
_NO_ANSWER: Final = "no answer in time"

TRANSIENT: Final = ("LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "BUSY ", "READONLY", "NOREPLICAS")
"""Replies that a fail-over, a start or a moved slot makes go away: tried again within the patience."""

_TOO_FEW_RIGHTS: Final = (
    "does not allow this user what the store needs",
    "The rules it takes are in docs/how-to/run-a-fleet-redis.md.",
)
_MEANING: Final = {
    "NOAUTH": ("asks for a password", "Put user and password into the URL."),
    "WRONGPASS": ("refused user or password", "Check user and password in the URL."),
    "ERR invalid password": ("refused the password", "Check the password in the URL."),
    "ERR AUTH": ("does not want a password", "Take the password out of the URL."),
    "NOPERM": _TOO_FEW_RIGHTS,
    "ERR ACL failure": _TOO_FEW_RIGHTS,
    "READONLY": ("is a read-only replica", "Give the address of the primary, or of the Sentinels."),
    "OOM": ("is full (maxmemory)", "Raise maxmemory; the policy must stay noeviction."),
    "MISCONF": ("refuses writes because it cannot write its snapshot", "Look at the server's log and disk."),
    "LOADING": ("is still loading its data", "Try again in a moment."),
    "CLUSTERDOWN": ("is a Cluster that is down", "Look at CLUSTER INFO."),
    "MASTERDOWN": ("has lost its primary", "Look at the replication state."),
    "NOREPLICAS": ("has too few replicas to accept writes", "Look at the replication state."),
    "BUSY ": ("is busy with a script", "Look for slow scripts of others."),
    "ERR DB index": ("does not have this database", "Check the number after the host in the URL."),
    "ERR unknown command": ("does not know a command this store needs", "It takes Redis 6.2 or newer, or Valkey."),
}


class Node(Protocol):
    """One Redis server as the store sees it. The synchronous kind answers without suspending.

    *again* is sent instead of *data* if it is unknown whether *data* was executed. *patience_s* is how long a
    server that cannot be reached is tried.
    """

    def call(
        self, data: bytes, again: bytes = b"", orphan: Orphan | None = None, patience_s: float = 0.0
    ) -> Awaitable[Any]:
        """The answer to one command; an error reply is a value. Raises ``StoreUnavailable``."""
        ...

    def many(self, datas: Sequence[bytes], *, orphan: Orphan | None = None) -> Awaitable[Any]:
        """The answers to many commands that follow each other on one connection; *orphan* is for the first."""
        ...

    def pause(self, seconds: float) -> Awaitable[None]: ...

    def reset(self) -> None:
        """Connect anew before the next command: the server is no longer what it was."""
        ...

    def close(self) -> Awaitable[None]: ...


def slot_of(tag: str) -> int:
    """The Cluster slot of a hash tag."""
    return binascii.crc_hqx(tag.encode(), 0) % SLOTS


def greeting(target: Target, *, sentinel: bool = False) -> list[bytes]:
    """What a new connection says first; the last one (a name for ``CLIENT LIST``) may be refused."""
    user = target.sentinel_username if sentinel else target.username
    password = target.sentinel_password if sentinel else target.password
    commands = []
    if password:
        commands.append(pack(("AUTH", user, password) if user else ("AUTH", password)))
    if target.db and not sentinel:
        commands.append(pack(("SELECT", target.db)))
    commands.append(pack(("CLIENT", "SETNAME", target.client_name)))
    return commands


def check_greeting(target: Target, replies: Sequence[Any]) -> None:
    """Refuse a connection that was not let in."""
    for reply in replies[:-1]:
        if isinstance(reply, ReplyError):
            raise refused(target, reply)


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel notice a peer that is gone: a connection that only listens would wait for ever."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 20_000)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def refused(target: Target, reply: Exception) -> StoreUnavailable:
    """An error reply in words: what it means, which setting to look at."""
    text = str(reply)
    for start, (meaning, hint) in _MEANING.items():
        if text.startswith(start) or f" -{start}" in text:  # inside a script, older servers put words before it
            return unavailable(target, meaning, f"{hint} Look at {target.setting}.", reply=text[:200])
    return unavailable(target, f"answered: {text[:200]}", f"Look at {target.setting}.", reply=text[:200])


def unreachable(target: Target, error: BaseException | None) -> StoreUnavailable:
    """The network's error in words."""
    why = f"{error.__class__.__name__}: {error}" if error is not None else "no answer"
    return unavailable(target, f"cannot be reached ({why})", f"Is it running, and is {target.setting} right?")


def unavailable(target: Target, what: str, hint: str, **data: Any) -> StoreUnavailable:
    """The one error of a Redis that does not do its part."""
    return StoreUnavailable(f"The Redis at {target.safe_url} {what}.", hint=hint, store="redis", **data)


def fresh(error: Exception) -> Exception:
    """The same error for another caller: an exception object belongs to one traceback."""
    if isinstance(error, StoreError):
        return type(error)(error.message, hint=error.hint, code=error.code, **error.data)
    return error


class Wire:
    """One blocking connection."""

    __slots__ = ("_reader", "_recv", "_send", "_socket")

    def __init__(self, target: Target, address: tuple[str, int] | str, *, sentinel: bool = False) -> None:
        self._socket = _connect(target, address)
        try:
            keep_alive(self._socket)
            _limit(self._socket, target.timeout_s)
            self._send = self._socket.sendall
            self._recv = self._socket.recv
            self._reader = Reader()
            hello = greeting(target, sentinel=sentinel)
            check_greeting(target, self.ask_many(b"".join(hello), len(hello)))
        except BaseException:
            self._socket.close()
            raise

    def send(self, data: bytes) -> None:
        self._send(data)

    def receive(self) -> Any:
        """The next reply."""
        reader = self._reader
        while (reply := reader.gets()) is False:
            data = self._recv(65536)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            reader.feed(data)
        return reply

    def ask(self, data: bytes) -> Any:
        """One command and its reply: as a rule, one call of the kernel to send and one to receive."""
        try:
            self._send(data)
            answer = self._recv(65536)
            if not answer:
                raise ConnectionResetError("the server closed the connection")
            reader = self._reader
            reader.feed(answer)
            reply = reader.gets()
            return self.receive() if reply is False else reply
        except BlockingIOError:
            raise TimeoutError(_NO_ANSWER) from None

    def ask_many(self, data: bytes, number: int) -> list[Any]:
        """*number* commands in one go, and their replies."""
        try:
            self._send(data)
            return [self.receive() for _ in range(number)]
        except BlockingIOError:
            raise TimeoutError(_NO_ANSWER) from None

    def listen(self) -> None:
        """From now on only receive, without a limit of time."""
        _limit(self._socket, None)

    def stop(self) -> None:
        """End a :meth:`receive` that another thread waits in."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        self._socket.close()


def _limit(connection: socket.socket, seconds: float | None) -> None:
    """How long one call of *connection* may take; by the kernel, if it can: Python would ask it twice as often."""
    connection.settimeout(None)
    if not sys.platform.startswith("linux") or isinstance(connection, ssl.SSLSocket):
        connection.settimeout(seconds)
        return
    whole = int(seconds or 0)
    limit = struct.pack("@ll", whole, int(((seconds or 0) - whole) * 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _connect(target: Target, address: tuple[str, int] | str) -> socket.socket:
    if isinstance(address, str):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(target.connect_timeout_s)
            connection.connect(address)
        except BaseException:
            connection.close()
            raise
        return connection
    connection = socket.create_connection(address, target.connect_timeout_s)
    if target.tls is None:
        return connection
    try:
        return target.tls.wrap_socket(connection, server_hostname=address[0])
    except BaseException:
        connection.close()
        raise


def ask_sentinels(target: Target) -> tuple[str, int]:
    """The primary's address, from the first Sentinel that knows it."""
    failure: Exception = OSError("no Sentinel")
    for address in target.addresses:
        try:
            wire = Wire(target, address, sentinel=True)
        except OSError as error:
            failure = error
            continue
        try:
            reply = wire.ask(pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", target.service)))
        except OSError as error:
            failure = error
            continue
        finally:
            wire.close()
        if isinstance(reply, list):
            return reply[0].decode(), int(reply[1])
        failure = OSError(f"Sentinel knows no service {target.service!r}" if reply is None else str(reply))
    raise failure
