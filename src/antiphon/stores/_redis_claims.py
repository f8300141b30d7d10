"""The claim steps on Redis, written once for both faces: each is one script, one round trip."""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from antiphon.contract.record import RECORD_VERSION
from antiphon.errors import StoreUnavailable
from antiphon.ports import Ask, Claimed, Existing, Final
from antiphon.stores import _redis_scripts as scripts
from antiphon.stores._redis_keys import Names
from antiphon.stores._redis_link import Link
from antiphon.stores._redis_record import head_of, outcome_bytes, record_of, unpacked
from antiphon.stores._redis_wire import ReplyError

if TYPE_CHECKING:
    from antiphon.stores._redis_wire import Orphan

SETTLE_PATIENCE_S = 5.0
"""An outcome that is not written makes its call unknown: a server that is gone is waited for longer."""

_MOST_ABANDONED = 1000
_FORMAT = str(RECORD_VERSION)


class ClaimSteps:
    """Begin, take, settle and the smaller steps of one claim."""

    def __init__(self, link: Link, names: Names, wait_ms: int) -> None:
        self._link = link
        self._names = names
        self._wait_ms = wait_ms
        self._tenants: set[str] = set()
        self._abandoned: deque[tuple[str, str]] = deque(maxlen=_MOST_ABANDONED)
        self.spawn: Callable[[Coroutine[Any, Any, None]], None] = _nobody_is_cancelled
        self.new_nonces()

    def new_nonces(self) -> None:
        """After a fork: parent and child must not take each other's operations for their own."""
        self._salt = secrets.token_urlsafe(6)
        self._counter = itertools.count()

    def nonce(self) -> str:
        """A name for one operation, the same for each of its tries."""
        return f"{self._salt}{next(self._counter):x}"

    async def claim(self, ask: Ask, version: int | None) -> Claimed | Existing:
        """Take the claim if there is none (*version* ``None``) or if it is still *version*."""
        shard = self._names.shard(ask.key)
        nonce = self.nonce()
        key, tenant = ask.key, ask.tenant
        if tenant not in self._tenants:
            await self._note_tenant(tenant)
        words = (
            4,
            shard.record + key,
            shard.history + key,
            shard.expiries + key,
            shard.entries + tenant,
            "" if version is None else version,
            ask.identity,
            nonce,
            ask.ttl_ms,
            ask.lease_ms,
            head_of(ask),
            _FORMAT,
            key,
            shard.channel,
        )
        orphan = self._orphan(key, nonce)
        try:
            if ask.wait_replicas:
                reply = await self._claim_and_wait(ask, shard.slot, words, nonce, orphan)
            else:
                reply = await self._link.run(scripts.CLAIM, shard.slot, words, orphan=orphan)
        except (StoreUnavailable, KeyboardInterrupt, SystemExit):
            self._abandoned.append((key, nonce))  # it may have been executed, or will be when a server wakes up
            raise
        if self._abandoned:
            await self._give_back()
        if reply[0]:
            return Claimed(int(reply[1]), reply[2])
        return self._existing(key, reply[1], reply[2], reply[3])

    async def _claim_and_wait(self, ask: Ask, slot: int, words: tuple[Any, ...], nonce: str, orphan: Orphan) -> Any:
        """A claim counts only when enough replicas have it: a fail-over then cannot forget it (fail closed)."""
        wanted = ask.wait_replicas
        reply, confirmed = await self._link.run_and_wait(scripts.CLAIM, slot, words, wanted, self._wait_ms, orphan)
        if not reply[0] or confirmed >= wanted:
            return reply
        await self.release(ask.key, nonce)
        raise StoreUnavailable(
            f"Only {confirmed} of {wanted} replicas confirmed the claim in {self._wait_ms} ms; nothing was dispatched.",
            hint="Look at the replicas of the Redis in [store] claims, or ask for fewer (wait_replicas).",
            store="redis",
        )

    async def release(self, key: str, nonce: str) -> None:
        """Give back a claim that was never dispatched."""
        shard = self._names.shard(key)
        await self._link.run(scripts.RELEASE, shard.slot, (1, shard.record + key, nonce, shard.channel, key))

    async def _give_back(self) -> None:
        """Release claims whose callers were told that there is none: a server that can be reached again has them."""
        while self._abandoned:
            key, nonce = self._abandoned.popleft()
            try:
                await self.release(key, nonce)
            except StoreUnavailable:
                self._abandoned.append((key, nonce))
                return

    def _orphan(self, key: str, nonce: str) -> Orphan:
        def settle(reply: Any) -> None:
            if reply.__class__ is not ReplyError and reply[0]:
                self.spawn(self.release(key, nonce))

        return settle

    async def settle(self, key: str, version: int, final: Final) -> int | None:
        shard = self._names.shard(key)
        reply = await self._link.run(
            scripts.SETTLE,
            shard.slot,
            (
                1,
                shard.record + key,
                version,
                self.nonce(),
                final.state,
                final.ttl_ms,
                1 if final.dispatched else 0,
                outcome_bytes(final),
                b"" if final.payload is None else final.payload,
                shard.channel,
                key,
            ),
            patience_s=SETTLE_PATIENCE_S,
        )
        return None if reply is None else int(reply)

    async def dispatched(self, key: str, version: int) -> bool:
        shard = self._names.shard(key)
        return bool(await self._link.run(scripts.DISPATCHED, shard.slot, (1, shard.record + key, version)))

    async def alias(self, key: str, identity: str, version: int) -> None:
        shard = self._names.shard(key)
        keys = (shard.record + key, shard.history + key, shard.expiries + key)
        await self._link.run(scripts.ALIAS, shard.slot, (3, *keys, identity, version))

    async def renew(self, key: str, version: int, lease_ms: int) -> bool:
        shard = self._names.shard(key)
        return bool(await self._link.run(scripts.RENEW, shard.slot, (1, shard.record + key, version, lease_ms)))

    async def flag(self, key: str, version: int) -> bool:
        """Ask to be told of the next change; whether there is something to wait for."""
        shard = self._names.shard(key)
        return bool(await self._link.run(scripts.FLAG, shard.slot, (1, shard.record + key, version)))

    async def clear(self, key: str) -> bool:
        shard = self._names.shard(key)
        keys = (shard.record + key, shard.history + key, shard.expiries + key)
        _, removed = await self._link.run(scripts.CLEAR, shard.slot, (3, *keys, "", "", shard.channel, key))
        return bool(removed)

    async def read(self, key: str, identities: Sequence[str]) -> dict[str, Existing | None]:
        """The record for several identities at once."""
        shard = self._names.shard(key)
        words = (2, shard.record + key, shard.history + key, *identities)
        now, fields, owns = await self._link.run(scripts.READ, shard.slot, words)
        current = None if fields is None else record_of(key, fields)
        answers: dict[str, Existing | None] = {}
        for identity, own in zip(identities, owns, strict=True):
            if own == 1:
                answers[identity] = Existing(current, current, now)  # type: ignore[arg-type]
            elif own is not None:
                earlier = record_of(key, unpacked(own))
                answers[identity] = Existing(current or earlier, earlier, now)
            else:
                answers[identity] = None if current is None else Existing(current, None, now)
        return answers

    def _existing(self, key: str, now: int, fields: Any, own: Any) -> Existing:
        if own == 1:
            current = record_of(key, fields)
            return Existing(current, current, now)
        earlier = None if own is None else record_of(key, unpacked(own))
        if fields is None:
            assert earlier is not None
            return Existing(earlier, earlier, now)
        return Existing(record_of(key, fields), earlier, now)

    async def _note_tenant(self, tenant: str) -> None:
        """Once per process: the sweep finds the tenants' indexes by this."""
        await self._link.command(self._names.tenants_slot, "SADD", self._names.tenants, tenant)
        self._tenants.add(tenant)


def _nobody_is_cancelled(work: Coroutine[Any, Any, None]) -> None:
    """The synchronous face has no cancelled callers."""
    work.close()
