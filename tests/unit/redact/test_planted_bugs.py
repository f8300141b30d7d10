"""Each guarantee is broken on purpose here, and the check that guards it must notice."""

from __future__ import annotations

import hashlib
import io
import logging
import re
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from antiphon._seal import Sealer
from antiphon.errors import StoreError
from antiphon.redact import Redactor, StreamRedactor, _detect, _prefilter, _stream, _tokens
from antiphon.redact._stream import TextStream
from antiphon.telemetry import BuiltinMetrics
from antiphon.telemetry._metrics import Labels
from antiphon.telemetry.logs import JsonLogListener
from tests.unit.redact.corpus import KEPT_TEXTS, Forge, in_text, named, tokens

Patch = pytest.MonkeyPatch
PLANTED = tokens(Forge(71)) + in_text(Forge(72))


def redactor() -> Redactor:
    return Redactor(salt="unit")


def leaks() -> list[str]:
    """Kinds of planted secrets that survive in serialised data, or are taken for something else."""
    made = redactor()
    planted = [({"note": p.text}, p.secret, p.kind) for p in PLANTED]
    planted += [({name: value}, value, kind) for name, value, kind in named(Forge(73))]
    documents = [(made.redact_bytes(orjson.dumps(data))[0].decode(), secret, kind) for data, secret, kind in planted]
    return [kind for text, secret, kind in documents if secret in text or f"[{kind}:" not in text]


def eaten() -> list[str]:
    """Texts that are no secret and were changed."""
    made = redactor()
    return [text for text in KEPT_TEXTS if made.redact_text(text) != text]


def restless() -> list[str]:
    """Kinds that a second redaction changes again."""
    made = redactor()
    once = [(p.kind, made.redact_text(p.text)) for p in PLANTED]
    return [kind for kind, text in once if made.redact_text(text) != text]


def split_leaks() -> list[str]:
    """Kinds that survive when they arrive in pieces of three characters."""
    found = []
    for planted in PLANTED:
        stream = StreamRedactor(redactor())
        pieces = [planted.text[n : n + 3] for n in range(0, len(planted.text), 3)]
        out = "".join([piece for chunk in pieces for piece in stream.feed(chunk)] + stream.finish())
        if planted.secret in out:
            found.append(planted.kind)
    return found


def tampering_accepted() -> bool:
    sealer = Sealer(bytes(32))
    sealed = sealer.seal(b"pay 10")
    changed = sealed[:-30] + ("A" if sealed[-30] != "A" else "B") + sealed[-29:]
    try:
        sealer.unseal(changed)
    except StoreError:
        return False
    return True


def series() -> int:
    metrics = BuiltinMetrics(max_tools=10)
    for n in range(300):
        metrics.call_ended(f"tool-{n}", "success", "session", 1.0)
    return metrics.render().count("_sum{")


def logged() -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("antiphon.planted")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    JsonLogListener(redactor(), logger="antiphon.planted").emit("tool_call_end", {"errorMessage": PLANTED[0].text})
    logger.removeHandler(handler)
    return stream.getvalue()


def test_the_checks_pass_on_the_real_code() -> None:
    assert leaks() == eaten() == restless() == split_leaks() == []
    assert not tampering_accepted()
    assert series() == 11
    assert PLANTED[0].secret not in logged()


def test_a_missing_word_in_the_quick_look(monkeypatch: Patch) -> None:
    for gone in range(4):
        words = tuple(w for n, w in enumerate(_prefilter._SECRET_WORDS) if n != gone)
        monkeypatch.setattr(_prefilter, "_SECRET_WORDS", words)
        assert leaks()
        monkeypatch.undo()


def test_a_quick_look_that_trusts_long_runs(monkeypatch: Patch) -> None:
    monkeypatch.setattr(_prefilter, "_suspicious", lambda document, runs, *, beside: False)
    assert len(leaks()) > 20


@pytest.mark.parametrize("detector", ["_private_keys", "_tokens", "_urls", "_headers", "_schemes", "_random_runs"])
def test_a_missing_detector(monkeypatch: Patch, detector: str) -> None:
    monkeypatch.setattr(_detect, detector, lambda text: ())
    assert leaks()


def test_an_entropy_rule_without_exemptions_eats_ids(monkeypatch: Patch) -> None:
    monkeypatch.setattr(_tokens, "_ID", lambda: re.compile("(?!)"))
    assert "call_Ao02pnFYXD6GN1yzc0uXPsvF" in eaten()


def test_an_entropy_rule_that_takes_any_long_word(monkeypatch: Patch) -> None:
    monkeypatch.setattr(_detect, "looks_random", lambda token: True)
    assert len(eaten()) > 2


def test_masks_that_are_searched_again(monkeypatch: Patch) -> None:
    monkeypatch.setattr(_detect, "_open_parts", lambda text, closed=(): [(0, len(text))])
    assert restless()


def test_a_stream_that_is_redacted_chunk_by_chunk(monkeypatch: Patch) -> None:
    class Hasty(TextStream):
        def feed(self, piece: str) -> list[str]:
            return [self._redactor.redact_text(piece)]

    monkeypatch.setattr(_stream, "TextStream", Hasty)
    assert len(split_leaks()) > 50


def test_masks_without_a_key(monkeypatch: Patch) -> None:
    monkeypatch.setattr("antiphon.redact._standins.hmac.digest", lambda key, data, name: hashlib.sha256(data).digest())
    key = PLANTED[0].secret
    assert Redactor(salt="one").redact(key) == Redactor(salt="two").redact(key)


def test_sealing_without_a_tag(monkeypatch: Patch) -> None:
    class Unauthenticated:
        def __init__(self, key: bytes) -> None:
            self._key = key

        def encrypt(self, nonce: bytes, data: bytes, context: bytes) -> bytes:
            return self._crypt(nonce, data) + bytes(16)

        def decrypt(self, nonce: bytes, data: bytes, context: bytes) -> bytes:
            return self._crypt(nonce, data[:-16])

        def _crypt(self, nonce: bytes, data: bytes) -> bytes:
            return Cipher(AES(self._key), CTR(nonce + bytes(4))).encryptor().update(data)

    assert not tampering_accepted()
    monkeypatch.setattr("cryptography.hazmat.primitives.ciphers.aead.AESGCM", Unauthenticated)
    assert tampering_accepted()


def test_labels_without_a_bound(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Labels, "__call__", lambda self, value: value)
    assert series() == 300


def test_logs_that_are_not_redacted(monkeypatch: Patch) -> None:
    def untouched(self: Any, document: bytes) -> tuple[bytes, bool]:
        return document, False

    monkeypatch.setattr(Redactor, "redact_bytes", untouched)
    assert PLANTED[0].secret in logged()
