"""Listing, counting and sweeping claims in small steps: no command here blocks the server for long.

Each shard has one sorted set of claims per tenant, newest first. A list is merged from the newest ends; everything else
walks the sets in batches and lets a script check the records of one batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from operator import attrgetter
from typing import Any

from antiphon.contract.record import DedupeRecord
from antiphon.ports import Cursor, Records
from antiphon.stores._common import ClaimQuery
from antiphon.stores.redis.client import Client
from antiphon.stores.redis.schema import CLEARED, Names, Shard, evalsha, record_of, text_of

BATCH = 128
_EARLIEST = -1_000_000_000_000
"""The score of an entry is minus its time in ms; the set's own mark has a score above this."""
_SAMPLE = 32
_FIRST_RANK = 1
"""From the end: the set's own mark comes last."""
_LEAST_SWEPT = 16

Entry = tuple[int, int, str]
"""Minus the claim time, number of the shard, key: sorts the newest first."""
Entries = list[Entry]
Pages = list[tuple[Shard, Entries, bool]]
"""Entries of one shard, and whether it has more."""
Replies = list[Any]


class RedisIndex:
    """What operators query about all claims of a tenant."""

    _client: Client
    _names: Names
    _sweep_rank = _FIRST_RANK

    async def list(self, **query: Any) -> Records:
        which = ClaimQuery(**query)
        found: Records = []
        first: int | str = "-inf"
        after: Entry | None = None
        if which.before is not None:
            after = await self._entry(which.tenant, which.before)
            first = after[0]
        async for entries in self._newest(which.tenant, max(8, which.limit // 32), first):
            later = entries if after is None else [entry for entry in entries if entry > after]
            fitting = [entry for entry in later if entry[2].startswith(which.prefix)]
            for start in range(0, len(fitting), BATCH):
                records = await self._records(fitting[start : start + BATCH])
                found += [record for record in records if _fits(record, which)]
                if len(found) >= which.limit:
                    return found[: which.limit]
        return found[: which.limit]

    async def _entry(self, tenant: str, place: Cursor) -> Entry:
        """The entry of a record; its original one, if it is gone or the key has a new record since."""
        number = self._names.number(place.id)
        score = await self._client.execute(("ZSCORE", self._names.shards[number].entries + tenant, place.id))
        if score is None or any(record.fence != place.at for record in await self._records([(0, number, place.id)])):
            return -(place.at // 1000), number, place.id
        return int(float(score)), number, place.id

    async def earlier(self, *, tenant: str, key: str = "") -> Records:
        found: Records = []
        if key:
            found = await self._earlier([(0, self._names.number(key), key)])
        else:
            async for pages in self._pages(tenant, "ZREVRANGEBYSCORE", _EARLIEST, "-inf", BATCH):
                found += await self._earlier([entry for _, entries, _ in pages for entry in entries])
        return sorted([record for record in found if record.tenant == tenant], key=attrgetter("fence"), reverse=True)

    async def _earlier(self, entries: Entries) -> Records:
        calls = []
        for _, number, key in entries:
            shard = self._names.shards[number]
            calls.append(evalsha("earlier", 2, shard.history + key, shard.expiries + key))
        replies = await self._client.execute_many(calls)
        return [record_of(entry[2], text) for entry, reply in zip(entries, replies, strict=True) for text in reply]

    async def counts(self, tenant: str) -> Mapping[tuple[str, str], int]:
        numbers: Counter[tuple[str, str]] = Counter()
        async for pages in self._pages(tenant, "ZREVRANGEBYSCORE", _EARLIEST, "-inf", BATCH):
            calls = [
                evalsha("count", len(entries), *(shard.record + key for _, _, key in entries))
                for shard, entries, _ in pages
            ]
            for reply in await self._client.execute_many(calls):
                for at in range(0, len(reply), 3):
                    numbers[text_of(reply[at]), reply[at + 1].decode()] += reply[at + 2]
        return dict(numbers)

    async def _sweep_claims(self, tenants: Iterable[str], limit: int) -> int:
        """Drop index entries whose records Redis has expired; the next call continues where this one stopped."""
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
                    calls.append(evalsha("sweep", len(names) + 1, *names, shard.entries + tenant, *keys))
            seen += len(calls)
            dropped += sum(await self._client.execute_many(calls))
        self._sweep_rank = last + 1 if seen else _FIRST_RANK
        return dropped

    async def usage(self, tenant: str) -> Mapping[str, float]:
        """A tenant's record count and the server's memory per record, sampled from the newest (for ``doctor``)."""
        entries = 0
        for count in await self._over_shards("ZCARD", tenant):
            entries += max(0, count - 1)
        sizes: Replies = []
        async for pages in self._pages(tenant, "ZRANGEBYSCORE", "-inf", _EARLIEST, 1):
            newest = [shard.record + found[0][2] for shard, found, _ in pages[:_SAMPLE]]
            sizes = await self._client.execute_many([("MEMORY", "USAGE", record) for record in newest])
            break
        sizes = [size for size in sizes if size]
        return {"records": entries, "bytesPerRecord": sum(sizes) / len(sizes) if sizes else 0.0}

    async def _over_shards(self, command: str, tenant: str, *words: Any) -> Replies:
        return await self._client.execute_many(
            [(command, shard.entries + tenant, *words) for shard in self._names.shards]
        )

    async def _newest(self, tenant: str, page: int, first: int | str = "-inf") -> AsyncIterator[Entries]:
        """The entries of all shards from a score on, newest first, a round of pages at a time."""
        waiting: Entries = []
        async for pages in self._pages(tenant, "ZRANGEBYSCORE", first, _EARLIEST, page):
            horizon = min([entries[-1][0] for _, entries, more in pages if more], default=0)  # what follows is older
            waiting = sorted([*waiting, *(entry for _, entries, _ in pages for entry in entries)])
            ready = [entry for entry in waiting if entry[0] <= horizon]
            yield ready
            waiting = waiting[len(ready) :]

    async def _pages(
        self, tenant: str, command: str, first: int | str, last: int | str, size: int
    ) -> AsyncIterator[Pages]:
        """The entries of all shards between two scores, a page of each shard at a time; later pages are larger."""
        places: dict[int, tuple[int | str, int]] = dict.fromkeys(range(len(self._names.shards)), (first, 0))
        while places:
            asked = tuple(places.items())
            calls = []
            for number, (score, offset) in asked:
                entries = self._names.shards[number].entries + tenant
                calls.append((command, entries, score, last, "WITHSCORES", "LIMIT", offset, size))
            pages = []
            for (number, (score, offset)), reply in zip(asked, await self._client.execute_many(calls), strict=True):
                page = [(int(at), number, member.decode()) for member, at in zip(reply[::2], reply[1::2], strict=True)]
                if len(page) == size:
                    end = page[-1][0]
                    ties = [at for at, _, _ in page].count(end)
                    places[number] = (end, ties + (offset if end == score else 0))
                else:
                    del places[number]
                if page:
                    pages.append((self._names.shards[number], page, len(page) == size))
            yield pages
            size = min(size * 4, BATCH)

    async def _records(self, entries: Entries) -> Records:
        replies = await self._client.execute_many(
            [("GET", self._names.shards[number].record + key) for _, number, key in entries]
        )
        return [
            record_of(entry[2], text)
            for entry, text in zip(entries, replies, strict=True)
            if text and not text.startswith(CLEARED)
        ]


def _fits(record: DedupeRecord, which: ClaimQuery) -> bool:
    return (
        which.tool in ("", record.tool)
        and which.session in ("", record.request.session_key)
        and which.state in ("", record.state)
    )
