"""Rules of listing, counting and forgetting: what an operator sees and does."""

from __future__ import annotations

from antiphon.ports import Journal
from antiphon.testing._harness import SHORT_MS, TTL_MS, Harness, claimed, done, existing, failed, must


class AdminRules(Harness):
    """One method per rule; each gets an open journal and a tenant of its own."""

    async def rule_clear_forgets_record_and_history(self, j: Journal) -> None:
        """After clearing, nothing of the key is left."""
        key = self.key()
        must(not await j.clear(key), "there is nothing to clear")
        first = claimed(await j.begin(self.request(key)))
        settled = await j.settle(key, first.version, done()) or 0
        claimed(await j.take_over(self.request(key, "call-2"), settled))
        must(await j.clear(key), "there is something to clear")
        must(await j.read(key, "call-1") is None, "the record is gone")
        claimed(await j.begin(self.request(key, "call-1")))

    async def rule_flush_fits_its_filter(self, j: Journal) -> None:
        """Flushing takes what was meant, in flight or not, and nothing else."""
        keys = await self._fill(j)
        must(await j.flush(tenant="nobody-" + self.name) == 0, "another tenant has nothing here")
        must(await j.flush(tenant=self.tenant, tool="tools/absent") == 0, "no such tool")
        must(await j.flush(tenant=self.tenant, tool="tools/read", session="s-2") == 1, "tool and session together")
        must(await j.read(keys["read", "s-2"]) is None, "that one is gone")
        must(await j.flush(tenant=self.tenant, session="s-1") == 2, "a session")
        must(await j.flush(tenant=self.tenant, prefix=keys["send", "s-2"][:-3]) == 1, "a key prefix")
        must(await j.flush(tenant=self.tenant, tool="tools/send") == 1, "a tool")
        must(await j.flush(tenant=self.tenant) == 1, "the rest of the tenant")
        must(await j.list(tenant=self.tenant) == [], "nothing is left")
        claimed(await j.begin(self.request(keys["read", "s-1"])))

    async def rule_tenants_do_not_see_each_other(self, j: Journal) -> None:
        """Listing, counting and flushing stay within a tenant."""
        claimed(await j.begin(self.request(self.key("mine"))))
        claimed(await j.begin(self.request(self.key("theirs"), tenant="other-" + self.name)))
        for tenant, name in ((self.tenant, "mine"), ("other-" + self.name, "theirs")):
            listed = await j.list(tenant=tenant)
            must([record.key for record in listed] == [self.key(name)], f"{tenant} sees only its own")
            must(dict(await j.counts(tenant)) == {("tools/send", "inflight"): 1}, "and counts only its own")
        await j.flush(tenant=self.tenant)
        must(len(await j.list(tenant="other-" + self.name)) == 1, "flushing one leaves the other")
        await j.flush(tenant="other-" + self.name)

    async def rule_list_is_newest_first(self, j: Journal) -> None:
        """Claims are listed newest first, filtered and limited."""
        keys = await self._fill(j)
        order = [record.key for record in await j.list(tenant=self.tenant)]
        must(order == list(reversed(keys.values())), f"newest first: {order}")
        must(len(await j.list(tenant=self.tenant, limit=2)) == 2, "at most as many as asked for")
        await self._expect(j, [keys["read", "s-2"], keys["read", "s-1"]], tool="tools/read")
        await self._expect(j, [keys["send", "s-1"], keys["read", "s-1"]], session="s-1")
        await self._expect(j, [keys["send", "s-1"]], session="s-1", tool="tools/send")
        await self._expect(j, [keys["send", "s-2"]], prefix=keys["send", "s-2"][:-3])
        current = existing(await j.read(keys["read", "s-1"])).current
        settled = await j.settle(current.key, current.version, done()) or 0
        await self._expect(j, [current.key], state="done")
        await self._expect(j, [current.key], state="done", tool="tools/read")
        await self._expect(j, order[:-1], state="inflight")
        claimed(await j.take_over(self.request(current.key, "call-2", tool="tools/read", session="s-1"), settled))
        newest = (await j.list(tenant=self.tenant, limit=1))[0]
        must(newest.key == current.key, "a new execution makes a claim the newest")

    async def rule_counts_by_tool_and_state(self, j: Journal) -> None:
        """Live records by tool and state; in flight past the lease is stale, expired is not counted."""
        for n, state in enumerate(("done", "done", "failed", "unknown", "inflight", "stale", "gone")):
            key = self.key(f"{n}")
            held = claimed(await j.begin(self.request(key, lease_ms=50 if state == "stale" else TTL_MS)))
            if state in ("done", "gone"):
                await j.settle(key, held.version, done(ttl_ms=SHORT_MS if state == "gone" else TTL_MS))
            elif state in ("failed", "unknown"):
                await j.settle(key, held.version, failed("outcome_unknown" if state == "unknown" else "refused"))
        await self.pass_ms(SHORT_MS + 50)
        found = {state: number for (tool, state), number in (await j.counts(self.tenant)).items() if number}
        must(found == {"done": 2, "failed": 2, "inflight": 1, "stale": 1}, f"counted {found}")

    async def rule_sweep_drops_only_what_expired(self, j: Journal) -> None:
        """Sweeping removes expired records and their history, and nothing that lives."""
        live, dead = self.key("live"), self.key("dead")
        claimed(await j.begin(self.request(live, lease_ms=50)))
        held = claimed(await j.begin(self.request(dead)))
        await j.settle(dead, held.version, done(ttl_ms=SHORT_MS))
        await self.pass_ms(SHORT_MS + 50)
        await j.sweep()
        must(await j.sweep() == 0, "what was swept is gone")
        must(await j.read(dead) is None, "an expired record is gone")
        must(await j.read(live) is not None, "an in-flight record past its lease is not")

    async def _fill(self, j: Journal) -> dict[tuple[str, str], str]:
        keys: dict[tuple[str, str], str] = {}
        for name in ("read s-1", "send s-1", "read s-2", "send s-2", "send s-3", "x s-4"):
            tool, session = name.split()
            key = keys[tool, session] = f"{tool}-{session}-{self.name}-end"
            claimed(await j.begin(self.request(key, tool=f"tools/{tool}", session=session)))
            await self.pass_ms(2)  # newest first is by the store's clock
        return keys

    async def _expect(self, j: Journal, keys: list[str], **which: str) -> None:
        found = [record.key for record in await j.list(tenant=self.tenant, **which)]  # type: ignore[arg-type]
        must(found == keys, f"{which} lists {keys}, not {found}")
