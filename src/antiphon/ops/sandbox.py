"""The sandbox of replayed code: sockets, processes and writes outside a scratch folder are refused (D34, D37).

It is one audit hook, plus wrappers for a few functions that Python does not audit, and one decision: :func:`held_by`.
What bypasses Python (libpq, uvloop, gRPC, other native code) bypasses it too. On Linux the command line also enters an
empty network namespace where the kernel allows it.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import current_thread
from types import FrameType, FunctionType
from typing import Any, Literal

from antiphon import _lineage
from antiphon._gateway.threads import without_gc
from antiphon._lineage import OUTSIDE, Origin, Replay, checked, is_tool, origin_var, outside, permit, replaced
from antiphon._scope import _active
from antiphon.errors import ReplayBlocked
from antiphon.ops.finalizers import ObjectTracker, finalizing

__all__ = ["HINT", "Sandbox", "hold_process", "leave_network", "outside", "release_process", "sandboxed"]

Sandbox = bool | Literal["process"]
"""Whether there is a sandbox; ``process`` is the 0.1.0 name for ``True``."""

HINT = "See docs/explanation/sandbox.md; --no-sandbox (in Python: sandbox=False) lets the code use files, sockets and "
HINT += "processes."

_running: list[Replay] = []
"""Replays that are running in this process, the latest last."""
_process: list[Replay] = []
"""In a process that only replays: the replay to which all unmarked work belongs."""
_installed = False
_NETWORK = frozenset(
    "socket.connect socket.bind socket.sendto socket.sendmsg socket.getaddrinfo socket.gethostbyname "
    "socket.gethostbyaddr socket.getnameinfo".split()
)
_PROCESSES = frozenset(
    "subprocess.Popen os.system os.exec os.posix_spawn os.spawn os.fork os.forkpty pty.spawn os.startfile "
    "os.startfile/2".split()
)
_SIGNALS = frozenset({"os.kill", "os.killpg", "signal.pthread_kill"})
_CHANGES = frozenset(
    "os.remove os.rename os.rmdir os.mkdir os.link os.symlink os.truncate shutil.rmtree os.chmod os.chown os.utime "
    "os.setxattr os.removexattr os.chflags".split()
)
_ENTRIES = frozenset("os.remove os.rename os.rmdir os.mkdir os.symlink".split())
"""Changes of a directory entry; the others follow symbolic links."""
_OTHERS = frozenset({"syslog.syslog", "syslog.openlog", "socket.sethostname", "winreg.SetValue", "winreg.CreateKey"})
_AUDITED = _NETWORK | _PROCESSES | _SIGNALS | _CHANGES | _OTHERS | {"open", "sqlite3.connect", "sqlite3.connect/handle"}
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_HARMLESS = frozenset({"/dev/null", "/dev/tty", "/dev/stdout", "/dev/stderr", "/dev/full"})


# -- the decision ----------------------------------------------------------------------------------------------------


def held_by(frame: FrameType | None, network: bool = False) -> Replay | None:
    """The replay that forbids the code at *frame* an effect; ``None`` if the effect is allowed.

    Marked work is always held by its own replay. Unmarked work is held by the running replay, unless it belongs to
    another run, to another application object, or to a tool.
    """
    origin = origin_var.get()
    if origin is OUTSIDE:
        return None
    found = None if origin is None else origin.replay
    if found is None:
        found = finalizing(frame)
    if found is None:
        waiting = _running or _process
        if not waiting or origin is not None or _has_application() or current_thread() in _lineage.engine_threads:
            return None
        found = waiting[-1]
    if not found.on:
        return None
    allowed = permit()
    if allowed == "all" or (allowed == "network" and network):
        return None
    return None if is_tool(frame) else found


def _has_application() -> bool:
    """Whether this context works for its own application object: another tenant of the process."""
    app = sys.modules.get("antiphon.ops.app")
    return app is not None and app._current.get() is not None


def _refuse(replay: Replay, what: str) -> None:
    replay.note(what)
    raise ReplayBlocked(f"Refused in the replay sandbox: {what}.", hint=HINT)


def _check(what: str, frame: FrameType | None) -> None:
    replay = held_by(frame)
    if replay is not None:
        _refuse(replay, what)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event not in _AUDITED:
        return
    frame = sys._getframe().f_back
    if event == "sqlite3.connect/handle":
        if not is_tool(frame):
            _unguarded.append(None)
        return
    if event == "socket.sendmsg" and len(args) > 1 and args[1] is None:  # on a connected socket
        _check_sending(args[0], frame)
        return
    replay = held_by(frame, event in _NETWORK)
    if replay is not None and (what := _effect(replay, event, args)):
        _refuse(replay, what)


def _effect(replay: Replay, event: str, args: tuple[Any, ...]) -> str:
    """The external effect of an event, in words; empty if it is allowed."""
    if event == "socket.bind" and _is_probe(args[0], args[1]):
        return ""
    if event in _NETWORK:
        target = args[1] if event == "socket.connect" and len(args) > 1 else args[:2]
        local = event == "socket.connect" and isinstance(target, (str, bytes))
        return f"a connection to {target!r}" if local else f"{event} {target!r}"
    if event in _PROCESSES:
        return f"starting a process ({args[0]!r})" if args else f"starting a process ({event})"
    if event in _SIGNALS:
        own = event == "signal.pthread_kill" or (event == "os.kill" and args[0] == os.getpid())
        return "" if own else f"a signal to process {args[0]!r}"
    if event == "open":
        writes = len(args) > 2 and isinstance(args[2], int) and bool(args[2] & _WRITE_FLAGS)
        return f"writing {args[0]!r}" if writes and not _allowed(replay, args[0]) else ""
    if event == "sqlite3.connect":
        return "" if _harmless_database(replay, args[0]) else f"opening the database {args[0]!r}"
    if event == "os.mkdir" and Path(_path(*_changed(event, args)[0])).is_dir():  # the system reports that it exists
        return ""
    if event in _CHANGES and args:
        entry = event in _ENTRIES
        paths = _changed(event, args)
        changed = next((name for name, folder in paths if not _allowed(replay, name, folder, entry)), None)
        return "" if changed is None else f"{event} {changed!r}"
    return f"{event} {args[:2]!r}"


def _is_probe(link: Any, address: Any) -> bool:
    """Any free TCP port of the loopback interface: bound to detect IPv6, for example. Listening is refused."""
    import socket

    return (
        link.type == socket.SOCK_STREAM
        and isinstance(address, tuple)
        and address[:2] in (("127.0.0.1", 0), ("::1", 0), ("localhost", 0))
    )


# -- files -----------------------------------------------------------------------------------------------------------


def _allowed(replay: Replay, path: Any, folder: Any = -1, entry: bool = False) -> bool:
    """Whether *path*, relative to the folder of an open descriptor, may be changed; *entry*: the name itself, not the
    target of a link with that name.
    """
    if isinstance(path, int):
        try:
            path = str(Path(f"/proc/self/fd/{path}").readlink())
        except OSError:
            return True
        if not path.startswith("/") or path.startswith(("/dev/", "/memfd:")):  # a pipe, a socket, a terminal
            return True
    text = _path(path, folder)
    if text in _HARMLESS:
        return True
    above, name = os.path.split(text)
    whole = not entry or name in ("", ".", "..")
    full = os.path.realpath(text) if whole else str(Path(os.path.realpath(above)) / name)
    places = replay.places if replay.scratch is None else (replay.scratch, *replay.places)
    if any(full == place or full.startswith(place + os.sep) for place in places):
        return True
    name, folder = Path(full).name, Path(full).parent.name
    return name == "__pycache__" or (folder == "__pycache__" and ".pyc" in name)


def _path(path: Any, folder: Any) -> str:
    text = os.fsdecode(path) if isinstance(path, (str, bytes)) else str(path)
    if isinstance(folder, int) and folder >= 0:
        return str(Path(os.path.realpath(f"/proc/self/fd/{folder}")) / text)
    return text


def _changed(event: str, args: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """The paths that an event changes, each with the folder it is relative to."""
    if event in ("os.rename", "os.link"):  # a second name for a file allows writing to it
        return [(args[0], args[2]), (args[1], args[3])]
    if event in ("os.symlink", "os.mkdir", "os.chmod"):
        return [(args[1] if event == "os.symlink" else args[0], args[2])]
    if event in ("os.chown", "os.utime"):
        return [(args[0], args[3])]
    return [(args[0], args[1] if len(args) > 1 and event in ("os.remove", "os.rmdir", "shutil.rmtree") else -1)]


def _scratch(replay: Replay) -> str:
    """The folder for temporary files of a replay, created on demand."""
    if replay.scratch is None:
        with outside():
            replay.scratch = os.path.realpath(tempfile.mkdtemp(prefix="antiphon-replay-"))
        if replay.ended:
            _left_over.append(replay)
    return replay.scratch


_left_over: list[Replay] = []
"""Replays whose late work created a scratch folder."""


def _remove_left_over() -> None:
    for replay in _left_over:
        _remove_scratch(replay)


def _remove_scratch(replay: Replay) -> None:
    if replay.scratch is not None:
        with outside():
            shutil.rmtree(replay.scratch, ignore_errors=True)
        replay.scratch = None


# -- databases -------------------------------------------------------------------------------------------------------

_unguarded: list[None] = []
"""One entry for each unguarded connection, made through its class, or guardable only by its own thread."""


def _harmless_database(replay: Replay, name: Any) -> bool:
    """In memory, in the scratch folder, or opened read-only."""
    text = os.fsdecode(name) if isinstance(name, (str, bytes)) else str(name)
    if text in (":memory:", ""):
        return True
    if text.startswith("file:"):
        from urllib.parse import parse_qs, unquote, urlsplit

        parts = urlsplit(text)
        asked = parse_qs(parts.query)
        if asked.get("mode") in (["ro"], ["memory"]) or asked.get("immutable") == ["1"] or ":memory:" in parts.path:
            return True
        text = unquote(parts.path)
    return _allowed(replay, text)


def _guard_database(connection: Any) -> None:
    """Check each statement that writes to a file: the connection may be older than the replay that uses it."""
    import sqlite3

    harmless = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
    harmless |= {sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT, sqlite3.SQLITE_DETACH}
    with outside():
        try:
            cursor = sqlite3.Cursor(connection)
            cursor.row_factory = None
            file = next((row[2] for row in cursor.execute("PRAGMA database_list") if row[1] == "main"), "")
        except sqlite3.Error:
            _note_unguarded(connection)
            return

    def authorize(action: int, first: Any, second: Any, database: Any, trigger: Any) -> int:
        if action in harmless or database == "temp" or (action == sqlite3.SQLITE_PRAGMA and second is None):
            return sqlite3.SQLITE_OK
        replay = held_by(sys._getframe().f_back)
        target = first if action == sqlite3.SQLITE_ATTACH else file if database in ("main", None) else database
        if replay is None or _harmless_database(replay, target or ""):
            return sqlite3.SQLITE_OK
        replay.note(f"writing to the database {target!r}")
        return sqlite3.SQLITE_DENY

    connection.set_authorizer(authorize)


def _note_unguarded(connection: Any) -> None:
    import sqlite3

    with suppress(sqlite3.ProgrammingError):  # closed
        _ = connection.in_transaction
        _unguarded.append(None)


def _guard_databases() -> None:
    """The same for open connections; statements that were prepared before are prepared again.

    Our own are left alone, because another thread may be using them. So are those that are already guarded: replacing
    the guard while another thread prepares a statement would deadlock, because that thread waits for the guard.
    """
    import gc
    import sqlite3

    _unguarded.clear()
    kinds: list[type] = [sqlite3.Connection]
    for kind in kinds:
        kinds += kind.__subclasses__()
    others = {kind for kind in kinds if kind.__module__.partition(".")[0] != "antiphon"}
    for found in gc.get_referrers(*others):  # every object refers to its class; checking every object takes seconds
        if type(found) not in others:  # isinstance would query proxies, and load what they stand for
            continue
        if not any(type(one) is FunctionType and one.__qualname__ == _GUARD for one in gc.get_referents(found)):
            _guard_database(found)
            _older.append(found)


def _expire_statements() -> None:
    """Expire statements that were prepared between two replays: they were not checked.

    Connections that are opened later cache none (:func:`_guard_connecting`). One that another thread may be using right
    now is left alone, for the reason above.
    """
    import sqlite3

    _older[:] = [connection for connection in _older if sys.getrefcount(connection) > _unused()]
    for connection in _older:
        if _others_wait() or not _is_shared(connection):
            with suppress(sqlite3.ProgrammingError):  # of another thread, or closed
                _ = connection.total_changes
                _guard_database(connection)


def _others_wait() -> bool:
    """Whether no other thread can be inside SQLite: each is in a function of a module that only waits."""
    mine = threading.get_ident()
    with without_gc():
        frames = sys._current_frames()
        return all(
            str(frame.f_globals.get("__name__")).partition(".")[0] in _WAITING
            for ident, frame in frames.items()
            if ident != mine
        )


_WAITING = frozenset("threading queue selectors socket ssl concurrent multiprocessing antiphon".split())
"""Antiphon's own threads have their own connections."""


