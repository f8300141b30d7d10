"""The rules every journal keeps, as a suite that any store can be put through.

    from functools import partial
    import pytest
    from antiphon.testing.journal_conformance import FACES, JournalConformance

    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize("rule", JournalConformance.rules(across_processes=True))
    def test_my_store(rule, face, tmp_path):
        JournalConformance(partial(MyStore, tmp_path / "my.db"), face).check(rule)

A rule is written once, as a coroutine, and runs in both faces: the synchronous journal is put behind coroutines that
never suspend. It fails with :class:`AssertionError` and one sentence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from antiphon._drive import drive
from antiphon.errors import StoreVersionError
from antiphon.ports import Journal, Store
from antiphon.testing._harness import Face, claimed, must
from antiphon.testing._process_rules import ProcessRules
from antiphon.testing._rules import AdminRules, ClaimRules, LogRules, RecordRules, WaitRules

__all__ = ["FACES", "Face", "JournalConformance"]

FACES: tuple[Face, ...] = ("sync", "async")


class JournalConformance(ClaimRules, RecordRules, AdminRules, WaitRules, LogRules, ProcessRules):
    """A store under test in one face.

    *make* gives the store; for rules across processes it must be picklable and reach the same data each time.
    *advance* moves the store's clock by milliseconds; without it the suite really waits (less than a second per rule).
    *make_newer* changes the stored record of a key to a format of the future, as a newer release would write it.
    """

    def __init__(
        self,
        make: Callable[[], Store],
        face: Face = "sync",
        *,
        advance: Callable[[int], None] | None = None,
        make_newer: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__(make, face, advance)
        self._make_newer = make_newer

    @classmethod
    def rules(cls, *, across_processes: bool = False, newer_records: bool = False) -> list[str]:
        """The names of the rules; some need processes that share the store, one needs *make_newer*."""
        names = [name.removeprefix("rule_") for name in dir(cls) if name.startswith("rule_")]
        if across_processes:
            names += [name.removeprefix("process_rule_") for name in dir(cls) if name.startswith("process_rule_")]
        return names + ["newer_records_are_refused"] * newer_records

    def check(self, rule: str) -> None:
        """Run one rule to its end; raises ``AssertionError`` if the store breaks it."""
        if self.face == "sync":
            drive(self._run(rule))
        else:
            asyncio.run(self._run(rule))

    async def newer_records_are_refused(self, j: Journal) -> None:
        """A record of a newer release fails closed: it is neither reused nor replaced (D1)."""
        assert self._make_newer is not None
        key = self.key()
        held = claimed(await j.begin(self.request(key)))
        self._make_newer(key)
        for what, step in (
            ("begin", lambda: j.begin(self.request(key, "call-2"))),
            ("take_over", lambda: j.take_over(self.request(key, "call-2"), held.version)),
            ("read", lambda: j.read(key)),
        ):
            try:
                answer = await step()
            except StoreVersionError:
                continue
            must(False, f"{what} should refuse a newer record, but answered {answer}")

    async def _run(self, rule: str) -> None:
        step = next(
            found
            for prefix in ("rule_", "process_rule_", "")
            if (found := getattr(self, prefix + rule, None)) is not None
        )
        journal = self.open()
        try:
            await step(journal)
        finally:
            await journal.close()
