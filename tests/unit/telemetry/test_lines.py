"""R14: a line that is redacted field by field says what it would say if it were redacted as a whole."""

from __future__ import annotations

import enum
import itertools
import json
import random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.redact import Redactor, Rule, Rules
from antiphon.redact._prefilter import ALL, Prefilter
from antiphon.telemetry import _lines
from antiphon.telemetry._lines import HARMLESS, NAMES, Lines
from tests.unit.redact.corpus import KEPT_TEXTS, Forge, in_text, named, personal, tokens

CALL: dict[str, Any] = {
    "requestId": "01890a5d-ac96-774b-bcce-b302099a8057",
    "toolName": "send_email",
    "toolNamespace": "tools",
    "toolCallId": "toolu_01A09q90qw90lq917835lq9",
    "sessionKey": "session-1",
    "idempotencyKeyHash": "9f86d081884c7d65",
    "correlationId": None,
    "state": "success",
    "status": "success",
    "scope": "session",
    "attempt": 1,
    "elapsedMs": 12.5,
    "fromCache": False,
    "breakerState": "CLOSED",
}
FAILED: dict[str, Any] = {
    **CALL,
    "state": "error",
    "status": "error",
    "errorCode": "tool_error",
    "retriable": False,
    "reason": "exception",
    "errorMessage": "it broke",
    "unclassified": True,
}
FREE = (
    "requestId toolName toolNamespace toolCallId sessionKey idempotencyKeyHash correlationId errorCode errorMessage"
    " reason traceparent"
).split()
"""Fields whose text may come from outside; the first seven are in every event."""
TIME = 1_700_000_000_000
PLANTED = tokens(Forge(61)) + in_text(Forge(62)) + personal(Forge(63))


def whole(redactor: Redactor, event: str, fields: dict[str, Any]) -> Any:
    """The oracle: encode everything, then redact everything."""
    document = {"event": event, "timeMs": TIME}
    document.update((name, value) for name, value in fields.items() if value is not None and value != "")
    line = redactor.redact_bytes(orjson.dumps(document, default=str, option=orjson.OPT_NON_STR_KEYS))[0]
    return orjson.loads(line)


def same(fields: dict[str, Any], lines: Lines, oracle: Redactor, event: str = "tool_call_end") -> None:
    """Four times: unknown, seen once, from a template, and with new ids in it."""
    expected = whole(oracle, event, fields)
    for _ in range(3):
        line = lines.encode(event, TIME, fields)
        assert json.loads(line) == expected
        assert "\n" not in line
    other = {**fields, "elapsedMs": 0.25}
    assert json.loads(lines.encode(event, TIME, other)) == whole(oracle, event, other)


def redactors(*rules: Rule) -> tuple[Lines, Redactor]:
    made = Redactor(Rules(user=rules), salt="unit")
    return Lines(made), Redactor(Rules(user=rules), salt="unit")


LINES, ORACLE = redactors()


# -- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FREE)
def test_each_planted_secret_vanishes_from_each_field_that_may_hold_one(name: str) -> None:
    for planted in PLANTED:
        for text, event in (
            (planted.text, CALL),
            (f"failed: {planted.text}", FAILED),
            (json.dumps({"note": planted.text}), CALL),
        ):
            fields = {**event, name: text}
            same(fields, LINES, ORACLE)
            if len(planted.secret) > 5 and planted.kind != "high_entropy":  # an id may look random
                assert planted.secret not in LINES.encode("tool_call_end", TIME, fields)


@pytest.mark.parametrize("name", ["requestTags", "baggage"])
def test_each_planted_secret_vanishes_from_tags_and_baggage(name: str) -> None:
    for planted in PLANTED:
        for value in (
            {"note": planted.text},
            [planted.text],
            (planted.text, "b", "c"),
            {planted.text: "a name"},
            {"deep": [{"er": {"note": f"x {planted.text}"}}]},
        ):
            same({**CALL, name: value}, LINES, ORACLE)
            if len(planted.secret) > 5 and not isinstance(value, dict):
                assert planted.secret not in LINES.encode("tool_call_end", TIME, {**CALL, name: value})
    for inner, secret, _ in named(Forge(64)):
        for nested in ({inner: secret}, {"x": {inner: secret}}, {"name": inner, "value": secret}, [inner, secret]):
            same({**CALL, name: nested}, LINES, ORACLE)
        assert secret not in LINES.encode("tool_call_end", TIME, {**CALL, name: {inner: secret}})
    same({**CALL, name: {"pin": 4821, "cvv": 123, "password": 12345678}}, LINES, ORACLE)