@cache
def _unused() -> int:
    """The reference count of a connection in a list that nothing else uses."""
    import sqlite3

    with outside():
        return max(sys.getrefcount(connection) for connection in [sqlite3.Connection(":memory:")])


def _is_shared(connection: Any) -> bool:
    """Whether threads other than its own may use it."""
    import sqlite3

    allowed: list[bool] = []

    def use() -> None:
        with suppress(sqlite3.ProgrammingError):
            connection.cursor().close()
            allowed.append(True)

    with outside():
        thread = threading.Thread(target=use, name="antiphon-database")
        thread.start()
        thread.join()
    return bool(allowed)


_older: list[Any] = []
"""Connections that were opened before there was a sandbox. They do not support weak references."""
_GUARD = f"{_guard_database.__name__}.<locals>.authorize"


_CACHED_STATEMENTS = 7
"""The position of that argument of ``connect``, counted from 1."""


def _guard_connecting() -> None:
    """The same for connections that are opened from now on."""
    try:
        import sqlite3
    except ImportError:  # a Python without it
        return

    def make(connect: Any) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if len(args) < _CACHED_STATEMENTS:  # SQLite checks when it prepares a statement, so none may be cached
                kwargs["cached_statements"] = 0
            connection = connect(*args, **kwargs)
            if not is_tool(sys._getframe().f_back):
                _guard_database(connection)
                with suppress(IndexError):  # a replay that started meanwhile has found it
                    _unguarded.pop()
            return connection

        return guarded

    for module in (sqlite3, sqlite3.dbapi2):
        replaced(module, "connect", make)
    _guard_databases()


