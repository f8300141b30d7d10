"""Secrets in files, commands, statements, tables and sentences; and what only looks like one."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from antiphon.redact import Redactor

SECRET = "Tr0ub4dor-77x"
REDACTOR = Redactor(salt="unit")
WRITTEN = {
    "pgpass": f"db.example.org:5432:shop:app:{SECRET}",
    "mysql": f"mysql -u root -p{SECRET} shop",
    "sshpass": f"sshpass -p {SECRET} ssh host",
    "YAML block": f"user: app\npassword: |\n  {SECRET}\nhost: x",
    "YAML next line": f"password:\n  {SECRET}\nhost: y",
    "XML": f"<config><password>{SECRET}</password></config>",
    "attributes": f'<add key="ApiKey" value="{SECRET}" />',
    "German": f"Passwort: {SECRET}",
    "Spanish": f"contraseña: {SECRET}",
    "Russian": f"пароль: {SECRET}",
    "Chinese": f"密码：{SECRET}",
    "Oracle": f"jdbc:oracle:thin:scott/{SECRET}@db:1521/x",
    "OAuth": f"https://app.example/cb?code={SECRET}&state=1",
    "sentence": f"The password is {SECRET}.",
    "CSV": f"name,password,age\nada,{SECRET},36\nbob,{SECRET},3",
    "Markdown": f"| user | password |\n|---|---|\n| ada | {SECRET} |",
    "bold name": f"**Password:** `{SECRET}`",
    "bold name, colon after it": f"- **API Token**: {SECRET}",
    "bold name with underscores": f"__Password:__ {SECRET}",
    "role": f"CREATE ROLE app WITH PASSWORD '{SECRET}'",
    "INSERT": f"INSERT INTO users (name, password) VALUES ('ada', '{SECRET}')",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_secret_in_this_form_vanishes(name: str) -> None:
    text = WRITTEN[name]
    assert SECRET not in REDACTOR.redact_text(text)
    assert SECRET.encode() not in REDACTOR.redact_bytes(orjson.dumps({"note": text}))[0]
    run = Redactor().for_run(b"k" * 32)
    assert len(run.redact_text(text)) == len(text)
    assert SECRET not in run.redact_text(text)


COMMANDS: dict[str, list[Any]] = {
    "option": ["deploy", "--token", SECRET, "--verbose"],
    "option alone": ["--db-password", SECRET],
    "option with a plain word": ["deploy", "--password", "swordfish"],
    "value with blanks and quotes": ["deploy", "--passphrase", f'correct "{SECRET}" horse'],
    "value that looks like something else": ["deploy", "--password", "ada@example.org!!"],
    "curl": ["curl", "-u", f"ada:{SECRET}", "https://example.org"],
    "curl, one word": ["/usr/bin/curl", f"-uada:{SECRET}", "https://example.org"],
    "curl, long": ["curl", "--user", f"ada@example.org:{SECRET}", "https://example.org"],
    "mysql": ["mysql", "-u", "root", f"-p{SECRET}", "shop"],
    "sshpass": ["sshpass", "-p", SECRET, "ssh", "host"],
    "beside numbers": ["deploy", "-n", 3, "--password", SECRET, None],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_secret_among_the_arguments_of_a_command_vanishes(name: str) -> None:
    command = COMMANDS[name]
    secrets = (SECRET, "swordfish", "ada@example.org")
    written = json.dumps(command)
    shown = [
        str(REDACTOR.redact({"argv": command})),
        str(REDACTOR.redact(tuple(command))),
        REDACTOR.redact_bytes(orjson.dumps(command))[0].decode(),
        REDACTOR.redact_text(written),
        REDACTOR.redact_text(f"Command '{command}' returned non-zero exit status 1."),
        "".join(piece.new for piece in REDACTOR.pieces(written)),
        str(Redactor().for_run(b"k" * 32).redact(command)),
    ]
    for text in shown:
        assert not any(secret in text for secret in secrets), text
    once = REDACTOR.redact(command)
    assert REDACTOR.redact(once) == once
    kept = [item for item in command if not any(secret in str(item) for secret in secrets)]
    assert [item for item in once if item in kept] == kept
    run = Redactor().for_run(b"k" * 32)
    assert [len(str(item)) for item in run.redact(command)] == [len(str(item)) for item in command]


@pytest.mark.parametrize(
    "words",
    [
        ["password", "email", "name"],
        ["--token", "--verbose"],
        ["--authorization", "--verbose"],
        ["--password", "", "name"],
        ["--token", "$TOKEN"],
        ["--token", "TOKEN"],
        ["--token", "<your token>"],
        ["--token-file", "/run/token"],
        ["--max-tokens", "4096"],
        ["authorization", "email", "-v"],
        ["git", "commit", "-m", "Password: must be longer"],
        ["ls", "-u", "a:b"],
        ["- password", "- email"],
        ["-4", "--", "-"],
    ],
)
def test_other_lists_of_words_stay(words: list[str]) -> None:
    assert REDACTOR.redact(words) is words
    assert REDACTOR.redact_bytes(orjson.dumps(words)) == (orjson.dumps(words), False)


@pytest.mark.parametrize(
    "text", ["my number is 123-45-6789, thanks", "Passport number: C01X00T47", "passport no 123456789"]
)
def test_numbers_of_people_vanish(text: str) -> None:
    redacted = REDACTOR.redact_text(text)
    assert not any(number in redacted for number in ("123-45-6789", "C01X00T47", "123456789"))


@pytest.mark.parametrize("value", [[("password", SECRET)], [["password", SECRET]], [["api_key", SECRET]]])
def test_pairs_of_name_and_value(value: Any) -> None:
    assert SECRET not in str(REDACTOR.redact({"form": value}))


@pytest.mark.parametrize(
    "text",
    [
        "The password is required",
        "password is case sensitive and may be changed",
        "see ?code=404",
        "a,b,c\n1,2,3",
        "12:30:00 a:b at 10:00:00",
        "insert into t (a) values (1)",
        "passport control was slow",
        "<b>value</b> value=3",
        "mysql is a database -p",
        "la clave del éxito",
        "password: |",
        "**Password:** must be at least 8 characters",
        "Password: ***",
        "2024-01-02 and 555-01-0000",
    ],
)
def test_what_only_looks_like_one_stays(text: str) -> None:
    assert REDACTOR.redact_text(text) == text


def test_words_beside_each_other_are_no_pair() -> None:
    value = {"c": ["password", "reset"], "d": ["token", "abc"], "e": ["secret", "of our success"]}
    assert REDACTOR.redact(value) is value


def test_the_folder_of_a_shell_is_no_password() -> None:
    environment = {"PWD": "/srv/shop/agents", "OLDPWD": "/srv/shop", "DB_PASSWORD": "correcthorse-Battery99"}
    redactor = Redactor(environment=environment)
    assert redactor.redact_text("/srv/shop/agents/main.py") == "/srv/shop/agents/main.py"
    assert "Battery99" not in redactor.redact_text("with correcthorse-Battery99 it works")
