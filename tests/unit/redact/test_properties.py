"""What must hold for any data: redaction is idempotent, keeps structure, and the quick look never hides a secret."""

from __future__ import annotations

import json
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.redact import Redactor, Rules
from antiphon.redact._detect import Span, TextRules, _open_parts, _tokens
from antiphon.redact._names import classify
from antiphon.redact._prefilter import RUNS, Prefilter
from antiphon.redact._tokens import TOKENS
from tests.unit.redact.corpus import KEPT_TEXTS, Forge, in_text, named, personal, tokens

REDACTOR = Redactor(Rules(), salt="unit")
TEXT_RULES = TextRules(Rules())
PREFILTER = Prefilter(Rules())
SNIPPETS = [p.text for p in tokens(Forge(11)) + in_text(Forge(12)) + personal(Forge(13))]
SECRETS = [p.secret for p in tokens(Forge(11))]

glue = st.sampled_from(
    ["", " ", "\n", ": ", "=", '"', "'", ", ", "://", "@", "-", "_", "\\", "[", "]", "{", "}", "password=", "é"]
)
pieces = st.one_of(st.sampled_from(SNIPPETS), st.sampled_from(KEPT_TEXTS), glue, st.text(max_size=12))
texts = st.lists(pieces, max_size=6).map("".join)
names = st.one_of(
    st.sampled_from([name for name, _, _ in named(Forge(14))]),
    st.sampled_from(["id", "note", "value", "name", "key", "content", "data", "type", "logprob", "arguments"]),
    st.text(alphabet="abkeypstnw_-AKT. $", max_size=14),
)
values = st.recursive(
    st.one_of(
        texts, st.integers(-(2**53), 2**53), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=12,
)


def shape(value: Any) -> Any:
    """Nesting and lengths, without the leaves."""
    if isinstance(value, dict):
        return [shape(item) for item in value.values()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return None


@settings(max_examples=400, deadline=None)
@given(texts)
def test_redacting_text_twice_is_redacting_once(text: str) -> None:
    once = REDACTOR.redact_text(text)
    assert REDACTOR.redact_text(once) == once


@settings(max_examples=400, deadline=None)
@given(values)
def test_redacting_twice_is_redacting_once(value: Any) -> None:
    once = REDACTOR.redact(value)
    assert REDACTOR.redact(once) == once


@settings(max_examples=300, deadline=None)
@given(values)
def test_structure_is_kept_and_the_original_untouched(value: Any) -> None:
    before = json.dumps(value)
    redacted = REDACTOR.redact(value)
    assert json.dumps(value) == before
    assert shape(redacted) == shape(value)


@settings(max_examples=400, deadline=None)
@given(values)
def test_the_quick_look_lets_nothing_pass_that_the_rules_would_change(value: Any) -> None:
    redacted = REDACTOR.redact(value)
    document = orjson.dumps(value)
    if redacted is not value:
        assert REDACTOR.may_hold(document), value
    cleaned, changed = REDACTOR.redact_bytes(document)
    assert changed is (redacted is not value)
    assert orjson.loads(cleaned) == orjson.loads(orjson.dumps(redacted))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SECRETS), st.lists(pieces, max_size=3), st.lists(pieces, max_size=3))
def test_a_secret_between_blanks_never_survives(secret: str, before: list[str], after: list[str]) -> None:
    text = f"{''.join(before)} {secret} {''.join(after)}"
    assert f" {secret} " not in REDACTOR.redact_text(text)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SECRETS), st.sampled_from(SECRETS))
def test_equal_secrets_stay_equal_and_different_ones_different(one: str, two: str) -> None:
    first, second = REDACTOR.redact([one, two])
    assert (first == second) is (one == two)
    assert Redactor(salt="unit").redact(one) == first
    assert Redactor(salt="other").redact(one) != first


@settings(max_examples=600, deadline=None)
@given(texts)
def test_the_quick_look_is_never_narrower_than_any_detector(text: str) -> None:
    assert_causes(text)


def assert_causes(text: str) -> None:
    causes = PREFILTER.causes(orjson.dumps(text)) & PREFILTER.causes(f'"{text}"'.encode("utf-8", "surrogatepass"))
    for needed, detect in [*TEXT_RULES._detectors, (RUNS, TEXT_RULES._entropy)]:
        assert detect is not None
        if any(list(detect(text[start:end])) for start, end in _open_parts(text)):
            assert causes & needed, (detect, text)


@settings(max_examples=600, deadline=None)
@given(names, st.sampled_from(["tr0ub4dor", "4821", "123", "078-05-1120", "+4791234567"]))
def test_the_quick_look_is_never_narrower_than_the_names(name: str, value: str) -> None:
    if classify(name) is not None and REDACTOR.redact({name: value}) != {name: value}:
        assert REDACTOR.may_hold(orjson.dumps({name: value})), name


@settings(max_examples=600, deadline=None)
@given(
    st.sampled_from(["", "--", "-", "x_", "my-", "$"]),
    names,
    st.sampled_from([" ", "=", ": ", " = ", '": "', "' => '"]),
)
def test_the_quick_look_is_never_narrower_than_pairs(before: str, name: str, separator: str) -> None:
    text = f"run {before}{name}{separator}tr0ub4dor7 now"
    assert_causes(text)


_PIECES = st.text(alphabet="ab1@.x-_ :/?,{}[]é", max_size=30) | st.sampled_from(
    ["mail ada@example.org now", "https://u:p@host.org/x", "a@b.no", "git@github.com:x/y"]
)


@given(
    st.recursive(
        _PIECES | st.integers(-99, 99) | st.none(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(_PIECES | st.sampled_from(["email", "to", "name", "value", "data"]), inner, max_size=4)
        ),
        max_leaves=10,
    )
)
def test_looking_only_at_addresses_gives_what_the_walk_gives(value: object) -> None:
    redactor = Redactor(Rules(), salt="00")
    document = orjson.dumps(value)
    clean, changed = redactor.redact_bytes(document)
    walked = redactor.redact(orjson.loads(document))
    assert orjson.loads(clean) == walked
    assert changed == (walked != orjson.loads(document))


@settings(max_examples=400, deadline=None)
@given(texts)
def test_passing_over_what_is_no_token_loses_none(text: str) -> None:
    """Only parts of a text are searched for tokens; the whole text has no more of them."""
    assert list(_tokens(text)) == [Span(*match.span(), match.lastgroup or "") for match in TOKENS().finditer(text)]


def test_every_token_is_found_wherever_it_stands() -> None:
    for planted in tokens(Forge(16)):
        for text in (
            planted.text,
            f"({planted.text})",
            f"a {planted.text}, b",
            "é" + planted.text,
            "=" * 40 + planted.text,
        ):
            assert list(_tokens(text)) == [Span(*m.span(), m.lastgroup or "") for m in TOKENS().finditer(text)], text
