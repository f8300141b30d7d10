"""Golden runs: artifacts that are replayed as tests (K8, D13)."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement, tostring
from xml.sax.saxutils import escape

from antiphon._replay.observe import escape_of
from antiphon.contract.events import RunManifest
from antiphon.errors import AntiphonError, NotFound
from antiphon.ops.app import Antiphon, using
from antiphon.ops.replay import Mode, replay

SUFFIXES = (".antiphon", ".kurral")
MIN_ARS = 0.9


class Options(NamedTuple):
    """How golden runs are replayed."""

    mode: Mode | None = "strict"
    min_ars: float = MIN_ARS
    config: str | None = None
    llm: str | None = None
    sandbox: bool = True
    model: str | None = None
    entry: str | None = None
    masked: bool = False


class Result(NamedTuple):
    """The result of one golden run."""

    path: str
    status: str
    """``pass``, ``fail`` (a regression or divergence) or ``error`` (it could not be replayed)."""
    seconds: float
    report: dict[str, Any]
    reasons: list[str]
    code: int

    @property
    def name(self) -> str:
        """The file name without its suffix."""
        return Path(self.path).stem

    def to_wire(self) -> dict[str, Any]:
        """The JSON form."""
        kept = "replayType executed determinismScore changes ars divergences blocked masked verdict".split()
        return {
            "path": self.path,
            "status": self.status,
            "seconds": round(self.seconds, 3),
            "reasons": self.reasons,
            **{name: self.report[name] for name in kept if name in self.report},
        }


def find_artifacts(places: Iterable[Path]) -> list[Path]:
    """Every artifact under the given files and folders, in a stable order."""
    found: dict[Path, None] = {}
    for place in places:
        if not place.exists():
            raise NotFound(f"There is no {place}.", hint="Give a folder of .antiphon files, or one of them.")
        files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.suffix in SUFFIXES)
        found.update(dict.fromkeys(files))
    if not found:
        where = ", ".join(repr(str(place)) for place in places)
        raise NotFound(f"No golden runs in {where}.", hint="Create one: antiphon export RUN -o golden/NAME.antiphon")
    return list(found)


def _one(error: AntiphonError) -> int:
    return 1


def check(path: Path, options: Options, code_of: Callable[[AntiphonError], int] = _one) -> Result:
    """Replay one golden run against the current code, in a temporary store. *code_of* maps errors to exit codes."""
    from antiphon.ops.entry import load_entry
    from antiphon.stores import MemoryStore

    began = time.perf_counter()
    try:
        app = Antiphon(options.config, store=MemoryStore())
        with using(app):
            report = replay(
                path,
                app=app,
                mode=options.mode,
                min_ars=options.min_ars,
                function=load_entry(options.entry) if options.entry else None,
                llm=load_entry(options.llm) if options.llm else None,
                model=options.model,
                sandbox="process" if options.sandbox else False,
                keep=False,
                masked=options.masked,
            )
    except AntiphonError as error:
        took = time.perf_counter() - began
        said = [error.message, error.hint] if error.hint else [error.message]
        return Result(str(path), "error", took, {}, said, code_of(error))
    data = report.to_wire()
    if report.recording is not None:
        data = {**data, "entry": report.recording.manifest.entry}
    reasons = [found["message"] for found in data["divergences"][:5]] or list(data["verdictReasons"])
    if not data["executed"] and not reasons:
        reasons = ["the recording names no entry point: only the recording itself was checked"]
    return Result(str(path), report.verdict, time.perf_counter() - began, data, reasons, report.exit_code)


def steps_with_key(app: Antiphon, manifest: RunManifest) -> list[str]:
    """What a replay of this run without its key would fail on: steps that compute on originals (hash an address).

    Empty if it has no masked values, if its originals cannot be read here either, or if its code is unavailable.
    """
    if not manifest.entry or not manifest.seal or app.keys.key_of(manifest) is None:
        return []
    try:
        report = replay(manifest.id, app=app, mode="strict", masked=True, keep=False)
    except AntiphonError:
        return []
    return [found["message"] for found in report.divergences]


def check_all(
    paths: Sequence[Path],
    options: Options,
    *,
    jobs: int = 1,
    code_of: Callable[[AntiphonError], int] = _one,
    apart: bool = False,
    quiet: bool = False,
) -> Iterator[Result]:
    """Replay all of them, in order. *apart*: in *jobs* separate processes, whose exits count as part of the results.

    If one ends its process, the remaining ones are replayed in another. A result that fails because of what came after
    its end is yielded again once the processes have ended. With *quiet*, output of the code goes to standard error.
    """
    if not (apart and hasattr(os, "fork")):
        for path in paths:
            yield check(path, options, code_of)
        return
    from antiphon.ops.child import Send, in_children
    from antiphon.ops.sandbox import hold_process, release_process

    jobs = min(jobs, len(paths))
    shares: list[Sequence[int]] = [range(number, len(paths), jobs) for number in range(jobs)]

    def work(share: Sequence[int], send: Send) -> None:
        for place in share:
            release_process()
            result = check(paths[place], options, code_of)
            if options.sandbox:
                hold_process(str(result.report.get("sourceRun", "")))
            send({"place": place, "result": list(result)})

    found: dict[int, Result] = {}
    late: list[tuple[Sequence[int], str, str]] = []
    yielded, pending = 0, shares
    while pending:
        begun, pending = pending, list[Sequence[int]]()
        for number, message in in_children([functools.partial(work, share) for share in begun], quiet=quiet):
            share = begun[number]
            if "late" in message or "missing" in message:
                late.append((share, message["run"], _reason(message)))
            elif "result" in message:
                found[message["place"]] = Result(*message["result"])
            elif "ended" in message:
                code, left = message["ended"], [place for place in share if place not in found]
                if code and not left:
                    late.append((share, "", _reason({"late": f"ending the process ({code})"})))
                found |= {place: _ended(paths[place], code) for place in left[:1]}
                pending += [left[1:]] if left[1:] else []  # replayed in a new process
            while yielded in found:
                yield found[yielded]
                yielded += 1
    failed: dict[int, list[str]] = {}
    for share, run, said in late:
        named = [place for place in share if found[place].report.get("sourceRun") == run]
        failed.setdefault(named[0] if named else share[-1], []).append(said)
    for place, reasons in sorted(failed.items()):
        result = found[place]
        yield result._replace(status="fail", reasons=[*result.reasons, *dict.fromkeys(reasons)], code=result.code or 1)


def _reason(message: Mapping[str, Any]) -> str:
    """Why something after the end of a replay fails it."""
    found = message.get("missing")
    return escape_of(message["late"], late=True).message() if found is None else str(found["message"])


def _ended(path: Path, code: int) -> Result:
    return Result(str(path), "error", 0.0, {}, [f"the replayed code ended the process ({code})"], 1)


def exit_code(results: Iterable[Result]) -> int:
    """1 if anything regressed, else the code of what prevented a replay, else 0."""
    codes = [result.code for result in results if result.code]
    return 1 if 1 in codes else codes[0] if codes else 0


def junit(results: Sequence[Result]) -> str:
    """The results as JUnit XML."""
    counts = {
        "tests": str(len(results)),
        "failures": str(sum(result.status == "fail" for result in results)),
        "errors": str(sum(result.status == "error" for result in results)),
        "time": f"{sum(result.seconds for result in results):.3f}",
    }
    suites = Element("testsuites", counts)
    suite = SubElement(suites, "testsuite", {"name": "antiphon", **counts})
    for result in results:
        facts = {"classname": str(Path(result.path).parent), "name": result.name, "time": f"{result.seconds:.3f}"}
        case = SubElement(suite, "testcase", facts)
        if result.status != "pass":
            reasons = [_printable(reason) for reason in result.reasons]
            kind = "failure" if result.status == "fail" else "error"
            SubElement(case, kind, message=reasons[0] if reasons else result.status).text = "\n".join(reasons)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(suites, encoding="unicode") + "\n"


def _printable(text: str) -> str:
    """XML does not allow control characters."""
    return "".join(c if c >= " " or c in "\n\t" else "\ufffd" for c in text if c not in "\ufffe\uffff")


def markdown(results: Sequence[Result]) -> str:
    """A summary for a pull request."""
    good = sum(result.status == "pass" for result in results)
    sign = "✅" if good == len(results) else "❌"
    lines = [f"### {sign} Antiphon: {good} of {len(results)} golden runs pass", ""]
    lines += ["| golden run | replay | ARS | result |", "|---|---|---|---|"]
    for result in results:
        ars = (result.report.get("ars") or {}).get("score")
        shown = "" if ars is None else f"{ars:.3f}"
        first = _cell(result.reasons[0]) if result.reasons and result.status != "pass" else result.status
        kind = result.report.get("replayType", "")
        lines.append(
            f"| `{_cell(result.path)}` | {kind} | {shown} | {'✅' if result.status == 'pass' else '❌'} {first} |"
        )
    details = [result for result in results if result.status != "pass" and len(result.reasons) > 1]
    for result in details:
        lines += ["", f"<details><summary>{escape(result.name)}</summary>", ""]
        lines += [f"- {_cell(reason)}" for reason in result.reasons]
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return escape(" ".join(text.split())).replace("|", "\\|")[:300]