# -- what Python does not audit --------------------------------------------------------------------------------------


def _guarded(what: str) -> Callable[[Any], Callable[..., Any]]:
    return checked(lambda target, frame: _check(f"{what} {target!r}", frame))


def _check_sending(link: Any, frame: FrameType | None) -> None:
    """Whether sending on this connection is allowed. Socket pairs inside the process are ignored: they have no name."""
    import socket

    replay = held_by(frame, network=True)
    local = link.family == getattr(socket, "AF_UNIX", None)
    if replay is None or not (local or link.family in (socket.AF_INET, socket.AF_INET6)):
        return
    try:
        mine, peer = link.getsockname(), link.getpeername()
    except OSError:  # not connected
        return
    if local and not peer:
        return
    if not local and origin_var.get() is None:
        if _is_answer(link, mine, peer):
            return
        if _is_closed(link):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")  # what the kernel would report; nobody would receive it
    _refuse(replay, f"sending to {peer!r}")


def _is_answer(link: Any, mine: tuple[Any, ...], peer: tuple[Any, ...]) -> bool:
    """Whether a server in this process answers a client in this process, such as a fake provider in a test: the
    connection was accepted, or a socket listens on the local port, and the other end is open here.
    """
    import socket

    listens, asks = link in _lineage.accepted, False
    for number in _descriptors():
        with suppress(OSError), _borrowed(number) as found:  # a file, or closed by now
            if found.family in (socket.AF_INET, socket.AF_INET6):
                name = found.getsockname()
                asks = asks or _address(name) == _address(peer)
                listens = listens or (
                    name[1] == mine[1] and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
                )
    return listens and asks


