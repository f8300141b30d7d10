"""A step that fails leaves nothing behind, alone in its transaction or beside others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.stores.sqlite.file import DatabaseFile, Operation

NAMES = "SELECT name FROM meta WHERE name LIKE 'step %' ORDER BY name"


def step(number: int, *, fails: bool = False) -> Operation:
    def run(connection: Any) -> int:
        connection.execute("INSERT INTO meta (name, value) VALUES (?, ?)", (f"step {number}", "1"))
        if fails:
            raise LookupError(str(number))
        return number

    return Operation(run)


@pytest.mark.parametrize("beside", [0, 3])
def test_a_step_that_fails_leaves_nothing_behind(tmp_path: Path, beside: int) -> None:
    file = DatabaseFile(tmp_path / "claims.db", "FULL", 5.0)
    failing = step(0, fails=True)
    others = [step(number) for number in range(1, beside + 1)]
    for operation in (*others[:1], failing, *others[1:]):
        file.submit(operation)
    file.write_queued()
    with pytest.raises(LookupError):
        failing.answer()
    assert [other.answer() for other in others] == list(range(1, beside + 1))
    kept = file.read(lambda connection: [name for (name,) in connection.execute(NAMES)])
    assert kept == [f"step {number}" for number in range(1, beside + 1)]
    assert file.write(step(9)) == 9
    file.close()
