"""What model requests cost beyond what is recorded: answers without usage, and requests that are not recorded."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from antiphon._recording.run import Run
from antiphon._scope import Site
from antiphon.adapters._wire import chunk_bytes
from antiphon.llm.response import usage_and_stop
from antiphon.llm.stream import assemble_response, sse_events
from antiphon.ops.costs import CHARGES, CostMeter, model_of, paid_usage, tokens_of

log: logging.Logger = logging.getLogger("antiphon.proxy")

_CHARACTERS = 4
"""Characters of JSON per token."""


_UNRECORDED = (
    re.compile(r"(?<!/chat)/completions/*$"),
    re.compile(r"/v1/complete/*$"),
    re.compile(r"/embeddings/*$"),
    re.compile(r"/models/(?P<model>[^/:]+):(?:e|batchE|asyncBatchE)mbedContents?/*$"),
)
"""Paths of requests that cost tokens and are not recorded: older completions, embeddings."""


class Unrecorded(NamedTuple):
    """A request that costs tokens and is not recorded."""

    model: str
    body: dict[str, Any]
    provider: str


@lru_cache(maxsize=1024)
def _model_in(method: str, path: str) -> str | None:
    """The model that the path of a request with costs names; empty if it names none."""
    found = None if method != "POST" else next(filter(None, (one.search(path) for one in _UNRECORDED)), None)
    return None if found is None else found.groupdict().get("model", "")


def unrecorded(method: str, path: str, body: bytes) -> Unrecorded | None:
    """The request with costs; a ``ValueError`` if it cannot be read, ``None`` if it is none."""
    named = _model_in(method, path)
    if named is None:
        return None
    asked = json.loads(body)
    if not isinstance(asked, dict):
        raise ValueError("The request is not a JSON object.")
    return Unrecorded(named or str(asked.get("model", "")), asked, "gemini" if named else "openai-chat")


class Estimates:
    """Estimates usage from the length of request and response where none is reported, and charges it to *run*.

    OpenAI reports the usage of a stream only on request, and a stream that breaks off never reports it.
    """

    def __init__(self, run: Run, is_given: Callable[[], bool]) -> None:
        """*is_given*: whether a recording answers the current request, which then costs nothing."""
        self.answers: int = 0
        self._is_given = is_given
        self._name = run.id
        self._heard: dict[str, list[bytes]] = {}
        """Chunks of open streams."""
        self._charges: CostMeter = run.scope.gateway_state[CHARGES]
        self._charges.usage = self._usage
        self._chunks = run.scope.chunks
        run.scope.chunks = self._teed

    def _teed(self, site: Site) -> Any:
        chunks = self._chunks(site)
        return (
            _ChunkTee(chunks, self._heard.setdefault(site.call, []))
            if site.call in self._charges.open_calls
            else chunks
        )

    def _usage(self, call: str, began: dict[str, Any], ended: dict[str, Any], meta: dict[str, Any]) -> Any:
        heard = self._heard.pop(call, [])
        if self._is_given():
            return None
        usage, failed = paid_usage(call, began, ended, meta), ended["outcome"] == "error"
        if meta.get("fromCache") or (failed and not heard) or tokens_of(usage) != (0, 0):
            return usage
        answer = assemble_response(sse_events(heard), str(began.get("provider"))) if failed else ended.get("value")
        return self._estimated(model_of(began), began.get("providerRequest"), answer)

    def charge(self, request: Unrecorded, heard: Sequence[bytes]) -> None:
        """Charge the run for a request that is not recorded, by the chunks of its answer."""
        parts = _parts(heard)
        usages = (usage_and_stop(part, request.provider)[0] for part in reversed(parts))
        usage: Any = next((usage for usage in usages if tokens_of(usage) != (0, 0)), None)
        if usage is None:
            usage = self._estimated(request.model, request.body, [text for part in parts for text in _texts(part)])
        self._charges.charge(request.model, usage)

    def _estimated(self, model: str, request: Any, answer: Any) -> dict[str, int]:
        if not self.answers:
            log.warning("run %s: an answer of %s came without usage; its cost is estimated", self._name, model)
        self.answers += 1
        return {"inputTokens": _tokens(request), "outputTokens": _tokens(answer) if answer else 0}


class _ChunkTee:
    """Passes on the chunks of a stream and keeps a copy."""

    def __init__(self, chunks: Any, heard: list[bytes]) -> None:
        self._heard = heard
        self._add = chunks.add
        self.due, self.remaining = chunks.due, chunks.remaining

    def add(self, data: Any, gap_ms: float) -> None:
        self._heard.append(chunk_bytes(data))
        self._add(data, gap_ms)


def _parts(heard: Sequence[bytes]) -> list[Any]:
    """The JSON of an answer: one value, or one per event."""
    with suppress(ValueError):
        return [orjson.loads(b"".join(heard))]
    return list(sse_events(heard))


def _texts(answer: Any) -> list[Any]:
    """The texts of a completion; an answer with embeddings has none."""
    if not isinstance(answer, dict):
        return []
    choices = answer.get("choices")
    texts = [one.get("text") for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    return [text for text in (*texts, answer.get("completion")) if text]


def _tokens(value: Any) -> int:
    return -(-len(json.dumps(value, default=str)) // _CHARACTERS)