def test_a_secret_under_a_name_that_is_not_ours_vanishes() -> None:
    for inner, secret, _ in named(Forge(65)):
        same({**CALL, inner: secret}, LINES, ORACLE)
        assert secret not in LINES.encode("tool_call_end", TIME, {**CALL, inner: secret})
    for fields in ({"pin": 4821}, {"name": "Authorization", "value": "tr0ub4dor"}, {"token": " Hello", "logprob": -1}):
        same(fields, LINES, ORACLE)


def test_what_is_no_secret_stays() -> None:
    for text, name in itertools.product(KEPT_TEXTS, FREE):
        same({**CALL, name: text}, LINES, ORACLE)
    for name in ("requestId", "toolCallId", "correlationId", "idempotencyKeyHash"):
        random_looking = tokens(Forge(66))[-2].secret
        assert random_looking in LINES.encode("tool_call_end", TIME, {**CALL, name: random_looking})


def test_a_text_is_judged_by_the_field_it_stands_in() -> None:
    lines, oracle = redactors()
    random_looking = tokens(Forge(67))[-2].secret
    for name in ("toolCallId", "sessionKey", "correlationId", "toolName"):
        same({**CALL, name: random_looking}, lines, oracle)


SAMPLES = [planted.text for planted in PLANTED] + list(KEPT_TEXTS)
GLUE = [*" \t\n.,;:=\"'\\/()[]{}<>-_+@~%&?#$é中\x00", "--", "=>", "\\n", '\\"', "\\u0041", "2", "curl ", "Bearer "]
WORDS = [name for name, _, _ in named(Forge(68))]
SHAPES = ["call_", "toolu_", "fc_", "run_", "session-", "a", "1234", "4111111111111111", "NO93", "AKIA", "SK", "00-"]
texts = st.lists(
    st.one_of(st.sampled_from(SAMPLES), st.sampled_from(GLUE), st.sampled_from(WORDS), st.sampled_from(SHAPES)),
    max_size=5,
).map("".join)
scalars = st.one_of(texts, st.none(), st.booleans(), st.sampled_from([0, 1, 4821, 4111111111111111, 0.0, 1.5, -2.0]))
containers = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(texts, st.sampled_from(WORDS)), inner, max_size=3),
        st.tuples(st.sampled_from(["Authorization", "Cookie", "X-Api-Key"]), texts),
    ),
    max_leaves=6,
)
events = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(FREE, texts),
        **dict.fromkeys(("state", "status", "attempt", "elapsedMs", "fromCache", "sessionKey", "scope"), scalars),
        **dict.fromkeys(("requestTags", "baggage", "breakerState", "delayMs"), containers),
    },
)


@settings(max_examples=400, deadline=None)
@given(events, st.booleans())
def test_any_event_is_written_as_if_it_were_redacted_as_a_whole(event: dict[str, Any], full: bool) -> None:
    same({**CALL, **event} if full else event, LINES, ORACLE)


@settings(max_examples=200, deadline=None)
@given(events, st.dictionaries(st.one_of(st.sampled_from(WORDS), texts), containers, max_size=2))
def test_so_is_an_event_with_fields_of_others(event: dict[str, Any], others: dict[str, Any]) -> None:
    same({**event, **others}, LINES, ORACLE, "tool_something")


# -- ids -------------------------------------------------------------------------------------------------------------


class _Everything(Prefilter):
    """Sends each document to the rules."""

    __slots__ = ()

    def causes(self, document: bytes, within: int = ALL) -> int:
        return ALL


THOROUGH = Redactor(salt="unit")
THOROUGH._prefilter = _Everything(Rules())


