"""What is kept of a stream of events holds no secret that runs through several of them (R14, D18)."""

from __future__ import annotations

import json

import pytest

from antiphon._gateway import codec
from antiphon._gateway.result_store import _clean_chunks
from antiphon.redact import Redactor, Rules

SECRET = "sk-ant-api03-AbC123dEf456GhI789jKl012MnO345"


def events(text: str, size: int) -> list[str]:
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    return [f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': part}}]})}\n\n" for part in parts]


@pytest.mark.parametrize("size", [3, 5, 20])
def test_a_secret_in_events_is_seen(size: int) -> None:
    told = events(f"it is {SECRET} now", size)
    for pieces in (told, [piece.encode() for piece in told]):
        clean, changed = _clean_chunks(Redactor(Rules(), salt="unit"), codec.encode(pieces))
        assert changed
        assert b"[anthropic:" in clean
        assert len(codec.plain(clean)) == len(pieces)


def test_a_stream_without_a_secret_is_kept_as_it_is() -> None:
    for pieces in (events("nothing here", 4), [b"\xff\x00", b"abc"], ["a", "b"], [], [{"$bytes": 1}]):
        data = codec.encode(pieces)
        assert _clean_chunks(Redactor(Rules(), salt="unit"), data) == (data, False)
