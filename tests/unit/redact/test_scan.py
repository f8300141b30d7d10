"""D21: ``antiphon scan`` finds leaks and never prints them."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import orjson
import pytest

from antiphon._seal import Sealer
from antiphon.redact import Finding, Redactor, Rules, scan_path
from tests.unit.redact.corpus import Forge, in_text, tokens


def scan(path: Path, rules: Rules | None = None) -> list[Finding]:
    return list(scan_path(path, rules))


def test_every_token_is_found_and_none_is_shown(tmp_path: Path) -> None:
    planted = tokens(Forge(41)) + in_text(Forge(42))
    for number, one in enumerate(planted):
        (tmp_path / f"{number:03}.txt").write_text(f"first\n{one.text}\n")
    findings = scan(tmp_path)
    assert {Path(f.file).stem for f in findings} == {f"{n:03}" for n in range(len(planted))}
    shown = repr(findings)
    assert not [one.kind for one in planted if len(one.secret) > 6 and one.secret in shown]
    assert all(f.where.startswith("line 2") for f in findings)


def test_json_is_located_by_pointer(tmp_path: Path) -> None:
    key = tokens(Forge(1))[0].secret
    file = tmp_path / "run.antiphon"
    events = [{"payload": {"a/b": "x", "password": "hunter2"}}, {"note": f"use {key}"}]
    file.write_text(json.dumps({"events": events}, indent=1))
    assert [(f.where, f.kind) for f in scan(file)] == [
        ("/events/0/payload/password", "password"),
        ("/events/1/note", "openai"),
    ]


def test_arguments_of_a_command_and_names_in_bold_are_found(tmp_path: Path) -> None:
    file = tmp_path / "run.antiphon"
    command = ["curl", "-u", "ada:tr0ub4dor", "--token", "S3cr3t-horse"]
    file.write_text(json.dumps({"argv": command, "answer": "**Password:** `Zq9-battery`"}))
    assert [(f.where, f.kind) for f in scan(file)] == [
        ("/argv/2", "password"),
        ("/argv/4", "token"),
        ("/answer", "password"),
    ]


def test_json_lines_are_located_by_line_and_pointer(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text('{"a": 1}\n{"token": "tr0ub4dor"}\n')
    assert [(f.where, f.kind) for f in scan(file)] == [("line 2 /token", "token")]


def test_an_armoured_key_is_one_finding(tmp_path: Path) -> None:
    file = tmp_path / "id_rsa"
    file.write_text("# my key\n" + Forge(2).pem() + "\nend\n")
    assert [(f.where, f.kind) for f in scan(file)] == [("line 2", "private_key")]


def test_a_token_right_behind_another_column_is_found(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("CREATE TABLE t (a TEXT, b TEXT)")
        database.execute("INSERT INTO t VALUES ('abc', ?)", (f"sk-proj-{'Zq8vR2mX' * 6}",))
        database.commit()
    (finding,) = scan(tmp_path)
    assert (finding.where, "Zq8v" in str(finding)) == ("table t, row 1", False)


def test_a_database_is_searched_for_tokens(tmp_path: Path) -> None:
    key = tokens(Forge(3))[10].secret
    file = tmp_path / "runs.db"
    with sqlite3.connect(file) as connection:
        connection.execute("create table t (x)")
        connection.execute("insert into t values (?)", (f"the key {key}",))
    connection.close()
    (finding,) = scan(file)
    assert finding.kind == "github"
    assert finding.where.startswith("byte ")


@pytest.mark.parametrize("offset", [0, 1_048_570, 1_048_576 - 4096])
def test_a_token_across_two_blocks_of_a_binary_file_is_found_once(tmp_path: Path, offset: int) -> None:
    file = tmp_path / "big.bin"
    key = tokens(Forge(4))[0].secret.encode()
    file.write_bytes(b"\0" * 16 + b"\0" * offset + key + b"\0" * 100)
    assert [f.where for f in scan(file)] == [f"byte {16 + offset}"]


def test_what_was_redacted_scans_clean(tmp_path: Path) -> None:
    redactor = Redactor(Rules(), salt="unit")
    value = {"x": [one.text for one in tokens(Forge(5)) + in_text(Forge(6))]}
    (tmp_path / "a.json").write_bytes(orjson.dumps(redactor.redact(value), option=orjson.OPT_INDENT_2))
    (tmp_path / "a.txt").write_text("\n".join(redactor.redact(value)["x"]))
    assert scan(tmp_path) == []


def test_equal_secrets_have_equal_fingerprints_and_guessable_ones_none_of_their_own(tmp_path: Path) -> None:
    key = tokens(Forge(7))[0].secret
    (tmp_path / "a.txt").write_text(f"{key}\n{key}\npassword: hunter2\npassword: hunter2\n")
    prints = [f.fingerprint for f in scan(tmp_path)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_personal_data_only_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ada@example.org\n")
    assert scan(tmp_path) == []
    assert [f.kind for f in scan(tmp_path, Rules())] == ["email"]


def test_repositories_and_environments_are_left_out(tmp_path: Path) -> None:
    key = tokens(Forge(8))[0].secret
    for folder in (".git", "node_modules", "src"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(key)
    assert [Path(f.file).parent.name for f in scan(tmp_path)] == ["src"]


def test_a_seal_key_is_a_finding_unless_its_folder_is_ignored_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "seal.key"
    Sealer.from_key_file(file)
    file.write_text(f"{file.read_text()}antiphon-seal-key-1 {'ab/c' * 10}abc=\n")  # looks like a path
    both = [("line 1", "seal_key"), ("line 2", "seal_key")]
    assert [(f.where, f.kind) for f in scan(tmp_path)] == both
    (tmp_path / ".gitignore").write_text("*\n")
    assert scan(tmp_path) == []
    file.chmod(0o644)
    assert [(f.where, f.kind) for f in scan(tmp_path)] == both


def test_a_seal_key_is_found_in_any_text(tmp_path: Path) -> None:
    key = f"antiphon-seal-key-1 {Forge(10).key(43)}="
    (tmp_path / "a.json").write_text(json.dumps({"data": f"{key}\n", "password": "hunter2"}))
    (tmp_path / "b.md").write_text(f"# Backup\n\n    {key}\n")
    (tmp_path / "c.py").write_text('HEAD = "antiphon-seal-key-1 "\n')
    (tmp_path / "d.log").write_text("nothing\n" * 1_100_000 + key)
    assert [(Path(f.file).name, f.where, f.kind) for f in scan(tmp_path)] == [
        ("a.json", "line 1", "seal_key"),
        ("a.json", "/password", "password"),
        ("b.md", "line 3", "seal_key"),
        ("d.log", "line 1100001", "seal_key"),
    ]


@pytest.mark.parametrize("size", [0, 1, 2, 32, 90, 3000])
def test_a_sealed_text_is_no_secret_and_hides_none(tmp_path: Path, size: int) -> None:
    sealed = Sealer(bytes(32)).seal(bytes(size))
    key, random = tokens(Forge(9))[0].secret, Forge(9).key(40)
    (tmp_path / "a.json").write_text(json.dumps({"manifest": {"seal": {"key": sealed}}, "note": sealed}, indent=1))
    (tmp_path / "a.jsonl").write_text(json.dumps({"sealed": sealed}) + "\n")
    (tmp_path / "a.txt").write_text(f"it is {sealed}.\n")
    assert scan(tmp_path) == []
    for text in (f"{sealed} {key}", f"{sealed}.{key}", f"{key},{sealed}"):
        (tmp_path / "a.txt").write_text(text)
        (tmp_path / "a.json").write_text(json.dumps({"sealed": text}))
        assert [(f.where, f.kind) for f in scan(tmp_path)] == [("/sealed", "openai"), ("line 1", "openai")]
    (tmp_path / "a.txt").write_text("\n".join([random, f"s3.00000000.{random}", f"s2.{random}", f"s2.0.{random}"]))
    assert [f.kind for f in scan(tmp_path / "a.txt")] == ["high_entropy"] * 4


@pytest.mark.parametrize("log", [False, True])
def test_the_pseudonyms_of_a_database_are_known(tmp_path: Path, log: bool) -> None:
    github = [one.secret for one in tokens(Forge(3)) + tokens(Forge(4)) if one.kind == "github"]
    real, pseudonym = github[0], github[-1]
    file = tmp_path / "antiphon.db"
    body = {"payload": {"input": f"use {pseudonym}"}, "meta": {"masks": [["/input", 4, len(pseudonym), "github"]]}}
    connection = sqlite3.connect(file, isolation_level=None)
    if log:
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
    connection.execute("INSERT INTO events (body) VALUES (?)", (orjson.dumps(body),))
    before = sorted(tmp_path.iterdir())
    assert scan(tmp_path) == []
    assert sorted(tmp_path.iterdir()) == before
    connection.execute("INSERT INTO events (body) VALUES (?)", (orjson.dumps({"payload": {"input": real}}),))
    assert [f.kind for f in scan(tmp_path)] == ["github"]
    connection.close()


def test_a_pseudonym_of_one_character_hides_no_secret(tmp_path: Path) -> None:
    real = next(one.secret for one in tokens(Forge(3)) if one.kind == "github")
    event = {"payload": {"data": real[7]}, "meta": {"masks": [["/data", 0, 1, "email"]]}}
    (tmp_path / "a.antiphon").write_text(json.dumps({"format": "antiphon", "events": [event], "note": real}))
    assert [(f.where, f.kind) for f in scan(tmp_path)] == [("/note", "github")]


def test_a_missing_path_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        scan(tmp_path / "nothing")
