"""R14, D21, TR-15: every kind of secret goes, everything else stays."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from antiphon.redact import Redactor, Rules
from tests.unit.redact.corpus import KEPT_TEXTS, KEPT_VALUES, Forge, Planted, bare, in_text, named, personal, tokens

REDACTOR = Redactor(Rules(), salt="unit")
PLANTED = tokens(Forge(1)) + in_text(Forge(2)) + personal(Forge(3))


def everywhere(text: str) -> list[Any]:
    """The places of a call where a text can stand."""
    return [
        text,
        f"it said: {text}",
        {"arguments": {"note": text, "n": 1}},
        {"result": [{"rows": [text, "other"]}]},
        {"error": {"class": "HTTPError", "message": f"401 for {text}"}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]},
        {"function": {"name": "f", "arguments": json.dumps({"x": text})}},
    ]


def test_the_corpus_is_large_enough() -> None:
    assert len(PLANTED) + len(named(Forge(4))) >= 80
    assert len(KEPT_TEXTS) + len(KEPT_VALUES) >= 80
    assert len({planted.kind for planted in PLANTED}) >= 40


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.kind)
def test_a_secret_goes_wherever_it_stands(planted: Planted) -> None:
    for value in everywhere(planted.text):
        redacted = REDACTOR.redact(value)
        assert planted.secret not in str(redacted), value
        assert f"[{planted.kind}:" in str(redacted), value
        assert REDACTOR.redact(redacted) == redacted
        document, changed = REDACTOR.redact_bytes(orjson.dumps(value))
        assert changed
        assert orjson.loads(document) == redacted


@pytest.mark.parametrize("seed", range(30))
def test_other_secrets_of_the_same_kinds_go_too(seed: int) -> None:
    for planted in tokens(Forge(seed)) + in_text(Forge(seed)) + personal(Forge(seed)):
        assert planted.secret not in REDACTOR.redact_text(planted.text), planted.kind
        assert REDACTOR.may_hold(orjson.dumps({"x": planted.text})), planted


@pytest.mark.parametrize(("name", "value", "kind"), named(Forge(4)))
def test_a_name_makes_its_value_a_secret(name: str, value: str, kind: str) -> None:
    assert kind in REDACTOR.redact({name: value})[name]
    assert value not in str(REDACTOR.redact({"a": [{name: value}]}))
    assert value not in str(REDACTOR.redact({name: [value, {"x": value}]})) or kind in ("pin", "cvv", "otp", "ssn")
    assert value not in REDACTOR.redact_bytes(orjson.dumps({name: value}))[0].decode()


@pytest.mark.parametrize("text", KEPT_TEXTS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert REDACTOR.redact_text(text) is text
    for value in ({"note": text}, [text, f"see {text}"]):
        assert REDACTOR.redact(value) is value
    document = orjson.dumps({"note": text})
    assert REDACTOR.redact_bytes(document) == (document, False)


@pytest.mark.parametrize("value", KEPT_VALUES, ids=str)
def test_structures_that_hold_no_secret_stay(value: Any) -> None:
    assert REDACTOR.redact(value) is value
    document = orjson.dumps(value)
    assert REDACTOR.redact_bytes(document) == (document, False)


def test_what_every_model_request_says_passes_the_quick_look() -> None:
    request = {
        "model": "gpt-4o-mini",
        "max_tokens": 1024,
        "max_completion_tokens": 512,
        "messages": [{"role": "user", "content": "Which tokens does the tokenizer see? Who is the author?"}],
        "tools": [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}},
        "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
        "created": 1763180000,
        "atMs": 1763180000123,
        "requestId": "01890a5d-ac96-774b-bcce-b302099a8057",
    }
    assert not REDACTOR.may_hold(orjson.dumps(request))


def test_headers_in_every_shape() -> None:
    token = Forge(7).key(30)
    shapes: list[Any] = [
        {"headers": {"Authorization": f"Bearer {token}"}},
        {"headers": [["Authorization", f"Bearer {token}"]]},
        {"headers": [("X-Api-Key", token)]},
        {"headers": [{"name": "X-Auth-Token", "value": token}]},
        {"headers": f"accept: */*\r\nauthorization: Bearer {token}\r\n"},
    ]
    for shape in shapes:
        assert token not in str(REDACTOR.redact(shape))
    assert REDACTOR.redact(shapes[0])["headers"]["Authorization"].startswith("Bearer [")


def test_numbers_under_a_name_that_only_numbers_can_have() -> None:
    redacted = REDACTOR.redact({"pin": 4821, "cvv": 123, "password": 123456, "token": 7, "phone": 91234567})
    assert bare(redacted) == {
        "pin": "[pin]",
        "cvv": "[cvv]",
        "password": "[password]",
        "token": 7,
        "phone": "[phone]",
    }


def test_a_key_of_a_mapping_may_be_a_secret_itself() -> None:
    secret = tokens(Forge(8))[0].secret
    assert secret not in str(REDACTOR.redact({"seen": {secret: 1}}))
