"""Layer-1 idempotency: a mutating request with an ``Idempotency-Key`` is processed once, by claim (L8).

Requests are claimed in the same journal as calls, under separate keys that include the tenant of the credential and
the endpoint. Only a digest of the client's key is stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from antiphon._gateway.ids import uuid7
from antiphon.canonical import canonical_digest
from antiphon.contract._base import UNSET
from antiphon.contract.record import DedupeRecord
from antiphon.errors import AntiphonError, StoreError
from antiphon.host.wire import from_json, to_json
from antiphon.host.worker_lease import claim_request, is_abandoned, renew_every
from antiphon.ports import Begun, Claimed, Existing, Journal, Settlement, StaticClaimRequest

log: logging.Logger = logging.getLogger("antiphon.host")

KEEP_MS = 26 * 3_600_000
"""A little more than the 24 hours that the protocol requires."""
_LEASE_MS, _RENEW_S = 15_000, 5.0
_WAIT_S = 10.0
_LOOK_S = 1.0


class Reply(NamedTuple):
    """A response that has not been encoded yet."""

    status: int
    body: Any
    headers: dict[str, str] = {}
    unkept: tuple[str, ...] = ()
    """Body fields that are shown once and never stored."""


class KeyMismatch(Exception):
    """The key was used for a different request."""


class StillRunning(Exception):
    """The first request under this key has not been answered yet."""


Action = Callable[[str, bool], Awaitable[Reply]]
"""Does the work, creating its resource under the given id; the flag says that it may already exist."""


async def once(
    journal: Journal, *, tenant: str, workspace: str, endpoint: str, key: str, digest: str, action: Action
) -> Reply:
    """The answer of *action*, or the answer to the first request with this key."""
    claim = canonical_digest(["openwop-layer-1", tenant, endpoint, key])

    def request(identifier: str) -> StaticClaimRequest:
        return claim_request(
            f"http/{endpoint}",
            claim,
            identifier,
            session="http",
            ttl_ms=KEEP_MS,
            lease_ms=_LEASE_MS,
            tenant=tenant,
            workspace=workspace,
            digest=digest,
        )

    identifier, again = uuid7(), False
    got: Begun = await journal.begin(request(identifier))
    until = time.monotonic() + _WAIT_S
    while not isinstance(got, Claimed):
        assert isinstance(got, Existing)  # requests have no pin
        record = got.current
        if record.request.params_digest != digest and record.state != "cancelled":
            raise KeyMismatch
        if record.state == "done":
            return _again(record)
        if record.state != "inflight" or is_abandoned(got):
            if record.request.params_digest == digest:  # reuse the id: the lost owner may have created the resource
                identifier, again = record.request.request_id, True
            got = await journal.take_over(request(identifier), record.version)
            continue
        left = until - time.monotonic()
        if left <= 0:
            raise StillRunning
        await journal.wait(claim, record.version, min(left, _LOOK_S))
        identifier, again = uuid7(), False
        got = await journal.begin(request(identifier))
    version = got.version
    renewing = renew_every(_RENEW_S, lambda: journal.renew(claim, version, _LEASE_MS), "the claim of a request")
    renewal = asyncio.create_task(renewing, name="antiphon-request-lease")
    try:
        try:
            reply = await action(identifier, again)
        except BaseException as error:
            if isinstance(error, AntiphonError) and not isinstance(error, StoreError):
                await journal.clear(claim, version)  # refused before anything was created, so the key is free again
            else:
                await journal.settle(claim, version, Settlement("cancelled", KEEP_MS, dispatched=False))
            raise
        body = reply.body
        if reply.unkept:
            body = {name: value for name, value in body.items() if name not in reply.unkept}
        kept = to_json({"status": reply.status, "body": body})
        settlement = Settlement("done", KEEP_MS, payload=kept, attempt_count=1)
        if await journal.settle(claim, version, settlement) is None:
            log.warning("the response to %s was not stored: its claim was taken over", endpoint)
        return reply
    finally:
        renewal.cancel()


def _again(record: DedupeRecord) -> Reply:
    kept: dict[str, Any] = {} if record.payload is UNSET else from_json(bytes(record.payload))
    return Reply(int(kept["status"]), kept["body"], {"openwop-Idempotent-Replay": "true"})
