"""One recorded call of a model or an MCP server: answered by the replay, or made and recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from antiphon._drive import AFTER, until_cancelled, was_cancelled
from antiphon._lineage import permitted
from antiphon._recording import plain
from antiphon._scope import EARLIER, ORPHAN_LANE, RunScope, Site, undoing
from antiphon.contract.events import REFUSAL_EVENT
from antiphon.errors import AntiphonError, RunCancelled, StoreError, class_name, held_by
from antiphon.ports import AS_RECORDED, Answer, Invocation, Row

log = logging.getLogger("antiphon.run")
_LARGEST_HELD = 16_384


class Boundary:
    """Used for everything that is recorded without a claim. Open, ask, then start, chunk and finish."""

    def __init__(
        self,
        scope: RunScope,
        kind: str,
        name: str,
        arguments: Any,
        payload: dict[str, Any],
        digest: str | None = None,
        meta: dict[str, Any] | None = None,
        asynchronous: bool = False,
        stream: bool = False,
        send: Any = None,
        body: Any = None,
        digest_of: Callable[[Any], str] | None = None,
    ) -> None:
        """*digest_of* computes the digest of arguments that redaction changed."""
        if scope.cancelled and not undoing.get():
            raise RunCancelled(f"The run of this call was cancelled: {name} was not called.")
        self.scope = scope
        self.kind = kind
        self.name = name
        self.asynchronous = asynchronous
        self.stream = stream
        self.send = send
        self.body = body
        raw = digest if digest is not None else plain.digest_of(arguments)
        clean, shown, masking = scope.present(arguments, raw)
        if masking is not None and digest_of is not None and shown != raw:
            shown = digest_of(clean)
        self.arguments, self.shown = arguments, clean
        self.meta = {} if meta is None else meta
        self.site: Site = scope.enter(name, shown)
        if self.site.lane == ORPHAN_LANE:
            self.meta = {**self.meta, "orphan": True}
        self.started = scope.clock_ms()
        self.payload = {"kind": kind, "name": name, "digest": shown, "nth": self.site.nth, **payload}
        if masking is not None:
            self.payload["rawDigest"] = raw
        self.digest = shown
        self._raw = raw
        self._begun = False
        self._reused = False
        self._chunks: Any = None
        self._live: Invocation | None = None

    async def answer(self) -> Answer | None:
        """The answer of the replay or of the cache, or ``None`` if the call must be made."""
        scope = self.scope
        if scope.invoker is None:
            if scope.llm_cache is None or not self._keyed:
                return None
            kept: Answer | None = None
            if not self.stream:
                kept = await scope.llm_cache.find(*self._place)
            elif EARLIER in scope.gateway_state:
                kept = scope.gateway_state[EARLIER].given(*self._place[:2])
            self._reused = kept is not None
            return kept
        call = Invocation(
            self.kind,
            self.name,
            self.arguments,
            self.digest,
            self.site,
            stream=self.stream,
            body=self.body,
            send=self.send,
            dialect=str(self.payload.get("provider", "")),
            earlier_answer=self._earlier_answer if self._keyed and EARLIER in scope.gateway_state else None,
            begin=self.start,
        )
        try:
            answer = await scope.invoker.answer(call)
        except Exception as error:
            if self._begun:
                self._live = call  # a model was asked, as if by the code's own call
                await self.finish("error", error=error_payload(error))
            raise
        if answer is None or answer.source == "live":
            self._live = call
        elif self.asynchronous and answer.chunks is None and was_cancelled(answer.error):
            await self.start()
            try:
                await until_cancelled(self.name, answer.meta.get(AFTER))
            finally:
                await self.finish("error", error=dict(answer.error or {}), value=answer.value)
        return answer

    def _earlier_answer(self) -> Answer | None:
        found: Answer | None = self.scope.gateway_state[EARLIER].given(*self._place[:2])
        return found

    def asking(self) -> permitted:
        """Wraps asking the model and reading its answer: the sandbox of a replay permits only that."""
        return permitted(self._live is not None)

    @property
    def _keyed(self) -> bool:
        return self.kind == "llm" and "variant" in self.payload

    @property
    def _place(self) -> tuple[str, str, bool]:
        """The cache key of an answer: the key of the raw request, and its variant (D14, D21)."""
        return self._raw, str(self.payload["variant"]), self.asynchronous

    async def _write(self, rows: Sequence[Row]) -> None:
        scope = self.scope
        if self.asynchronous and not scope.in_memory:
            if scope.write_async is not None:
                await scope.write_async(rows)
        elif scope.write is not None:
            scope.write(rows)

    async def _write_made(self, rows: Sequence[Row]) -> None:
        """Write events of a call that was made: its answer is worth more than they are."""
        try:
            await self._write(rows)
        except StoreError as error:
            log.error("%d events of a call to %s are missing from the run log: %s", len(rows), self.name, error)

    async def start(self) -> None:
        """Write the start event once; only then may the call be made."""
        if self._begun:
            return
        self._begun = True
        if self.scope.records:
            await self._write((self.scope.encode("call.started", self.site, self.payload, self.meta),))

    def chunk(self, data: Any, gap_ms: float) -> None:
        """Record a chunk of a stream; it is written when the reader asks for the next one (:meth:`pulled`)."""
        if self._chunks is None:
            self._chunks = self.scope.chunks(self.site)
        self._chunks.add(data, gap_ms)

    async def pulled(self) -> None:
        """The reader asks for the next chunk: write pending ones."""
        if self._chunks is not None and (rows := self._chunks.due()):
            await self._write_made(rows)

    async def give(self, answer: Answer) -> None:
        """Write the outcome of a call that a replay or the cache answered."""
        meta = dict(answer.meta)
        ended = getattr(self.scope.invoker, "ended", None)
        if meta.pop(AS_RECORDED, False) and ended is not None:
            ended(self.site)  # a strict replay: nothing to write and nothing to compare
            return
        if answer.chunks is not None and ended is None and self.scope.records:  # a separate run, with its chunks
            gaps = meta.pop("gapsMs", ())
            for number, chunk in enumerate(answer.chunks):
                self.chunk(chunk, gaps[number] if number < len(gaps) else 0)
            meta["stream"] = True
        error = None if answer.error is None else dict(answer.error)
        await self.finish(answer.outcome, value=answer.value, error=error, meta=meta)

    async def finish(
        self,
        outcome: str,
        *,
        value: Any = None,
        error: dict[str, Any] | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        """Write the outcome: ``ok``, ``error`` or ``refusal``."""
        payload: dict[str, Any] = {"outcome": outcome}
        if error is not None:
            payload["error"] = error
        if error is None or value is not None:
            payload["value"] = value
        scope = self.scope
        end_meta: dict[str, Any] = {"durationMs": scope.clock_ms() - self.started}
        if self._reused:
            end_meta["fromCache"] = True
        if meta:
            end_meta.update(meta)
        rows = [] if self._chunks is None else self._chunks.remaining()
        rows.append(scope.encode("call.finished", self.site, payload, end_meta))
        await self._write_made(rows)
        if scope.llm_cache is not None:
            fresh = outcome == "ok" and scope.invoker is None and not self._reused
            if fresh and self._keyed and not self.stream:
                await scope.llm_cache.keep(*self._place, value)
        if self._live is not None and self.kind == "llm":
            await self._judged(outcome, meta or {}, error)

    async def _judged(self, outcome: str, meta: dict[str, Any], failure: dict[str, Any] | None) -> None:
        """A model that a replay really asked may refuse where it had not, or the other way round (L4)."""
        judge = getattr(self.scope.invoker, "judge", None)
        found = None if judge is None else judge(self._live, outcome, meta.get("refusalReason"), failure)
        if found is not None:
            if self.scope.records:
                await self._write((self.scope.encode(REFUSAL_EVENT, self.site, found.payload, {}),))
            raise found.error


def error_payload(error: BaseException, *, held: bool = False) -> dict[str, Any]:
    """An exception as it is recorded, on request with what it *held*; a stand-in is recorded as the original."""
    recorded = getattr(error, "data", {}).get("recorded") if isinstance(error, AntiphonError) else None
    if recorded is not None:
        return dict(recorded)
    kind = type(error)
    said = {"class": class_name(kind), "code": kind.__name__, "message": str(error)}
    return {**said, **held_by(error, _as_json)} if held else said


def _as_json(value: Any) -> Any:
    data = plain.dump(value)
    form = orjson.loads(data)
    if len(data) > _LARGEST_HELD or plain.chunk_of(form) != value:
        raise TypeError(type(value).__name__)
    return form
