"""API keys of the host: shown once and stored as digests, so that every worker sees a revocation."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import os
import secrets
from typing import Any, Literal, NamedTuple, get_args

from antiphon.contract.events import RunManifest
from antiphon.errors import InvalidInput, NotFound, StoreError
from antiphon.ops.runs import ReservedRun
from antiphon.ports import Clock, Journal

log: logging.Logger = logging.getLogger("antiphon.host")

Role = Literal["read", "run", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
HOST_TENANT = "antiphon-host"
"""The tenant of the host's own reserved runs; no credential has this tenant."""
KEYS_RUN = "host-apikeys"
ENVIRONMENT_KEY = "ANTIPHON_API_KEY"
_REFRESH_S = 1.0
_UNKNOWN_S = 0.1
"""How long an unknown key waits for the next refresh: it may be new, and guessing is slowed down."""


class Principal(NamedTuple):
    """Who makes a request; the tenant comes only from the credential (D31)."""

    key_id: str
    tenant: str
    role: Role

    def may(self, role: Role) -> bool:
        """Whether this role includes *role*."""
        return ROLES.index(self.role) >= ROLES.index(role)


class ApiKey(NamedTuple):
    """What is stored about a key."""

    id: str
    digest: str
    role: Role
    tenant: str
    name: str
    created_at_ms: int
    revoked: bool = False

    def to_wire(self) -> dict[str, Any]:
        wire = self._asdict()
        del wire["digest"]
        return {**wire, "createdAtMs": self.created_at_ms}  # ``created_at_ms`` is the deprecated name from 0.1.0


def digest_of(token: str) -> str:
    """The digest of a key; keys are random, so a plain hash is enough."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def host_log(journal: Journal, clock: Clock, run: str) -> ReservedRun:
    """A reserved run of the host itself."""
    tags = {"kind": "host"}
    manifest = RunManifest(id=run, name=run, status="running", started_at_ms=0, tenant=HOST_TENANT, tags=tags)
    return ReservedRun(journal, clock, manifest)


class KeyRing:
    """The keys, as a log of creations and revocations under a reserved run."""

    def __init__(
        self, journal: Journal, clock: Clock, *, default_tenant: str, environment: str = "environment"
    ) -> None:
        """*environment* names the key from the environment in the audit log."""
        self._clock = clock
        self._log = host_log(journal, clock, KEYS_RUN)
        self._keys: dict[str, ApiKey] = {}
        self._by_digest: dict[str, ApiKey] = {}
        given = os.environ.get(ENVIRONMENT_KEY, "")
        self._environment = digest_of(given) if given else None
        self._environment_principal = Principal(environment, default_tenant, "admin")

    async def refresh(self, at_most_every_s: float = _REFRESH_S) -> None:
        """Read what was appended since the last refresh."""
        for event in await self._log.read(at_most_every_s=at_most_every_s):
            payload = event.payload
            if event.type == "key.created":
                try:
                    key = ApiKey(**payload)
                except TypeError as error:
                    log.error("event %d of the API keys cannot be read; its key opens nothing: %s", event.seq, error)
                    continue
            elif event.type == "key.revoked" and payload.get("id") in self._keys:
                key = self._keys[payload["id"]]._replace(revoked=True)
            else:
                continue
            self._keys[key.id] = self._by_digest[key.digest] = key

    async def find(self, token: str) -> Principal | None:
        """The principal of a key."""
        digest = digest_of(token)
        if self._environment is not None and hmac.compare_digest(digest, self._environment):
            return self._environment_principal
        await self.refresh()
        if digest not in self._by_digest:
            await asyncio.sleep(_UNKNOWN_S)
            await self.refresh(_UNKNOWN_S)
        key = self._by_digest.get(digest)
        return None if key is None or key.revoked else Principal(key.id, key.tenant, key.role)

    async def is_valid(self, principal: Principal) -> bool:
        """Whether the key of an authenticated principal is still valid."""
        with contextlib.suppress(StoreError):  # if the store fails, the last known state counts
            await self.refresh()
        key = self._keys.get(principal.key_id)
        return key is None or not key.revoked

    async def any(self) -> bool:
        """Whether there is a key at all."""
        await self.refresh(0.0)
        return self._environment is not None or any(not key.revoked for key in self._keys.values())

    async def keys(self) -> list[ApiKey]:
        await self.refresh(0.0)
        return list(self._keys.values())

    def tenants(self) -> set[str]:
        """Every tenant that has a key."""
        return {self._environment_principal.tenant, *(key.tenant for key in self._keys.values())}

    async def create(self, *, role: str, tenant: str, name: str = "") -> tuple[str, ApiKey]:
        """Create a key; return the token, to be shown once, and the stored record."""
        if role not in ROLES:
            raise InvalidInput(f"The role must be one of {', '.join(ROLES)}.", path="role")
        if not tenant or tenant == HOST_TENANT:
            raise InvalidInput("The tenant must be a non-reserved name.", path="tenant")
        token = f"antiphon_{secrets.token_urlsafe(32)}"
        now = self._clock.now_ms()
        key = ApiKey(secrets.token_hex(6), digest_of(token), role, tenant, name, now)
        await self._append("key.created", key._asdict())
        return token, key

    async def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key; other workers follow within two seconds."""
        await self.refresh(0.0)
        key = self._keys.get(key_id)
        if key is None:
            raise NotFound(f"There is no API key {key_id!r}.", hint="List them: antiphon apikeys list")
        if not key.revoked:
            await self._append("key.revoked", {"id": key_id})
        return self._keys[key_id]

    async def _append(self, kind: str, payload: dict[str, Any]) -> None:
        await self._log.append(kind, payload)
        await self.refresh(0.0)
