"""A few examples of every fuzz target; ``make fuzz`` makes thousands."""

from __future__ import annotations

import pytest

from tests import fuzz


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_whatever_comes_in(name: str) -> None:
    assert fuzz.run(fuzz.TARGETS[name], 15) >= 10


def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A parser that chokes on a chunk without data."""

    def chokes(given: tuple[bytes, list[int]]) -> None:
        assert b"\n\n" not in given[0]

    monkeypatch.setitem(fuzz.TARGETS, "sse", fuzz.TARGETS["sse"]._replace(check=chokes))
    assert fuzz.main(["--only", "sse", "--seconds", "1", "--examples", "50"]) == 1
    assert "again with: python -m tests.fuzz --only sse --seed 0" in capsys.readouterr().out
