"""Byte for byte what RFC 8785 asks: against an independent implementation, ECMAScript and fixed vectors."""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
from collections import OrderedDict
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from antiphon.canonical import MAX_SAFE_INTEGER, canonical_digest, canonical_json, parse_json
from antiphon.errors import CanonicalError
from tests.unit.canonical.documents import document

VECTORS = Path(__file__).parents[2] / "vectors"
NUMBERS = json.loads((VECTORS / "numbers.json").read_text())
DOCUMENTS = json.loads((VECTORS / "canonical.json").read_text())
NODE = shutil.which("node")
PARTS = 10
PER_PART = 10_000


def double(bits: str) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return value


@pytest.mark.parametrize("part", range(PARTS))
def test_random_documents_have_the_bytes_of_an_independent_implementation(part: int) -> None:
    rng = random.Random(part)
    for _ in range(PER_PART):
        value = {"": document(rng), "\ue000": document(rng)}
        assert canonical_json(value) == rfc8785.dumps(value)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.floats(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(json_values)
def test_any_document_has_the_bytes_of_an_independent_implementation(value: Any) -> None:
    data = canonical_json(value)
    assert data == rfc8785.dumps(value)
    assert canonical_json(parse_json(data)) == data


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 9), min_size=2), st.randoms())
def test_the_order_of_names_does_not_matter(value: dict[str, int], rng: random.Random) -> None:
    items = list(value.items())
    rng.shuffle(items)
    assert canonical_json(dict(items)) == canonical_json(value)


@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: [f], lambda f: {"k": f}, lambda f: {"a": [1, {"b": f}]}])
def test_numbers_are_printed_as_ecmascript_prints_them(wrap: Any) -> None:
    for bits, expected in NUMBERS["numbers"]:
        value = wrap(double(bits))
        if expected is None:
            with pytest.raises(CanonicalError, match="not finite"):
                canonical_json(value)
        else:
            assert (
                canonical_json(value) == json.dumps(wrap("@"), separators=(",", ":")).replace('"@"', expected).encode()
            )


def test_the_numbers_of_the_rfc_are_among_the_vectors() -> None:
    texts = dict(NUMBERS["numbers"][: NUMBERS["rfc8785"]])
    assert len(texts) == 26
    assert texts["444b1ae4d6e2ef50"] == "1e+21"
    assert texts["becbf647612f3696"] == "-0.0000033333333333333333"


def ecmascript(script: str, lines: list[str]) -> list[str]:
    assert NODE is not None
    done = subprocess.run([NODE, "-e", script], input="\n".join(lines), capture_output=True, text=True, check=True)
    return done.stdout.removesuffix("\n").split("\n")


def test_number_vectors_hold_against_a_second_oracle() -> None:
    """Node where it is installed; the texts it printed earlier, and the independent implementation, everywhere."""
    bits = [bits for bits, text in NUMBERS["numbers"] if text is not None]
    texts = [text for _, text in NUMBERS["numbers"] if text is not None]
    assert [rfc8785.dumps(double(item)).decode() for item in bits] == texts
    if NODE is not None:
        rng = random.Random()
        fresh = [rng.randbytes(8).hex() for _ in range(2000)]
        fresh = [item for item in fresh if double(item) - double(item) == 0]
        script = """
            const view = new DataView(new ArrayBuffer(8));
            for (const line of require('fs').readFileSync(0, 'utf8').split('\\n')) {
              view.setBigUint64(0, BigInt('0x' + line));
              console.log(JSON.stringify(view.getFloat64(0)));
            }"""
        printed = ecmascript(script, bits + fresh)
        assert printed[: len(bits)] == texts
        assert printed[len(bits) :] == [canonical_json(double(item)).decode() for item in fresh]


@pytest.mark.parametrize("vector", DOCUMENTS["accepted"], ids=lambda vector: vector["id"])
def test_document_vectors(vector: dict[str, str]) -> None:
    value = parse_json(vector["input"])
    assert canonical_json(value).decode() == vector["canonical"]
    assert canonical_digest(value) == vector["sha256"]


@pytest.mark.parametrize("vector", DOCUMENTS["refused"], ids=lambda vector: vector["id"])
def test_refused_vectors(vector: dict[str, str]) -> None:
    with pytest.raises(CanonicalError) as caught:
        parse_json(vector["input"])
    assert caught.value.path == vector["path"]


def test_document_vectors_hold_against_a_second_oracle() -> None:
    for vector in DOCUMENTS["accepted"]:
        assert rfc8785.dumps(json.loads(vector["input"])).decode() == vector["canonical"]
    if NODE is not None:
        script = """
            const sorted = v => Array.isArray(v) ? '[' + v.map(sorted).join(',') + ']'
              : v && typeof v === 'object'
                ? '{' + Object.keys(v).sort().map(k => JSON.stringify(k) + ':' + sorted(v[k])).join(',') + '}'
                : JSON.stringify(v);
            for (const line of require('fs').readFileSync(0, 'utf8').split('\\n'))
              console.log(JSON.stringify(sorted(JSON.parse(JSON.parse(line)))));"""
        printed = ecmascript(script, [json.dumps(vector["input"]) for vector in DOCUMENTS["accepted"]])
        assert [json.loads(line) for line in printed] == [vector["canonical"] for vector in DOCUMENTS["accepted"]]


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Half(float):
    def __repr__(self) -> str:
        return "a half"


class Shout(str):
    def __str__(self) -> str:
        return self.upper()


class Loud(dict[str, Any]):
    pass


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Colour.RED, "red"),
        ({Colour.RED: Level.HIGH}, {"red": 3}),
        ([Half(0.5), Half(2.0)], [0.5, 2]),
        ({"a": Shout("quiet")}, {"a": "quiet"}),
        (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        ({"a": Loud(b=[Loud()])}, {"a": {"b": [{}]}}),
        ((1, (2,)), [1, [2]]),
    ],
)
def test_a_subclass_counts_as_the_value_it_holds(value: Any, plain: Any) -> None:
    assert canonical_json(value) == canonical_json(plain)


def test_emoji_in_values_and_private_names_keep_the_right_order() -> None:
    value: dict[str, Any] = {"\ue000": "🙂\ufe0f", "z": 'a "quoted 🙂": text', "𐀀": 1, "é": ["🙂"]}
    assert canonical_json(value) == rfc8785.dumps(value)
    assert list(json.loads(canonical_json(value))) == ["z", "é", "𐀀", "\ue000"]


def test_the_value_is_not_touched() -> None:
    value = {"b": [1.0, {"x": 2.0}], "a": ("t", -0.0)}
    before = repr(value)
    canonical_json(value)
    assert repr(value) == before
