"""Settings come from one place each, the nearer one wins, and a wrong one is named with its line (D32)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from antiphon.config.load import changed, load
from antiphon.config.wiring import settings_of
from antiphon.contract.spec import RetryPolicy, Ttls
from antiphon.decide.loop import LoopPolicy
from antiphon.errors import ConfigError


def test_the_environment_wins_over_the_file_and_both_are_named(tmp_path: Path) -> None:
    path = tmp_path / "antiphon.toml"
    path.write_text('[gateway]\ntenant = "file"\n[retry]\nmax_attempts = 2\n')
    loaded = load(path, {"ANTIPHON_GATEWAY_TENANT": "environment"})
    assert (loaded.config.gateway.tenant, loaded.config.retry.max_attempts) == ("environment", 2)
    assert loaded.sources["gateway.tenant"] == "environment ANTIPHON_GATEWAY_TENANT"
    assert loaded.sources["retry.max_attempts"] == str(path)
    assert "retry.base_ms" not in loaded.sources


@pytest.mark.parametrize(
    ("variable", "value", "setting", "wanted"),
    [
        ("ANTIPHON_HOST_PORT", "99", "host.port", 99),
        ("ANTIPHON_GATEWAY_SHADOW", "on", "gateway.shadow", True),
        ("ANTIPHON_RECORD_ENABLED", "off", "record.enabled", False),
        ("ANTIPHON_REDACT_FIELDS", "pin, code", "redact.fields", ("pin", "code")),
        ("ANTIPHON_RETRY_RETRIABLE_CODES", "busy", "retry.retriable_codes", ("busy",)),
        ("ANTIPHON_STORE", "memory:", "store.url", "memory:"),
        ("ANTIPHON_BREAKER_CONSECUTIVE", "3", "breaker.consecutive", 3),
        ("ANTIPHON_TENANT", "no", "gateway.tenant", "no"),
        ("ANTIPHON_GATEWAY_TENANT", "True", "gateway.tenant", "True"),
        ("ANTIPHON_ARTIFACTS_REGION", "off", "artifacts.region", "off"),
        ("ANTIPHON_TEST_SEAMS", "on", "host.test_seams", True),
        ("ANTIPHON_HOST_TEST_SEAMS", "1", "host.test_seams", True),
    ],
)
def test_variables_of_every_kind(variable: str, value: str, setting: str, wanted: object) -> None:
    section, _, name = setting.partition(".")
    assert getattr(getattr(load({}, {variable: value}).config, section), name) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gatewayy]\n", "line 1: there is no setting gatewayy"),
        ("[retry]\nmax_atempts = 2\n", "line 2: there is no setting retry.max_atempts"),
        ("[retry]\nmax_attempts = 0\n", "line 2: .*retry.max_attempts"),
        ("[tools.send]\nretry = 5\n", r"line 2: .*\(tools\.send\.retry\)"),
        ('[tools."a/b".retry]\nmax_attempts = 2\n[tools."a/c".retry]\nmax_attempts = -1\n', r"line 4: .*a/c\.retry"),
        ("[tools.a]\ntimeout = 1\n[tools.b]\nretry = {max_attempts = 0}\n", r"line 4: .*tools\.b\.retry\.max_attempts"),
        ("[tools.a]\ntimeout = 1\n[tools.b]\ntimeuot = 2\n", r"line 4: there is no setting tools\.b\.timeuot"),
        ('[[redact.rules]]\nname = "a"\n', "line 1: The redaction rule 'a' needs a pattern or a field"),
        (
            '[[redact.rules]]\nname = "a"\nfield = "b"\n[[redact.rules]]\nname = "c"\npattern = "("\n',
            r"line 4: The redaction rule 'c' has a bad pattern: .*\(redact\.rules\[1\]\)\.$",
        ),
        (
            '[redact]\npersonal_data = true\nfields = ["a", 1]\n',
            r"line 3: must be text, is a whole number \(redact\.fields\[1\]\)",
        ),
        ("[tools.a]\ntimeout = 'x'\n", r"line 2: must be a number, is text \(tools\.a\.timeout\)"),
        ("x =", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_explained(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "antiphon.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(path, {})


def test_what_is_shown_as_a_default_is_what_applies() -> None:
    settings = settings_of(load({}, {}).config)
    assert (settings.loop, settings.ttl, settings.retry) == (LoopPolicy(), Ttls(), RetryPolicy())


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "antiphon.toml"
    path.write_text('[gateway]\ntenant = "acme"\n', encoding="utf-8-sig")
    assert load(path, {}).config.gateway.tenant == "acme"


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"ANTIPHON_HOST_PORT='http' is not valid for host\.port"):
        load({}, {"ANTIPHON_HOST_PORT": "http"})


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "antiphon.toml"
    path.write_text("[gateway]\n")
    loaded = load(path, {})
    assert not changed(loaded)
    path.write_text("[gateway]\nshadow = true\n")
    assert changed(loaded)


def test_text_that_is_no_unicode_is_an_error_of_the_configuration() -> None:
    """Bytes of the environment that are not UTF-8 come as surrogates."""
    with pytest.raises(ConfigError, match="ANTIPHON_GATEWAY_TENANT is not valid UTF-8"):
        load({}, {"ANTIPHON_GATEWAY_TENANT": "a\udcff"})
    with pytest.raises(ConfigError, match="not valid Unicode"):
        load({"gateway": "\ud800"}, {})


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text("")  # an editor empties the file before it writes it
    read = tomllib.loads

    def written_meanwhile(text: str) -> dict[str, Any]:
        file.write_text("[gateway]\nenabled = false\n")
        return read(text)

    with monkeypatch.context() as patch:
        patch.setattr(tomllib, "loads", written_meanwhile)
        loaded = load(file, {})
    assert changed(loaded)
    assert load(file, {}).config.gateway.enabled is False
