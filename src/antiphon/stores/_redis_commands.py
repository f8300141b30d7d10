"""The two commands of every guarded call, claim and settle, as bytes.

They are joined from pieces that are packed once (names of a shard, durations of a tool): packing word by word
would cost as much as the rest of the call's way through the client.
"""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32

from antiphon.ports import ClaimRequest, Settlement
from antiphon.stores import _redis_scripts as scripts
from antiphon.stores._redis_keys import Names, Shard
from antiphon.stores._redis_record import head_of, outcome_bytes

_HOUR_MS = 3_600_000
_LONGEST_MS = 900_000_000_000
"""Less than any moment: in an index, times and durations must not be mistaken for each other."""
_MOST_FRAMES = 8192
_KNOWN_SIZES = 2048


class _Sizes(dict[int, bytes]):
    """What stands before a word of so many bytes, the end of the word before it included."""

    def __missing__(self, size: int) -> bytes:
        return b"\r\n$%d\r\n" % size


_SIZES = _Sizes((size, b"\r\n$%d\r\n" % size) for size in range(_KNOWN_SIZES))

ClaimFrame = tuple[bytes, bytes, bytes, bytes, bytes]
"""What stands before, between and after the four places where the key of a claim's intent stands."""
SettleFrame = tuple[bytes, bytes, bytes]


class Commands:
    """Claim and settle under one prefix."""

    __slots__ = ("_claim_starts", "_claims", "_names", "_settle_starts", "_settlements")

    def __init__(self, names: Names) -> None:
        self._names = names
        self._claim_starts = scripts.CLAIM.starts(3 + 4 + 8)
        self._settle_starts = scripts.SETTLE.starts(3 + 1 + 8)
        self._claims: dict[tuple[int, int, str], ClaimFrame] = {}
        self._settlements: dict[tuple[int, int], SettleFrame] = {}

    def claim(self, request: ClaimRequest, version: bytes, nonce: str) -> tuple[Shard, bytes]:
        """Where the intent lives, and the command; *version* is the one to replace, if any."""
        template = request.template
        key = request.key.encode()
        number = crc32(key) & 255
        place = number, len(key), template.tenant
        frame = self._claims.get(place)
        if frame is None:
            frame = self._claim_frame(place)
        before, history, expiries, member, after = frame
        durations, times = _durations(template.ttl_ms, template.lease_ms)
        first = b" inflight " + nonce.encode() + times
        head = head_of(request)
        identity = head[: head.index(b"\n")]
        about = b"".join((_SIZES[len(version)], version, _SIZES[len(identity)], identity, durations))
        words = (before, key, history, key, expiries, key, member, key, after, about, _SIZES[len(first)], first)
        return self._names.shards[number], b"".join((*words, _SIZES[len(head)], head, b"\r\n"))

    def _claim_frame(self, place: tuple[int, int, str]) -> ClaimFrame:
        number, size, tenant = place
        shard = self._names.shards[number]
        frame = (
            self._claim_starts[0] + b"$1\r\n4" + _word(shard.record, size),
            _word(shard.history, size),
            _word(shard.expiries, size),
            _word(shard.entries + tenant) + _word("", size),
            _word(shard.channel),
        )
        if len(self._claims) >= _MOST_FRAMES:
            self._claims.clear()
        self._claims[place] = frame
        return frame

    def settle(self, key: str, version: int, settlement: Settlement, nonce: str) -> tuple[Shard, bytes]:
        """Where the intent lives, and the command."""
        name = key.encode()
        place = crc32(name) & 255, len(name)
        frame = self._settlements.get(place)
        if frame is None:
            frame = self._settle_frame(place)
        before, member, after = frame
        held, mark = b"%d" % version, nonce.encode()
        begin = b"1 %b inflight " % held
        life, state, times = _kept(settlement.state, settlement.ttl_ms, settlement.dispatched)
        first = state + mark + times
        outcome = outcome_bytes(settlement)
        about = b"".join((_SIZES[len(begin)], begin, _SIZES[len(held)], held, _SIZES[len(mark)], mark, life))
        words = (
            before,
            name,
            member,
            name,
            after,
            about,
            _SIZES[len(first)],
            first,
            _SIZES[len(outcome)],
            outcome,
            b"\r\n",
        )
        return self._names.shards[place[0]], b"".join(words)

    def _settle_frame(self, place: tuple[int, int]) -> SettleFrame:
        number, size = place
        shard = self._names.shards[number]
        frame = (
            self._settle_starts[0] + b"$1\r\n1" + _word(shard.record, size),
            _word("", size),
            _word(shard.channel),
        )
        if len(self._settlements) >= _MOST_FRAMES:
            self._settlements.clear()
        self._settlements[place] = frame
        return frame

    def in_full(self, data: bytes) -> bytes:
        """The same command for a server that does not know the script (yet)."""
        for digest, source in (self._claim_starts, self._settle_starts):
            if data.startswith(digest):
                return source + data[len(digest) :]
        return data


def life_of(ttl_ms: int, lease_ms: int) -> int:
    """How long a claim in flight lives: also past its lease, so that an unknown outcome is seen (D3)."""
    return max(ttl_ms, lease_ms, 1)


def kept_for(ttl_ms: int, lease_ms: int) -> int:
    """How long its key is kept: a TTL longer, as a clock that is set forward does not end its call."""
    return life_of(ttl_ms, lease_ms) + ttl_ms


@lru_cache(maxsize=1024)
def _durations(ttl_ms: int, lease_ms: int) -> tuple[bytes, bytes]:
    """Time of the key and of the index entry of a claim as words; and its durations as they stand in the record."""
    life, kept = life_of(ttl_ms, lease_ms), kept_for(ttl_ms, lease_ms)
    words = _word(str(kept)) + _word(str(-min(kept + life + _HOUR_MS, _LONGEST_MS)))
    return words, b" %d 0 %d %d " % (ttl_ms, life, lease_ms)


@lru_cache(maxsize=1024)
def _kept(state: str, ttl_ms: int, dispatched: bool) -> tuple[bytes, bytes, bytes]:
    """Of a settlement: life as a word; what stands in the record before and after the nonce."""
    life = max(ttl_ms, 1)
    return _word(str(life)), b" %b " % state.encode(), b" %d %d %d 0 " % (ttl_ms, dispatched, life)


def _word(text: str, more: int = 0) -> bytes:
    """A word, or the beginning of one that goes on for *more* bytes."""
    data = text.encode()
    return _SIZES[len(data) + more] + data
