"""D36: pseudonyms have the shape of what they stand for, and known values are replaced wherever they come up later."""

from __future__ import annotations

import html
import json
import threading
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.redact import Redactor, Rule, Rules, _standins
from antiphon.redact._detect import detected, iban_valid, luhn
from antiphon.redact._pointers import masks_in, text_at, viewed, with_masks
from antiphon.redact._standins import Pseudonyms
from tests.unit.redact.corpus import Forge, in_text, named, personal, tokens

KEY = b"k" * 32
KINDS = [(p.kind, p.secret) for p in tokens(Forge(91)) + personal(Forge(92)) + in_text(Forge(93))]


def run(rules: Rules | None = None) -> Redactor:
    return Redactor(rules).for_run(KEY)


def shape(text: str) -> list[str]:
    return ["d" if c.isdigit() else "u" if c.isupper() else "l" if c.isalpha() else c for c in text]


@pytest.mark.parametrize(("kind", "secret"), KINDS)
def test_a_pseudonym_has_the_shape_of_its_value(kind: str, secret: str) -> None:
    redactor = run()
    other = redactor.stand_in(kind, secret)
    assert other != secret
    assert shape(other) == shape(secret)
    assert len(other.encode()) == len(secret.encode())
    assert len(orjson.dumps(other)) == len(orjson.dumps(secret))
    if detected(kind, secret):
        assert detected(kind, other), other
    assert redactor.stand_in(kind, secret) == other


def test_what_stays() -> None:
    made = run()
    assert made.stand_in("email", "ada.lovelace@example.org").endswith("@example.org")
    card = made.stand_in("card", "4111 1111 1111 1111")
    assert card.endswith(" 1111")
    assert luhn(card.replace(" ", ""))
    iban = made.stand_in("iban", "DE89 3704 0044 0532 0130 00")
    assert iban.startswith("DE")
    assert iban_valid(iban)
    assert made.stand_in("github", "ghp_" + "a1B2" * 9).startswith("ghp_")
    assert made.stand_in("openai", "sk-proj-" + "a1B2" * 9).startswith("sk-")
    assert set(made.stand_in("high_entropy", "deadbeef" * 4)) <= set("0123456789abcdef")
    assert made.redact({"pin": 4821})["pin"] in range(1000, 10_000)


CARD = 4539148803436467


@pytest.mark.parametrize("name", ["card", "creditCard", "cardNumber", "n", "order_id"])
def test_a_card_that_is_a_number_has_a_pseudonym_that_is_one(name: str) -> None:
    made = run()
    found = made.mask(orjson.dumps({name: CARD, "rows": [[CARD]], "text": f"card {CARD}", "json": f'{{"n":{CARD}}}'}))
    assert found is not None
    assert str(CARD).encode() not in found[0]
    shown = orjson.loads(found[0])
    other = shown[name]
    assert type(other) is int
    assert detected("card", str(other))
    assert shown == {name: other, "rows": [[other]], "text": f"card {other}", "json": f'{{"n":{other}}}'}
    assert [(mask.pointer, mask.kind) for mask in found[1]][:2] == [(f"/{name}", "card"), ("/rows/0/0", "card")]
    assert Redactor().redact({name: CARD})[name].startswith("[card:")


NO_CARDS = [
    CARD + 1,
    -CARD,
    1_700_000_000_000,
    1_700_000_000_000_000,
    1_700_000_000_000_000_000,
    1_184_223_372_036_854_775,
    4539148803436467_000,
    9539148803436462,
    4_111_111_111_116,
]


@pytest.mark.parametrize("number", NO_CARDS)
def test_a_number_that_is_no_card_in_a_text_is_none(number: int) -> None:
    made = run()
    assert made.redact({"card": str(number)}) == {"card": str(number)}
    assert made.redact({"card": number, "n": [number]}) == {"card": number, "n": [number]}


@given(st.integers(-(10**20), 10**20))
def test_a_number_is_masked_where_the_same_digits_are_masked_as_a_text(number: int) -> None:
    as_text, as_number = run().redact([str(number)]), run().redact([number])
    assert [int(text) for text in as_text] == as_number


def test_a_known_number_is_replaced_in_a_field_of_ids() -> None:
    made = run()
    phone = made.redact({"phone": 491701234567})["phone"]
    assert made.redact({"customer_id": 491701234567, "order_id": 10024}) == {"customer_id": phone, "order_id": 10024}


