"""Options may stand before, between and behind the other words of a command."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from antiphon.cli import COMMANDS
from antiphon.cli._base import find
from tests.integration.cli.conftest import Command

LINES: list[tuple[list[str], list[list[str]]]] = [
    (["approvals", "approve", "ID"], [["--as", "grace"], ["--json"]]),
    (["approvals", "deny", "ID", "OTHER"], [["--reason", "no"], ["--dry-run"]]),
    (["claims", "resolve", "KEY"], [["--happened"], ["--no-value"]]),
    (["runs", "undo", "RUN"], [["--entry", "trip.py"], ["--dry-run"]]),
    (["apikeys", "revoke", "ID"], [["--json"]]),
    (["breakers", "reset", "shop/charge"], [["--json"], ["--store", "s.db"]]),
    (["sealkeys", "use", "ID"], [["--json"]]),
    (["show", "RUN"], [["--diff", "1", "2"], ["--json"]]),
    (["diff", "A", "B"], [["--json"]]),
    (["matrix", "RUN", "OTHER"], [["--model", "a"], ["--jobs", "2"]]),
    (["next-step", "RUN", "OTHER"], [["--llm", "agent.py:ask"], ["--json"]]),
    (["scan", "PATH", "OTHER"], [["--json"]]),
]


@pytest.mark.parametrize(("words", "options"), LINES, ids=lambda part: part[0] if isinstance(part[0], str) else "")
def test_options_may_stand_anywhere(words: list[str], options: list[list[str]]) -> None:
    name, *rest = words
    command = find(COMMANDS[name][0])
    behind = command.parser(name).parse_args([*rest, *itertools.chain(*options)])
    slots = range(len(rest) + 1)
    for places in itertools.product(slots, repeat=len(options)):
        line: list[str] = []
        for slot in slots:
            line += itertools.chain(*(option for option, place in zip(options, places, strict=True) if place == slot))
            line += rest[slot : slot + 1]
        assert command.parse(name, line) == behind, line


def test_words_behind_two_dashes_are_no_options() -> None:
    scan = find(COMMANDS["scan"][0])
    assert scan.parse("scan", ["--json", "--", "-file"]).paths == ["-file"]
    assert scan.parse("scan", ["a", "--json", "--", "--store"]).paths == ["a", "--store"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("approvals", "approve", "--bogus", "ID"), "unrecognized arguments: --bogus"),
        (("next-step", "RUN"), "the following arguments are required: --llm"),
        (("scan", "--json"), "the following arguments are required: PATH"),
        (("show", "--events", "--no-such", "RUN"), "unrecognized arguments"),
    ],
)
def test_what_is_wrong_is_still_told(antiphon: Command, words: tuple[str, ...], says: str) -> None:
    done = antiphon(*words)
    assert done.code == 2
    assert says in done.out + done.err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_the_words_wherever_it_is_asked_for(antiphon: Command, name: str) -> None:
    whole = find(COMMANDS[name][0]).parser(name).format_help()
    assert antiphon(name, "--help").out == whole
    assert antiphon(name, "-h", "x").out == whole


@pytest.mark.parametrize(
    ("name", "words", "kept"),
    [
        ("exec", ["--name", "n", "--", "python", "a.py", "--name", "m", "--", "x"], "command"),
        ("exec", ["--quiet", "python", "a.py", "--json", "--quiet"], "command"),
        ("mcp", ["--run", "n", "wrap", "--", "npx", "-y", "server", "--run", "m"], "words"),
    ],
)
def test_a_wrapped_command_keeps_its_words(name: str, words: list[str], kept: str) -> None:
    found = find(COMMANDS[name][0]).parse(name, words)
    place = words.index("wrap") if "wrap" in words else words.index("--") if "--" in words else 1
    assert getattr(found, kept) == words[place:]


def test_the_reported_lines(antiphon: Command) -> None:
    Path("trip.py").write_text("")
    for line, code in (
        ("approvals approve --as grace ID", 4),
        ("approvals deny --reason no ID", 4),
        ("claims resolve --happened --no-value KEY", 4),
        ("runs undo --entry trip.py RUN", 4),
        ("apikeys revoke --json ID", 4),
    ):
        done = antiphon(*line.split())
        assert "unrecognized" not in done.err, line
        assert done.code == code, (line, done)
