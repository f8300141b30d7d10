"""D18, D21: a secret that is split over chunks never reaches the recording, and no chunk is lost or merged."""

from __future__ import annotations

import base64
import json
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.adapters._wire import body_of, content_of
from antiphon.redact import Redactor, Rules, StreamRedactor
from antiphon.redact._stream import TextStream, as_bytes, redacting
from tests.unit.redact.corpus import Forge, Planted, bare, in_text, personal, tokens

REDACTOR = Redactor(Rules(), salt="unit")
PLANTED = tokens(Forge(21)) + in_text(Forge(22)) + personal(Forge(23))

PARTS = [*(p.text for p in PLANTED), "word ", "\n", ", ", "Some prose. "]


def cut(text: str, at: list[int]) -> list[str]:
    places = [0, *sorted(n % (len(text) + 1) for n in at), len(text)]
    return [text[a:b] for a, b in pairwise(places)]


def run(pieces: list[Any]) -> list[Any]:
    stream = StreamRedactor(REDACTOR)
    out: list[Any] = []
    for piece in pieces:
        out += stream.feed(piece)
    return out + stream.finish()


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.kind)
def test_cut_after_every_character(planted: Planted) -> None:
    text = f"It is here: {planted.text}\nand then it goes on."
    out = run(list(text))
    assert len(out) == len(text)
    assert "".join(out) == REDACTOR.redact_text(text)
    assert planted.secret not in "".join(out)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=8), st.lists(st.integers(0, 4000), max_size=12))
def test_pieces_and_their_sum_are_kept(parts: list[str], at: list[int]) -> None:
    text = "".join(parts)
    pieces = cut(text, at)
    out = run(pieces)
    assert len(out) == len(pieces)
    if text[:1] not in ("{", "["):  # a whole text that is JSON is read as JSON, a stream is not
        assert "".join(out) == REDACTOR.redact_text(text)


def test_the_placeholder_stands_where_the_secret_begins() -> None:
    secret = tokens(Forge(1))[0].secret
    out = run(["The key is ", secret[:5], secret[5:20], secret[20:], ", keep it."])
    assert out == ["The key is ", REDACTOR.stand_in("openai", secret), "", "", ", keep it."]


def test_pieces_are_released_as_soon_as_nothing_can_change_them() -> None:
    stream = TextStream(REDACTOR)
    assert stream.feed("first line") == []
    assert stream.feed(" ends\nsecond ") == ["first line"]
    assert stream.feed("line\n") == [" ends\nsecond ", "line\n"]


def test_a_long_line_of_prose_is_not_held_for_ever() -> None:
    rng = random.Random(5)
    words = [rng.choice(["some", "plain", "prose", "and", "more"]) + " " for _ in range(2000)]
    stream = TextStream(REDACTOR)
    held = most = 0
    for word in words:
        held += 1 - len(stream.feed(word))
        most = max(most, held)
    assert most < 600
    assert len(stream.finish()) == held


def test_a_secret_in_a_long_line_is_found_wherever_the_line_is_cut() -> None:
    secret = tokens(Forge(2))[4].secret
    for offset in range(0, 300, 7):
        text = "x" * offset + " plain prose" * 90 + f" password: {secret} " + "and so on " * 200
        out = run([text[n : n + 11] for n in range(0, len(text), 11)])
        assert secret not in "".join(out)
        assert "".join(out) == REDACTOR.redact_text(text)


def test_an_armoured_key_is_held_until_it_ends() -> None:
    key = Forge(3).pem()
    lines = [line + "\n" for line in f"before\n{key}\nafter".split("\n")]
    stream = StreamRedactor(REDACTOR)
    assert stream.feed(lines[0]) == ["before\n"]
    assert stream.feed(lines[1]) == []
    assert all(stream.feed(line) == [] for line in lines[2:-2])
    out = [*stream.feed(lines[-2]), *stream.feed(lines[-1]), *stream.finish()]
    assert len(out) == len(lines) - 1
    assert "".join(out) == REDACTOR.redact_text("".join(lines[1:]))


def test_bytes_are_cut_anywhere() -> None:
    secret = tokens(Forge(4))[3].secret
    raw = f'data: {{"text": "é {secret} ü"}}\n\n'.encode()
    out = run([raw[n : n + 3] for n in range(0, len(raw), 3)])
    assert all(isinstance(piece, bytes) for piece in out)
    assert secret.encode() not in b"".join(out)
    assert b"".join(out).decode() == REDACTOR.redact_text(raw.decode())


def openai_chunk(n: int, text: str) -> dict[str, Any]:
    delta = {"content": text}
    return {"id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT", "choices": [{"index": 0, "delta": delta}], "n": n}


def test_chunks_of_a_provider_are_joined_by_their_text_field() -> None:
    secret = tokens(Forge(5))[0].secret
    texts = ["Your key: ", secret[:9], secret[9:30], secret[30:], " is old.\n", "Bye"]
    out = run([openai_chunk(n, text) for n, text in enumerate(texts)])
    assert [chunk["n"] for chunk in out] == list(range(6))
    assert {chunk["id"] for chunk in out} == {"chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT"}
    recorded = "".join(chunk["choices"][0]["delta"]["content"] for chunk in out)
    assert recorded == REDACTOR.redact_text("".join(texts))
    assert secret not in str(out)


