"""The claim steps on Redis: each is one script, one round trip."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from functools import lru_cache
from typing import Any

from antiphon.errors import StoreUnavailable
from antiphon.ports import Begun, Claimed, ClaimRequest, ClaimTemplate, Existing, Pin, Pinned, Row, Settlement
from antiphon.stores._common import Settling, append_each
from antiphon.stores.redis.client import MOVING, Client, Words
from antiphon.stores.redis.log import RedisLog
from antiphon.stores.redis.schema import CLEARED, Names, Options, evalsha, head_of, line_of, outcome_bytes, record_of

SETTLE_RETRY_TIMEOUT_S = 5.0
"""An unwritten outcome makes its call unknown, so a server that is down is waited for longer."""

_HOUR_MS = 3_600_000
_LONGEST_MS = 900_000_000_000
"""Smaller than any timestamp: in an index, times and durations must not be mistaken for each other."""
_MOST_ABANDONED = 1000
TOO_FEW_REPLICAS = "replicas"
"""The reason for a claim that too few replicas have: it was released, and other claims may need fewer."""

_new = tuple.__new__  # half the cost of a named tuple's own constructor


class RedisClaims(RedisLog):
    """Claims, on the log that their events go to."""

    def __init__(self, client: Client, names: Names, options: Options, settling: Settling) -> None:
        super().__init__(client, names)
        self._wait_replicas = options.wait_replicas
        self._wait_ms = options.wait_ms
        self._settling = settling
        self._tenants: set[str] = set()
        self._abandoned: deque[tuple[str, str, bool]] = deque(maxlen=_MOST_ABANDONED)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start the work that a cancelled caller leaves behind; a synchronous caller is never cancelled."""
        work.close()

    def begin(self, request: ClaimRequest, events: Sequence[Row] = ()) -> Coroutine[Any, Any, Begun]:
        return self._claim_and_log(request, None, events) if events else self._claim(request, None)

    def take_over(self, request: ClaimRequest, version: int, events: Sequence[Row] = ()) -> Coroutine[Any, Any, Begun]:
        return self._claim_and_log(request, version, events) if events else self._claim(request, version)

    async def _claim_and_log(self, request: ClaimRequest, version: int | None, events: Sequence[Row]) -> Begun:
        answer = await self._claim(request, version)
        if answer.__class__ is Claimed:
            await self._write(events)
        return answer

    async def _write(self, events: Sequence[Row]) -> None:
        await append_each(events, self.append)

    async def _claim(self, request: ClaimRequest, version: int | None) -> Begun:
        """Take the claim if there is none (*version* ``None``) or if it is still *version*."""
        pin = request.pin if version is None else None
        if pin is not None and self._client.slots:
            kept = await self._client.execute(evalsha("pin", 1, *self._pin_words(pin, request.template)))
            if int(kept) != pin[1]:
                return Pinned(int(kept))
            pin = None
        nonce = self._client.nonce()
        key, tenant = request.key, request.template.tenant
        if tenant not in self._tenants:
            await self._note_tenant(tenant)
        words = self._claim_words(request, version, nonce, pin)
        wanted = max(request.wait_replicas, self._wait_replicas)
        try:
            if wanted:
                reply = await self._claim_and_wait(key, nonce, words, wanted)
            else:
                reply = await self._client.execute(words)
        except asyncio.CancelledError:
            self._abandoned.append((key, nonce, wanted > 0))
            self.spawn(self._give_back())
            raise
        except (StoreUnavailable, KeyboardInterrupt, SystemExit) as error:
            if pin is not None and _crosses_slots(error):  # one address for the shards of a Cluster
                self._client.slots = True
                return await self._claim(request, version)
            if not (isinstance(error, StoreUnavailable) and error.data.get("reason") in (MOVING, TOO_FEW_REPLICAS)):
                # it may have been executed, or will be when a server wakes up
                self._abandoned.append((key, nonce, wanted > 0))
            raise
        if self._abandoned:
            await self._give_back()
        return _answer(key, reply)

    def _pin_words(self, pin: Pin, template: ClaimTemplate) -> tuple[str, int, int]:
        """The key of a call's mark, the mark, and how long it is kept."""
        call, mark = pin
        return self._names.shard(call).pin + call, mark, max(1, template.ttl_ms)

    def _claim_words(self, request: ClaimRequest, version: int | None, nonce: str, pin: Pin | None) -> Words:
        key, template = request.key, request.template
        shard = self._names.shard(key)
        head = head_of(request)
        kept, needed, times = _durations(template.ttl_ms, template.lease_ms)
        keys = (shard.record + key, shard.history + key, shard.expiries + key, shard.entries + template.tenant)
        values = (
            key,
            shard.channel,
            "" if version is None else version,
            head[: head.index(b"\n")],
            kept,
            needed,
            f" inflight {nonce}{times}",
            head,
        )
        if pin is None:
            return evalsha("claim", 4, *keys, *values)
        place, *mark = self._pin_words(pin, template)
        return evalsha("claim", 5, *keys, place, *values, *mark)

    async def _claim_and_wait(self, key: str, nonce: str, words: Words, wanted: int) -> Any:
        """A claim counts only once enough replicas have it, so that a failover cannot forget it (fail closed)."""
        reply, confirmed = await self._client.execute_and_wait(words, wanted, self._wait_ms)
        if confirmed >= wanted or not _won(reply):
            return reply
        await self._release(key, nonce)
        raise StoreUnavailable(
            f"Only {confirmed} of {wanted} replicas confirmed the claim in {self._wait_ms} ms; nothing was dispatched.",
            hint="Check the replicas, or require fewer (wait_replicas).",
            store="redis",
            reason=TOO_FEW_REPLICAS,
        )

    async def _release(self, key: str, nonce: str, *, waited: bool = False) -> None:
        """Release a claim that was never dispatched; on the connection of the claim, which keeps their order."""
        shard = self._names.shard(key)
        keys = (shard.record + key, shard.history + key, shard.expiries + key)
        words = evalsha("release", 3, *keys, nonce, shard.channel, key)
        await (self._client.execute_and_wait(words, 0, 1) if waited else self._client.execute(words))

    async def _give_back(self) -> None:
        """Release claims whose callers do not know that they hold them, once the server can be reached again."""
        while self._abandoned:
            key, nonce, waited = self._abandoned.popleft()
            try:
                await self._release(key, nonce, waited=waited)
            except StoreUnavailable:
                self._abandoned.append((key, nonce, waited))
                return

    def settle(
        self, key: str, version: int, settlement: Settlement, events: Sequence[Row] = ()
    ) -> Coroutine[Any, Any, int | None]:
        if not events:
            return self._settle(key, version, settlement)
        return self._settling.run(key, version, events, self._write, lambda: self._settle(key, version, settlement))

    async def _settle(self, key: str, version: int, settlement: Settlement) -> int | None:
        shard = self._names.shard(key)
        nonce, life = self._client.nonce(), max(settlement.ttl_ms, 1)
        head = f" {settlement.state} {nonce} {settlement.ttl_ms} {settlement.dispatched:d} "
        outcome = outcome_bytes(settlement)
        words = evalsha(
            "settle",
            1,
            shard.record + key,
            key,
            shard.channel,
            f"1 {version} inflight ",
            version,
            nonce,
            life,
            f"{head}{life} 0 ",
            outcome,
        )
        settled: int | None = await self._client.execute(
            words, retry_timeout_s=max(self._client.retry_timeout_s, SETTLE_RETRY_TIMEOUT_S)
        )
        if settled is None:  # it may be one that others have followed
            keys = (shard.history + key, shard.expiries + key)
            settled = await self._client.execute(evalsha("settle_earlier", 2, *keys, version, nonce, head, outcome))
        return settled

    async def alias(self, key: str, identity: str, version: int) -> bool:
        shard = self._names.shard(key)
        keys = (shard.record + key, shard.history + key, shard.expiries + key)
        return bool(await self._client.execute(evalsha("alias", 3, *keys, line_of(identity), version)))

    async def renew(self, key: str, version: int, lease_ms: int) -> bool:
        words = evalsha("renew", 1, self._names.shard(key).record + key, version, lease_ms)
        worth_s = min(self._client.retry_timeout_s, lease_ms / 1000)  # retried for longer, it would be over already
        return bool(await self._client.execute(words, retry_timeout_s=worth_s))

    async def _flag(self, key: str, version: int) -> bool:
        """Request a notification of the next change; returns whether there is something to wait for."""
        record = self._names.shard(key).record + key
        return bool(await self._client.execute(evalsha("flag", 1, record, version)))

    async def forgotten(self, request: ClaimRequest, version: int) -> bool:
        """A cleared record leaves the last version that it had."""
        left: bytes | None = await self._client.execute(("GET", self._names.shard(request.key).record + request.key))
        return left is not None and left.startswith(CLEARED) and int(left[len(CLEARED) :]) >= version

    async def clear(self, key: str, version: int | None = None) -> bool:
        shard = self._names.shard(key)
        keys = (shard.record + key, shard.history + key, shard.expiries + key)
        return bool(await self._client.execute(evalsha("clear", 3, *keys, key, shard.channel, version or "")))

    async def _read_many(self, key: str, identities: Sequence[str]) -> dict[str, Existing | None]:
        """The record for several identities at once."""
        shard = self._names.shard(key)
        words = evalsha("read", 2, shard.record + key, shard.history + key, *map(line_of, identities))
        now, text, owns = await self._client.execute(words)
        current = None if text is None else record_of(key, text)
        answers: dict[str, Existing | None] = {}
        for identity, own in zip(identities, owns, strict=True):
            if own == 1:
                answers[identity] = Existing(current, current, now)  # type: ignore[arg-type]
            elif own is not None:
                earlier = record_of(key, own)
                answers[identity] = Existing(current or earlier, earlier, now)
            else:
                answers[identity] = None if current is None else Existing(current, None, now)
        return answers

    async def _note_tenant(self, tenant: str) -> None:
        """Once per process: the sweep uses this to find the tenants' indexes."""
        await self._client.execute(("SADD", self._names.tenants, tenant))
        self._tenants.add(tenant)