@settings(max_examples=500, deadline=None)
@given(st.from_regex(HARMLESS, fullmatch=True))
def test_no_rule_touches_a_harmless_id(text: str) -> None:
    for name in (*NAMES, ""):
        assert THOROUGH.redact(text, name) == text
    assert orjson.dumps(text) == f'"{text}"'.encode()


def test_the_start_of_no_token_is_harmless() -> None:
    rng = random.Random(7)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    starts = "AIza AKIA ASIA ABIA ACCA GR1348941 SK dapi ATATT3 eyJ hf npm sk NO93 DE89 GB29 T B M AA xoxb key".split()
    for prefix, start, _ in itertools.product(("call_", "toolu_", "fc_", "run_", "msg_"), starts, range(20)):
        text = prefix + start + "".join(rng.choice(alphabet) for _ in range(rng.choice((11, 16, 18, 32, 35, 60))))
        if HARMLESS.fullmatch(text):
            assert THOROUGH.redact(text, "sessionKey") == text
    assert [planted for planted in PLANTED if HARMLESS.fullmatch(planted.text)] == []


def test_a_card_a_phone_and_an_account_are_not_harmless() -> None:
    for text in ("4111111111111111", "555-867-5309", "call_555-867-5309", "call_NO9386011117947", "NO9386011117947"):
        assert HARMLESS.fullmatch(text) is None
        assert THOROUGH.redact(text, "sessionKey") != text


def test_none_of_our_names_makes_a_secret_of_its_value() -> None:
    for name in NAMES:
        field = ORACLE._names[name]
        assert field is None or field.mode == "keep", name
        assert name.isidentifier(), name
        assert len(name) < 20, name


# -- rules of the user -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        Rule(name="customer", pattern=r"C\d{5}"),
        Rule(name="customer", pattern=r"^C\d{5}$"),
        Rule(name="uuid", pattern=r"[0-9a-f]{8}-[0-9a-f-]{27}"),
        Rule(name="digest", pattern=r"9f86d081884c7d65"),
        Rule(name="numbered", pattern=r"session-\d+"),
        Rule(name="quoted", pattern=r'"C\d+'),
        Rule(name="who", field="sessionKey"),
        Rule(name="which", field="toolCallId"),
        Rule(name="all", field="baggage"),
        Rule(name="event", field="event"),
        Rule(name="password", field="attempt"),
        Rule(name="password", field="event"),
        Rule(name="password", field="timeMs"),
        Rule(name="inner", field="note"),
    ],
    ids=lambda rule: f"{rule.name}-{rule.pattern or rule.field}",
)
def test_a_rule_of_the_user_holds(rule: Rule) -> None:
    lines, oracle = redactors(rule)
    for value in ("C12345", 'say "C12345"', "x C12345 y", "session-1", CALL["requestId"], CALL["idempotencyKeyHash"]):
        same(CALL, lines, oracle)
        same({**CALL, "baggage": {"note": value, "list": [value]}, "requestTags": (value,)}, lines, oracle)
        for name in FREE:
            same({**CALL, name: value}, lines, oracle)


def test_a_text_that_is_fine_elsewhere_is_a_secret_under_a_name_of_the_user() -> None:
    lines, oracle = redactors(Rule(name="who", field="sessionKey"))
    fields = {**CALL, "toolName": "ada", "sessionKey": "ada"}
    same(fields, lines, oracle)
    written = json.loads(lines.encode("tool_call_end", TIME, fields))
    assert written["toolName"] == "ada"
    assert written["sessionKey"].startswith("[who:")


# -- templates -------------------------------------------------------------------------------------------------------


class _Kind(str, enum.Enum):  # noqa: UP042 - its format() is not its value
    CALL = "call_1"


ODD: list[Any] = ["", None, 0, False, 1, 2.5, "call_7", "a secret", _Kind.CALL, ["x"], {"password": "hunter2hunter2"}]


