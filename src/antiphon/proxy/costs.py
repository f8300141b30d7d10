"""Cost estimates for model responses that report no usage."""

from __future__ import annotations

import json
import logging
from typing import Any

from antiphon._recording.run import Run
from antiphon._scope import Site
from antiphon.adapters._wire import chunk_bytes
from antiphon.llm.stream import assemble_response, sse_events
from antiphon.ops.app import CHARGES, Charges, model_of, paid_usage, tokens_of

log: logging.Logger = logging.getLogger("antiphon.proxy")

_CHARACTERS = 4
"""Characters of JSON per token."""


class Estimates:
    """Estimates usage from the length of request and response where none is reported, and charges it to *run*.

    OpenAI reports the usage of a stream only on request, and a stream that breaks off never reports it.
    """

    def __init__(self, run: Run) -> None:
        self.answers: int = 0
        self.given: set[str] = set()
        """Calls answered from a recording, which cost nothing."""
        self._name = run.id
        self._heard: dict[str, list[bytes]] = {}
        """Chunks of open streams."""
        self._charges: Charges = run.scope.gateway_state[CHARGES]
        self._charges.usage = self._usage
        self._chunks = run.scope.chunks
        run.scope.chunks = self._teed

    def _teed(self, site: Site) -> Any:
        chunks = self._chunks(site)
        return _ChunkTee(chunks, self._heard.setdefault(site.call, [])) if site.call in self._charges.asked else chunks

    def _usage(self, call: str, began: dict[str, Any], ended: dict[str, Any], meta: dict[str, Any]) -> Any:
        heard = self._heard.pop(call, [])
        if call in self.given:
            self.given.discard(call)
            return None
        usage, failed = paid_usage(call, began, ended, meta), ended["outcome"] == "error"
        if meta.get("fromCache") or (failed and not heard) or tokens_of(usage) != (0, 0):
            return usage
        if not self.answers:
            model = model_of(began)
            log.warning("run %s: an answer of %s came without usage; its cost is estimated", self._name, model)
        self.answers += 1
        answer = assemble_response(sse_events(heard), str(began.get("provider"))) if failed else ended.get("value")
        return {"inputTokens": _tokens(began.get("providerRequest")), "outputTokens": _tokens(answer)}


class _ChunkTee:
    """Passes on the chunks of a stream and keeps a copy."""

    def __init__(self, chunks: Any, heard: list[bytes]) -> None:
        self._heard = heard
        self._add = chunks.add
        self.due, self.rest = chunks.due, chunks.rest

    def add(self, data: Any, gap_ms: float) -> None:
        self._heard.append(chunk_bytes(data))
        self._add(data, gap_ms)


def _tokens(value: Any) -> int:
    return -(-len(json.dumps(value, default=str)) // _CHARACTERS)
