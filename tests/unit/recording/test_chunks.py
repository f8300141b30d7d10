"""Streams in the log: every chunk, in order, without a secret that runs through several of them (D18, D21)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon._recording.recorder import GROUP, Chunks
from antiphon.ports import Row
from antiphon.redact import Redactor, Rules
from antiphon.redact._stream import EventChunks

SECRET = "sk-proj-Ab3dEf6hIj9kLmN0pQrStUvWxYz12345678"
REDACTOR = Redactor(Rules(), salt="00" * 16)


def recorded(*data: Any) -> list[Any]:
    """What is written of a stream that is read to its end."""
    chunks = Chunks(REDACTOR, lambda n, chunk, gap, was: Row("run", "call.chunk", n, json.dumps([chunk, gap]).encode()))
    rows: list[Row] = []
    for number, chunk in enumerate(data):
        chunks.add(chunk, float(number))
        rows += chunks.due()
    rows += chunks.remaining()
    assert [row.at_ms for row in rows] == list(range(len(data)))
    written = [json.loads(row.body) for row in rows]
    assert [gap for _, gap in written] == [float(number) for number in range(len(data))]
    return [chunk for chunk, _ in written]


def event(text: str) -> str:
    delta = {"choices": [{"index": 0, "delta": {"content": text}}]}
    return f"data: {json.dumps(delta)}\n\n"


def texts(stream: str) -> list[str]:
    lines = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
    return [json.loads(line)["choices"][0]["delta"]["content"] for line in lines]


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 3, 7, 20, 100])
def test_a_secret_split_over_text_pieces(size: int) -> None:
    data = cut(f"the key is {SECRET}, keep it", size)
    written = recorded(*data)
    assert len(written) == len(data)
    whole = "".join(written)
    assert whole.startswith("the key is [openai:")
    assert whole.endswith("], keep it")
    assert not any(SECRET[at : at + 8] in whole for at in range(8, len(SECRET) - 8))


@pytest.mark.parametrize("size", [1, 3, 7, 20])
def test_a_secret_split_over_deltas(size: int) -> None:
    data = [{"choices": [{"index": 0, "delta": {"content": part}}]} for part in cut(f"key: {SECRET} ok", size)]
    written = "".join(chunk["choices"][0]["delta"]["content"] for chunk in recorded(*data))
    assert written.startswith("key: [openai:")
    assert written.endswith("] ok")


@pytest.mark.parametrize("letters", [1, 4, 9])
@pytest.mark.parametrize("bytes_", [5, 40, 300, 5000])
def test_a_secret_split_over_server_sent_events_in_any_pieces(letters: int, bytes_: int) -> None:
    stream = "".join(event(part) for part in cut(f"key: {SECRET} ok", letters)) + "data: [DONE]\n\n"
    data = cut(stream, bytes_)
    written = recorded(*data)
    assert len(written) == len(data)
    assert "".join(texts("".join(written))).startswith("key: [openai:")
    assert "".join(written).endswith("data: [DONE]\n\n")


def test_a_character_cut_in_two_comes_back_as_it_was() -> None:
    whole = 'data: {"text": "Zürich"}\n\n'.encode()
    at = whole.index("ü".encode()) + 1
    from antiphon.adapters._wire import chunk_bytes, chunk_text

    data = ["data: {}\n\n", chunk_text(whole[:at]), chunk_text(whole[at:])]
    assert b"".join(chunk_bytes(chunk) for chunk in recorded(*data)) == b"data: {}\n\n" + whole


@given(st.lists(st.text(max_size=30), max_size=12), st.integers(1, 50))
def test_server_sent_events_without_secrets_are_left_alone(parts: list[str], size: int) -> None:
    stream = "".join(f"event: delta\r\ndata: {json.dumps({'n': part})}\r\n\r\n" for part in parts)
    data = cut(stream, size)
    chunks = EventChunks(Redactor(Rules(personal=False), salt="00"))
    written = [chunk for given_ in data for chunk in chunks.feed(given_)] + chunks.finish()
    if "[" not in "".join(map(str, written)):
        assert written == data


def test_a_piece_is_kept_as_it_was_when_its_reader_got_it() -> None:
    chunks = Chunks(REDACTOR, lambda n, chunk, gap, was: Row("run", "call.chunk", n, json.dumps(chunk).encode()))
    chunk = {"delta": "a", "tags": ["x"]}
    chunks.add(chunk, 0)
    chunk["tags"] = "changed by its reader"
    assert json.loads(chunks.remaining()[0].body) == {"delta": "a", "tags": ["x"]}


def test_objects_are_read_too() -> None:
    class Chunk:
        def __init__(self, text: str) -> None:
            self.text = text

        def model_dump(self, mode: str) -> dict[str, Any]:
            return {"delta": {"content": self.text}}

    written = recorded(*[Chunk(part) for part in cut(SECRET, 6)])
    assert "".join(chunk["delta"]["content"] for chunk in written).startswith("[openai:")


def test_pieces_are_written_in_groups_and_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("antiphon._recording.recorder.time.monotonic", lambda: now[0])
    chunks = Chunks(REDACTOR, lambda n, chunk, gap, was: Row("run", "call.chunk", n, b"{}"))
    chunks.add("a\n", 0)
    assert chunks.due() == []
    now[0] += 0.2
    assert len(chunks.due()) == 1
    for _ in range(GROUP):
        chunks.add("a\n", 0)
    assert len(chunks.due()) == GROUP
    assert chunks.remaining() == []


LIKELY = (
    "chunk completion generation generated_text message output outputText response result value data answer".split()
)


@pytest.mark.parametrize("name", LIKELY)
@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_secret_split_over_fields_of_any_usual_name(name: str, size: int) -> None:
    data = [{"model": "m", name: chunk, "done": False} for chunk in cut(f"the key is {SECRET}, keep it", size)]
    whole = "".join(chunk[name] for chunk in recorded(*data))
    assert whole.startswith("the key is [openai:")
    assert whole.endswith("], keep it")


def test_what_is_the_same_in_each_piece_stays_as_it_is() -> None:
    data = [{"message": "4bf92f3577b34da6a3ce929d0e0e4736", "text": chunk} for chunk in cut(f"it is {SECRET}", 5)]
    assert {chunk["message"] for chunk in recorded(*data)} == {"4bf92f3577b34da6a3ce929d0e0e4736"}
    sound = [{"audio": {"data": f"{n:04}" * 300}} for n in range(3)]
    assert recorded(*sound) == sound


def test_a_secret_split_over_pairs() -> None:
    data = [("token" if n % 2 else "text", chunk) for n, chunk in enumerate(cut(f"it is {SECRET} now", 4))]
    assert SECRET[10:20] not in "".join(chunk for _, chunk in recorded(*data))


def raw(*data: bytes) -> list[bytes]:
    chunks = Chunks(REDACTOR, lambda n, chunk, gap, was: Row("run", "call.chunk", n, chunk))
    for chunk in data:
        chunks.add(chunk, 0.0)
    return [row.body for row in chunks.remaining()]


@pytest.mark.parametrize("size", [1, 3, 9])
def test_a_secret_split_over_events_or_lines_of_bytes(size: int) -> None:
    words = cut(f"it is {SECRET} now", size)
    streams = {
        "events": [event(word).encode() for word in words],
        "lines": [json.dumps({"response": word}).encode() + b"\n" for word in words],
        "chat lines": [json.dumps({"message": {"content": word}}).encode() + b"\r\n" for word in words],
        "plain events": [f"data: {word}\n\n".encode() for word in words],
        "texts": [f"data: {json.dumps(word)}\n\n".encode() for word in words],
    }
    for name, data in streams.items():
        written = raw(*data)
        assert len(written) == len(data)
        whole = b"".join(written)
        assert b"[openai:" in whole, name
        assert whole.count(b"\n") == b"".join(data).count(b"\n")
        for line in whole.splitlines():
            if line.startswith((b"data: {", b"{")):
                json.loads(line.removeprefix(b"data: "))


def test_streams_of_bytes_without_secrets_are_left_alone() -> None:
    for data in (
        [b"event: x\ndata: [DONE]\n\n", b": ping\n\n", "data: Grüße\n\n".encode()],
        [b'{"response":"a"}\n{"resp', b'onse":"b"}\n', b'{"done":true}'],
        [b"data: gr" + "ü".encode()[:1], "ü".encode()[1:] + b"n\n\n"],
        [b"{\n", b'  "a": 1\n', b"}\n"],
    ):
        assert raw(*data) == data