@pytest.mark.parametrize("name", [name for name in CALL if name != "elapsedMs"])
def test_a_template_is_used_only_where_it_fits(name: str) -> None:
    lines, oracle = redactors()
    for _ in range(3):
        lines.encode("tool_call_end", TIME, CALL)
    assert any(form.templates for form in lines._templates._template_sets.values())
    for value in ODD:
        same({**CALL, name: value}, lines, oracle)
        same(CALL, lines, oracle)
    same({other: value for other, value in CALL.items() if other != name}, lines, oracle)
    same({**{other: value for other, value in CALL.items() if other != name}, "reason": "x"}, lines, oracle)
    same({**{other: value for other, value in CALL.items() if other != name}, "password": "hunter2"}, lines, oracle)
    same(CALL, lines, oracle)


def test_a_template_does_not_care_about_the_order_of_fields() -> None:
    rng = random.Random(5)
    for _ in range(50):
        lines, oracle = redactors()
        names = list(CALL)
        for _ in range(3):
            rng.shuffle(names)
            same({name: CALL[name] for name in names}, lines, oracle)
        same(CALL, lines, oracle)


def test_a_template_holds_for_two_sets_of_names_of_one_size() -> None:
    lines, oracle = redactors()
    other = {("reason" if name == "breakerState" else name): value for name, value in CALL.items()}
    for _ in range(3):
        same(CALL, lines, oracle)
        same(other, lines, oracle)


def test_durations_are_numbers_of_json() -> None:
    lines, oracle = redactors()
    for elapsed in (0.0, -0.0, 1e-5, 1e-7, 0.001, 12.5, 1e14, 1e16, 1e300, 5, float("nan"), float("inf"), -1.5):
        for _ in range(3):
            line = lines.encode("tool_call_end", TIME, {**CALL, "elapsedMs": elapsed})
            assert json.loads(line) == whole(oracle, "tool_call_end", {**CALL, "elapsedMs": elapsed})


def test_texts_in_a_template_are_escaped() -> None:
    lines, oracle = redactors()
    for text in ('a "quoted" one', "back\\slash", "100 %s %d %%", "{braces}", "line\nbreak", "\x00", "é 中 \u2028"):
        same({**CALL, "sessionKey": text, "toolName": text}, lines, oracle)
        assert json.loads(lines.encode("tool_call_end", TIME, {**CALL, "sessionKey": text}))["sessionKey"] == text


def test_what_is_remembered_is_bounded() -> None:
    lines, oracle = redactors()
    most = _lines._MOST_REMEMBERED
    for n in range(most + 50):
        fields = {**CALL, "sessionKey": f"user {n}", "requestTags": [f"tag {n}"], "toolName": f"tool {n}"}
        for _ in range(2):
            lines.encode("tool_call_end", TIME, fields)
        fields.pop("requestTags")
        for _ in range(2):
            lines.encode("tool_call_end", TIME, fields)
    for fields in ({**CALL, "sessionKey": "x " * 5000}, {**CALL, "requestTags": ["x " * 5000]}):
        same(fields, lines, oracle)
    assert all(len(known) <= most for known in lines._texts.values())
    assert len(lines._texts["sessionKey"]) > 0
    assert len(lines._containers) <= most
    assert len(lines._templates._seen) <= most
    assert all(len(form.templates) <= most for form in lines._templates._template_sets.values())
    remembered = [text for known in lines._texts.values() for text in known]
    assert max(map(len, remembered)) <= _lines._LONGEST_REMEMBERED


def test_values_that_are_not_json_are_written_as_text() -> None:
    lines, oracle = redactors()
    for value in ({1, 2}, ValueError("password=hunter2hunter2"), {1: {2: object}}, b"bytes", _Kind.CALL):
        same({**CALL, "breakerState": value}, lines, oracle)
        same({**CALL, "baggage": value}, lines, oracle)


def test_what_the_redactor_took_for_a_text_is_written_as_one() -> None:
    class Textual(Redactor):
        __slots__ = ()

        def redact_bytes(self, document: bytes) -> tuple[bytes, bool]:
            return (b"[secret:x] was here", True) if b"deep" in document else (document, False)

    line = json.loads(Lines(Textual()).encode("tool_call_end", TIME, {**CALL, "baggage": {"deep": "secret"}}))
    assert line["baggage"] == "[secret:x] was here"
