"""Rules of the run log and of breaker state."""

from __future__ import annotations

from antiphon.contract.events import CodeVersion
from antiphon.errors import StoreVersionError
from antiphon.ports import BreakerRow, Journal, Row
from antiphon.testing._harness import Harness, Step, claimed, done, existing, must

WRITERS, EACH = 8, 15


class LogRules(Harness):
    """One method per rule."""

    async def rule_events_come_with_the_claim(self, j: Journal) -> None:
        """A claim's events are written with it: by the winner only, by the settler always, in order."""
        key, run = self.key(), self.key("run")
        held = claimed(await j.begin(self.request(key), self.rows(run, "call.started")))
        existing(await j.begin(self.request(key, "call-2"), self.rows(run, "lost")))
        existing(await j.take_over(self.request(key, "call-2"), held.version + 7, self.rows(run, "lost")))
        await j.settle(key, held.version, done(), self.rows(run, "call.finished", "decision"))
        events = await j.events(run)
        must([event.type for event in events] == ["call.started", "call.finished", "decision"], "as it happened")
        must([event.seq for event in events] == [0, 1, 2], "numbered from 0 without a gap")

    async def rule_event_comes_back_as_written(self, j: Journal) -> None:
        """Place, links, payload and metadata of an event are kept."""
        run = self.key("run")
        place = b'"lane":"0/1","index":7,"call":"c","parent":"p"'
        body = b'{%b,"payload":{"a":[1.5,null,"\xc3\xa4"]},"meta":{"ms":3},"v":1}' % place
        must(await j.append(run, [Row(run, "call.started", 1234, body)]) == 0, "the first number is 0")
        (event,) = await j.events(run)
        must((event.run, event.seq, event.type, event.at_ms) == (run, 0, "call.started", 1234), "the line")
        must((event.lane, event.index, event.call, event.parent) == ("0/1", 7, "c", "p"), "its place")
        must(event.payload == {"a": [1.5, None, "ä"]} and event.meta == {"ms": 3}, "its content")

    async def rule_append_is_gap_free(self, j: Journal) -> None:
        """Many writers of one run: every number once, each writer's rows together and in order."""
        run = self.key("run")

        def writer(name: int) -> Step[dict[int, str]]:
            async def write(journal: Journal) -> dict[int, str]:
                types = [(f"{name}.{n}.a", f"{name}.{n}.b") for n in range(EACH)]
                return {await journal.append(run, self.rows(run, *pair)): pair[0] for pair in types}

            return write

        told = await self.together(j, [writer(name) for name in range(WRITERS)])
        events = await j.events(run, limit=10 * WRITERS * EACH)
        must([event.seq for event in events] == list(range(2 * WRITERS * EACH)), "no gap, nothing twice")
        for first, kind in (item for answers in told for item in answers.items()):
            must(events[first].type == kind, "a writer is told the number its first row really got")
        must(sum(map(len, told)) == WRITERS * EACH, "no number is told twice")
        for name in range(WRITERS):
            mine = [event.type for event in events if event.type.startswith(f"{name}.")]
            must(mine == [f"{name}.{n}.{part}" for n in range(EACH) for part in "ab"], "each writer's order is kept")

    async def rule_event_ranges(self, j: Journal) -> None:
        """Events are read by range, in order, at most as many as asked for."""
        run = self.key("run")
        must(await j.append(run, self.rows(run, *map(str, range(10)))) == 0, "the first number")
        must(await j.append(run, self.rows(run, *map(str, range(10, 20)))) == 10, "the next one")

        async def seqs(**which: int | None) -> list[int]:
            return [event.seq for event in await j.events(run, **which)]  # type: ignore[arg-type]

        must(await seqs(start=5, stop=8) == [5, 6, 7], "start included, stop not")
        must(await seqs(start=18) == [18, 19], "to the end")
        must(await seqs(limit=3) == [0, 1, 2], "a limit")
        must(await seqs(start=3, stop=10, limit=2) == [3, 4], "all three")
        must(await seqs(start=20) == [] and await seqs(start=7, stop=7) == [], "nothing there")
        must(await j.events(self.key("no-such-run")) == [], "no such run")

    async def rule_runs_do_not_mix(self, j: Journal) -> None:
        """Two runs written at once keep their own events and numbers."""
        runs = [self.key(f"run-{n}") for n in range(4)]

        def writer(run: str) -> Step[int]:
            async def write(journal: Journal) -> int:
                for n in range(EACH):
                    await journal.append(run, self.rows(run, f"{run}.{n}"))
                return 0

            return write

        await self.together(j, [writer(run) for run in runs])
        for run in runs:
            must([event.type for event in await j.events(run)] == [f"{run}.{n}" for n in range(EACH)], "its own events")

    async def rule_opening_a_run_twice_keeps_the_first(self, j: Journal) -> None:
        """A manifest is inserted once, replaced only on purpose, and may come after the first event."""
        run = self.key("run")
        must(await j.manifest(run) is None, "there is no such run yet")
        await j.append(run, self.rows(run, "early"))
        must(await j.manifest(run) is None, "an event is no manifest")
        await j.open_run(self.manifest(run))
        await j.open_run(self.manifest(run, name="again", status="failed"))
        must(await j.manifest(run) == self.manifest(run), "the first one stays")
        finished = self.manifest(
            run, status="completed", finished_at_ms=2_000, tags={"a": "b"}, code=CodeVersion(commit="c")
        )
        await j.update_run(finished)
        must(await j.manifest(run) == finished, "updating replaces it")
        must(len(await j.events(run)) == 1, "events are untouched")

    async def rule_runs_are_listed_newest_first(self, j: Journal) -> None:
        """By tenant, id prefix, name and status, page by page."""
        names = [self.key(f"{n}-run") for n in range(5)]
        for n, run in enumerate(names):
            status = "completed" if n % 2 else "running"
            await j.open_run(self.manifest(run, started_at_ms=1_000 + n // 2, name=f"n{n % 3}", status=status))
        await j.open_run(self.manifest(self.key("theirs"), tenant="other-" + self.name))
        newest = list(reversed(names))

        async def ids(**which: object) -> list[str]:
            return [manifest.id for manifest in await j.runs(tenant=self.tenant, **which)]  # type: ignore[arg-type]

        must(await ids() == newest, "newest first, equal times by id")
        must(await ids(limit=2) == newest[:2], "a page")
        must(await ids(limit=2, before=newest[1]) == newest[2:4], "the next page")
        must(await ids(name="n1") == [names[4], names[1]], "by name")
        must(await ids(status="completed") == [names[3], names[1]], "by status")
        must(await ids(prefix="2-run") == [names[2]], "by the beginning of the id")
        must(await ids(prefix="9") == [], "nothing fits")

    async def rule_deleting_a_run(self, j: Journal) -> None:
        """Manifest and events go together; others stay."""
        run, other = self.key("run"), self.key("run2")
        for name in (run, other):
            await j.open_run(self.manifest(name))
            await j.append(name, self.rows(name, "a", "b"))
        must(await j.delete_run(run), "there is something to delete")
        must(not await j.delete_run(run), "but only once")
        must(await j.manifest(run) is None and await j.events(run) == [], "nothing is left")
        must(len(await j.events(other)) == 2, "another run is untouched")
        must(await j.append(run, self.rows(run, "a")) == 0, "the name can be used anew")

    async def rule_newer_formats_are_refused(self, j: Journal) -> None:
        """What a newer release wrote into the log is not guessed at."""
        run = self.key("run")
        await j.open_run(self.manifest(run, v=99))
        await j.append(run, [Row(run, "call.started", 1, b'{"lane":"0","v":99,"novelty":true}')])
        for read in (j.manifest, j.events):
            try:
                await read(run)
            except StoreVersionError:
                continue
            must(False, f"{read.__name__} should refuse a newer format")

    async def rule_breakers_keep_the_newest_epoch(self, j: Journal) -> None:
        """State is kept by tenant; an older epoch never replaces a newer one, an equal one may."""
        key = self.key("breaker")
        await j.save_breaker(self.tenant, BreakerRow(key, "OPEN", 3, 99, "tripped", 1, "a"))
        await j.save_breaker(self.tenant, BreakerRow(key, "CLOSED", 2, 0, "stale", 2, "b"))
        must(await j.load_breakers(self.tenant) == [BreakerRow(key, "OPEN", 3, 99, "tripped", 1, "a")], "3 beats 2")
        await j.save_breaker(self.tenant, BreakerRow(key, "FORCED_OPEN", 3, 0, "operator", 3, "c"))
        await j.save_breaker(self.tenant, BreakerRow(key + "x", "OPEN", 1, 5, "", 1))
        rows = sorted(await j.load_breakers(self.tenant))
        must([row.state for row in rows] == ["FORCED_OPEN", "OPEN"], "an equal epoch replaces; others stand beside")
        must(await j.load_breakers("other-" + self.name) == [], "another tenant has none")

    async def rule_ping_says_what_it_is(self, j: Journal) -> None:
        """Reaching the store gives its kind and whether it keeps what it was told."""
        answer = await j.ping()
        must(answer["durable"] is j.durable, "it knows whether it is durable")
        must(self.store.url, "it has an address")
