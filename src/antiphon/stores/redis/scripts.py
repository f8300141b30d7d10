"""The Lua scripts of the Redis store: one atomic step each, mechanism only (no rule is decided there)."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).with_name("lua")

SOURCES: dict[bytes, bytes] = {}
"""The source of each script by its digest."""


class Script:
    """One script, called by its digest and sent in full where the server does not know it (yet)."""

    __slots__ = ("digest",)

    def __init__(self, name: str) -> None:
        self.load((_FOLDER / f"{name}.lua").read_bytes())

    def load(self, source: bytes) -> None:
        self.digest = sha1(source, usedforsecurity=False).hexdigest().encode()
        SOURCES[self.digest] = source

    @property
    def source(self) -> bytes:
        return SOURCES[self.digest]

    def call(self, *words: Any) -> tuple[Any, ...]:
        """The command; *words* are the number of keys, the keys and the arguments."""
        return ("EVALSHA", self.digest, *words)


def in_full(command: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same command with the source, after ``SCRIPT FLUSH`` or on a fresh server."""
    return ("EVAL", SOURCES[command[1]], *command[2:])


CLAIM = Script("claim")
SETTLE = Script("settle")
RELEASE = Script("release")
RENEW = Script("renew")
ALIAS = Script("alias")
READ = Script("read")
FLAG = Script("flag")
CLEAR = Script("clear")
COUNT = Script("count")
SWEEP = Script("sweep")
APPEND = Script("append")
BREAKER = Script("breaker")
OUTDATED = Script("outdated")