def life_of(ttl_ms: int, lease_ms: int) -> int:
    """How long a claim in flight lives: longer than its lease, so that an unknown outcome is seen (D3)."""
    return max(ttl_ms, lease_ms, 1)


def kept_for(ttl_ms: int, lease_ms: int) -> int:
    """How long its key is kept: one TTL longer, because a clock that is set forward does not end its call."""
    return life_of(ttl_ms, lease_ms) + ttl_ms


@lru_cache(maxsize=1024)
def _durations(ttl_ms: int, lease_ms: int) -> tuple[int, int, str]:
    """Time to live of a claim's key, time of its index entry, and its durations as written in the record."""
    life, kept = life_of(ttl_ms, lease_ms), kept_for(ttl_ms, lease_ms)
    return kept, -min(kept + life + _HOUR_MS, _LONGEST_MS), f" {ttl_ms} 0 {life} {lease_ms} "


def _crosses_slots(error: BaseException) -> bool:
    return isinstance(error, StoreUnavailable) and "CROSSSLOT" in str(error.data.get("reply", ""))


def _won(reply: Any) -> bool:
    """Whether the reply to a claim says that it is ours."""
    return reply.__class__ is int or (isinstance(reply, list) and reply[0] == 1)


def _answer(key: str, reply: Any) -> Begun:
    """The meaning of the claim script's reply."""
    if reply.__class__ is int:
        won: Claimed = _new(Claimed, (reply, reply // 1000))
        return won
    if reply.__class__ is bytes:
        seconds, micros, own, text = reply.split(b" ", 3)
        current = record_of(key, text)
        return Existing(current, current if own == b"1" else None, int(seconds) * 1000 + int(micros) // 1000)
    if reply[0] == 1:
        return Claimed(int(reply[1]), reply[2])
    if reply[0] == 2:
        return Pinned(int(reply[1]))
    _, now, there, own = reply
    earlier = record_of(key, own)
    return Existing(earlier if there is None else record_of(key, there), earlier, now)
