"""Large parts of events, which are kept as blobs."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from antiphon.contract.events import Event, sum_holds, summed
from antiphon.errors import AntiphonError
from antiphon.ports import Blobs


def is_spilled(value: Any) -> bool:
    """Whether a part of a payload stands for a blob."""
    return isinstance(value, dict) and value.keys() == {"$blob", "bytes"}


def resolve(payload: Any, blobs: Blobs | None, tenant: str) -> Any:
    """Bring spilled parts of an event's payload back."""
    if not isinstance(payload, dict):
        return payload
    resolved = dict(payload)
    for name, value in payload.items():
        if is_spilled(value):
            if blobs is None:
                raise AntiphonError("The event refers to a blob and no blob store is configured.")
            resolved[name] = orjson.loads(blobs.get(tenant, value["$blob"]))
    return resolved


def whole(event: Event, blobs: Blobs | None, tenant: str) -> Event:
    """The event with its spilled parts brought back, and a check sum that still says whether it was changed."""
    if not any(is_spilled(value) for value in event.payload.values()):
        return event
    made = msgspec.structs.replace(event, payload=resolve(event.payload, blobs, tenant))
    return summed(made) if sum_holds(event) else made