def test_parallel_blocks_of_a_provider_do_not_mix() -> None:
    secret = tokens(Forge(6))[0].secret

    def block(index: int, text: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}

    out = run([block(0, secret[:20]), block(1, "plain "), block(0, secret[20:] + "\n"), block(1, "text\n")])
    assert secret[20:] not in str(out)
    assert [c["delta"]["text"] for c in out if c["index"] == 1] == ["plain ", "text\n"]


def test_tool_arguments_that_arrive_in_pieces() -> None:
    password = "hunter2 and more"
    text = f'{{"user": "ada", "password": "{password}"}}'
    chunks = [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": c}}]}} for c in text]
    assert password not in "".join(c["delta"]["tool_calls"][0]["function"]["arguments"] for c in run(chunks))


def test_other_chunks_are_redacted_one_by_one() -> None:
    assert bare(run([1, None, {"password": "hunter2"}, ["a"]])) == [1, None, {"password": "[password]"}, ["a"]]


def _in_base64(data: bytes) -> dict[str, str]:
    return {"$base64": base64.b64encode(data).decode()}


@pytest.mark.parametrize("planted", tokens(Forge(31)), ids=lambda planted: planted.kind)
def test_secrets_are_found_in_chunks_that_are_cut_inside_a_character(planted: Planted) -> None:
    """Such a chunk is recorded in base64, in a stream of any kind and as its first chunk, too."""
    text = b"\xbd " + planted.text.encode() + b" \xe4"
    event = b"data: \xbd " + planted.text.encode() + b"\n\n"
    for pieces in ([_in_base64(text)], ["So: ", _in_base64(text), "and more"], [_in_base64(event), "data: x\n\n"]):
        stream = redacting(REDACTOR, pieces[0])
        out = [chunk for piece in pieces for chunk in stream.feed(piece)] + stream.finish()
        assert len(out) == len(pieces)
        assert planted.secret.encode() not in b"".join(as_bytes(chunk) or b"" for chunk in out)


@pytest.mark.parametrize("planted", tokens(Forge(33)), ids=lambda p: p.kind)
def test_events_behind_a_byte_order_mark_are_events(planted: Planted) -> None:
    secret = planted.secret
    half = len(secret) // 2
    events = [b'\xef\xbb\xbfdata: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % secret[:half].encode()]
    events.append(b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % secret[half:].encode())
    stream = redacting(REDACTOR, events[0])
    clean = b"".join([chunk for event in events for chunk in stream.feed(event)] + stream.finish())
    assert clean.startswith(b"\xef\xbb\xbfdata: {")
    assert secret[half:].encode() not in clean


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["compact", "with blanks"])
def test_secrets_whose_masks_are_longer_or_as_long_leave_events_together(separators: tuple[str, str]) -> None:
    """Cut so that an event holds parts of both: the place of one mask in it is known, that of the other is not."""
    rare, basic = "dp.pt.YUIH" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9", "YWRtaW46aHVudGVyMTIz"
    text = f"back authorization: Basic {basic} {rare} end of it"
    dice = random.Random(1)
    for _ in range(100):
        parts = cut(text, [dice.randrange(len(text)) for _ in range(8)])
        events = [f"data: {json.dumps({'delta': part}, separators=separators)}\n\n" for part in parts]
        stream = redacting(REDACTOR, events[0])
        out = "".join([piece for event in events for piece in stream.feed(event)] + stream.finish())
        said = "".join(json.loads(line[6:])["delta"] for line in out.split("\n\n") if line.startswith("data: {"))
        assert rare[:9] not in said, parts
        assert basic[:6] not in said, parts


def test_an_event_that_is_nested_too_deeply_is_text() -> None:
    secret = tokens(Forge(34))[0].secret
    event = b"data: " + b"[" * 900 + b'"%b"' % secret.encode() + b"]" * 900 + b"\n\n"
    stream = redacting(REDACTOR, event)
    clean = b"".join(stream.feed(event) + stream.finish())
    assert clean.startswith(b"data: [[[")
    assert secret.encode() not in clean


def test_a_chunk_in_base64_without_a_secret_stays_as_it_is() -> None:
    for chunk in (_in_base64(b"\xbd plain \xe4"), _in_base64(b"plain"), {"$base64": "is no base64"}):
        assert run([chunk]) == [chunk]


@given(st.binary(max_size=60))
def test_a_body_is_recorded_as_text_in_which_secrets_are_found(data: bytes) -> None:
    body = body_of(data + b"\xff")
    assert content_of(body) == data + b"\xff"
    secret = tokens(Forge(32))[0]
    clean = REDACTOR.redact(body_of(b"\xff " + secret.text.encode()))
    assert secret.secret not in str(clean)
    assert set(clean) == {"$latin1"}


@pytest.mark.parametrize("mark", ["$text", "$latin1", "$base64"])
def test_an_answer_that_looks_like_our_markup_stays_what_it_was(mark: str) -> None:
    data = b'{"%b": "aGk="}' % mark.encode()
    assert content_of(body_of(data)) == data
    assert content_of(body_of(b'{"%b": 1, "b": 2}' % mark.encode())) == b'{"%b":1,"b":2}' % mark.encode()
