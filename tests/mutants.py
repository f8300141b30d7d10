"""Planted bugs outside of the claim protocol: each is found by a property test, a conformance rule or a test.

    python -m tests.mutants

The simulator has its own (``antiphon.testing.sim.bugs``). Here a bug is planted into a run of pytest, and the test that
is named has to fail. For a property test the number of examples is counted until the first that fails.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings

from antiphon._replay import observe
from antiphon._replay.recording import RecordedCall, Recording
from antiphon.decide.retry import TokenBucket
from antiphon.ops import sandbox
from antiphon.ports import BreakerRow, Row, Settlement
from antiphon.redact import _redactor
from antiphon.stores.memory.claims import MemoryClaims
from antiphon.stores.memory.log import MemoryLog

ROOT = Path(__file__).resolve().parent.parent
_PHASES = (Phase.explicit, Phase.generate)
_REPLAY = "tests/unit/replay"
_RULES = "tests/unit/stores/test_memory_conformance.py::test_memory"


class Mutant(NamedTuple):
    """A mistake somebody could make, and the test that has to notice it."""

    area: str
    what: str
    test: str
    place: Any
    attribute: str
    instead: Any

    @property
    def by(self) -> str:
        """What kind of test finds it."""
        return "conformance rule" if self.test.startswith(_RULES) else "test"


_real_string = _redactor.Redactor._string
_real_effect, _real_changed = sandbox._effect, sandbox._changed
_real_settle, _real_write, _real_find = MemoryClaims.settle, MemoryLog._write, Recording.find


def _long_texts_pass(self: _redactor.Redactor, text: str, causes: int, *, entropy: bool = True) -> str:
    return text if len(text) > 60 else _real_string(self, text, causes, entropy=entropy)


def _anybody_may_connect(replay: Any, event: str, args: tuple[Any, ...]) -> str:
    return "" if event.startswith("socket.") else _real_effect(replay, event, args)


def _only_the_source(event: str, args: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    return _real_changed(event, args)[:1]


def _the_last_one_wins(self: MemoryLog, tenant: str, row: BreakerRow) -> None:
    with self.lock:
        self._breakers.setdefault(tenant, {})[row.key] = row


def _cut(self: MemoryClaims, key: str, version: int, settlement: Settlement, events: Any = ()) -> int | None:
    if settlement.payload:
        settlement = settlement._replace(payload=settlement.payload[:-1])
    return _real_settle(self, key, version, settlement, events)


def _one_row_only(self: MemoryLog, rows: Any) -> None:
    _real_write(self, list[Row](rows)[:1])


def _by_name(self: Recording, lane: str, name: str, digest: str, nth: int) -> RecordedCall | None:
    found = [call for call in self.calls.values() if call.lane == lane and call.name == name]
    return _real_find(self, lane, name, digest, nth) or next(iter(found), None)


MUTANTS: dict[str, Mutant] = {
    "budget-never-empty": Mutant(
        "budget",
        "retries are not paid for",
        "tests/unit/decide/test_budget.py::test_never_more_retries_than_paid_for",
        TokenBucket,
        "withdraw",
        lambda self, now: True,
    ),
    "long-text-unredacted": Mutant(
        "redaction",
        "a secret in a long text is kept",
        "tests/unit/redact/test_properties.py::test_a_secret_between_blanks_never_survives",
        _redactor.Redactor,
        "_string",
        _long_texts_pass,
    ),
    "sandbox-lets-connect": Mutant(
        "replay sandbox",
        "a replay may open connections",
        f"{_REPLAY}/test_sandbox.py::test_what_would_touch_the_world_is_refused_and_listed",
        sandbox,
        "_effect",
        _anybody_may_connect,
    ),
    "sandbox-forgets-the-target": Mutant(
        "replay sandbox",
        "moving a file looks at its old place alone",
        f"{_REPLAY}/test_sandbox.py::test_what_would_touch_the_world_is_refused_and_listed",
        sandbox,
        "_changed",
        _only_the_source,
    ),
    "escape-unreported": Mutant(
        "replay sandbox",
        "what a replay tried outside is not a divergence",
        f"{_REPLAY}/test_sandbox.py::test_a_replay_reports_what_was_tried",
        observe.Observer,
        "escaped",
        lambda self, tried: None,
    ),
    "divergence-unseen": Mutant(
        "match",
        "any two recorded values are equal",
        f"{_REPLAY}/test_silent_wrong_answers.py::test_a_field_outside_the_key_is_a_divergence",
        observe,
        "equal",
        lambda left, right: True,
    ),
    "answer-by-name": Mutant(
        "match",
        "a recorded call answers whatever its arguments were",
        f"{_REPLAY}/test_silent_wrong_answers.py::test_changed_arguments_of_a_step",
        Recording,
        "find",
        _by_name,
    ),
    "older-epoch-wins": Mutant(
        "breaker epoch",
        "an older state of a breaker replaces a newer one",
        f"{_RULES}[breakers_keep_the_newest_epoch-sync]",
        MemoryLog,
        "save_breaker",
        _the_last_one_wins,
    ),
    "result-cut": Mutant(
        "settle",
        "the last byte of a result is not kept",
        f"{_RULES}[outcome_survives_to_the_byte-sync]",
        MemoryClaims,
        "settle",
        _cut,
    ),
    "event-lost": Mutant(
        "record",
        "of several events only the first is written",
        f"{_RULES}[events_come_with_the_claim-sync]",
        MemoryLog,
        "_write",
        _one_row_only,
    ),
}


class Found(NamedTuple):
    """How a planted bug was noticed."""

    failed: bool
    by: str
    after: int


class _Watch:
    """Counts the examples of a property test until the first that fails."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self.examples = 0
        self.property = False
        self._over = False

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Iterator[None]:
        handle = getattr(pyfuncitem.obj, "hypothesis", None)
        if handle is None:
            self.examples += 1
        else:
            self.property = True
            test: Any = pyfuncitem.obj  # always the same examples, none from an earlier run, and no smaller ones
            again = settings(test._hypothesis_internal_use_settings, database=None, derandomize=True, phases=_PHASES)
            test._hypothesis_internal_use_settings = again
            handle.inner_test = self._counting(handle.inner_test)
        with patch.object(self._mutant.place, self._mutant.attribute, self._mutant.instead):
            return (yield)

    def _counting(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def count(*args: Any, **kwargs: Any) -> Any:
            self.examples += not self._over
            try:
                return inner(*args, **kwargs)
            except AssertionError:
                self._over = True
                raise

        return count


def hunt(name: str) -> Found:
    """Plant the bug and run its test."""
    mutant = MUTANTS[name]
    watch = _Watch(mutant)
    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        options = ["-q", "-x", "-pno:cacheprovider", "-pno:randomly", "--no-header", f"--rootdir={ROOT}"]
        code = pytest.main([*options, str(ROOT / mutant.test)], plugins=[watch])
    by = "property test" if watch.property else mutant.by
    return Found(code == pytest.ExitCode.TESTS_FAILED, by, watch.examples)


def main() -> int:
    """One line of JSON per planted bug; 1 if one was not found."""
    missed = False
    for name, mutant in MUTANTS.items():
        found = hunt(name)
        missed = missed or not found.failed
        said = {"name": name, "area": mutant.area, "what": mutant.what, "test": mutant.test, **found._asdict()}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
