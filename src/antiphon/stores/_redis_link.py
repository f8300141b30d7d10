"""From a script to its answer, on one server or on a Cluster. Written once for both journals."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from antiphon.errors import StoreUnavailable
from antiphon.stores._redis_scripts import Script
from antiphon.stores._redis_url import Address, Target
from antiphon.stores._redis_wire import SLOTS, TRANSIENT, Node, ReplyError, pack, refused

if TYPE_CHECKING:
    from antiphon.stores._redis_wire import Orphan

MakeNode = Callable[[Address | None], Node]
Call = tuple[Script, int, tuple[Any, ...]]
"""A script, its slot, and its words: number of keys, keys, arguments."""

_REFRESH_S = 0.5
_TRANSIENT_PAUSE_S = 0.02
_NO_LONGER_PRIMARY = ("READONLY", "MASTERDOWN")
_ASKING = pack(("ASKING",))


class Link:
    """The servers behind a URL, and the connections to them."""

    __slots__ = ("_cluster", "_make", "_nodes", "_patience_s", "_refreshed", "_seed", "_table", "target")

    def __init__(self, target: Target, make: MakeNode, patience_s: float) -> None:
        self.target = target
        self._make = make
        self._patience_s = patience_s
        self._cluster = target.mode == "cluster"
        self._nodes: dict[tuple[Address | None, bool], Node] = {}
        self._seed = self._of(None)
        self._table: list[Address] = []
        self._refreshed = 0.0

    async def run(
        self,
        script: Script,
        slot: int,
        words: tuple[Any, ...],
        *,
        again: tuple[Any, ...] = (),
        orphan: Orphan | None = None,
        patience_s: float = 0.0,
    ) -> Any:
        """Run *script*; *again* are the words of a repetition whose first try may have been executed."""
        data = pack(script.call(*words))
        repeat = pack(script.call(*again)) if again else b""
        if self._cluster:
            reply = await self._at(slot, data, repeat, orphan, patience_s)
        else:
            reply = await self._seed.call(data, again=repeat, orphan=orphan, patience_s=patience_s)
        if reply.__class__ is ReplyError:
            return await self.mend(reply, slot, data, pack(script.full(*(again or words))), orphan, patience_s)
        return reply

    async def command(self, slot: int, *words: Any) -> Any:
        """Send one command that may be repeated."""
        data = pack(words)
        reply = await (self._at(slot, data) if self._cluster else self._seed.call(data))
        if reply.__class__ is ReplyError:
            return await self.mend(reply, slot, data)
        return reply

    async def commands(self, calls: Sequence[tuple[int, tuple[Any, ...]]]) -> list[Any]:
        """Send many commands, each with its slot, in as few round trips as there are servers."""
        return await self._many([(slot, pack(words), b"") for slot, words in calls])

    async def run_many(self, calls: Sequence[Call]) -> list[Any]:
        """Run many scripts in as few round trips as there are servers."""
        return await self._many(
            [(slot, pack(script.call(*words)), pack(script.full(*words))) for script, slot, words in calls]
        )

    def send(self, slot: int, data: bytes, orphan: Orphan | None = None, patience_s: float = 0.0) -> Awaitable[Any]:
        """The answer to one packed command; an error reply is a value, for :meth:`mend`."""
        if self._cluster:
            return self._at(slot, data, b"", orphan, patience_s)
        return self._seed.call(data, b"", orphan, patience_s)

    async def send_and_wait(
        self, slot: int, data: bytes, full: bytes, replicas: int, wait_ms: int, orphan: Orphan
    ) -> tuple[Any, int]:
        """Run a script and let replicas confirm it, in one round trip; how many did.

        *data* calls it by digest, *full* has its source. ``WAIT`` holds up its connection, so these go over one of
        their own.
        """
        wait = pack(("WAIT", replicas, wait_ms))
        node = await self._node(slot, waiting=True)
        reply, confirmed = await node.many([data, wait], orphan=orphan)
        while reply.__class__ is ReplyError:
            if str(reply).startswith("NOSCRIPT"):
                reply, confirmed = await node.many([full, wait], orphan=orphan)
            elif self._cluster and str(reply).startswith("MOVED"):
                await self._follow(str(reply))
                node = await self._node(slot, waiting=True)
                reply, confirmed = await node.many([data, wait], orphan=orphan)
            else:
                raise refused(self.target, reply)
        if confirmed.__class__ is ReplyError:
            raise refused(self.target, confirmed)
        return reply, confirmed

    async def everywhere(self, *words: Any) -> list[Any]:
        """Send one command to every server."""
        if not self._cluster:
            return [await self.command(0, *words)]
        if not self._table:
            await self._refresh()
        replies = [await self._of(address).call(pack(words)) for address in dict.fromkeys(self._table)]
        for reply in replies:
            if reply.__class__ is ReplyError:
                raise refused(self.target, reply)
        return replies

    async def close(self) -> None:
        for node in self.nodes():
            await node.close()

    def only_node(self) -> Node | None:
        """The one server all commands go to, if this is no Cluster."""
        return None if self._cluster else self._seed

    def nodes(self) -> tuple[Node, ...]:
        """Every server a connection was made to; the one of the URL comes first."""
        return tuple(self._nodes.values())

    async def _many(self, calls: Sequence[tuple[int, bytes, bytes]]) -> list[Any]:
        if not self._cluster:
            replies: list[Any] = list(await self._seed.many([data for _, data, _ in calls]))
        else:
            replies = [None] * len(calls)
            by_node: dict[int, tuple[Node, list[int]]] = {}
            for at, (slot, _, _) in enumerate(calls):
                node = await self._node(slot)
                by_node.setdefault(id(node), (node, []))[1].append(at)
            for node, places in by_node.values():
                for at, reply in zip(places, await node.many([calls[at][1] for at in places]), strict=True):
                    replies[at] = reply
        for at, reply in enumerate(replies):
            if reply.__class__ is ReplyError:
                slot, data, full = calls[at]
                replies[at] = await self.mend(reply, slot, data, full)
        return replies

    async def mend(
        self,
        reply: Any,
        slot: int,
        data: bytes,
        full: bytes = b"",
        orphan: Orphan | None = None,
        patience_s: float = 0.0,
    ) -> Any:
        """Deal with an error reply: load the script, follow a moved slot, wait for a start or fail-over to end."""
        until = time.monotonic() + max(patience_s, self._patience_s)
        while reply.__class__ is ReplyError:
            text = str(reply)
            if text.startswith("NOSCRIPT") and full:
                data, full = full, b""
            elif self._cluster and text.startswith("MOVED"):
                await self._follow(text)
            elif self._cluster and text.startswith("ASK"):
                reply = (await self._of(self._place(text)).many([_ASKING, data]))[1]
                continue
            elif text.startswith(TRANSIENT) and time.monotonic() < until:
                node = await self._node(slot)
                await node.pause(_TRANSIENT_PAUSE_S)
                if text.startswith(_NO_LONGER_PRIMARY):
                    node.reset()
                if self._cluster:
                    await self._refresh()
            else:
                raise refused(self.target, reply)
            reply = await (
                self._at(slot, data, b"", orphan, patience_s)
                if self._cluster
                else self._seed.call(data, orphan=orphan, patience_s=patience_s)
            )
        return reply

    async def _at(
        self, slot: int, data: bytes, again: bytes = b"", orphan: Orphan | None = None, patience_s: float = 0.0
    ) -> Any:
        """Send to the server of *slot*; if it is gone, look once who has taken over."""
        node = await self._node(slot)
        try:
            return await node.call(data, again=again, orphan=orphan, patience_s=patience_s)
        except StoreUnavailable:
            before = self._table[slot]
            await self._refresh()
            if self._table[slot] == before:
                raise
            return await (await self._node(slot)).call(again or data, orphan=orphan, patience_s=patience_s)

    async def _node(self, slot: int, *, waiting: bool = False) -> Node:
        if not self._cluster:
            return self._of(None, waiting=waiting)
        if not self._table:
            await self._refresh()
        return self._of(self._table[slot], waiting=waiting)

    def _of(self, address: Address | None, *, waiting: bool = False) -> Node:
        node = self._nodes.get((address, waiting))
        if node is None:
            node = self._nodes[address, waiting] = self._make(address)
        return node

    async def _follow(self, moved: str) -> None:
        self._table[int(moved.split()[1])] = self._place(moved)
        if time.monotonic() - self._refreshed > _REFRESH_S:
            await self._refresh()

    async def _refresh(self) -> None:
        """Ask who has which slots: the seeds first, then every server known."""
        self._refreshed = time.monotonic()
        failure: Exception | None = None
        for node in self.nodes():
            try:
                reply = await node.call(pack(("CLUSTER", "SLOTS")))
            except StoreUnavailable as error:
                failure = error
                continue
            if isinstance(reply, list):
                self._read_table(reply)
                return
            failure = refused(self.target, reply)
        raise failure or refused(self.target, ReplyError("ERR no answer to CLUSTER SLOTS"))

    def _read_table(self, ranges: list[Any]) -> None:
        first = self.target.addresses[0]
        table: list[Address] = self._table or [first] * SLOTS
        for start, end, primary, *_ in ranges:
            host = primary[0].decode() if primary[0] else first[0]
            table[start : end + 1] = [(host, primary[1])] * (end - start + 1)
        self._table = table

    def _place(self, text: str) -> Address:
        """The address in ``MOVED 3999 host:port`` and ``ASK 3999 host:port``; no host means the one of the URL."""
        host, _, port = text.split()[2].rpartition(":")
        return host or self.target.addresses[0][0], int(port)
