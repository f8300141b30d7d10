"""A cache of model answers for equal requests of live runs: opt-in, within one tenant and workspace (D14, D23, L11).

An entry is a claim record in the reserved namespace ``llm-cache``: it lives in the configured store, expires like any
other record, is listed by ``antiphon claims`` and removed by flushing that tool. The key of the request finds it, and
the digest of everything else that shapes an answer must match. Refusals, failures and streams are never cached, nor is
an answer that would have to be redacted.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import orjson

from antiphon._recording.plain import dump
from antiphon.contract._base import UNSET
from antiphon.errors import StoreError
from antiphon.keys import Recipe, store_key
from antiphon.ports import Answer, Claimed, ClaimTemplate, Journal, Settlement, StaticClaimRequest
from antiphon.redact import Redactor

log = logging.getLogger("antiphon.recording")

NAMESPACE = "llm-cache"
LARGEST = 1_048_576
"""Answers beyond this many bytes are not kept."""
_LEASE_MS = 10_000
_RECIPE: Recipe = "rfc0041"


class LlmCache(msgspec.Struct, eq=False):
    """Finds and stores answers through the claims of a journal; *journal* is told whether an event loop is running."""

    journal: Callable[[bool], Journal]
    redactor: Redactor
    tenant: str
    workspace: str
    ttl_ms: int
    owner: str

    def _key(self, key: str, variant: str) -> str:
        return store_key(
            namespace=NAMESPACE,
            tool=_RECIPE,
            idempotency_key=f"{key}:{variant}",
            session=None,
            actor=None,
            tenant=self.tenant,
            workspace=self.workspace,
            scope="global",
        )

    async def find(self, key: str, variant: str, asynchronous: bool) -> Answer | None:
        """A cached answer; if the store cannot be read, the model is asked."""
        try:
            found = await self.journal(asynchronous).read(self._key(key, variant))
        except StoreError as error:
            log.warning("the model cache could not be read: %s", error)
            return None
        if found is None:
            return None
        record = found.current
        ours = (record.tenant, record.workspace) == (self.tenant, self.workspace)
        if not ours or record.state != "done" or record.payload is UNSET or found.now_ms >= record.expires_at_ms:
            return None
        age = found.now_ms - record.updated_at_ms
        return Answer("ok", msgspec.json.decode(record.payload), source="cache", meta={"fromCache": True, "ageMs": age})

    async def keep(self, key: str, variant: str, asynchronous: bool, value: Any) -> None:
        """Cache an answer that round-trips; write failures are logged, and the run continues."""
        data = dump(value)
        if len(data) > LARGEST or orjson.loads(data) != value or self.redactor.redact_bytes(data)[1]:
            return
        place = self._key(key, variant)
        template = ClaimTemplate(
            tool=f"{NAMESPACE}/{_RECIPE}",
            session="",
            actor="",
            ttl_ms=self.ttl_ms,
            lease_ms=_LEASE_MS,
            owner=self.owner,
            tenant=self.tenant,
            workspace=self.workspace,
        )
        request = StaticClaimRequest(place, place, template, key, (key, variant), place[:32], token=str(uuid.uuid4()))
        try:
            journal = self.journal(asynchronous)
            claim = await journal.begin(request)
            if isinstance(claim, Claimed):
                await journal.settle(place, claim.version, Settlement("done", self.ttl_ms, payload=data))
        except StoreError as error:
            log.warning("a model response could not be cached: %s", error)
