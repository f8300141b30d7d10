"""Listing, counting, flushing and sweeping claims in small steps: no command here holds the server up.

Each shard has one sorted set of claims per tenant, the newest first. A list is merged from the newest
ends; the rest walks the sets in batches and lets a script look at the records of one batch.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from antiphon.contract.record import DedupeRecord
from antiphon.ports import Records
from antiphon.stores.redis import schema
from antiphon.stores.redis.client import Client
from antiphon.stores.redis.record import CLEARED, line_of, record_of, text_of
from antiphon.stores.redis.schema import Names, Shard

BATCH = 128
_EARLIEST = -1_000_000_000_000
"""Entries have minus their time in ms as score; the set's own mark has one above this."""
_SAMPLE = 32
_FIRST_RANK = 1
"""From the end: the set's own mark comes last."""
_LEAST_SWEPT = 16

Entry = tuple[int, int, str]
"""Minus the claim time, number of the shard, key: sorts the newest first."""
Entries = list[Entry]
Batch = tuple[Shard, list[str]]
Batches = list[Batch]
Replies = list[Any]
Numbers = list[int]


class RedisIndex:
    """What operators ask of all claims of a tenant."""

    _client: Client
    _names: Names
    _sweep_rank = _FIRST_RANK

    async def list(
        self, *, tenant: str, tool: str = "", session: str = "", state: str = "", prefix: str = "", limit: int = 100
    ) -> Records:
        found: Records = []
        batch: Entries = []
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
        numbers: Counter[tuple[str, str]] = Counter()
        async for batches in self._batches(tenant):
            calls = [schema.COUNT.call(len(keys), *(shard.record + key for key in keys)) for shard, keys in batches]
            for reply in await self._client.execute_many(calls):
                for at in range(0, len(reply), 3):
                    numbers[text_of(reply[at]), reply[at + 1].decode()] += reply[at + 2]
        return dict(numbers)

    async def flush(self, *, tenant: str, tool: str = "", session: str = "", prefix: str = "") -> int:
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
                calls.append(schema.CLEAR.call(*words, *doomed))
            dropped += sum([reply[0] for reply in await self._client.execute_many(calls)])
        return dropped

    async def _sweep_claims(self, tenants: Iterable[str], limit: int) -> int:
        """Drop index entries whose records Redis has expired; the next call goes on where this one stopped."""
        first = self._sweep_rank
        last = first + max(_LEAST_SWEPT, -(-limit // len(self._names.shards))) - 1
        dropped = seen = 0
        for tenant in tenants:
            calls = []
            for shard, members in zip(
                self._names.shards, await self._over_shards("ZREVRANGE", tenant, first, last), strict=True
            ):
                keys = [member.decode() for member in members]
                if keys:
                    names = [name for key in keys for name in (shard.record + key, shard.history + key)]
                    calls.append(schema.SWEEP.call(len(names) + 1, *names, shard.entries + tenant, *keys))
            seen += len(calls)
            dropped += sum(await self._client.execute_many(calls))
        self._sweep_rank = last + 1 if seen else _FIRST_RANK
        return dropped

    async def usage(self, tenant: str) -> Mapping[str, float]:
        """Records of a tenant and the server's memory for one, measured on some of the newest (for ``doctor``)."""
        entries = 0
        for count in await self._over_shards("ZCARD", tenant):
            entries += max(0, count - 1)
        sizes: Numbers = []
        async for entry in self._newest_entries(tenant, 1):
            if entry is None or len(sizes) >= _SAMPLE:
                break
            shard = self._names.shards[entry[1]]
            size = await self._client.execute(("MEMORY", "USAGE", shard.record + entry[2]))
            if size:
                sizes.append(size)
        return {"records": entries, "bytesPerRecord": sum(sizes) / len(sizes) if sizes else 0.0}

    async def _over_shards(self, command: str, tenant: str, *words: Any) -> Replies:
        return await self._client.execute_many(
            [(command, shard.entries + tenant, *words) for shard in self._names.shards]
        )

    async def _newest_entries(self, tenant: str, page: int) -> AsyncIterator[Entry | None]:
        """The entries of all shards, newest first; ``None`` where the next ones must be fetched."""
        cursors: dict[int, tuple[int | str, int]] = dict.fromkeys(range(len(self._names.shards)), ("-inf", 0))
        heap: Entries = []
        while cursors:
            horizon = await self._fetch(tenant, cursors, heap, page)
            while heap and heap[0][0] <= horizon:
                yield heapq.heappop(heap)
            yield None
            page = min(page * 4, 1024)

    async def _fetch(self, tenant: str, cursors: dict[int, tuple[int | str, int]], heap: Entries, page: int) -> int:
        """One more page of every shard; the time down to which the heap is complete."""
        asked = tuple(cursors.items())
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

    async def _batches(self, tenant: str) -> AsyncIterator[Batches]:
        """All keys of the tenant's indexes, oldest first, some of each shard at a time."""
        places = dict.fromkeys(self._names.shards, (_EARLIEST, 0))
        while places:
            asked = tuple(places.items())
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

    async def _records(self, entries: Entries) -> Records:
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
