"""Export a run under the key of the artifact that it replaces, so that a diff of both shows only real changes (D36).

Pseudonyms are as long as what they stand for. So each is replaced in place under its mask, and nothing else is touched:
no original can get into the artifact. Values derived from pseudonyms (digests of calls, names of lanes) are recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from antiphon._recording.plain import digest_of
from antiphon._recording.seals import Originals, RunKey, context, part_of
from antiphon._replay.masks import with_leaf
from antiphon._seal import Sealer
from antiphon.contract.events import MASKS, SEALED, Event, sum_holds, summed
from antiphon.errors import AntiphonError
from antiphon.llm.key import llm_cache_key, variant_digest
from antiphon.redact import Mask
from antiphon.redact._pointers import leaf_at, masks_in, names_of, text_at

if TYPE_CHECKING:
    from antiphon.ops.app import Antiphon

_CALL = ("arguments", "request")


class CannotRekey(Exception):
    """The value under a mask cannot be determined; the run is exported under its own key."""


class Rekeyer:
    """Replaces the pseudonyms in events of a run by those of another key."""

    def __init__(self, app: Antiphon, own: RunKey, wanted: RunKey) -> None:
        self._originals = Originals(own)
        self._open, self._seal = Sealer(own.key).unseal, Sealer(wanted.key).seal
        self._own, self._wanted = own, wanted
        self._before = app._redactor.for_run(own.key).pseudonyms
        self._after = app._redactor.for_run(wanted.key).pseudonyms
        self._names: dict[str, str] = {}
        """Text in the names of lanes and calls -> its replacement under the other key."""

    def event(self, event: Event) -> Event:
        holds = sum_holds(event)
        masks = list(masks_in(event.meta.get(MASKS)))
        payload, meta = event.payload, event.meta
        if masks:
            opened = self._originals.unseal(event)
            if opened is event:
                raise CannotRekey
            for pointer in dict.fromkeys(mask.pointer for mask in masks):
                own = [mask for mask in masks if mask.pointer == pointer]
                payload = self._leaf(payload, opened.payload, pointer, own)
            if event.type == "call.started":
                payload = self._digests(event.payload, payload, {names_of(mask.pointer)[0] for mask in masks})
        place = {name: self._renamed(getattr(event, name)) for name in ("lane", "call", "parent")}
        if masks and SEALED in meta:
            part = part_of(event.payload, meta)
            data = self._open(str(meta[SEALED]), context(self._own.run, event.type, event.call, part))
            sealed = self._seal(data, context(self._wanted.run, event.type, place["call"], part))
            meta = {**meta, SEALED: sealed}
        made = msgspec.structs.replace(event, payload=payload, meta=meta, **place)
        return summed(made) if holds else made

    def _leaf(self, payload: Any, originals: Any, pointer: str, masks: list[Mask]) -> Any:
        old, was = leaf_at(payload, pointer), leaf_at(originals, pointer)
        if type(old) is not type(was) or type(old) not in (str, int) or len(str(old)) != len(str(was)):
            raise CannotRekey
        text = str(old)
        for mask in masks:
            stands, value = text_at(payload, mask), text_at(originals, mask)
            new = self._instead(mask, stands, value, str(was))
            text = text[: mask.start] + new + text[mask.start + mask.length :]
        return with_leaf(payload, names_of(pointer), text if type(old) is str else int(text))

    def _instead(self, mask: Mask, stands: str, value: str, text: str) -> str:
        if mask.key or not stands or len(stands) != len(value):
            raise CannotRekey
        if stands == value:  # a credential of the environment, whose original is not kept
            return stands
        if self._before.of(mask.kind, value) == stands:
            new = self._after.of(mask.kind, value)
            self._names[stands] = new
        else:  # a part of a value, or another spelling
            hits = {(hit.start, hit.end): hit.new for hit in self._after.find(text)}
            new = hits.get((mask.start, mask.start + mask.length), "")
        if len(new) != len(stands) or new == value:
            raise CannotRekey
        return new

    def _digests(self, old: dict[str, Any], new: dict[str, Any], changed: set[str]) -> dict[str, Any]:
        """The start of a call with everything that is derived from its masked arguments."""
        field = next((name for name in _CALL if name in changed), None)
        if field is None or "digest" not in old:
            return new
        digests = []
        for payload in (old, new):
            if payload.get("kind") == "llm" and "variant" in payload:
                digests.append(llm_cache_key(payload[field], recipe=payload["recipe"]))
            else:
                digests.append(digest_of(payload[field]))
        if digests[0] != old["digest"]:
            raise CannotRekey
        made = {**new, "digest": digests[1]}
        if "key" in made:
            made["key"] = digests[1]
        if "variant" in made:
            made["variant"] = variant_digest(new[field])
        self._names[digests[0][:16]] = digests[1][:16]
        return made

    def _renamed(self, name: str | None) -> str | None:
        for old, new in self._names.items() if name is not None and len(name) > 16 else ():
            name = str(name).replace(old, new)
        return name


def rekeyed(app: Antiphon, own: RunKey, wanted: RunKey, events: Iterable[Event]) -> Iterator[Event]:
    """*events* of a run with the key *own*, rewritten for the key *wanted*."""
    try:
        yield from map(Rekeyer(app, own, wanted).event, events)
    except (AntiphonError, KeyError, TypeError, ValueError, orjson.JSONDecodeError) as error:
        raise CannotRekey from error
