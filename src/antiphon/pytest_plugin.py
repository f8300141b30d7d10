"""Pytest plugin: records a marked test once and replays it strictly from then on, with one artifact per test.

    @pytest.mark.antiphon
    def test_refund():
        assert agent.main("My order never arrived") == "refunded"

``pytest --antiphon-record`` records tests that have no recording yet, ``--antiphon-rewrite`` records everything again,
``--antiphon-replay`` (the default) only replays: a test without a recording fails.

Code under test that names no store gets an in-memory store, empty at the start of each test, instead of the project's.
To use another store, set ``Gateway(store=...)``, ``ANTIPHON_STORE`` or ``ANTIPHON_HOME``, or for all tests
``antiphon_store = project`` in pytest's settings.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import re
import shlex
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from antiphon._lineage import Replay, on_late
from antiphon._version import __version__
from antiphon.config.place import test_stores
from antiphon.errors import Divergence

if TYPE_CHECKING:
    from antiphon._recording.run import Run
    from antiphon._replay.observe import DivergenceFound
    from antiphon._replay.recording import Recording
    from antiphon.ops.app import Antiphon
    from antiphon.redact import Redactor

_counts: pytest.StashKey[Counter[str]] = pytest.StashKey()
_late: pytest.StashKey[list[str]] = pytest.StashKey()
"""What replayed tests attempted after they had ended."""
_written: pytest.StashKey[dict[Path, str]] = pytest.StashKey()
"""Recordings made in this session, and the tests that made them."""
_ran: pytest.StashKey[bool] = pytest.StashKey()
"""Whether the test was recorded or replayed."""
_failed: pytest.StashKey[bool] = pytest.StashKey()
"""Whether a subtest failed, which is reported, not raised."""
_WRAPPED = "__antiphon__"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options and setting."""
    group = parser.getgroup("antiphon")
    for mode, text in (
        ("record", "record marked tests that have no recording yet; replay the others"),
        ("replay", "only replay marked tests (default)"),
        ("rewrite", "record all marked tests again"),
    ):
        group.addoption(f"--antiphon-{mode}", action="store_const", const=mode, dest="antiphon_mode", help=text)
    parser.addini("antiphon_golden", "folder of the recordings, beside each test file", default="golden")
    text = "store of code that names none: memory (empty for each test) or project (the one of the project)"
    parser.addini("antiphon_store", text, default="memory")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    text = "antiphon(path=None, sandbox=True): record the test once, then replay it strictly"
    config.addinivalue_line("markers", text)
    config.stash[_counts] = Counter()
    config.stash[_late] = []
    config.stash[_written] = {}
    listen = functools.partial(_note_late, config)
    on_late.append(listen)
    config.add_cleanup(lambda: on_late.remove(listen))
    wanted = config.getini("antiphon_store")
    if wanted not in ("memory", "project"):
        raise pytest.UsageError(f"antiphon_store is 'memory' or 'project', not {wanted!r}.")
    test_stores.active = wanted == "memory"


