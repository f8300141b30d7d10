"""Which worker process executes a run: one lease per process, and runs whose process is gone (kill −9, lost machine).

A worker that has not renewed its lease in time stops writing; another may then resume its runs. The calls of the runs
are still protected by their own claims.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable

from antiphon._gateway.ids import uuid7
from antiphon._gateway.owner import certainly_dead, owner_token
from antiphon.canonical import canonical_digest
from antiphon.contract._base import UNSET
from antiphon.contract.record import DedupeRecord
from antiphon.errors import StoreError
from antiphon.host.api_keys import HOST_TENANT
from antiphon.ports import Claimed, ClaimTemplate, Existing, Journal, Settlement, StaticClaimRequest

log: logging.Logger = logging.getLogger("antiphon.host")

LEASE_MS = 30_000
RENEW_S = 8.0


def claim_request(
    tool: str,
    key: str,
    request_id: str,
    *,
    identity: str = "",
    session: str = "host",
    ttl_ms: int = 86_400_000,
    lease_ms: int = LEASE_MS,
    tenant: str = HOST_TENANT,
    workspace: str = "default",
    digest: str = "",
) -> StaticClaimRequest:
    """A claim request of the host itself; *digest* identifies what is claimed."""
    template = ClaimTemplate(
        tool=tool,
        session=session,
        actor=session,
        ttl_ms=ttl_ms,
        lease_ms=lease_ms,
        owner=owner_token(),
        tenant=tenant,
        workspace=workspace,
    )
    params = (digest or key, digest or key)
    return StaticClaimRequest(key, identity or key, template, key, params, request_id, token=uuid7())


def lease_is_over(record: DedupeRecord, now_ms: int) -> bool:
    """Whether the lease of a claim has ended."""
    return record.lock_until_ms is UNSET or record.lock_until_ms <= now_ms


async def renew_every(seconds: float, renew: Callable[[], Awaitable[object]], what: str) -> None:
    """Call *renew* until cancelled; a failure is logged, and the next attempt follows."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await renew()
        except StoreError as error:
            log.warning("%s could not be renewed: %s", what, error)
        except Exception:
            log.exception("%s could not be renewed", what)


def is_abandoned(found: Existing) -> bool:
    """Whether the holder of a claim in flight is gone."""
    record = found.current
    return record.state == "inflight" and (lease_is_over(record, found.now_ms) or certainly_dead(record.owner))


def _worker_key(owner: str) -> str:
    return canonical_digest(["host-worker", owner])


class WorkerLease:
    """The lease of one host in this process."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.owner: str = f"{owner_token()}/{secrets.token_hex(4)}"
        """Identifies process and host in the manifest of every run executed here."""
        self.lapses: int = 0
        """How often it ended before it was renewed, so that others could take over the runs."""
        self._key = _worker_key(self.owner)
        self._version = 0
        self._until = float("-inf")
        self._proved = float("-inf")
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._take()
        renewing = renew_every(RENEW_S, self._renew_once, "the worker lease")
        self._task = asyncio.create_task(renewing, name="antiphon-worker-lease")

    async def _take(self) -> None:
        asked = time.monotonic()
        request = claim_request("host/lease", self._key, self._key)
        got = await self._journal.begin(request)
        if isinstance(got, Existing):  # our own, taken earlier by this process
            got = await self._journal.take_over(request, got.current.version)
        if isinstance(got, Claimed):
            self._version = got.version
            self._taken(asked)

    def _taken(self, asked: float) -> None:
        self.lapses += not self.holds()
        self._until = asked + LEASE_MS / 1000

    async def _renew_once(self) -> None:
        asked = time.monotonic()
        if await self._journal.renew(self._key, self._version, LEASE_MS):
            self._taken(asked)
        else:
            await self._take()

    async def prove(self) -> None:
        """Check that the store takes writes, at most once a second; raise if it does not."""
        if time.monotonic() - self._proved < 1.0:
            return
        await self._renew_once()
        self._proved = time.monotonic()

    def holds(self) -> bool:
        """Whether this process may still write to its runs."""
        return time.monotonic() < self._until

    async def stop(self) -> None:
        """Release the lease, so that unfinished runs can be resumed at once."""
        if self._task is not None:
            self._task.cancel()
        self._until = float("-inf")
        try:
            await self._journal.clear(self._key)
        except StoreError as error:
            log.warning("the worker lease could not be released: %s", error)


async def is_gone(journal: Journal, owner: str) -> bool:
    """Whether the process *owner* no longer executes its runs."""
    if certainly_dead(owner.partition("/")[0]):
        return True
    found = await journal.read(_worker_key(owner))
    return found is None or lease_is_over(found.current, found.now_ms)


async def take_over(journal: Journal, run: str, owner: str, successor: str) -> bool:
    """Become the one host that resumes *run*, which *owner* left behind."""
    key = canonical_digest(["host-resume", run, owner])
    identity = f"{key}:{successor}"
    request = claim_request("host/lease", key, identity, identity=identity)
    got = await journal.begin(request)
    if isinstance(got, Existing) and is_abandoned(got):
        got = await journal.take_over(request, got.current.version)
    if not isinstance(got, Claimed):
        return isinstance(got, Existing) and owner == successor and got.current.request.request_id == identity
    return await journal.settle(key, got.version, Settlement("done", LEASE_MS)) is not None


async def keep(journal: Journal, run: str, owner: str) -> bool:
    """Whether *owner*, whose lease had ended, still executes *run*; nobody can take it over at that moment."""
    if not await take_over(journal, run, owner, owner):
        return False
    manifest = await journal.manifest(run)
    return manifest is not None and manifest.tags.get("executor") == owner
