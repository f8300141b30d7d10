"""The claim steps on Redis, written once for both journals: each is one script, one round trip."""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from antiphon._drive import drive
from antiphon.errors import StoreUnavailable
from antiphon.ports import Claimed, ClaimRequest, Existing, Settlement
from antiphon.stores import _redis_scripts as scripts
from antiphon.stores._redis_commands import Commands
from antiphon.stores._redis_keys import Names
from antiphon.stores._redis_link import Link
from antiphon.stores._redis_record import line_of, record_of
from antiphon.stores._redis_wire import ReplyError

if TYPE_CHECKING:
    from antiphon.stores._redis_wire import Orphan

    Send = Callable[..., Any]
    """Sends a command and blocks until it is answered: ``Pool.ask``."""

SETTLE_PATIENCE_S = 5.0
"""An outcome that is not written makes its call unknown: a server that is gone is waited for longer."""

_new = tuple.__new__  # half the price of a named tuple's own constructor
_MOST_ABANDONED = 1000


class ClaimSteps:
    """Begin, take over, settle and the smaller steps of one claim."""

    def __init__(self, link: Link, names: Names, wait_replicas: int, wait_ms: int) -> None:
        self._link = link
        self._names = names
        self._commands = Commands(names)
        self._wait_replicas = wait_replicas
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

    async def claim(self, request: ClaimRequest, version: int | None) -> Claimed | Existing:
        """Take the claim if there is none (*version* ``None``) or if it is still *version*."""
        nonce = self.nonce()
        key, tenant = request.key, request.template.tenant
        if tenant not in self._tenants:
            await self._note_tenant(tenant)
        shard, data = self._commands.claim(request, b"" if version is None else b"%d" % version, nonce)
        orphan = self._orphan(key, nonce)
        try:
            wanted = max(request.wait_replicas, self._wait_replicas)
            if wanted:
                reply = await self._claim_and_wait(key, wanted, shard.slot, data, nonce, orphan)
            else:
                reply = await self._link.send(shard.slot, data, orphan)
                if reply.__class__ is ReplyError:
                    reply = await self._link.mend(reply, shard.slot, data, self._commands.in_full(data), orphan)
        except (StoreUnavailable, KeyboardInterrupt, SystemExit):
            self._abandoned.append((key, nonce))  # it may have been executed, or will be when a server wakes up
            raise
        if self._abandoned:
            await self._give_back()
        return _answer(key, reply)

    def claim_blocking(self, request: ClaimRequest, send: Send) -> Claimed | Existing:
        """The same for a new claim on one server, where *send* blocks: without a coroutine around it."""
        known = request.template.tenant in self._tenants
        if not known or self._abandoned or request.wait_replicas or self._wait_replicas:
            return drive(self.claim(request, None))
        key, nonce = request.key, self.nonce()
        shard, data = self._commands.claim(request, b"", nonce)
        try:
            reply = send(data)
            if reply.__class__ is ReplyError:
                reply = drive(self._link.mend(reply, shard.slot, data, self._commands.in_full(data)))
        except (StoreUnavailable, KeyboardInterrupt, SystemExit):
            self._abandoned.append((key, nonce))
            raise
        return _answer(key, reply)

    async def _claim_and_wait(self, key: str, wanted: int, slot: int, data: bytes, nonce: str, orphan: Orphan) -> Any:
        """A claim counts only when enough replicas have it: a fail-over then cannot forget it (fail closed)."""
        full = self._commands.in_full(data)
        reply, confirmed = await self._link.send_and_wait(slot, data, full, wanted, self._wait_ms, orphan)
        if not _won(reply) or confirmed >= wanted:
            return reply
        await self.release(key, nonce)
        raise StoreUnavailable(
            f"Only {confirmed} of {wanted} replicas confirmed the claim in {self._wait_ms} ms; nothing was dispatched.",
            hint="Look at the replicas of this Redis, or ask for fewer (wait_replicas).",
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
            if _won(reply):
                self.spawn(self.release(key, nonce))

        return settle

    async def settle(self, key: str, version: int, settlement: Settlement) -> int | None:
        shard, data = self._commands.settle(key, version, settlement, self.nonce())
        reply = await self._link.send(shard.slot, data, None, SETTLE_PATIENCE_S)
        if reply.__class__ is ReplyError:
            full = self._commands.in_full(data)
            reply = await self._link.mend(reply, shard.slot, data, full, patience_s=SETTLE_PATIENCE_S)
        settled: int | None = reply
        return settled

    def settle_blocking(self, key: str, version: int, settlement: Settlement, send: Send) -> int | None:
        """The same on one server, where *send* blocks: without a coroutine around it."""
        shard, data = self._commands.settle(key, version, settlement, self.nonce())
        reply = send(data, b"", SETTLE_PATIENCE_S)
        if reply.__class__ is ReplyError:
            full = self._commands.in_full(data)
            reply = drive(self._link.mend(reply, shard.slot, data, full, patience_s=SETTLE_PATIENCE_S))
        settled: int | None = reply
        return settled

    async def alias(self, key: str, identity: str, version: int) -> bool:
        shard = self._names.shard(key)
        keys = (shard.record + key, shard.history + key, shard.expiries + key)
        return bool(await self._link.run(scripts.ALIAS, shard.slot, (3, *keys, line_of(identity), version)))

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
        words = (2, shard.record + key, shard.history + key, *map(line_of, identities))
        now, text, owns = await self._link.run(scripts.READ, shard.slot, words)
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
        """Once per process: the sweep finds the tenants' indexes by this."""
        await self._link.command(self._names.tenants_slot, "SADD", self._names.tenants, tenant)
        self._tenants.add(tenant)


def _won(reply: Any) -> bool:
    """Whether the answer to a claim says that it is ours."""
    return reply.__class__ is int or (isinstance(reply, list) and bool(reply[0]))


def _answer(key: str, reply: Any) -> Claimed | Existing:
    """What the claim script's answer means."""
    if reply.__class__ is int:
        won: Claimed = _new(Claimed, (reply, reply // 1000))
        return won
    if reply.__class__ is bytes:
        seconds, micros, own, text = reply.split(b" ", 3)
        current = record_of(key, text)
        return Existing(current, current if own == b"1" else None, int(seconds) * 1000 + int(micros) // 1000)
    if reply[0]:
        return Claimed(int(reply[1]), reply[2])
    _, now, there, own = reply
    earlier = record_of(key, own)
    return Existing(earlier if there is None else record_of(key, there), earlier, now)


def _nobody_is_cancelled(work: Coroutine[Any, Any, None]) -> None:
    """The synchronous journal has no cancelled callers."""
    work.close()
