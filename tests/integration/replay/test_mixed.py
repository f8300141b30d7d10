"""The short form of ``python -m tests.integration.replay.mixed``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.replay.mixed import record, run


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world") / "mixed"
    record(folder)
    return folder


@pytest.mark.parametrize("jobs", [0, 2])
def test_replays_and_live_tests_in_random_order(mixed: Path, jobs: int, capsys: pytest.CaptureFixture[str]) -> None:
    counts = run(mixed, 4, jobs=jobs, seed=7 + jobs)
    with capsys.disabled():
        print(f"\n{counts}")
    assert (counts.live, counts.replayed) == (12, 12)
    assert counts.hurt == 0
    assert counts.failed == 0
    assert counts.escaped == 0
    assert counts.named > 0
    assert counts.code == 1  # what came late fails the session
