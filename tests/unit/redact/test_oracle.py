"""The quick look against the rules: a redactor that looks at everything must find nothing more (R14, D21)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.redact import Redactor, Rule, Rules
from antiphon.redact._prefilter import ALL, Prefilter
from tests.unit.redact.corpus import Forge, Planted, bare, in_text, named, personal, tokens

SECRET = "hunter2Hunter9zz"


class _Everything(Prefilter):
    """Sends each document to the rules."""

    __slots__ = ()

    def causes(self, document: bytes, within: int = ALL) -> int:
        return ALL


def both(rules: Rules | None = None) -> tuple[Redactor, Redactor]:
    rules = rules or Rules()
    quick, thorough = Redactor(rules, "unit"), Redactor(rules, "unit")
    thorough._prefilter = _Everything(rules)
    return quick, thorough


QUICK, THOROUGH = both()


def agree(value: Any, quick: Redactor = QUICK, thorough: Redactor = THOROUGH) -> None:
    assert quick.redact(value) == thorough.redact(value)
    document = orjson.dumps(value)
    assert orjson.loads(quick.redact_bytes(document)[0]) == orjson.loads(thorough.redact_bytes(document)[0])


NAMES = """db_pass2|pw1|pass_1|pass)|(pass)|pass?|pass]|pass/|passé|cfg[pass]|api---key|x.api..key|apiKey2|id_tokens
id...tokens|api - key|Access  Tokens|SSH - Key""".replace("\n", "|").split("|")
CODES = "pin2 otp2 otpNumber pin_code2 x2_Pincode2 pin/ otp? pin__code pin-number1".split()
TEXTS = [
    "config[secret]=",
    "config[secret_key] = ",
    "[SECRET:",
    "$cfg[pass]=",
    "--db-pass ",
    "--smtp-pw\t",
    "--pass2 ",
    "--db2pass ",
    "id_tokens=",
    "api_key=",
    "ssh_key: ",
    "pass2=",
]
CODE_TEXTS = ["x[otp]=", "x[pin]=", "--card-pin ", "--pin-code ", "--pin-number\t", "--otp2 ", "--pin2 "]


@pytest.mark.parametrize("name", NAMES)
def test_a_field_that_the_rules_know_is_seen(name: str) -> None:
    for value in ({name: SECRET}, {"name": name, "value": SECRET}):
        assert SECRET not in str(QUICK.redact(value))
        agree(value)


@pytest.mark.parametrize("name", CODES)
def test_a_short_code_under_its_name_is_seen(name: str) -> None:
    for code in ("482193", 482193):
        assert "482193" not in str(QUICK.redact({name: code}))
        agree({name: code})


@pytest.mark.parametrize("before", TEXTS)
def test_a_secret_beside_its_name_in_a_text_is_seen(before: str) -> None:
    for text in (before + SECRET, f"run {before}{SECRET} now", f'{before}"{SECRET}"'):
        assert SECRET not in QUICK.redact_text(text)
        agree({"note": text})
    assert SECRET.encode() not in QUICK.redact_bytes((before + SECRET).encode())[0]  # as a line of a file


@pytest.mark.parametrize("before", CODE_TEXTS)
def test_a_short_code_beside_its_name_in_a_text_is_seen(before: str) -> None:
    assert "482193" not in QUICK.redact_text(f"run {before}482193")
    agree({"note": before + "482193"})


def test_slashes_that_are_escaped_in_json_within_a_text_hide_nothing() -> None:
    text = json.dumps({"x": "q7Zk2/LmP9/xT4vR8/bN1cW5/yK3dF6"}).replace("/", "\\/")
    agree(text)
    agree({"body": text})


def test_a_card_after_an_escaped_blank_is_seen() -> None:
    for blank in "\n\t\r":
        assert "4111111111111111" not in str(QUICK.redact({"note": f"paid with{blank}4111111111111111"}))
        assert b"4111111111111111" not in QUICK.redact_bytes(orjson.dumps(f"paid with{blank}4111111111111111"))[0]


@pytest.mark.parametrize("number", ["4242424242424242", "4111 1111 1111 1111", "3782 822463 10005"])
def test_a_card_may_end_a_sentence(number: str) -> None:
    for text in (f"I paid with {number}.", f"It was {number}. Thanks", f"({number})", f"{number}... right"):
        assert number not in QUICK.redact_text(text)
        agree({"note": text})
    assert QUICK.redact_text("took 42424242424242.42 steps") == "took 42424242424242.42 steps"


def test_a_place_in_a_file_of_code_is_no_secret() -> None:
    for text in ("secret_agent.py:main", "src/token.ts:12: error", "see my_password.go:main for it"):
        assert QUICK.redact_text(text) == text
    assert QUICK.redact({"secrets.py": "def main(): pass"}) == {"secrets.py": "def main(): pass"}


def test_names_below_a_secret_name_may_be_secrets_themselves() -> None:
    key = tokens(Forge(95))[0].secret
    for name in ("api_keys", "credentials", "cookies"):
        assert key not in str(QUICK.redact({name: {key: "alice", "bob": {key: 1}}}))


def test_a_code_below_a_secret_name_need_not_look_like_one() -> None:
    for name, value in (("pin", "s3cr3t-seed-words"), ("otp", "seed with blanks"), ("phone", "call me maybe")):
        assert value not in str(QUICK.redact({"credentials": {name: value}}))
    assert bare(QUICK.redact({"credentials": {"pin": 4821}})) == {"credentials": {"pin": "[pin]"}}


def test_what_is_left_of_a_long_run_is_looked_at_again() -> None:
    run = "550e8400-e29b-41d4-a716-446655440000sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DG"
    agree(f"{run}NKHfuwvY7kxvUdBeoGlODJ6+SfaPg==password=llqszyqfa00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba9-01")


def test_a_card_is_seen_where_only_another_secret_stands_before_it() -> None:
    armour = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----"
    agree({"note": armour + "4111111111111111"})


def test_a_text_that_is_no_json_keeps_its_last_character() -> None:
    document = b"{mail bob@example.org"
    assert QUICK.redact_bytes(document) == THOROUGH.redact_bytes(document)


def test_what_stands_for_a_secret_in_a_name_is_no_name() -> None:
    for value in (
        {'cfg[aes_key"="933': "plain words"},
        {"Authorization: Bearer tz29sANKt": "plain words"},
        {"phone=+49 170 1234567": "0170 1234567"},
    ):
        once = QUICK.redact(value)
        assert QUICK.redact(once) == once


@pytest.mark.parametrize("planted", tokens(Forge(96)) + in_text(Forge(97)), ids=lambda planted: planted.kind)
def test_a_line_break_that_is_written_out_is_no_letter_before_a_secret(planted: Planted) -> None:
    for quoted in (repr("one\n" + planted.text), repr("one\t" + planted.text), json.dumps("one\r" + planted.text)):
        for text in (quoted, "KeyError: " + quoted, json.dumps({"error": quoted})):
            assert secret_part(planted.secret) not in QUICK.redact_text(text)
            agree({"message": text})


def secret_part(secret: str) -> str:
    """What is left of a secret of several lines however they are written."""
    return secret.splitlines()[len(secret.splitlines()) // 2]


@pytest.mark.parametrize(
    "text",
    [
        "password%3D{}",
        "redirect=%2Fcb%3Faccess_token%3D{}%26x%3D1",
        "https://x/?next=%2Fy%3Fa%3D1%26pass%3D{}%26b%3D2",
        "api_key%3d{}",
        "pw%3A{}",
    ],
)
def test_a_pair_that_is_encoded_for_an_address_is_seen(text: str) -> None:
    clean = QUICK.redact_text(text.format(SECRET))
    assert SECRET not in clean
    assert clean.endswith(text.rpartition("{}")[2])
    agree({"url": text.format(SECRET)})


def test_the_password_of_a_netrc_file_is_seen() -> None:
    for text in (f"machine x login ada password {SECRET}", f"machine x\n  login ada\n  password {SECRET}\n"):
        assert SECRET not in QUICK.redact_text(text)
        agree({"file": text})
    assert QUICK.redact_text("To login use your password and go") == "To login use your password and go"


# -- rules of the user ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [r"C\d{5}", r"^C\d{5}$", r"\AC\d+\Z", r"(?<!\S)C\d{5}(?!\S)", r"(?m)^C\d{5}"])
def test_a_pattern_of_the_user_finds_short_words_and_whole_texts(pattern: str) -> None:
    quick, thorough = both(Rules(user=(Rule(name="customer", pattern=pattern),)))
    for value in ("C12345", {"a": "C12345"}, ["C12345"]):
        assert "C12345" not in str(quick.redact(value))
        assert b"C12345" not in quick.redact_bytes(orjson.dumps(value))[0]
        agree(value, quick, thorough)


def test_a_field_of_the_user_may_have_a_name_in_any_script() -> None:
    rules = Rules(
        user=(Rule(name="word", field="пароль"), Rule(name="size", field="Größe"), Rule(name="code", field="暗証"))
    )
    quick, thorough = both(rules)
    for name in ("пароль", "ПАРОЛЬ", "größe", "暗証"):
        assert SECRET not in str(quick.redact({name: SECRET}))
        agree({name: SECRET}, quick, thorough)
    for name in ("имя", "_", "", "gr_e", "grße", "名前"):
        assert quick.redact({name: "Anna B."}) == {name: "Anna B."}


@pytest.mark.parametrize("number", [10_023, 7, 0, -5, 2**40])
def test_a_field_of_the_user_may_hold_an_integer(number: int) -> None:
    rules = Rules(user=(Rule(name="customer", field="customer_number"),))
    quick, thorough = both(rules)
    for value in ({"customerNumber": number}, {"customer_number": [number]}, {"a": {"customer-number": {"n": number}}}):
        assert "[customer:" in str(quick.redact(value))
        agree(value, quick, thorough)
        clean, masks = quick.for_run(b"k" * 32).mask(orjson.dumps(value)) or (b"", [])
        assert [mask.kind for mask in masks] == ["customer"]
        assert type(next(leaf for leaf in _leaves(orjson.loads(clean)))) is int
    other = {"number": number, "customer": True}
    assert quick.redact(other) == other


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    else:
        yield value


# -- anything ------------------------------------------------------------------------------------------------------

GLUE = [*" \t\n.,;:=\"'`\\/()[]{}<>-_+@~%&?#$é中", "--", "=>", ": ", "\\n", '\\"', "\\u0041", "2", "cfg[", "curl "]
SAMPLES = [planted.text for planted in tokens(Forge(91)) + in_text(Forge(92)) + personal(Forge(93))]
WORDS = [name for name, _, _ in named(Forge(94))] + NAMES + CODES
words = st.tuples(
    st.sampled_from(["", "db_", "--", "x2", "my "]), st.sampled_from(WORDS), st.sampled_from(["", "2", "]", "s"])
)
pieces = st.one_of(
    st.sampled_from(SAMPLES),
    st.sampled_from(GLUE),
    words.map("".join),
    st.sampled_from([SECRET, "482193", "the", "pass", "[pin]"]),
)
texts = st.lists(pieces, min_size=1, max_size=6).map("".join)
arguments = st.one_of(
    st.sampled_from(["curl", "mysql", "sshpass", "-u", "-p", "--user", "-pTr0ub4dor", "ada:Tr0ub4dor", "--", "-x"]),
    words.map(lambda parts: "--" + "".join(parts).strip("-")),
    words.map(lambda parts: "-" + "".join(parts)),
)
values = st.recursive(
    st.one_of(texts, st.sampled_from([4821, 482193, 4111111111111111, None, True])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(st.one_of(arguments, texts, inner), max_size=5),
        st.dictionaries(st.one_of(words.map("".join), texts), inner, max_size=3),
        inner.map(lambda value: json.dumps(value).replace("/", "\\/")),
    ),
    max_leaves=8,
)


@settings(max_examples=600, deadline=None)
@given(values)
def test_the_rules_alone_find_nothing_more(value: Any) -> None:
    agree(value)


@settings(max_examples=300, deadline=None)
@given(texts)
def test_nor_in_a_line_that_is_no_json(text: str) -> None:
    document = text.encode()
    assert QUICK.redact_bytes(document) == THOROUGH.redact_bytes(document)


# -- tokens within runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before", ["", "x", "-", "_x-", "A" * 30, "A" * 300 + "/", "0f" * 200 + "+", "C12345", "C12345-"]
)
def test_a_token_in_a_run_is_seen_wherever_the_rules_see_it(before: str) -> None:
    quick, thorough = both(Rules(user=(Rule(name="customer", pattern=r"C\d{5}"),)))
    for planted in tokens(Forge(21)):
        for text in (before + planted.text, before + planted.text + "==", f"see {before}{planted.text}, please"):
            agree({"a": text})
            agree({"a": text}, quick, thorough)
