"""Webhooks: events of live runs, posted to subscribers. A replay fork delivers nothing (RFC 0140)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import secrets
import socket
import time
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import orjson
from msgspec import Meta

from antiphon._gateway.ids import uuid7
from antiphon.contract._base import decode
from antiphon.contract.events import RunManifest
from antiphon.errors import InvalidInput, NotFound, StoreError
from antiphon.host.api_keys import host_log
from antiphon.host.events import Numbered, document
from antiphon.host.llm import Post
from antiphon.host.workflow.state import WorkflowEvent
from antiphon.ports import Clock, Journal

log = logging.getLogger("antiphon.host")

HOOKS_RUN = "host-webhooks"
SIGNATURE = "openwop-Signature"
_REFRESH_S = 2.0
_TRIES, _TIMEOUT_S, _QUEUE = 3, 10.0, 10_000


class Hook(NamedTuple):
    """One subscription."""

    id: str
    tenant: str
    url: str
    events: list[str]
    """Types of events; empty means all."""
    secret: str
    created_at_ms: int

    def to_wire(self) -> dict[str, Any]:
        return {"webhookId": self.id, "url": self.url, "events": self.events}


class Subscription(msgspec.Struct, rename="camel"):
    """The body of a request to subscribe."""

    url: Any = None
    events: list[str] | None = None
    event_types: list[str] = []
    secret: Annotated[str, Meta(min_length=16, max_length=256)] | None = None


class AddressRefused(InvalidInput):
    """The host does not post to this address."""

    code = "webhook_url_rejected"


def check_url(url: Any, *, loopback: bool) -> str:
    """An address of the outside world over TLS; loopback and plain HTTP only where the operator says so."""
    if not isinstance(url, str) or len(url) > 2048:
        raise AddressRefused("'url' is an https address.", path="$.url")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise AddressRefused("'url' is not an address.", path="$.url") from None
    if parts.scheme not in ("https", "http") or not host or parts.username is not None:
        raise AddressRefused("'url' is an https address without credentials.", path="$.url")
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, port or 443, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        raise AddressRefused("The host of 'url' cannot be found.", path="$.url") from None
    addresses = [ipaddress.ip_address(str(address).partition("%")[0]) for address in found]
    if loopback and all(address.is_loopback for address in addresses):
        return url
    if not all(address.is_global for address in addresses):
        raise AddressRefused("'url' resolves to a private network.", path="$.url")
    if parts.scheme != "https":
        raise AddressRefused("'url' is an https address.", path="$.url")
    return url


class Webhooks:
    """Subscriptions in the store (their secrets sealed), deliveries by one task per process."""

    def __init__(self, journal: Journal, clock: Clock, *, loopback: bool, post: Post, sealer: Any) -> None:
        self._clock = clock
        self._log = host_log(journal, clock, HOOKS_RUN)
        self._loopback = loopback
        self._post = post
        self._sealer = sealer
        self._hooks: dict[str, Hook] = {}
        self._queue: asyncio.Queue[tuple[Hook, bytes]] = asyncio.Queue(_QUEUE)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._refresh(at_once=True)
        self._task = asyncio.create_task(self._send_all(), name="antiphon-webhooks")

    async def stop(self) -> None:
        """Deliver what waits, for a moment, then stop."""
        if self._task is not None:
            try:
                async with asyncio.timeout(2.0):
                    await self._queue.join()
            except TimeoutError:
                log.warning("%d webhook deliveries were not made", self._queue.qsize())
            self._task.cancel()

    async def _refresh(self, *, at_once: bool = False) -> None:
        for event in await self._log.read(at_most_every_s=0.0 if at_once else _REFRESH_S):
            if event.type == "hook.created":
                hook = Hook(**event.payload)
                self._hooks[hook.id] = hook
            else:
                self._hooks.pop(event.payload["id"], None)

    async def create(self, tenant: str, body: dict[str, Any]) -> dict[str, Any]:
        """Subscribe; the secret that signs deliveries is shown once."""
        asked = decode(body, Subscription)
        events = asked.events if asked.events is not None else asked.event_types
        url = await asyncio.to_thread(check_url, asked.url, loopback=self._loopback)
        secret = asked.secret or secrets.token_urlsafe(32)
        name = uuid7()
        kept = secret if self._sealer is None else self._sealer.seal(secret.encode(), context=name.encode())
        hook = Hook(name, tenant, url, events, kept, self._clock.now_ms())
        await self._log.append("hook.created", hook._asdict())
        await self._refresh(at_once=True)
        return {**hook.to_wire(), "secret": secret}

    async def delete(self, tenant: str, hook_id: str) -> None:
        await self._refresh(at_once=True)
        hook = self._hooks.get(hook_id)
        if hook is None or hook.tenant != tenant:
            raise NotFound(f"There is no webhook {hook_id[:64]!r}.")
        await self._log.append("hook.deleted", {"id": hook_id})
        await self._refresh(at_once=True)

    async def list(self, tenant: str) -> list[dict[str, Any]]:
        await self._refresh(at_once=True)
        return [hook.to_wire() for hook in self._hooks.values() if hook.tenant == tenant]

    # -- delivering --------------------------------------------------------------------------------------------------

    def deliver(self, manifest: RunManifest, events: Sequence[tuple[WorkflowEvent, int]]) -> None:
        """Queue new events for delivery; a subscriber that is too slow loses events, the run does not wait."""
        now = self._clock.now_ms()
        for hook in self._hooks.values():
            if hook.tenant != manifest.tenant:
                continue
            for told, sequence in events:
                if hook.events and told.type not in hook.events:
                    continue
                body = orjson.dumps(document(manifest.id, Numbered(sequence, told, now, False)))
                try:
                    self._queue.put_nowait((hook, body))
                except asyncio.QueueFull:
                    log.warning("webhook %s is too slow: an event was not delivered", hook.id)

    async def _send_all(self) -> None:
        while True:
            hook, body = await self._queue.get()
            try:
                await self._refresh()
                if hook.id in self._hooks:
                    await self._send(hook, body)
            except StoreError as error:
                log.warning("webhook %s: %s", hook.id, error)
            except Exception:
                log.exception("webhook %s", hook.id)
            finally:
                self._queue.task_done()

    async def _send(self, hook: Hook, body: bytes) -> None:
        secret = hook.secret.encode()
        if self._sealer is not None:
            secret = self._sealer.unseal(hook.secret, context=hook.id.encode())
        stamp = str(int(time.time()))
        signature = hmac.new(secret, f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
        headers = {"Content-Type": "application/json", "openwop-Timestamp": stamp, SIGNATURE: f"v1={signature}"}
        for attempt in range(_TRIES):
            try:
                await asyncio.to_thread(check_url, hook.url, loopback=self._loopback)
                status, _ = await self._post(hook.url, body, headers, _TIMEOUT_S)
                if status < 500:
                    return
            except (OSError, InvalidInput) as error:
                log.info("webhook %s: %s", hook.id, type(error).__name__)
            await asyncio.sleep(0.2 * 4**attempt)
