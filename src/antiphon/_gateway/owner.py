"""Who holds a claim, and whether that process is certainly gone.

A process is named by boot, process namespace, pid and start time; the owner of a claim is ``token/process``. Only when
boot and namespace are ours can a missing process be taken for dead; anything else is left to the lease.
"""

from __future__ import annotations

import os
import uuid
from functools import lru_cache
from pathlib import Path


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Start time of a process in clock ticks since boot, or ``""`` if there is none (a zombie runs no more)."""
    stat = _read(f"/proc/{pid}/stat")
    fields = stat.rsplit(")", 1)[-1].split() if ")" in stat else []
    return fields[19] if fields and fields[0] not in "ZXx" else ""


@lru_cache(maxsize=1)
def _place() -> str:
    boot = _read("/proc/sys/kernel/random/boot_id")[:8]
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
    except OSError:
        return ""
    return f"{boot}.{namespace}" if boot else ""


_token = ""


def owner_token() -> str:
    """This process, as claim records name it."""
    return _token or _make_token()


def _make_token() -> str:
    global _token
    place, pid = _place(), os.getpid()
    _token = f"{place}.{pid}.{_started(pid)}" if place else f"host-{uuid.uuid4().hex}"
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
    if not place or place != _place() or not pid.isdigit():
        return None
    return _started(int(pid)) == rest
