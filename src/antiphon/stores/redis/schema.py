"""Names of keys and channels, and the Lua scripts: one atomic step each, mechanism only (no rule is decided there).

Everything of one intent carries the hash tag of its shard: one Cluster slot.

Claims are spread over 256 shards by a checksum of their key. A shard also holds the index of its claims
by tenant, so that a script can keep record and index in step and still touch one slot only.

How a claim record is stored in Redis: one string of lines, which a script can compare and change without decoding it.

| line | holds                                                                                                |
|------|------------------------------------------------------------------------------------------------------|
| 1    | format, version, state, nonce of the operation that wrote it last, TTL, dispatched, life and lease, when |
|      | it was written, whether somebody waits (then the next change is published)                           |
| 2    | fence, when the claim began, call identity                                                           |
| 3-5  | tool, session key, the rest of the request                                                           |
| 6, 7 | outcome and result, once it is settled                                                               |

Moments are microseconds of the server's clock; TTL, life and lease are milliseconds from the moment in line 1. All text
is JSON, so a line contains no newline. A cleared record leaves ``t VERSION``, so that versions continue from there.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from msgspec import UNSET

from antiphon.contract.record import RECORD_VERSION, DedupeRecord, RecordedRequest
from antiphon.errors import ConfigError
from antiphon.ports import ClaimRequest, Settlement
from antiphon.stores._common import Outcome, check_version, digests_of, inflight_outcome, outcome_of, owner_of
from antiphon.stores._common import record_of as stored_record

SHARDS = 256
_FOLDER = Path(__file__).with_name("lua")

SOURCES: dict[bytes, bytes] = {}
"""The source of each script by its digest."""
DIGESTS: dict[str, bytes] = {}
"""The digest of each script by its name."""


class Options(NamedTuple):
    """The arguments of :class:`~antiphon.stores.RedisStore` besides its URL and its prefix."""

    wait_replicas: int
    wait_ms: int
    retry_timeout_s: float


class Shard(NamedTuple):
    """The prefixes of the names in one shard; ``entries`` is the index."""

    record: str
    history: str
    expiries: str
    entries: str
    channel: str
    pin: str


class Names:
    """All names under one prefix."""

    __slots__ = ("prefix", "shards", "tenants")

    def __init__(self, prefix: str) -> None:
        if not prefix or "{" in prefix or "}" in prefix:
            raise ConfigError(
                f"The prefix {prefix!r} cannot be used: it must not be empty and not hold braces.",
                path="[store] prefix",
            )
        self.prefix: str = prefix
        self.shards: tuple[Shard, ...] = tuple(_shard(prefix, number) for number in range(SHARDS))
        self.tenants: str = f"{prefix}:tenants"

    def shard(self, key: str) -> Shard:
        """The shard of the intent *key*."""
        return self.shards[crc32(key.encode()) & 255]

    def number(self, key: str) -> int:
        """The number of that shard."""
        return crc32(key.encode()) & 255

    def run(self, run: str) -> tuple[str, str]:
        """Manifest and events of a run."""
        base = f"{self.prefix}:{{r:{run.replace('}', '')}}}"
        return f"{base}:m:{run}", f"{base}:e:{run}"

    def runs(self, tenant: str) -> str:
        """The index of a tenant's runs."""
        return f"{self.prefix}:runs:{tenant}"

    def breakers(self, tenant: str) -> tuple[str, str]:
        """Breaker states of a tenant, and the channel that announces them."""
        name = f"{self.prefix}:breakers:{tenant}"
        return name, f"{name}:changed"


def _shard(prefix: str, number: int) -> Shard:
    base = f"{prefix}:{{{number}}}"
    return Shard(f"{base}:c:", f"{base}:h:", f"{base}:z:", f"{base}:x:", f"{prefix}:w:{number}", f"{base}:i:")


