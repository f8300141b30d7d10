"""Webhooks: events of live runs, posted to subscribers. A replay fork delivers nothing (RFC 0140)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from antiphon._gateway.ids import uuid7
from antiphon.contract._base import decode
from antiphon.contract.events import RunManifest
from antiphon.errors import AntiphonError, InvalidInput, NotFound, StoreError
from antiphon.host.addresses import Lookup
from antiphon.host.api_keys import host_log
from antiphon.host.events import SequencedEvent, document, iso
from antiphon.host.wire import to_json
from antiphon.host.workflow.state import WorkflowEvent
from antiphon.ports import Clock, Journal

log: logging.Logger = logging.getLogger("antiphon.host")

HOOKS_RUN = "host-webhooks"
SIGNATURE = "openwop-Signature"
_REFRESH_S = 2.0
_TOLD = "approvalId tool description arguments asker session policy policyVersion expiresAtMs".split()
_TRIES, _TIMEOUT_S, _PAUSE_S = 3, 10.0, 0.2
QUEUE, QUEUE_BYTES = 1_000, 16 << 20
"""Limits of a subscriber's queue: events and bytes."""

Mask = Callable[[dict[str, Any]], dict[str, Any]]
"""Removes the secrets from a payload."""


class PostTo(Protocol):
    """POST to a URL at a given address of its host."""

    async def __call__(
        self, url: str, body: bytes, headers: Mapping[str, str], seconds: float, *, address: str | None = None
    ) -> tuple[int, bytes]: ...


class TooManyWebhooks(AntiphonError):
    """The tenant has reached its limit of subscriptions."""

    code = "too_many_webhooks"


class Hook(NamedTuple):
    """One subscription."""

    id: str
    tenant: str
    url: str
    events: list[str]
    """Event types; empty means all."""
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


