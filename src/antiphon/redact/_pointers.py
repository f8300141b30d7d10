"""Find the places that masks name in JSON data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from antiphon.contract.events import MASKS, OF_THE_STORE, PSEUDONYMS, SEALED, Event
from antiphon.redact._redactor import Mask
from antiphon.redact._splice import below, pairs
from antiphon.redact._standins import mask_of

_MISSING = object()
_UNSEEN = OF_THE_STORE | {SEALED, PSEUDONYMS}
PIECE = "value"
"""The kind of a mask in a chunk of a stream that may cover only part of a pseudonym."""


def masks_in(listed: Any) -> Iterator[Mask]:
    """The masks in a list as stored; invalid entries (in a damaged recording) are skipped."""
    for entry in listed if type(listed) is list else ():
        if type(entry) is list and len(entry) in (4, 5) and all(map(isinstance, entry, (str, int, int, str, bool))):
            if entry[1] >= 0 and entry[2] > 0:
                yield Mask(*entry)


def pseudonyms_of(event: Event) -> Iterator[tuple[str, str]]:
    """The pseudonyms that an event declares, with their kinds."""
    for mask in masks_in(event.meta.get(MASKS)):
        text = text_at(event.payload, mask)
        if text and mask.kind != PIECE:
            yield text, mask.kind
    listed = event.meta.get(PSEUDONYMS)
    if type(listed) is dict:
        yield from ((str(text), str(kind)) for text, kind in listed.items() if text)


def names_of(pointer: str) -> list[str]:
    """The names in a JSON pointer."""
    return [name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:]]


def leaf_at(document: Any, pointer: str) -> Any:
    """The value at *pointer*; a private object if there is none."""
    for name in names_of(pointer):
        if isinstance(document, dict) and name in document:
            document = document[name]
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return _MISSING
    return document


def text_at(document: Any, mask: Mask) -> str:
    """The text that a mask covers; empty if there is none."""
    leaf: Any = (names_of(mask.pointer) or [""])[-1] if mask.key else leaf_at(document, mask.pointer)
    if type(leaf) is int:
        leaf = str(leaf)
    return leaf[mask.start : mask.start + mask.length] if isinstance(leaf, str) else ""


def differences(before: Any, after: Any) -> list[Mask]:
    """Where the texts of two documents of the same shape differ, for stand-ins whose places were not recorded."""
    found: list[Mask] = []
    for pointer, is_name, old, new in pairs(before, after):
        if is_name or old == new or len(str(old)) != len(str(new)):
            continue
        changed = [at for at, (a, b) in enumerate(zip(str(old), str(new), strict=True)) if a != b]
        found.append(Mask(pointer, changed[0], changed[-1] + 1 - changed[0], PIECE))
    return found


def viewed(event: Event) -> Event:
    """The event as people see it: masks in place of pseudonyms, and nothing sealed."""
    meta = {name: value for name, value in event.meta.items() if name not in _UNSEEN}
    listed = event.meta.get(PSEUDONYMS)
    if type(listed) is dict and type(meta.get("callId")) is str:
        for text, kind in listed.items():
            meta["callId"] = meta["callId"].replace(text, mask_of(str(kind), text))
    if MASKS not in meta:
        return event if len(meta) == len(event.meta) else msgspec.structs.replace(event, meta=meta)
    payload = with_masks(event.payload, masks_in(event.meta[MASKS]))
    return msgspec.structs.replace(event, payload=payload, meta=meta)


def with_masks(document: Any, masks: Iterator[Mask]) -> Any:
    """*document* with its pseudonyms shown as masks."""
    by_leaf: dict[str, list[Mask]] = {}
    for mask in masks:
        by_leaf.setdefault(mask.pointer, []).append(mask)
    return _shown(document, "", by_leaf) if by_leaf else document


def _shown(value: Any, pointer: str, by_leaf: dict[str, list[Mask]]) -> Any:
    if isinstance(value, dict):
        shown = {}
        for name, item in value.items():
            where = below(pointer, name)
            masks = [mask for mask in by_leaf.get(where, ()) if mask.key]
            shown[_covered(name, masks)] = _shown(item, where, by_leaf)
        return shown
    if isinstance(value, list):
        return [_shown(item, f"{pointer}/{index}", by_leaf) for index, item in enumerate(value)]
    masks = [mask for mask in by_leaf.get(pointer, ()) if not mask.key]
    if not masks or isinstance(value, bool) or not isinstance(value, (str, int)):
        return value
    return _covered(str(value), masks)


def _covered(text: str, masks: list[Mask]) -> str:
    for mask in sorted(masks, reverse=True, key=lambda mask: mask.start):
        start, end = mask.start, mask.start + mask.length
        text = text[:start] + mask_of(mask.kind, text[start:end]) + text[end:]
    return text