def load(name: str, source: bytes) -> None:
    """Make *source* the script of that name."""
    digest = sha1(source, usedforsecurity=False).hexdigest().encode()
    DIGESTS[name], SOURCES[digest] = digest, source


for _file in _FOLDER.glob("*.lua"):
    load(_file.stem, _file.read_bytes())


def evalsha(script: str, *words: Any) -> tuple[Any, ...]:
    """The command that runs a script by its name; *words* are the number of keys, the keys and the arguments."""
    return ("EVALSHA", DIGESTS[script], *words)


def in_full(command: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same command with the source, for a server that does not know it: a fresh one, or after ``SCRIPT FLUSH``."""
    return ("EVAL", SOURCES[command[1]], *command[2:])


class _Head(msgspec.Struct, frozen=True, array_like=True):
    idempotency_key: str
    tenant: str
    workspace: str
    owner: str
    actor_id: str
    request_id: str
    params_digest: str
    params_digest_exact: str = ""
    tool_call_id: str | None = None
    arguments: str | None = None


_encode = msgspec.json.Encoder().encode
_head_of = msgspec.json.Decoder(_Head).decode
line_of: Callable[[str], bytes] = _encode
"""A string as it is written in a record."""
text_of: Callable[[bytes], str] = msgspec.json.Decoder(str).decode
"""The inverse of :data:`line_of`."""
_outcome_from = msgspec.json.Decoder(Outcome).decode
_FORMAT = b"%d" % RECORD_VERSION
CLEARED = b"t "
"""The prefix of what a cleared record leaves behind."""


def head_of(request: ClaimRequest) -> bytes:
    """Identity, tool, session and the rest: what the claim says about the call, for its whole life."""
    template = request.template
    rest: tuple[str | None, ...] = (
        request.idempotency_key,
        template.tenant,
        template.workspace,
        owner_of(request),
        template.actor,
        request.request_id,
        *digests_of(request.params),
        request.call_id,
    )
    if shown := request.shown:
        rest += (shown,)
    return b"%b\n%b\n%b\n%b" % (
        _encode(request.identity),
        _encode(template.tool),
        template.session_json,
        _encode(rest),
    )


def outcome_bytes(settlement: Settlement) -> bytes:
    """The last two lines of a settled record, each with the newline before it."""
    payload = settlement.payload
    return b"\n%b\n%b" % (_encode(outcome_of(settlement)), b"" if payload is None else payload)


def record_of(key: str, text: bytes) -> DedupeRecord:
    """The record from its lines; one that a newer release wrote is refused (D1)."""
    lines = text.split(b"\n", 6)
    meta = lines[0].split(b" ")
    if meta[0] != _FORMAT:
        check_version(f"The claim record {key}", int(meta[0]), RECORD_VERSION)
    _, version, state, _, ttl, dispatched, life, lease, updated, _ = meta
    fence, created, identity = lines[1].split(b" ", 2)
    about_call = _head_of(lines[4])
    if len(lines) == 7:
        outcome, payload = _outcome_from(lines[5]), lines[6]
    else:
        outcome, payload = inflight_outcome(about_call.arguments or ""), b""
    updated_ms = int(updated) // 1000
    request = RecordedRequest(
        session_key=text_of(lines[3]),
        actor_id=about_call.actor_id,
        request_id=about_call.request_id,
        params_digest=about_call.params_digest,
        identity=text_of(identity),
        params_digest_exact=about_call.params_digest_exact,
        tool_call_id=UNSET if about_call.tool_call_id is None else about_call.tool_call_id,
    )
    known = (
        *(key, text_of(lines[2]), about_call.idempotency_key, state.decode()),
        *(int(created) // 1000, updated_ms, updated_ms + int(life), int(ttl)),
        *(request, int(version), int(fence), about_call.tenant, about_call.workspace, about_call.owner),
        dispatched == b"1",
    )
    lock_until = updated_ms + int(lease) if state == b"inflight" else UNSET
    return stored_record(known, outcome, payload or None, lock_until, RECORD_VERSION)