def test_a_card_that_is_a_number_is_personal_data() -> None:
    assert run(Rules(personal=False)).redact({"card": CARD}) == {"card": CARD}


def test_a_value_is_the_same_in_any_case_and_with_any_separators() -> None:
    made = run()
    plain, grouped = (made.stand_in("iban", text) for text in ("DE89370400440532013000", "DE89 3704 0044 0532 0130 00"))
    assert grouped.replace(" ", "") == plain
    lower, upper = (made.stand_in("email", text) for text in ("ada@example.org", "ADA@EXAMPLE.ORG"))
    assert upper == lower.upper()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 9999), unique=True, max_size=60))
def test_different_values_have_different_pseudonyms(numbers: list[int]) -> None:
    made = Pseudonyms(KEY)
    stands = {f"{n:04}": made.of("pin", f"{n:04}") for n in numbers}
    assert len(set(stands.values())) == len(stands)
    assert all(value != other for value, other in stands.items())


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=30))
def test_any_text_has_a_pseudonym_of_its_length(text: str) -> None:
    other = Pseudonyms(KEY).of("password", text)
    assert len(other) == len(text)
    assert len(other.encode("utf-8", "surrogatepass")) == len(text.encode("utf-8", "surrogatepass"))


def test_another_key_gives_other_pseudonyms() -> None:
    assert run().stand_in("pin", "482193") != Redactor().for_run(b"x" * 32).stand_in("pin", "482193")


# -- known values ----------------------------------------------------------------------------------------------------

PASSWORD = 'tr0ub4dor "&" <ä>'


@pytest.mark.parametrize(
    "spell",
    [
        lambda text: f"he said {text}, twice",
        lambda text: f"xx{text}yy",
        lambda text: f"https://example.org/?q={quote(text, safe='')}&x=1",
        lambda text: f"<b>{html.escape(text)}</b>",
        lambda text: json.dumps({"a": text}, ensure_ascii=False)[:-1],  # cut off: no JSON any more
        lambda text: f"it begins with {text[:9]}",
        lambda text: f"{text[-9:]} is its end",
    ],
)
def test_a_known_value_is_replaced_in_any_spelling(spell: Any) -> None:
    made = run()
    made.redact({"password": PASSWORD})
    stands = made.stand_in("password", PASSWORD)
    assert made.redact({"note": spell(PASSWORD)}) == {"note": spell(stands)}


def test_a_value_is_known_in_the_document_that_names_it() -> None:
    made = run()
    found = made.redact({"text": "use swordfish77 here", "n": 482193, "password": "swordfish77", "otp": "482193"})
    assert found["text"] == f"use {found['password']} here"
    assert str(found["n"]) == found["otp"]
    assert isinstance(found["n"], int)


def test_short_values_are_words_of_their_own() -> None:
    made = run()
    made.redact({"pin": "4821"})
    assert made.redact({"a": "148213"}) == {"a": "148213"}
    assert "4821" not in made.redact({"a": "it is 4821."})["a"]


def test_a_mask_is_replaced_in_place() -> None:
    text = '{"to" : "ada@example.org",\n "n": 1.50, "e": "\\u00e9t\\u00e9", "password": "\\u00fcber-all"}'
    made = run()
    assert len(made.redact_text(text)) == len(text)
    new = made.redact_text(text)
    assert '"n": 1.50, "e": "\\u00e9t\\u00e9", ' in new
    assert new.startswith('{"to" : "')
    assert json.loads(new)["to"] == made.stand_in("email", "ada@example.org")


def test_where_masks_are_is_told() -> None:
    made = run()
    document = {
        "to": ["x", "mail ada@example.org now"],
        "pin": 4821,
        "ada@example.org": 1,
        "arguments": '{"pin": "4821"}',
    }
    found = made.mask(orjson.dumps(document))
    assert found is not None
    data, masks = found
    clean = orjson.loads(data)
    wire = orjson.loads(orjson.dumps([mask.to_wire() for mask in masks]))
    assert {text_at(clean, mask) for mask in masks_in(wire)} == set(made.pseudonyms.values.values())
    shown = json.dumps(with_masks(clean, masks_in(wire)))
    assert not any(stands in shown for stands in made.pseudonyms.values.values())
    assert json.dumps(made.shown().redact(document)) == shown, "the log and what is live show the same"
    assert viewed.__doc__