class Webhooks:
    """Subscriptions, stored with sealed secrets; each has its own queue and task in every process."""

    def __init__(self, journal: Journal, clock: Clock, *, lookup: Lookup, post: PostTo, sealer: Any, most: int) -> None:
        self._clock = clock
        self._log = host_log(journal, clock, HOOKS_RUN)
        self._lookup = lookup
        self._post = post
        self._sealer = sealer
        self._most = most
        """The limit of subscriptions per tenant."""
        self._hooks: dict[str, Hook] = {}
        self._queues: dict[str, Queue] = {}
        self.lost: int = 0
        """Events dropped because a queue was full or the receiver did not accept them."""

    async def start(self) -> None:
        await self._refresh(at_once=True)

    async def stop(self) -> None:
        """Give queued deliveries a moment, then stop."""
        queues = tuple(self._queues.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.gather(*(queue.events.join() for queue in queues))
        left = sum(queue.events.qsize() for queue in queues)
        if left:
            log.warning("%d webhook deliveries were not made", left)
        for queue in queues:
            queue.task.cancel()

    async def _refresh(self, *, at_once: bool = False) -> None:
        for event in await self._log.read(at_most_every_s=0.0 if at_once else _REFRESH_S):
            try:
                if event.type == "hook.created":
                    hook = Hook(**event.payload)
                    self._hooks[hook.id] = hook
                    if hook.id in self._queues:
                        self._queues[hook.id].hook = hook
                else:
                    gone = str(event.payload["id"])
                    self._hooks.pop(gone, None)
                    queue = self._queues.pop(gone, None)
                    if queue is not None:
                        queue.task.cancel()  # possibly the current task, which ends at its next wait
            except (TypeError, KeyError) as error:
                log.error("event %d of the webhooks cannot be read and is left out: %s", event.seq, error)

    async def _refresh_if_possible(self) -> None:
        """If the store fails, the last known subscriptions count: an event is not lost for that."""
        with contextlib.suppress(StoreError):
            await self._refresh()

    async def create(self, tenant: str, body: dict[str, Any], name: str) -> dict[str, Any]:
        """Subscribe under the id *name*, also again; the secret that signs deliveries is shown once."""
        asked = decode(body, Subscription)
        events = asked.events if asked.events is not None else asked.event_types
        await self._refresh(at_once=True)
        if sum(hook.tenant == tenant and hook.id != name for hook in self._hooks.values()) >= self._most:
            raise TooManyWebhooks(
                f"This tenant has {self._most} webhooks, as many as it may have ([host] tenant_webhooks).",
                hint="Delete one: DELETE /v1/webhooks/{webhookId}.",
            )
        url = (await self._lookup.target(tenant, asked.url)).url
        secret = asked.secret or secrets.token_urlsafe(32)
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
        return [hook._replace(url=_shown(hook.url)).to_wire() for hook in self._hooks.values() if hook.tenant == tenant]

    # -- delivering --------------------------------------------------------------------------------------------------

    def deliver(self, manifest: RunManifest, events: Sequence[tuple[WorkflowEvent, int]], mask: Mask) -> None:
        """Queue new events for delivery, masked; a subscriber that is too slow loses events, the run does not wait."""
        now = self._clock.now_ms()
        hooks = [hook for hook in self._hooks.values() if hook.tenant == manifest.tenant]
        for event, sequence in events if hooks else ():
            wanted = [hook for hook in hooks if not hook.events or event.type in hook.events]
            if not wanted:
                continue
            shown = WorkflowEvent(event.type, mask(dict(event.payload)))
            body = to_json(document(manifest.id, SequencedEvent(sequence, shown, now, False)))
            for hook in wanted:
                self.lost += not self._queue(hook).put(body)

    async def publish(self, tenant: str, kind: str, payload: Mapping[str, Any]) -> None:
        """Queue an event of the tenant rather than of a run: a decision is needed."""
        await self._refresh_if_possible()
        hooks = [hook for hook in self._hooks.values() if hook.tenant == tenant]
        stamp = iso(self._clock.now_ms())
        body = to_json({"eventId": uuid7(), "type": kind, "payload": payload, "timestamp": stamp})
        for hook in hooks:
            if not hook.events or kind in hook.events:
                self.lost += not self._queue(hook).put(body)

    def waiting(self) -> int:
        """The number of pending deliveries."""
        return sum(queue.events.qsize() for queue in self._queues.values())

    def _queue(self, hook: Hook) -> Queue:
        queue = self._queues.get(hook.id)
        if queue is None:
            queue = self._queues[hook.id] = Queue(hook, self._send)
        return queue

    async def _send(self, hook: Hook, body: bytes) -> None:
        await self._refresh_if_possible()
        if hook.id not in self._hooks:
            return
        secret = hook.secret.encode()
        if self._sealer is not None:
            secret = self._sealer.unseal(hook.secret, context=hook.id.encode())
        stamp = str(int(time.time()))
        signature = hmac.new(secret, f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
        headers = {"Content-Type": "application/json", "openwop-Timestamp": stamp, SIGNATURE: f"v1={signature}"}
        said = ""
        for attempt in range(_TRIES):
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    target = await self._lookup.target(hook.tenant, hook.url)
                    status, _ = await self._post(hook.url, body, headers, _TIMEOUT_S, address=target.address)
                if 200 <= status < 300:
                    return
                said = str(status)
            except (OSError, InvalidInput) as error:
                said = type(error).__name__
            log.info("webhook %s: delivery %d of %d failed: %s", hook.id, attempt + 1, _TRIES, said, extra=_of(hook))
            await asyncio.sleep(_PAUSE_S * 4**attempt)
        self.lost += 1
        log.warning("webhook %s: an event was not delivered: %s", hook.id, said, extra=_of(hook))


def _shown(url: str) -> str:
    """An address without the parts that may hold secrets: credentials, query and fragment."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _of(hook: Hook) -> dict[str, str]:
    return {"tenant": hook.tenant, "webhookId": hook.id}


class ApprovalListener:
    """A gateway listener for events that need a person."""

    KIND = "approval.requested"

    def __init__(self, publish: Callable[[str, str, dict[str, Any]], None], tenant: str) -> None:
        """*publish* is called in the thread of the call with the tenant, the event and its payload."""
        self._publish = publish
        self._tenant = tenant

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ApprovalListener) and (other._publish, other._tenant) == (self._publish, self._tenant)

    def __hash__(self) -> int:
        return hash(self._tenant)

    def wants(self, event: str) -> bool:
        """Whether it handles *event*."""
        return event == self.KIND

    def emit(self, event: str, fields: Mapping[str, Any]) -> None:
        """Pass the event on."""
        if event == self.KIND:
            self._publish(self._tenant, event, {name: fields[name] for name in _TOLD if name in fields})


class Queue:
    """The pending events of one subscriber and the task that delivers them."""

    def __init__(self, hook: Hook, send: Callable[[Hook, bytes], Awaitable[None]]) -> None:
        self.hook = hook
        self.events: asyncio.Queue[bytes] = asyncio.Queue(QUEUE)
        self._send = send
        self._bytes = 0
        self._lost = 0
        self.task: asyncio.Task[None] = asyncio.create_task(self._work(), name=f"antiphon-webhook-{hook.id}")

    def put(self, body: bytes) -> bool:
        """Queue an event; ``False`` if the queue is full. An oversized event needs an empty queue."""
        if not self.events.full() and (not self._bytes or self._bytes + len(body) <= QUEUE_BYTES):
            self.events.put_nowait(body)
            self._bytes += len(body)
            return True
        self._lost += 1
        if self._lost & (self._lost - 1) == 0:  # the first, the second, the fourth …
            what = (self.hook.id, self._lost)
            log.warning("webhook %s is too slow: %d events were not delivered", *what, extra=_of(self.hook))
        return False

    async def _work(self) -> None:
        while True:
            body = await self.events.get()
            try:
                await self._send(self.hook, body)
            except StoreError as error:
                log.warning("webhook %s: %s", self.hook.id, error, extra=_of(self.hook))
            except Exception:
                log.exception("webhook %s", self.hook.id, extra=_of(self.hook))
            finally:
                self._bytes -= len(body)
                self.events.task_done()
