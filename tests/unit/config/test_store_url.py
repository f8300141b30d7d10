"""What a store URL may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.config.wiring import open_store
from antiphon.errors import ConfigError


def test_options_of_a_sqlite_url_are_used(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/a.db?busy_timeout=0.5&synchronous=NORMAL")
    journal = store.open_sync()
    assert journal.ping()["durable"]
    journal.close()
    assert store.url == f"sqlite:///{tmp_path}/a.db"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("mode=ro", r"^\[store\] url: .*'mode'.*Known: synchronous, busy_timeout"),
        ("clock=1", "'clock'"),
        ("prepare=1", "'prepare'"),
        ("busy_timeout=soon", "busy_timeout must be a number of seconds"),
        ("busy_timeout=-1", "busy_timeout must be a number of seconds"),
        ("busy_timeout=nan", "busy_timeout must be a number of seconds"),
        ("busy_timeout", "busy_timeout must be a number of seconds"),
        ("busy_timeout=5s", "busy_timeout must be a number of seconds"),
        ("synchronous=OFF", "synchronous must be 'FULL', 'NORMAL' or 'EXTRA'"),
    ],
)
def test_a_wrong_option_of_a_sqlite_url_is_a_configuration_error(tmp_path: Path, query: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        open_store(f"sqlite:///{tmp_path}/a.db?{query}", setting="[store] url")
    assert caught.value.path == "[store] url"


@pytest.mark.parametrize("url", ["sqlite://x.db", "sqlite://folder/x.db?busy_timeout=1", "sqlite://", "SQLITE://x.db"])
def test_two_slashes_do_not_name_a_file_at_the_root(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^\[store\] url: the SQLite URL .* has two slashes") as caught:
        open_store(url, setting="[store] url")
    assert "sqlite:///x.db" in str(caught.value.hint)
    assert "sqlite:////folder/x.db" in str(caught.value.hint)


@pytest.mark.parametrize("form", ["sqlite:///{}", "sqlite:{}"])
def test_an_absolute_and_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("x.db", tmp_path / "x.db"):
        assert open_store(form.format(path)).url == f"sqlite:///{tmp_path}/x.db"