def test_users_rules_keep_what_they_need() -> None:
    made = run(Rules(user=(Rule(name="badge", pattern=r"KX-[0-9]{6}"),)))
    assert made.redact_text("badge KX-123456")[:9] == "badge KX-"


def test_thousands_of_values_are_looked_for_quickly() -> None:
    made = Pseudonyms(KEY)
    for number in range(3000):
        made.of("email", f"user{number * 7919}@example.org")
    text = "nothing of interest here, and then some more of it. " * 400 + "user7919@example.org"
    assert [hit.kind for hit in made.find(text)] == ["email"]


def test_planted_bug_pseudonyms_without_a_key_can_be_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand guesses find a PIN as soon as the key does not count; with it they find nothing."""
    recorded = Redactor().for_run(b"secret" * 6).redact({"pin": "4821"})["pin"]

    def guesses() -> list[str]:
        return [f"{n:04}" for n in range(10_000) if Pseudonyms(b"guess").of("pin", f"{n:04}") == recorded]

    honest = guesses()
    assert honest != ["4821"]
    monkeypatch.setattr("antiphon.redact._standins.hmac.digest", lambda key, data, name: data.ljust(32))
    recorded = Redactor().for_run(b"secret" * 6).redact({"pin": "4821"})["pin"]
    assert "4821" in guesses()


def test_named_values_are_masked_as_a_whole() -> None:
    made = run()
    for name, value, _ in named(Forge(94)):
        clean = made.redact({name: value})
        assert value not in str(clean)


def test_names_of_an_object_are_looked_at_again_when_a_value_was_learnt() -> None:
    redactor = run()
    seen = {"Kestrel4821": "fine", "mail": "ana@example.org"}
    assert "Kestrel4821" in redactor.redact(seen)
    assert "Kestrel4821" in redactor.redact(seen)
    redactor.redact({"password": "Kestrel4821"})
    assert "Kestrel4821" not in redactor.redact(seen)


def test_the_value_of_a_name_is_looked_at_although_other_objects_have_the_same_names() -> None:
    redactor = run()
    plain, pair = {"name": "city", "value": "Zagreb-77-x"}, {"name": "password", "value": "Zagreb-77-x"}
    for _ in range(2):
        assert redactor.redact({**plain, "mail": "ana@example.org"})["value"] == "Zagreb-77-x"
    assert redactor.redact({**pair, "mail": "ana@example.org"})["value"] != "Zagreb-77-x"


def test_many_new_values_are_not_compiled_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []
    alternatives = _standins._alternatives

    def counted(needles: list[str]) -> str:
        compiled.append(len(needles))
        return alternatives(needles)

    monkeypatch.setattr(_standins, "_alternatives", counted)
    redactor = run()
    known = redactor.redact({"email": "ada@example.org"})["email"]
    for page in range(4):
        mails = ["ada@example.org", *(f"customer{page}{number}@example.org" for number in range(100))]
        clean = redactor.redact([{"id": number, "email": mail} for number, mail in enumerate(mails)])
        assert clean[0]["email"] == known
        assert len({item["email"] for item in clean}) == 101
        assert redactor.redact(" ".join(mails)) == " ".join(item["email"] for item in clean)
    assert len(compiled) < 40


@given(st.lists(st.text("ab1@. ", min_size=4, max_size=12), min_size=1, max_size=8), st.text("ab1@. ", max_size=60))
def test_known_values_are_found_alike_before_and_after_they_are_compiled(values: list[str], text: str) -> None:
    made = Pseudonyms(KEY)
    for value in values:
        made.of("password", value)
    whole = " ".join((text, *values, text))
    for searched in (text, whole, whole[3:-3]):
        found = made.find(searched)
        assert made._pattern is None
        made._compiled()
        assert made.find(searched) == found
        assert made.occurs(searched) or not found
        made._pattern, made._searched = None, -10_000


def test_a_value_that_another_thread_learns_meanwhile_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made, secret = Pseudonyms(KEY), "Tr0ub4dor&3"
    made.of("password", "correct horse battery staple")
    other = threading.Thread(target=lambda: made.of("password", secret))
    alternatives = _standins._alternatives

    def interrupted(needles: list[str]) -> str:
        if other.ident is None:
            other.start()
            other.join(0.1)  # it may have to wait for this thread
        return alternatives(needles)

    monkeypatch.setattr(_standins, "_alternatives", interrupted)
    assert not made.occurs("nothing to find " * 1000)
    other.join()
    monkeypatch.undo()
    assert made.find(f"nothing but {secret}")
