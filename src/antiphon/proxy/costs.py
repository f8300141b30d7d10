"""What model answers cost that came without their usage: they are not free."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from antiphon._recording.run import Run
from antiphon._scope import Site
from antiphon.adapters._wire import chunk_bytes
from antiphon.config.model import PriceSection
from antiphon.llm.stream import assemble_response, sse_events
from antiphon.ops.app import cost_of, model_of, tokens_of
from antiphon.ports import Row

log: logging.Logger = logging.getLogger("antiphon.proxy")

_CHARACTERS = 4
"""Of JSON, for one token."""


class _Asked(NamedTuple):
    """A model call that is under way."""

    model: str
    provider: str
    tokens: int
    heard: list[bytes]
    """The pieces of its stream."""


class Estimates:
    """Counts each answer without usage by the length of request and answer, as spent by *run*.

    OpenAI's streams tell no usage unless they are asked to, and a stream that breaks off never does.
    """

    def __init__(self, run: Run, prices: Mapping[str, PriceSection]) -> None:
        self.answers: int = 0
        self.given: set[str] = set()
        """Calls that a recording answers: they cost nothing."""
        self._name = run.id
        self._prices = prices
        self._asked: dict[str, _Asked] = {}
        self._scope = run.scope
        self._write, self._chunks = run.scope.encode, run.scope.chunks
        run.scope.encode, run.scope.chunks = self._encode, self._listening

    def _encode(self, kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]) -> Row:
        if site is not None:
            if kind == "call.started" and payload.get("kind") == "llm":
                tokens = _tokens(payload.get("providerRequest"))
                self._asked[site.call] = _Asked(model_of(payload), str(payload.get("provider")), tokens, [])
            elif kind == "call.finished" and site.call in self._asked:
                self._finished(site.call, self._asked.pop(site.call), payload, meta)
        return self._write(kind, site, payload, meta)

    def _listening(self, site: Site) -> Any:
        chunks, asked = self._chunks(site), self._asked.get(site.call)
        return chunks if asked is None else _Heard(chunks, asked.heard)

    def _finished(self, call: str, asked: _Asked, payload: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        if call in self.given:
            self.given.discard(call)
            return
        failed = payload["outcome"] == "error"
        if meta.get("fromCache") or (failed and not asked.heard) or tokens_of(meta.get("usage")) != (0, 0):
            return
        answer = assemble_response(sse_events(asked.heard), asked.provider) if failed else payload.get("value")
        usage = {"inputTokens": asked.tokens, "outputTokens": _tokens(answer)}
        self._scope.gateway_state["loop"].loop.spend(cost_of(self._prices.get(asked.model), usage))
        if not self.answers:
            log.warning("run %s: an answer of %s came without usage; its cost is estimated", self._name, asked.model)
        self.answers += 1


class _Heard:
    """Takes the chunks of a stream, and keeps them."""

    def __init__(self, chunks: Any, heard: list[bytes]) -> None:
        self._heard = heard
        self._add = chunks.add
        self.due, self.rest = chunks.due, chunks.rest

    def add(self, data: Any, gap_ms: float) -> None:
        self._heard.append(chunk_bytes(data))
        self._add(data, gap_ms)


def _tokens(value: Any) -> int:
    return -(-len(json.dumps(value, default=str)) // _CHARACTERS)
