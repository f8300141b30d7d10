"""Who holds a claim, and whether that process is certainly gone.

A process is named by boot, process namespace, pid and start time; the owner of a claim is ``token/process``. It counts
as dead only if boot and namespace are ours and the kernel says so: no process has its pid, or a later one has. That
``/proc`` does not show a process proves nothing (``hidepid``, no file descriptors left); the lease decides then.
"""

from __future__ import annotations

import os
import uuid
from functools import lru_cache
from pathlib import Path


def _started(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot, ``""`` if it no longer runs, ``None`` if nobody can know."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None if _may_run(pid) else ""
    if len(fields) < 20:
        return None
    return "" if fields[0] in (b"Z", b"X", b"x") else fields[19].decode("ascii")


def _may_run(pid: int) -> bool:
    """Whether the kernel does not deny that there is such a process; unlike ``/proc``, it hides none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


@lru_cache(maxsize=1)
def _place() -> str:
    """Boot and process namespace; ``""`` if they cannot be known, or ``/proc`` is of another namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8].strip()
        namespace = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
        here = str(Path("/proc/self").readlink()) == str(os.getpid())
    except OSError:
        return ""
    return f"{boot}.{namespace}" if boot and here else ""


_token = ""


def owner_token() -> str:
    """This process, as claim records name it."""
    return _token or _make_token()


def _make_token() -> str:
    global _token
    place, pid = _place(), os.getpid()
    started = _started(pid) if place else None
    _token = f"{place}.{pid}.{started}" if started else f"host-{uuid.uuid4().hex}"
    return _token


def _forget_token() -> None:
    global _token
    _token = ""


os.register_at_fork(after_in_child=_forget_token)


def is_made_with(owner: str, token: str) -> bool:
    """Whether the claim of *owner* was made by the request with *token*, in whatever process."""
    return owner.rpartition("@")[2].partition("/")[0] == token


def is_owned_by(owner: str, token: str, process: str) -> bool:
    """Whether the claim of *owner* was made with *token* by *process*; a composed store puts its run before them."""
    return owner.rpartition("@")[2] == f"{token}/{process}"


def is_of_process(owner: str, process: str) -> bool:
    """Whether the claim of *owner* was made by *process*."""
    return owner.rpartition("/")[2] == process


def certainly_dead(owner: str) -> bool:
    """Whether the process of *owner* ran on this boot, in this namespace, and is gone."""
    return _is_alive(owner) is False


def certainly_alive(owner: str) -> bool:
    """Whether the process of *owner* runs on this boot, in this namespace."""
    return _is_alive(owner) is True


def _is_alive(owner: str) -> bool | None:
    """``None`` if that cannot be known here."""
    place, _, rest = owner.rpartition("/")[2].rpartition(".")
    place, _, pid = place.rpartition(".")
    if not place or place != _place() or not pid.isdecimal():
        return None
    started = _started(int(pid))
    return None if started is None else started == rest
