"""Listing, counting, flushing and sweeping claims in small steps: no command here holds the server up.

Each shard has one sorted set of claims per tenant, the newest first. A list is merged from the newest
ends; the rest walks the sets in batches and lets a script look at the records of one batch.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

from antiphon.contract.record import DedupeRecord
from antiphon.stores._common import Records
from antiphon.stores.redis import scripts
from antiphon.stores.redis.client import Client
from antiphon.stores.redis.keys import Names, Shard
from antiphon.stores.redis.log import BreakerStates
from antiphon.stores.redis.record import CLEARED, line_of, record_of, text_of

BATCH = 128
_EARLIEST = -1_000_000_000_000
"""Entries have minus their time in ms as score; the set's own mark has one above this."""
_SAMPLE = 32
_FIRST_RANK = 1
"""From the end: the set's own mark comes last."""
_LEAST_SWEPT = 16

Entry = tuple[int, int, str]
"""Minus the claim time, number of the shard, key: sorts the newest first."""
Batch = tuple[Shard, list[str]]


class ClaimAdmin:
    """What operators ask of all claims of a tenant."""

    def __init__(self, client: Client, names: Names, breakers: BreakerStates) -> None:
        self._client = client
        self._breakers = breakers
        self._names = names
        self._sweep_rank = _FIRST_RANK

    async def newest(self, tenant: str, tool: str, session: str, state: str, prefix: str, limit: int) -> Records:
        """Records that fit, newest claim first."""
        found: Records = []
        batch: list[Entry] = []
        async for entry in self._newest_entries(tenant, max(8, limit // 32)):
            if entry is not None and entry[2].startswith(prefix):
                batch.append(entry)
            if batch and (entry is None or len(batch) == BATCH):
                records = await self._records(batch)
                found += [record for record in records if _fits(record, tool, session, state)]
                batch = []
                if len(found) >= limit:
                    break
        return found[:limit]

    async def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        """Live records by tool and state."""
        numbers: Counter[tuple[str, str]] = Counter()
        async for batches in self._batches(tenant):
            calls = [scripts.COUNT.call(len(keys), *(shard.record + key for key in keys)) for shard, keys in batches]
            for reply in await self._client.execute_many(calls):
                for at in range(0, len(reply), 3):
                    numbers[text_of(reply[at]), reply[at + 1].decode()] += reply[at + 2]
        return dict(numbers)

    async def flush(self, tenant: str, tool: str, session: str, prefix: str) -> int:
        """Forget the records that fit; how many there were."""
        dropped = 0
        wanted = (line_of(tool) if tool else b"", line_of(session) if session else b"")
        async for batches in self._batches(tenant):
            calls = []
            for shard, keys in batches:
                doomed = [key for key in keys if key.startswith(prefix)]
                names = [
                    name for key in doomed for name in (shard.record + key, shard.history + key, shard.expiries + key)
                ]
                words = (len(names) + 1, *names, shard.entries + tenant, *wanted, shard.channel)
                calls.append(scripts.CLEAR.call(*words, *doomed))
            dropped += sum([reply[0] for reply in await self._client.execute_many(calls)])
        return dropped

    async def sweep(self, limit: int) -> int:
        """Drop index entries whose records Redis has expired; the next call goes on where this one stopped."""
        tenants = await self._client.execute(("SMEMBERS", self._names.tenants))
        first = self._sweep_rank
        last = first + max(_LEAST_SWEPT, -(-limit // len(self._names.shards))) - 1
        dropped = seen = 0
        for tenant in (name.decode() for name in tenants):
            await self._breakers.sweep(tenant)
            calls = []
            for shard, members in zip(
                self._names.shards, await self._over_shards("ZREVRANGE", tenant, first, last), strict=True
            ):
                keys = [member.decode() for member in members]
                if keys:
                    names = [name for key in keys for name in (shard.record + key, shard.history + key)]
                    calls.append(scripts.SWEEP.call(len(names) + 1, *names, shard.entries + tenant, *keys))
            seen += len(calls)
            dropped += sum(await self._client.execute_many(calls))
        self._sweep_rank = last + 1 if seen else _FIRST_RANK
        return dropped

    async def usage(self, tenant: str) -> Mapping[str, float]:
        """Records of a tenant and the server's memory for one, measured on some of the newest."""
        entries = 0
        for count in await self._over_shards("ZCARD", tenant):
            entries += max(0, count - 1)
        sizes: list[int] = []
        async for entry in self._newest_entries(tenant, 1):
            if entry is None or len(sizes) >= _SAMPLE:
                break
            shard = self._names.shards[entry[1]]
            size = await self._client.execute(("MEMORY", "USAGE", shard.record + entry[2]))
            if size:
                sizes.append(size)
        return {"records": entries, "bytesPerRecord": sum(sizes) / len(sizes) if sizes else 0.0}

    async def _over_shards(self, command: str, tenant: str, *words: Any) -> list[Any]:
        return await self._client.execute_many(
            [(command, shard.entries + tenant, *words) for shard in self._names.shards]
        )

    async def _newest_entries(self, tenant: str, page: int) -> AsyncIterator[Entry | None]:
        """The entries of all shards, newest first; ``None`` where the next ones must be fetched."""
        cursors: dict[int, tuple[int | str, int]] = dict.fromkeys(range(len(self._names.shards)), ("-inf", 0))
        heap: list[Entry] = []
        while cursors:
            horizon = await self._fetch(tenant, cursors, heap, page)
            while heap and heap[0][0] <= horizon:
                yield heapq.heappop(heap)
            yield None
            page = min(page * 4, 1024)

    async def _fetch(self, tenant: str, cursors: dict[int, tuple[int | str, int]], heap: list[Entry], page: int) -> int:
        """One more page of every shard; the time down to which the heap is complete."""
        asked = list(cursors.items())
        calls = []
        for number, (newest, offset) in asked:
            shard = self._names.shards[number]
            words = (shard.entries + tenant, newest, _EARLIEST, "WITHSCORES", "LIMIT", offset, page)
            calls.append(("ZRANGEBYSCORE", *words))
        for (number, (newest, offset)), reply in zip(asked, await self._client.execute_many(calls), strict=True):
            scores = [int(score) for score in reply[1::2]]
            for member, score in zip(reply[::2], scores, strict=True):
                heapq.heappush(heap, (score, number, member.decode()))
            if len(scores) < page:
                del cursors[number]
            else:
                last = scores[-1]
                cursors[number] = (last, scores.count(last) + (offset if last == newest else 0))
        return min((int(newest) for newest, _ in cursors.values()), default=0)

    async def _batches(self, tenant: str) -> AsyncIterator[list[Batch]]:
        """All keys of the tenant's indexes, oldest first, some of each shard at a time."""
        places = dict.fromkeys(self._names.shards, (_EARLIEST, 0))
        while places:
            asked = list(places.items())
            replies = await self._client.execute_many(
                [
                    ("ZREVRANGEBYSCORE", shard.entries + tenant, oldest, "-inf", "WITHSCORES", "LIMIT", offset, BATCH)
                    for shard, (oldest, offset) in asked
                ]
            )
            batches = []
            for (shard, (oldest, offset)), reply in zip(asked, replies, strict=True):
                if reply:
                    batches.append((shard, [member.decode() for member in reply[::2]]))
                if len(reply) < 2 * BATCH:
                    del places[shard]
                else:
                    scores = [int(score) for score in reply[1::2]]
                    ties = scores.count(scores[-1]) + (offset if scores[-1] == oldest else 0)
                    places[shard] = (scores[-1], ties)
            yield batches

    async def _records(self, entries: list[Entry]) -> Records:
        replies = await self._client.execute_many(
            [("GET", self._names.shards[number].record + key) for _, number, key in entries]
        )
        return [
            record_of(entry[2], text)
            for entry, text in zip(entries, replies, strict=True)
            if text and not text.startswith(CLEARED)
        ]


def _fits(record: DedupeRecord, tool: str, session: str, state: str) -> bool:
    return tool in ("", record.tool) and session in ("", record.request.session_key) and state in ("", record.state)
