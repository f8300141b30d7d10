"""Large parts of events, which are kept as blobs."""

from __future__ import annotations

from typing import Any

import orjson

from antiphon.errors import AntiphonError
from antiphon.ports import Blobs


def is_spilled(value: Any) -> bool:
    """Whether a part of a payload stands for a blob."""
    return isinstance(value, dict) and value.keys() == {"$blob", "bytes"}


async def resolve(payload: Any, blobs: Blobs | None, tenant: str) -> Any:
    """Bring spilled parts of an event's payload back."""
    if not isinstance(payload, dict):
        return payload
    resolved = dict(payload)
    for name, value in payload.items():
        if is_spilled(value):
            if blobs is None:
                raise AntiphonError("The event refers to a blob and no blob store is configured.")
            resolved[name] = orjson.loads(await blobs.get(tenant, value["$blob"]))
    return resolved
