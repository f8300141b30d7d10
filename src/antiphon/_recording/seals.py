"""The key of a run, and the originals that are sealed with it next to their masked copies.

Each run has a random key: pseudonyms are made with it, and originals are sealed with it. The run's manifest holds it
wrapped under a key of the store, so the originals can only be read with that key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import orjson

from antiphon._seal import KEY_BYTES, Sealer
from antiphon.contract._base import Opaque, given
from antiphon.contract.events import BLOBS, RAW_DIGEST, SEALED, Event, RunManifest
from antiphon.errors import StoreError

_WRAP = b"antiphon run key "


class RunKey(NamedTuple):
    """The key of one run; *run* is the id it was made for (an imported run may have another)."""

    run: str
    key: bytes
    keeps: bool = True
    """Whether originals are kept."""
    wrapped: str = ""
    """The key wrapped under a key of the store; empty until something is sealed."""

    @classmethod
    def new(cls, run: str, *, keeps: bool) -> RunKey:
        """A new key for *run*."""
        return cls(run, os.urandom(KEY_BYTES), keeps)

    @classmethod
    def of(cls, manifest: RunManifest, sealers: Iterable[Sealer]) -> RunKey | None:
        """The key in a manifest, if one of *sealers* can unwrap it."""
        seal = given(manifest.seal) or {}
        run, wrapped = seal.get("run", manifest.id), seal.get("key", "")
        for sealer in sealers:
            try:
                return cls(run, sealer.unseal(wrapped, _WRAP + run.encode()), wrapped=wrapped)
            except StoreError:
                continue
        return None

    def to_wire(self) -> dict[str, str]:
        """For the manifest."""
        return {"run": self.run, "key": self.wrapped} if self.wrapped else {}

    def wrap(self, sealer: Sealer) -> RunKey:
        """The same key, wrapped under a key of a store."""
        return self._replace(wrapped=sealer.seal(self.key, _WRAP + self.run.encode()))


def context(run: str, kind: str, call: str | None, part: Any) -> bytes:
    """What a sealed original is bound to: its run and its event."""
    return orjson.dumps([run, kind, call or "", part if isinstance(part, int) else None])


def part_of(payload: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    """Distinguishes events of one kind at one place: the number of a chunk, or of a workflow event."""
    return payload.get("n", meta.get("sequence"))


class Originals:
    """Restores the originals in events."""

    def __init__(self, key: RunKey) -> None:
        self._run = key.run
        self._sealer = Sealer(key.key)
        self.lost: int = 0
        """Events whose originals are damaged or were sealed with another key."""

    def unseal(self, event: Event) -> Event:
        """The event with its originals; unchanged if it has none, or none that can be read."""
        sealed = event.meta.get(SEALED)
        if sealed is None:
            return event
        bound = context(self._run, event.type, event.call, part_of(event.payload, event.meta))
        try:
            found = orjson.loads(self._sealer.unseal(str(sealed), bound))
            payload = {**event.payload, **found["payload"]}
        except (StoreError, ValueError, TypeError, LookupError):
            self.lost += 1
            return event
        meta = {**event.meta, RAW_DIGEST: found.get("digest")}
        if BLOBS in meta:  # their masked copies are not needed
            meta[BLOBS] = {name: ref for name, ref in meta[BLOBS].items() if name not in found["payload"]}
        return msgspec.structs.replace(event, payload=payload, meta=meta)


class KeyRing(Opaque, eq=False):
    """The keys that wrap run keys: one that wraps new ones, and all that may unwrap others."""

    wrapping: Callable[[], Sealer | None]
    opening: Callable[[], Iterable[Sealer]]
    in_process: bool
    """The store lives in the process: keys are kept next to it, and need no wrapping."""
    kept: dict[str, RunKey] = {}
    """Keys of the runs in such a store; kept from their beginning, because events are sealed when they are read."""

    def key_of(self, manifest: RunManifest) -> RunKey | None:
        """The key of a run, if available."""
        known = self.kept.get(manifest.id)
        return known or (RunKey.of(manifest, self.opening()) if manifest.seal else None)

    def ready(self, key: RunKey) -> RunKey:
        """The key, made ready for sealing; if nothing can wrap it, originals are not kept."""
        if self.in_process:
            return key
        sealer = None if key.wrapped else self.wrapping()
        if sealer is None:
            return key if key.wrapped else key._replace(keeps=False)
        return key.wrap(sealer)
