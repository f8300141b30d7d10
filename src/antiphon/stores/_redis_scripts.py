"""The Lua scripts of the Redis store: one atomic step each, mechanism only (no rule is decided there)."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).with_name("lua")


class Script:
    """One script, called by its digest and sent in full where the server does not know it (yet)."""

    __slots__ = ("digest", "name", "source")

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = (_FOLDER / f"{name}.lua").read_bytes()
        self.digest = sha1(self.source, usedforsecurity=False).hexdigest().encode()

    def starts(self, number: int) -> tuple[bytes, bytes]:
        """How a command of *number* words begins, by digest and in full, for those whose rest is packed already."""
        short = b"*%d\r\n$7\r\nEVALSHA\r\n$%d\r\n%b\r\n" % (number, len(self.digest), self.digest)
        return short, b"*%d\r\n$4\r\nEVAL\r\n$%d\r\n%b\r\n" % (number, len(self.source), self.source)

    def call(self, *words: Any) -> tuple[Any, ...]:
        """The command; *words* are the number of keys, the keys and the arguments."""
        return (b"EVALSHA", self.digest, *words)

    def full(self, *words: Any) -> tuple[Any, ...]:
        """The command with the source, after ``SCRIPT FLUSH`` or on a fresh server."""
        return (b"EVAL", self.source, *words)


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
