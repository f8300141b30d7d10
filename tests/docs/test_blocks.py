"""Every block of the documentation is checked: Python runs (test_examples), commands parse, files load, the rest is
marked as output (``text``)."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import yaml

from antiphon.cli import COMMANDS
from antiphon.cli._base import find
from antiphon.config.model import Config
from antiphon.stores import PostgresStore
from tests.docs.pages import ROOT, lines, name, pages
from tests.nodejs import node

CHECKED = {"python", "console", "toml", "json", "yaml", "sql", "js"}
OUTPUT = "text"
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


class Block(NamedTuple):
    line: int
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    found: list[Block] = []
    previous = 0
    for number, line, code in lines(page):
        if code is not None:
            if found and previous == number - 1 and found[-1].language == code:
                found[-1] = found[-1]._replace(text=f"{found[-1].text}\n{line}")
            else:
                found.append(Block(number, code, line))
            previous = number
    return found


def commands(block: Block) -> list[str]:
    """The commands of a console block; a line that ends with a backslash goes on."""
    joined = re.sub(r"\\\n\s*", "", block.text)
    return [line.strip()[2:] for line in joined.split("\n") if line.strip().startswith("$ ")]


def refused(command: str) -> str | None:
    """Why a command of ours cannot be typed, or ``None``."""
    syntax = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True, check=False)
    if syntax.returncode:
        return syntax.stderr
    lexer = shlex.shlex(command, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    parts: list[list[str]] = [[]]
    for word in lexer:  # a comment ends it
        parts.append([]) if word in ("&&", "|", ";") else parts[-1].append(word)
    for words in parts:
        words = words[3:] if words[:2] == ["sudo", "-u"] else words
        while words and re.match(r"^[A-Z_]+=", words[0]):
            words = words[1:]
        if not words:
            continue
        if words[0] == "make" and words[1:2] and words[1] not in TARGETS:
            return f"there is no target {words[1]}"
        if words[0].rpartition("/")[2] == "antiphon" and words[1:2] and not words[1].startswith("-"):
            if words[1] not in COMMANDS:
                return f"there is no command {words[1]}"
            try:
                find(COMMANDS[words[1]][0]).parse(words[1], [word for word in words[2:] if word not in ("…", ">")])
            except SystemExit as error:
                if error.code:
                    return f"{command}: usage"
    return None


def test_every_block_is_checked_or_marked_as_output() -> None:
    lost = [
        f"{name(page)}:{block.line} {block.language}"
        for page in pages()
        for block in blocks(page)
        if block.language not in CHECKED | {OUTPUT} and not block.language.startswith("file:")
    ]
    assert lost == []


@pytest.mark.parametrize(
    "page", [page for page in pages() if any(b.language == "console" for b in blocks(page))], ids=name
)
def test_commands_can_be_typed(page: Path) -> None:
    for block in blocks(page):
        if block.language == "console":
            assert commands(block), f"{name(page)}:{block.line} has no line that starts with $"
            for command in commands(block):
                assert refused(command) is None, f"{name(page)}:{block.line}: {command}\n{refused(command)}"


def test_files_can_be_read() -> None:
    sections = set(Config.__struct_fields__)
    for page in pages():
        for block in blocks(page):
            if block.language == "toml":
                data = tomllib.loads(block.text)
                if data.keys() & sections:
                    msgspec.convert(data, Config)
            elif block.language == "json":
                json.loads(block.text)
            elif block.language == "yaml":
                yaml.safe_load(block.text)


def test_statements_run(postgres_database: str) -> None:
    import psycopg

    journal = PostgresStore(postgres_database).open_sync()
    journal.ping()
    journal.close()
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("DO $$ BEGIN CREATE ROLE app; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        for page in pages():
            for block in blocks(page):
                if block.language == "sql":
                    for statement in block.text.split(";"):
                        if statement.strip():
                            connection.execute(statement.encode())


def test_the_checks_can_fail() -> None:
    assert refused("antiphon runs --limt 5") is not None
    assert refused("antiphon rums") is not None
    assert refused("make nothing") is not None
    assert refused("echo 'open") is not None
    assert refused("antiphon runs --limit 5 && make demo") is None


def test_scripts_parse(tmp_path: Path) -> None:
    places = [f"{name(page)}:{block.line}" for page in pages() for block in blocks(page) if block.language == "js"]
    scripts = [block.text for page in pages() for block in blocks(page) if block.language == "js"]
    assert scripts
    for place, text in zip(places, scripts, strict=True):
        (tmp_path / "block.mjs").write_text(text, encoding="utf-8")
        done = subprocess.run([node(), "--check", tmp_path / "block.mjs"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{place}: {done.stderr}"