def pytest_unconfigure() -> None:
    """Restore the project's store."""
    test_stores.active = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Give each test its own empty store."""
    test_stores.begin_test()


def pytest_report_header() -> str:
    """The line above the test report."""
    return f"antiphon: {__version__}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Wrap a marked test in a function of the same kind, so that every asyncio plugin still runs it.

    This happens on each run, because plugins that rerun tests may recreate the function.
    """
    marker = item.get_closest_marker("antiphon")
    if marker is None:
        return (yield)
    _check(marker)
    item.stash[_ran] = item.stash[_failed] = False
    if isinstance(item, pytest.Function):
        if not hasattr(item.obj, _WRAPPED):
            item.obj = _wrapped(item, marker, item.obj)
        unittest: Any = sys.modules.get("unittest")
        if unittest is not None and isinstance(instance := getattr(item, "instance", None), unittest.TestCase):
            setattr(instance, item.name, item.obj)  # unittest looks up asynchronous methods there
    yield
    if not item.stash[_ran]:
        text = f"antiphon: {item.name} ran, but it was neither recorded nor replayed: the marker has no effect here"
        pytest.fail(text, pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note a subtest that failed, also if that is expected."""
    report = yield
    asked = call.excinfo is not None and isinstance(call.excinfo.value, pytest.xfail.Exception)
    if report.failed or (report.skipped and hasattr(report, "wasxfail") and not asked):
        item.stash[_failed] = True
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Report how many tests were recorded and replayed."""
    counts = config.stash.get(_counts, Counter[str]())
    if counts:
        terminalreporter.write_line("antiphon: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    for line in config.stash.get(_late, []):
        terminalreporter.write_line(f"antiphon: {line}", red=True)


def _note_late(config: pytest.Config, replay: Replay, what: str) -> None:
    """Note a call made after the end of its replayed test; it was refused and fails the session."""
    line = f"{replay.title} tried this after its end and was refused: {what}"
    if line not in config.stash[_late]:
        config.stash[_late].append(line)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session for late calls; a pytest-xdist worker sends these and its counts to the controller."""
    config = session.config
    output = getattr(config, "workeroutput", None)
    if output is not None:
        counts = config.stash[_counts]
        output["antiphon"] = dict(counts)
        output["antiphon_late"] = config.stash[_late]
    if config.stash.get(_late, []) and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add up the counts of the pytest-xdist workers."""
    output = getattr(node, "workeroutput", None) or {}
    node.config.stash[_late] += output.get("antiphon_late", [])
    node.config.stash[_counts].update(output.get("antiphon", {}))


@pytest.fixture
def antiphon_run() -> Any:
    """The run of a marked test, for its clock, random numbers and model calls."""
    return _CurrentRun()


class _CurrentRun:
    """A proxy for the run that is open when it is used."""

    def __getattr__(self, name: str) -> Any:
        from antiphon.ops.app import current_run

        return getattr(current_run(), name)


def _check(marker: pytest.Mark) -> None:
    """Refuse unknown marker arguments: a typo would otherwise be ignored."""
    unknown = [name for name in marker.kwargs if name not in ("path", "sandbox", "fence")]
    if unknown or len(marker.args) > 1:
        wrong = ", ".join(unknown) or "more than one path"
        pytest.fail(f"@pytest.mark.antiphon does not know {wrong}. It knows: path, sandbox.", pytrace=False)


def _unsalted(app: Antiphon) -> Redactor:
    """A redactor that masks alike on every machine, because recordings are found by the masked test name."""
    from antiphon.config.wiring import rules_of
    from antiphon.redact import Redactor

    return Redactor(rules_of(app.config))


def golden_path(item: pytest.Item, marker: pytest.Mark, redactor: Redactor) -> Path:
    """The path of a test's recording: ``golden/MODULE/TEST.antiphon`` beside the test file, unless the marker sets it.

    Secrets among the test's parameters are masked.
    """
    given = marker.kwargs.get("path") or (marker.args[0] if marker.args else None)
    if given is not None:
        return item.path.parent / str(given)
    name = redactor.redact_text(item.nodeid.partition("::")[2].replace("::", "."))
    safe = re.sub(r"[^\w.\-\[\]]", "_", name)
    if safe != name or len(safe) > 120:
        safe = f"{safe[:100]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return item.path.parent / str(item.config.getini("antiphon_golden")) / item.path.stem / f"{safe}.antiphon"


def _wrapped(item: pytest.Function, marker: pytest.Mark, test: Callable[..., Any]) -> Callable[..., Any]:
    from antiphon.ops.entry import GRACE_S

    wrapped: Callable[..., Any]
    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def in_loop(*args: Any, **kwargs: Any) -> None:
            with _around(item, marker) as run:
                run.scope.adopt()
                await test(*args, **kwargs)
                run.scope.origin.returned = True
                await run.scope.origin.settle(GRACE_S)

        wrapped = in_loop
    else:

        @functools.wraps(test)
        def plain(*args: Any, **kwargs: Any) -> None:
            with _around(item, marker):
                test(*args, **kwargs)

        wrapped = plain
    setattr(wrapped, _WRAPPED, True)
    return wrapped


@contextmanager
def _around(item: pytest.Item, marker: pytest.Mark) -> Iterator[Run]:
    """Record or replay the test."""
    from antiphon.ops.app import Antiphon
    from antiphon.stores import MemoryStore

    item.stash[_ran] = True
    mode = item.config.getoption("antiphon_mode") or "replay"
    app = Antiphon(store=MemoryStore())
    path = golden_path(item, marker, _unsalted(app))
    counts = item.config.stash[_counts]
    if mode == "rewrite" or (mode == "record" and not path.exists()):
        other = _recorder(item, path)
        if other != item.nodeid:
            text = f"{path} was just recorded by {other}, and {item.nodeid} would replace it."
            pytest.fail(f"{text} Give each test that is recorded a path of its own.", pytrace=False)
        with _recorded(app, item, path) as run:
            yield run
        return
    if not path.exists():
        pytest.fail(f"There is no recording {path}. Record it with: pytest --antiphon-record", pytrace=False)
    sandbox = bool(marker.kwargs.get("sandbox", marker.kwargs.get("fence", True)))
    with _replayed(app, item, path, sandbox) as run:
        yield run
    counts["replayed"] += 1


def _recorder(item: pytest.Item, path: Path) -> str:
    """The first test of this session to record *path*, in any pytest-xdist worker of this machine."""
    first = item.config.stash[_written].setdefault(path, item.nodeid)
    worker: Any = getattr(item.config, "workerinput", None)
    folder = item.config.option.basetemp
    if worker is None or folder is None:
        return first
    shared = Path(folder).parent / f"antiphon-{hashlib.sha256(str(path.absolute()).encode()).hexdigest()}"
    own = shared.with_name(f"{shared.name}-{worker['workerid']}")
    own.write_text(first)
    with suppress(FileExistsError):
        os.link(own, shared)  # unlike creating and writing it, one step
    own.unlink()
    return shared.read_text()


@contextmanager
def _recorded(app: Antiphon, item: pytest.Item, path: Path) -> Iterator[Run]:
    """A live run, exported if the test passes; a failed test leaves the old recording unchanged."""
    from antiphon.ops.app import using
    from antiphon.ops.artifacts import export_run, manifest_at
    from antiphon.ops.entry import GRACE_S
    from antiphon.ops.unrecorded import unrecorded

    with using(app), app.run(item.name, like=manifest_at(path)) as run:  # keeps its key, so a diff shows only changes
        yield run
    run.scope.origin.wait(GRACE_S)
    if item.stash[_failed]:
        return
    for text in unrecorded(run):
        warnings.warn(pytest.PytestWarning(f"antiphon: {item.name}: {text}"), stacklevel=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    export_run(app, run.manifest, path)
    item.config.stash[_counts]["recorded"] += 1


@contextmanager
def _replayed(app: Antiphon, item: pytest.Item, path: Path, sandbox: bool) -> Iterator[Run]:
    """Replay the recording; a divergence fails the test even if its assertions pass."""
    from antiphon.ops.app import using
    from antiphon.ops.artifacts import open_recording
    from antiphon.ops.entry import GRACE_S
    from antiphon.ops.execution import complete, watched
    from antiphon.ops.sandbox import sandboxed

    recording = open_recording(app, path)
    result, run = watched(app, recording)
    origin = run.scope.origin
    given = getattr(item, "funcargs", {})
    own = [given["tmp_path"]] if "tmp_path" in given else []
    try:
        with run.attached(), using(app), sandboxed(sandbox, item.nodeid, own) as result.escapes:
            try:
                yield run
            finally:
                origin.returned = True
                origin.wait(GRACE_S)
    except (Exception, pytest.fail.Exception) as error:
        found = _shown(recording, result.divergences)
        _keep_verdict(app, item, path, recording, found, error)
        if not found:
            raise
        if item.config.option.fulltrace or item.config.option.verbose > 1:
            error.add_note(_failure(item, path, found))
            raise
        said = recording.view(f"{type(error).__name__}: {error}")
        raise _diverged(item, _failure(item, path, found, error, said)) from None
    complete(result, run)
    found = _shown(recording, result.divergences)
    _keep_verdict(app, item, path, recording, found, None)
    if found:
        raise _diverged(item, _failure(item, path, found))


def _shown(recording: Recording, found: Sequence[DivergenceFound]) -> list[dict[str, Any]]:
    """The divergences as masked JSON, because pytest output ends up in logs."""
    shown: list[dict[str, Any]] = recording.view([difference.to_wire(recording.manifest.id) for difference in found])
    return shown


def _keep_verdict(
    app: Antiphon,
    item: pytest.Item,
    path: Path,
    recording: Recording,
    found: Sequence[dict[str, Any]],
    error: BaseException | None,
) -> None:
    """Store the verdict for the console; for a failed assertion of the test itself, only its class."""
    from antiphon.ops.verdicts import keep

    if item.get_closest_marker("xfail") is not None:  # an expected failure needs no attention
        return
    head = recording.manifest
    reasons = [one["message"] for one in found[:5]]
    if error is not None and not reasons:
        reasons = [f"the replay matched the recording, then the test failed with {type(error).__name__}"]
    status = "fail" if reasons else "pass"
    report = {
        "sourceRun": head.id,
        "title": head.name,
        "entry": head.entry,
        "replayType": "A",
        "verdict": status,
        "verdictReasons": reasons,
        "divergences": found,
    }
    keep(path, status, reasons, report, tenant=app.tenant, node=_unsalted(app).redact_text(item.nodeid))


def _diverged(item: pytest.Item, text: str) -> BaseException:
    """The failure of a test that diverged from its recording, counted for the summary line."""
    item.config.stash[_counts]["diverged"] += 1
    return pytest.fail.Exception(text, pytrace=False)


_NAMED = 3
"""Divergences listed in a failure; the first usually explains the others."""


def _failure(
    item: pytest.Item,
    path: Path,
    found: Sequence[dict[str, Any]],
    error: BaseException | None = None,
    said: str = "",
) -> str:
    """What diverged, where, and how to inspect and accept it, in at most twelve lines; *said* is the error text."""
    file = shlex.quote(os.path.relpath(path))
    lines = [f"antiphon: {item.name} differs from its recording"]
    lines += [f"  {_short(one['message'])}" for one in found[:_NAMED]]
    if len(found) > _NAMED:
        lines.append(f"  … and {len(found) - _NAMED} more")
    if error is not None:
        if not isinstance(error, Divergence):
            lines.append(f"  then: {_short(said)}")
        own, folded = _own_frames(error, item.config.rootpath)
        if own:
            lines.append(
                f"  where:  {' > '.join(own)}"
                + (f" ({folded} frames folded; --full-trace shows them)" if folded else "")
            )
    at = next((one[name] for one in found for name in ("seq", "nearest") if name in one), None)
    lines.append(f"  look:   antiphon show {file}" + (f" --event {at}" if at is not None else ""))
    lines.append(f"  accept: pytest --antiphon-rewrite {shlex.quote(item.nodeid)}")
    return "\n".join(lines)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:299] + "…"


def _own_frames(error: BaseException, root: Path) -> tuple[list[str], int]:
    """The innermost frames of the error in the project's own files, and the number of other frames."""
    own, folded = [], 0
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(root) and not {"site-packages", ".venv"} & set(path.parts) and path != Path(__file__):
            own.append(f"{os.path.relpath(path)}:{line} {frame.f_code.co_name}")
        else:
            folded += 1
    return own[-3:], folded
