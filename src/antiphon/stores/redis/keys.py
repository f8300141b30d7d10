"""Names of keys and channels. Everything of one intent carries the hash tag of its shard: one Cluster slot.

Claims are spread over 256 shards by a checksum of their key. A shard also holds the index of its claims
by tenant, so that a script can keep record and index in step and still touch one slot only.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from antiphon.errors import ConfigError

SHARDS = 256


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
