"""Names of keys and channels, and the Lua scripts: one atomic step each, mechanism only (no rule is decided there).

Everything of one intent carries the hash tag of its shard: one Cluster slot.

Claims are spread over 256 shards by a checksum of their key. A shard also holds the index of its claims
by tenant, so that a script can keep record and index in step and still touch one slot only.
"""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from antiphon.errors import ConfigError

SHARDS = 256
_FOLDER = Path(__file__).with_name("lua")

SOURCES: dict[bytes, bytes] = {}
"""The source of each script by its digest."""


class Shard(NamedTuple):
    """The beginnings of the names in one shard; ``entries`` is the index."""

    record: str
    history: str
    expiries: str
    entries: str
    channel: str


class Names:
    """All names under one prefix."""

    __slots__ = ("prefix", "shards", "tenants")

    def __init__(self, prefix: str) -> None:
        if not prefix or "{" in prefix or "}" in prefix:
            raise ConfigError(
                f"The prefix {prefix!r} cannot be used: it must not be empty and not hold braces.",
                path="[store] prefix",
            )
        self.prefix = prefix
        self.shards = tuple(_shard(prefix, number) for number in range(SHARDS))
        self.tenants = f"{prefix}:tenants"

    def shard(self, key: str) -> Shard:
        """Where the intent *key* lives."""
        return self.shards[crc32(key.encode()) & 255]

    def run(self, run: str) -> tuple[str, str]:
        """Manifest and events of a run."""
        base = f"{self.prefix}:{{r:{run.replace('}', '')}}}"
        return f"{base}:m:{run}", f"{base}:e:{run}"

    def runs(self, tenant: str) -> str:
        """The index of a tenant's runs."""
        return f"{self.prefix}:runs:{tenant}"

    def breakers(self, tenant: str) -> tuple[str, str]:
        """Breaker states of a tenant, and the channel that tells of them."""
        name = f"{self.prefix}:breakers:{tenant}"
        return name, f"{name}:changed"


def _shard(prefix: str, number: int) -> Shard:
    base = f"{prefix}:{{{number}}}"
    return Shard(f"{base}:c:", f"{base}:h:", f"{base}:z:", f"{base}:x:", f"{prefix}:w:{number}")


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
