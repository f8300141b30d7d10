"""The sandbox of replayed code: sockets, processes and writes outside a scratch folder are refused (D34).

It is an audit hook: what bypasses Python (libpq, uvloop, gRPC, other native code) bypasses it too. On Linux the
command line also enters an empty network namespace where the kernel allows it.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

from antiphon.errors import ReplayBlocked

Sandbox = bool | Literal["process"]
"""No sandbox, one for this context, or one for the process: threads do not inherit a context."""

_state: ContextVar[list[str] | None] = ContextVar("antiphon_sandbox", default=None)
_everywhere: list[str] | None = None
"""What was tried, in a process that is a sandbox as a whole."""
_installed = False
_OUTSIDE: list[str] = []
"""Stands for code that the sandbox lets through."""
_SOCKETS = frozenset({"socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"})
_PROCESSES = frozenset(
    {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn"}
)
_CHANGES = frozenset(
    {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree"}
)
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_HARMLESS = ("/dev/null", "/dev/tty", "/dev/stdout", "/dev/stderr", "/proc/self/")


def _allowed(path: Any, folder: Any = -1) -> bool:
    """Whether *path*, seen from the folder that an open descriptor names, may be changed."""
    if isinstance(path, int):
        return True
    text = os.fsdecode(path) if isinstance(path, (str, bytes)) else str(path)
    if isinstance(folder, int) and folder >= 0:
        text = str(Path(os.path.realpath(f"/proc/self/fd/{folder}")) / text)
    full = os.path.realpath(text)
    scratch = os.path.realpath(tempfile.gettempdir())
    return full.startswith((scratch + os.sep, *_HARMLESS)) or "__pycache__" in full


def _changed(event: str, args: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """The paths that an event changes, each with the folder it is seen from."""
    if event == "os.rename":
        return [(args[0], args[2]), (args[1], args[3])]
    if event == "os.link":
        return [(args[1], args[3])]
    if event == "os.symlink":
        return [(args[1], args[2])]
    if event == "os.mkdir":
        return [(args[0], args[2])]
    return [(args[0], args[1] if len(args) > 1 and event != "os.truncate" else -1)]


def _hook(event: str, args: tuple[Any, ...]) -> None:
    escapes = _state.get()
    if escapes is None:
        escapes = _everywhere
    if escapes is None or escapes is _OUTSIDE:
        return
    if what := _effect(event, args):
        escapes.append(what)
        raise ReplayBlocked(f"Refused in the replay sandbox: {what}.", hint="See docs: what strict means.")


def _effect(event: str, args: tuple[Any, ...]) -> str:
    """What an event would do outside; empty if it may."""
    if event in _SOCKETS:
        target = args[1] if event == "socket.connect" and len(args) > 1 else args[:2]
        local = event == "socket.connect" and isinstance(target, (str, bytes))
        return f"a connection to {target!r}" if local else f"{event} {target!r}"
    if event in _PROCESSES:
        return f"starting a process ({args[0]!r})" if args else event
    if event == "open":
        writes = len(args) > 2 and isinstance(args[2], int) and bool(args[2] & _WRITE_FLAGS)
        return f"writing {args[0]!r}" if writes and not _allowed(args[0]) else ""
    if event in _CHANGES and args:
        changed = next((name for name, folder in _changed(event, args) if not _allowed(name, folder)), None)
        return "" if changed is None else f"{event} {changed!r}"
    return ""


@contextmanager
def sandboxed(active: Sandbox = True) -> Iterator[list[str]]:
    """Refuse sockets, processes and writes in this context, or in the whole process; the list says what was tried."""
    escapes: list[str] = []
    if not active:
        yield escapes
        return
    if active == "process":
        try:
            yield enter_process()
        finally:
            leave_process()
        return
    _install()
    token = _state.set(escapes)
    try:
        yield escapes
    finally:
        _state.reset(token)


@contextmanager
def outside() -> Iterator[None]:
    """Let this context out of the sandbox: for the store that holds the recording, and for models that are verified."""
    token = _state.set(_OUTSIDE)
    try:
        yield
    finally:
        _state.reset(token)


def enter_process() -> list[str]:
    """Refuse the same in every thread of this process until :func:`leave_process`."""
    global _everywhere
    _install()
    _everywhere = []
    return _everywhere


def leave_process() -> None:
    """End the sandbox around the process."""
    global _everywhere
    _everywhere = None


def _install() -> None:
    global _installed
    if not _installed:
        tempfile.gettempdir()  # its first call writes a file; the hook must not meet itself there
        platform.platform()  # SDKs tell it in a header, and Python asks a program for it once
        sys.addaudithook(_hook)
        _installed = True


_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


def leave_network() -> bool:
    """Enter an empty network namespace, where the kernel lets us (Linux): nothing this process does from now on, native
    code included, can reach a network. There is no way back. ``False`` if it was not possible.
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
        except OSError:  # files stay ours all the same; only names of owners look odd
            break
    return True
