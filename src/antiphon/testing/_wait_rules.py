"""Rules of waiting for somebody else's claim."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from antiphon._drive import drive
from antiphon.ports import Claimed, Journal
from antiphon.stores._adapters import AsyncFromSync
from antiphon.testing._harness import Harness, Step, claimed, done, existing, failed, must

WAITERS = 4
PATIENCE_S = 30.0
Act = Callable[[str, int], Awaitable[object]]


class WaitRules(Harness):
    """One method per rule; nobody is woken by chance: patience is far longer than any pause in here."""

    async def rule_wait_returns_at_once_if_nothing_to_wait_for(self, j: Journal) -> None:
        """No record, another version, or a settled record: there is nothing to wait for."""
        key = self.key()
        await self._returns_soon(j, key, 1)
        held = claimed(await j.begin(self.request(key)))
        await self._returns_soon(j, key, held.version + 1)
        settled = await j.settle(key, held.version, done()) or 0
        await self._returns_soon(j, key, held.version)
        await self._returns_soon(j, key, settled)

    async def rule_wait_times_out(self, j: Journal) -> None:
        """A waiter is given back its time, and may wait again."""
        held = claimed(await j.begin(self.request(self.key())))
        for _ in range(2):
            started = time.monotonic()
            await j.wait(self.key(), held.version, 0.05)
            must(time.monotonic() - started >= 0.04, "it waited")

    async def rule_settle_wakes_all_waiters(self, j: Journal) -> None:
        """Everybody who waits learns of the outcome."""
        await self._woken_by(j, lambda key, version: j.settle(key, version, done()))

    async def rule_take_wakes_all_waiters(self, j: Journal) -> None:
        """Everybody who waits learns that the claim changed hands."""
        await self._woken_by(j, lambda key, version: j.take_over(self.request(key, "call-2"), version))

    async def rule_clear_wakes_all_waiters(self, j: Journal) -> None:
        """Everybody who waits learns that the claim is gone."""
        await self._woken_by(j, lambda key, version: j.clear(key))

    async def rule_flush_wakes_all_waiters(self, j: Journal) -> None:
        """Flushing is clearing."""
        await self._woken_by(j, lambda key, version: j.flush(tenant=self.tenant))

    async def rule_a_waiter_that_leaves_concerns_nobody_else(self, j: Journal) -> None:
        """One waiter gives up (or is cancelled); the others are woken as if it had never been there."""
        key = self.key()
        held = claimed(await j.begin(self.request(key)))

        async def leave(journal: Journal) -> float:
            if self.face == "sync":
                await journal.wait(key, held.version, 0.05)
                return 0.0
            import asyncio

            task = asyncio.ensure_future(journal.wait(key, held.version, PATIENCE_S))
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.wait([task])
            must(task.cancelled(), "a cancelled waiter is cancelled")
            return 0.0

        waited = await self.together(
            j, [leave, self._settle_later(key, held.version), *[self._wait(key, held.version)] * WAITERS]
        )
        must(max(waited[2:]) < PATIENCE_S / 2, "the others were woken")

    async def rule_one_waiter_takes_over(self, j: Journal) -> None:
        """When the leader fails, exactly one of those who waited goes on."""
        key = self.key()
        held = claimed(await j.begin(self.request(key)))

        async def follow(journal: Journal, n: int) -> bool:
            await journal.wait(key, held.version, PATIENCE_S)
            seen = existing(await journal.read(key))
            if seen.current.state == "inflight":
                return False
            return isinstance(
                await journal.take_over(self.request(key, f"follower-{n}"), seen.current.version), Claimed
            )

        async def fail(journal: Journal) -> bool:
            await self.sleep(0.2)
            return await journal.settle(key, held.version, failed()) is None

        took = await self.together(j, [fail, *(lambda journal, n=n: follow(journal, n) for n in range(WAITERS))])
        must(sum(took) == 1, f"exactly one waiter takes over, not {sum(took)}")

    async def rule_waiters_of_both_faces(self, j: Journal) -> None:
        """A thread that waits is woken by a task, and a task by a thread, through journals of one store."""
        import asyncio
        import threading

        key = self.key()
        held = claimed(await j.begin(self.request(key)))
        waited: list[float] = []

        def in_thread() -> None:
            async def wait_and_close() -> None:
                journal = AsyncFromSync(store.open_sync()) if self.face == "async" else store.open_async()
                waited.append(await self._wait(key, held.version)(journal))
                await journal.close()

            drive(wait_and_close()) if self.face == "async" else asyncio.run(wait_and_close())

        store = self.store
        thread = threading.Thread(target=in_thread)
        thread.start()
        await self.sleep(0.2)
        await j.settle(key, held.version, done())
        while thread.is_alive():
            await self.sleep(0.01)
        must(waited and waited[0] < PATIENCE_S / 2, "the other face was woken")

    async def _woken_by(self, j: Journal, act: Act) -> None:
        key = self.key()
        held = claimed(await j.begin(self.request(key)))

        async def later(journal: Journal) -> float:
            await self.sleep(0.2)
            await act(key, held.version)
            return 0.0

        waited = await self.together(j, [later, *[self._wait(key, held.version)] * WAITERS])
        must(max(waited) < PATIENCE_S / 2, f"the waiters were woken, not after {waited} s")

    def _settle_later(self, key: str, version: int) -> Step[float]:
        async def settle(journal: Journal) -> float:
            await self.sleep(0.4)
            await journal.settle(key, version, done())
            return 0.0

        return settle

    def _wait(self, key: str, version: int) -> Step[float]:
        async def wait(journal: Journal) -> float:
            started = time.monotonic()
            await journal.wait(key, version, PATIENCE_S)
            return time.monotonic() - started

        return wait

    async def _returns_soon(self, j: Journal, key: str, version: int) -> None:
        started = time.monotonic()
        await j.wait(key, version, PATIENCE_S)
        must(time.monotonic() - started < PATIENCE_S / 2, "there was nothing to wait for")
