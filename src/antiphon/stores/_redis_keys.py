"""Names of keys and channels. Everything of one intent carries the hash tag of its shard: one Cluster slot.

Claims are spread over 256 shards by a checksum of their key. A shard also holds the index of its claims
by tenant, so that a script can keep record and index in step and still touch one slot only.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from antiphon.errors import ConfigError
from antiphon.stores._redis_wire import slot_of

SHARDS = 256


class Shard(NamedTuple):
    """The beginnings of the names in one shard; ``entries`` is the index."""

    record: str
    history: str
    expiries: str
    entries: str
    channel: str
    slot: int


class Names:
    """All names under one prefix."""

    __slots__ = ("prefix", "shards", "tenants", "tenants_slot")

    def __init__(self, prefix: str) -> None:
        if not prefix or "{" in prefix or "}" in prefix:
            raise ConfigError(
                f"The prefix {prefix!r} cannot be used: it must not be empty and not hold braces.",
                path="[store] prefix",
            )
        self.prefix = prefix
        self.shards = tuple(_shard(prefix, number) for number in range(SHARDS))
        self.tenants = f"{prefix}:tenants"
        self.tenants_slot = slot_of(self.tenants)

    def shard(self, key: str) -> Shard:
        """Where the intent *key* lives."""
        return self.shards[crc32(key.encode()) & 255]

    def run(self, run: str) -> tuple[str, str, int]:
        """Manifest and events of a run, and their slot."""
        tag = f"r:{run.replace('}', '')}"
        return f"{self.prefix}:{{{tag}}}:m:{run}", f"{self.prefix}:{{{tag}}}:e:{run}", slot_of(tag)

    def runs(self, tenant: str) -> tuple[str, int]:
        """The index of a tenant's runs, and its slot."""
        name = f"{self.prefix}:runs:{tenant}"
        return name, key_slot(name)

    def breakers(self, tenant: str) -> tuple[str, str, int]:
        """Breaker states of a tenant, the channel that tells of them, and the slot."""
        name = f"{self.prefix}:breakers:{tenant}"
        return name, f"{name}:changed", key_slot(name)


def key_slot(name: str) -> int:
    """The Cluster slot of a name that may hold braces of a tenant's own."""
    start = name.find("{")
    end = name.find("}", start + 1)
    return slot_of(name[start + 1 : end] if start >= 0 and end > start + 1 else name)


def _shard(prefix: str, number: int) -> Shard:
    tag = str(number)
    base = f"{prefix}:{{{tag}}}"
    return Shard(f"{base}:c:", f"{base}:h:", f"{base}:z:", f"{base}:x:", f"{prefix}:w:{tag}", slot_of(tag))