def _descriptors() -> list[int]:
    try:
        return [int(path.name) for path in Path("/dev/fd").iterdir()]
    except OSError:  # a system without it
        return []


def _address(name: tuple[Any, ...]) -> tuple[str, int]:
    return str(name[0]).removeprefix("::ffff:"), int(name[1])


def _is_closed(link: Any) -> bool:
    """Whether the other end has closed the connection."""
    import socket

    try:
        return not socket.socket.recv(link, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _check_writing(descriptor: int, frame: FrameType | None) -> None:
    """The same by file descriptor."""
    if held_by(frame, network=True) is not None:
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with _borrowed(descriptor) as link:
                    _check_sending(link, frame)


@contextmanager
def _borrowed(descriptor: int) -> Iterator[Any]:
    """The socket of a descriptor that somebody else closes."""
    import socket

    link = socket.socket(fileno=descriptor)
    try:
        yield link
    finally:
        link.detach()


def _guard_opening(original: Any) -> Callable[..., Any]:
    """The audit hook does not learn which folder a path of ``os.open`` is relative to."""

    def guarded(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is None or not flags & _WRITE_FLAGS:
            return int(original(path, flags, mode, dir_fd=dir_fd))
        replay = held_by(sys._getframe().f_back)
        if replay is not None and not _allowed(replay, path, dir_fd):
            _refuse(replay, f"writing {path!r}")
        with outside():
            return int(original(path, flags, mode, dir_fd=dir_fd))

    return guarded


def _guard_unaudited() -> None:
    import multiprocessing.util
    import socket

    for name in ("write", "writev", "sendfile"):
        if hasattr(os, name):
            replaced(os, name, checked(_check_writing))
    if os.open in os.supports_dir_fd:
        replaced(os, "open", _guard_opening)
        os.supports_dir_fd.add(os.open)
    for name in ("mkfifo", "mknod"):
        replaced(os, name, _guarded("making"))
    for owner in (socket.socket, getattr(sys.modules.get("ssl"), "SSLSocket", None)):
        for name in ("send", "sendall"):
            if owner is not None:
                replaced(owner, name, checked(_check_sending))
    replaced(socket.socket, "listen", _guarded("listening on"))
    replaced(multiprocessing.util, "spawnv_passfds", _guarded("starting a process"))
    for module, name, what in (
        ("_posixsubprocess", "fork_exec", "starting a process"),
        ("_posixshmem", "shm_open", "opening shared memory"),
        ("signal", "pidfd_send_signal", "a signal to the process of descriptor"),
        ("dbm.gnu", "open", "opening the database"),
        ("dbm.ndbm", "open", "opening the database"),
    ):
        try:
            found = __import__(module, fromlist=[name])
        except ImportError:
            continue
        replaced(found, name, _guarded(what))


def _guard_temporary_files() -> None:
    """Temporary files of marked work go to the scratch folder; others stay where they were."""

    def make(original: Any) -> Callable[..., Any]:
        def gettempdir() -> Any:
            origin = origin_var.get()
            replay = None if origin is None else origin.replay
            return original() if replay is None or not replay.on or permit() == "all" else _scratch(replay)

        return gettempdir

    replaced(tempfile, "_gettempdir", make)


def _install() -> None:
    global _installed
    if not _installed:
        _installed = True
        tempfile.gettempdir()  # its first call writes a file; this must not happen inside the hook
        platform.platform()  # SDKs send it in a header, and Python runs a program once to find out
        _guard_unaudited()
        _guard_temporary_files()
        _lineage.refuse = _check
        sys.addaudithook(_hook)
        _guard_connecting()
        import atexit

        atexit.register(_remove_left_over)
    else:
        if _unguarded:
            _guard_databases()
        if _older:
            _expire_statements()
    _lineage.install()


# -- in and out ------------------------------------------------------------------------------------------------------


@contextmanager
def sandboxed(active: Sandbox = True, title: str = "", writable: Sequence[str | Path] = ()) -> Iterator[list[str]]:
    """Mark what happens inside, and everything it starts, as a replay; the list says what was tried and refused.

    The run that is open here, if any, is the one being replayed. *writable*: folders that it may change.
    """
    replay = Replay(title, bool(active))
    replay.places = tuple(os.path.realpath(place) for place in writable)
    if active:
        _install()
    origin = origin_var.get()
    scope = None if origin is None else origin.scope
    mine = origin if origin is not None and scope is not None and scope.invoker is not None else Origin(scope)
    mine.replay = replay  # permanently: what it started may outlive it
    token = origin_var.set(mine)
    births = ObjectTracker(_alone())
    if active:
        births.begin()
    _running.append(replay)
    try:
        yield replay.escapes
    finally:
        if active:
            births.end(replay, _alone(1))
        _running.remove(replay)
        replay.ended = True
        origin_var.reset(token)
        _remove_scratch(replay)


def _alone(replays: int = 0) -> bool:
    """Whether no other run or replay is open in this process."""
    return len(_running) == replays and len(_active) <= 1


def hold_process(title: str = "") -> Replay:
    """Make everything unmarked in this process part of a replay until the process ends: it does nothing else."""
    _install()
    replay = Replay(title)
    replay.ended = True
    _process[:] = [replay]
    return replay


def release_process() -> None:
    """End that, for the next replay in this process."""
    _process.clear()


_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


def leave_network() -> bool:
    """Enter an empty network namespace if the kernel allows it (Linux): from now on nothing in this process, native
    code included, can reach a network. This cannot be undone. ``False`` if it was not possible.
    """
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    user, group = os.getuid(), os.getgid()
    try:
        unshare = ctypes.CDLL(None, use_errno=True).unshare
    except (OSError, AttributeError):
        return False
    if unshare(_CLONE_NEWNET) == 0:
        return True
    if unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        try:
            Path(f"/proc/self/{name}").write_text(text)
        except OSError:  # files stay ours all the same; only owner names look odd
            break
    return True
