"""``side_effects.yaml``: what is written is read again, and a name cannot say anything about another tool (K6)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from antiphon.decide.effects import NEITHER, NOT_FOUND, Suggestion
from antiphon.errors import ConfigError
from antiphon.ops import side_effects
from antiphon.ops.side_effects import blocked_text, read, write

SAFE, UNSAFE = Suggestion(True, NOT_FOUND), Suggestion(False, NEITHER)
HOSTILE = [
    "x\n  send_email: true",
    "x: true\ndone: true\n#",
    "x\r  send_email: true",
    "x\x85  send_email: true",
    "x\u2028  send_email: true",
    "x: true #",
    "send_email: true",
    "a: b: c",
    "a:",
    "#",
    "a # b",
    "&anchor",
    "*send_email",
    "!!bool true",
    "<<",
    '"',
    "'",
    'it\'s "quoted"',
    "{send_email: true}",
    "[a, b]",
    "- a",
    "? a",
    "| a",
    "%YAML 1.1",
    "---",
    "...",
    "done",
    "tools",
    "on",
    "null",
    "~",
    "12",
    "1e3",
    "12:30:45",
    "2020-01-01",
    "",
    " ",
    "\t",
    "\x00\x1b[2J",
    "\u202eeurt :liame_dnes",
    "\ufeff",
    "\ud800",
    "天気 🌦",
    "back\\slash\\n",
    "long " * 400,
    "x" * 2000,
]


def made(folder: Path, found: dict[str, Suggestion]) -> Path:
    path = folder / "side_effects.yaml"
    write(path, found)
    return path


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_is_a_name_and_nothing_else(name: str, tmp_path: Path) -> None:
    path = made(tmp_path, {name: SAFE, "send_email": UNSAFE})
    assert read(path) == ({name: True, "send_email": False}, False, path)
    assert read(made(tmp_path, {"send_email": UNSAFE, name: UNSAFE})) == (
        {"send_email": False, name: False},
        False,
        path,
    )


@given(st.dictionaries(st.text(st.characters()), st.booleans(), max_size=5))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, tools: dict[str, bool]) -> None:
    path = made(tmp_path_factory.mktemp("f"), {name: SAFE if safe else UNSAFE for name, safe in tools.items()})
    assert read(path) == (tools, False, path)
    assert yaml.safe_load(path.read_bytes()) == {"tools": tools, "done": False}


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_no_name_looks_like_another_line(name: str, tmp_path: Path) -> None:
    text = made(tmp_path, {name: SAFE}).read_text(encoding="utf-8") + blocked_text(
        tmp_path, {name: SAFE}, generated=True
    )
    assert all(character.isprintable() or character == "\n" for character in text)
    assert not [line for line in text.splitlines() if line.startswith(("  send_email:", "done: true"))]


def test_a_name_written_as_it_is_changes_another_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: without the library a name says that another tool is safe."""
    monkeypatch.setattr(side_effects, "_entry", lambda name, safe: f"  {name}: {str(safe).lower()}")
    found = read(made(tmp_path, {"x: false\n  send_email": SAFE}))
    assert found is not None
    assert found.tools["send_email"] is True


def test_the_file_is_pleasant_to_read(tmp_path: Path) -> None:
    path = made(tmp_path, {"look": Suggestion(True, "why"), "mail:send now": UNSAFE, "天気": SAFE})
    assert path.read_text(encoding="utf-8") == (
        "tools:\n"
        "  look: true    # why\n"
        f"  mail:send now: false    # {NEITHER}\n"
        f"  天気: true    # {NOT_FOUND}\n"
        "done: false            # Must be set to true manually after review\n"
    )


@pytest.mark.parametrize(
    ("text", "tools", "done"),
    [
        ("", {}, False),
        ("# nothing yet\n", {}, False),
        ("tools:\ndone: true\n", {}, True),
        ("tools: {}\ndone: true", {}, True),
        (
            "done: true\ntools:\n    a: true # yes\n    'b': false\n    \"c\\td\": true\n",
            {"a": True, "b": False, "c\td": True},
            True,
        ),
        (
            "tools:\n  on: true\n  12: false\n  null: true\n  ns/x: true\n",
            {"on": True, "12": False, "null": True, "ns/x": True},
            False,
        ),
        ("tools:\r\n  a: true\r\ndone: true\r\n", {"a": True}, True),
        ("\ufefftools: {a: true, b: false}\n", {"a": True, "b": False}, False),
    ],
)
def test_what_a_person_may_write(text: str, tools: dict[str, bool], done: bool, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(text.encode())
    assert read(path) == (tools, done, path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tools:\n  a: yes\n", 2),
        ("tools:\n  a: True\n", 2),
        ("tools:\n  a: 'true'\n", 2),
        ("tools:\n  a: 1\n", 2),
        ("tools:\n  a:\n", 2),
        ("tools:\n  a: [true]\n", 2),
        ("tools:\n  - a\n", 2),
        ("tools:\n  [a]: true\n", 2),
        ("tools:\n  a: true\n  a: false\n", 3),
        ("tools:\n  a: b: true\n", 2),
        ("tools:\n\ta: true\n", 2),
        ("tools:\n  <<: {a: true}\n", 2),
        ("tools: {}\nother: true\n", 2),
        ("tools: {}\ndone: maybe\n", 2),
        ("tools: {}\n---\ndone: true\n", 2),
        ("tools: true\n", 1),
        ("a word\n", 1),
        ("tools:\n  a: *gone\n", 2),
    ],
)
def test_anything_else_is_refused_with_its_line(text: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert caught.value.path == f"{path}:{line}"


@pytest.mark.parametrize("data", [b"\xff\xfe\xff", b"tools: {}\n\x00", b"\x80abc"])
def test_bytes_that_are_no_text_are_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"f\.yaml"):
        read(path)


def test_without_a_file_there_is_nothing(tmp_path: Path) -> None:
    assert read(tmp_path / "f.yaml") is None
