"""``antiphon run`` and ``antiphon exec``: record an agent, or any program without a change to its code."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import antiphon
from antiphon._diff import plural
from antiphon.cli import EXIT
from antiphon.cli import _ui as ui
from antiphon.cli._base import CONFIG, JSON, application, argument, command, flag, interrupted, no_sandbox
from antiphon.contract.events import RunManifest
from antiphon.errors import AntiphonError, ConfigError, InvalidInput


@command(
    argument("target", help="file.py:function or module:function"),
    argument("--input", metavar="JSON", help="the argument, as JSON (an object with args/kwargs for several)"),
    argument(
        "--resume",
        metavar="RUN",
        help="resume an interrupted run (id or prefix) with its recorded input: finished calls are not repeated",
    ),
    CONFIG,
    JSON,
)
def run(arguments: argparse.Namespace) -> int:
    """Run an agent entry point and record everything observable.

    example:
      antiphon run examples/support_agent.py:main --input '"My order 1042 is late"'
    """
    from antiphon._recording.run import exit_code
    from antiphon.ops.app import start
    from antiphon.ops.runs import find_run
    from antiphon.ops.tables import json_value
    from antiphon.ops.unrecorded import unrecorded

    given = json_value(arguments.input, "--input")
    with application(arguments) as app:
        resume = None if arguments.resume is None else _interrupted(find_run(app, arguments.resume))
        with ui.aside(arguments.json):
            result = start(app, arguments.target, given, resume=resume)
        if isinstance(result.error, KeyboardInterrupt):
            hint = f"Resume it: antiphon run {shlex.quote(arguments.target)} --resume {result.id}"
            return interrupted(arguments.json, hint, what=f"Run {result.id} was interrupted.")
        warnings = unrecorded(result)
        late = result.late_calls
    code = exit_code(result.error)
    if arguments.json:
        left: dict[str, Any] = {} if code is None else {"exitCode": code}
        if late:
            left["afterEnd"] = late
        if warnings:
            left["warnings"] = warnings
        if result.error is not None and code is None:
            own = result.error if isinstance(result.error, AntiphonError) else None
            left["error"] = type(result.error).__name__ if own is None else own.code
            left |= {"message": str(result.error)} if own is None else {"message": own.message, "hint": own.hint}
        ui.print_json({"run": result.id, "name": result.name, "status": result.status, **left, "output": result.output})
    else:
        if isinstance(result.output, str):
            print(result.output)
        elif result.output is not None:
            ui.print_json(result.output)
        status = result.status if code is None else f"{result.status} with exit code {code}"
        note = f"run {result.id} {status} · show it: antiphon show {result.id[:13]}"
        print(ui.dim(note), file=sys.stderr)
        if result.error is not None:
            _explain(result.error)
    for warning in warnings:
        print(f"antiphon: {warning}", file=sys.stderr)
    if late:
        were, are = ("was", "is") if late == 1 else ("were", "are")
        said = f"{plural(late, 'call')} {were} made after the run ended and {are} recorded after its end"
        print(f"antiphon: {said}", file=sys.stderr)
    return code or (0 if result.error is None else 1)


def _interrupted(manifest: RunManifest) -> str:
    """The id of a run that may go on: no process of this machine is working on it."""
    from antiphon._gateway.owner import certainly_alive

    if manifest.status == "running" and certainly_alive(manifest.tags.get("owner", "")):
        raise InvalidInput(
            f"Run {manifest.id} is still running, so it cannot be resumed.",
            hint="Wait until it ends, or end its process.",
            path="--resume",
        )
    return manifest.id


def _explain(error: BaseException) -> None:
    """The failure; where it is the agent's own, with the lines of its code that led there."""
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):  # Python would print it at this point
            print(error.code, file=sys.stderr)
        return
    if not isinstance(error, AntiphonError):
        import traceback

        ours = str(Path(antiphon.__file__).parent)
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
        print("".join(traceback.format_list(frames)), end="", file=sys.stderr)
    print(f"antiphon: {type(error).__name__}: {error}", file=sys.stderr)


_NOTE = "exec does not record plain functions: decorate them or use an adapter"


@command(
    argument("--name", help="name of the run (default: the program's file name)"),
    argument("--replay", metavar="RUN", help="replay this recording (id, prefix, latest, or an artifact)"),
    no_sandbox("a replay"),
    flag("--quiet", "no summary"),
    CONFIG,
    argument("command", nargs=argparse.REMAINDER, help="-- python agent.py …"),
)
def exec_(arguments: argparse.Namespace) -> int:
    """Run a Python program and record its model and MCP calls, with no code change.

    Seen: calls of the OpenAI, Anthropic and Google SDKs, of whatever else uses httpx or httpx2, and MCP sessions.
    Not seen: plain functions, other HTTP clients, and processes that the program starts.

    examples:
      antiphon exec -- python agent.py --ask 'where is my order?'
      antiphon exec --replay latest -- python agent.py --ask 'where is my order?'
    """
    import orjson

    words = [word for place, word in enumerate(arguments.command) if place or word != "--"]
    if not words:
        raise InvalidInput("There is no command to run.", hint="Write: antiphon exec -- python agent.py")
    if shutil.which(words[0]) is None:
        raise InvalidInput(f"There is no program {words[0]!r}.", hint="Give its path, or a name in PATH.")
    replay, recorded = _resolve(arguments) if arguments.replay else (None, None)
    with tempfile.TemporaryDirectory(prefix="antiphon-exec-") as folder:
        report = Path(folder, "report.json")
        order = {
            "name": arguments.name or _name(words),
            "report": str(report),
            "config": arguments.config or _found_config(),
            "replay": replay,
            "sandbox": not arguments.no_sandbox,
        }
        ended = _start(words, order)
        code = 128 - ended if ended < 0 else ended  # as a shell reports a signal
        found = orjson.loads(report.read_bytes()) if report.exists() else None
    if found is None:
        print(
            "antiphon: nothing was recorded: the command did not start a Python that loads sitecustomize "
            "(-S, -I and -E disable it).",
            file=sys.stderr,
        )
        return code or EXIT["blocked"]
    if "error" in found:
        print(f"antiphon: {found['message']}\n          {found['hint']}".rstrip(), file=sys.stderr)
        return EXIT["not_found"] if found["error"] == "not_found" else EXIT["usage"]
    if replay is None and ended > 0:  # a process killed by a signal was interrupted; it did not fail
        _note_exit(arguments, found["run"], code)
        found["status"] = "failed"
    if "begun" in found:
        return _cut_off(found["run"], code, replay is not None)
    if replay is not None:
        if recorded not in (None, code) and not found["divergenceCount"]:  # otherwise a divergence may be the cause
            text = f"the program ended with exit code {code}; when it was recorded, with {recorded}"
            found["divergences"], found["divergenceCount"] = [{"message": text}], 1
        return _replayed(found, code, arguments.quiet)
    if not arguments.quiet:
        print(ui.dim(_summary(found, code)), file=sys.stderr)
    return code


def _found_config() -> str | None:
    """The configuration as it applies here."""
    from antiphon.config.load import load

    found = None if os.environ.get("ANTIPHON_CONFIG") else load().file
    return None if found is None else str(found.absolute())


def _note_exit(arguments: argparse.Namespace, run: str, code: int) -> None:
    """A program cannot tell how it ends; whoever started it can."""
    from antiphon.ops.app import note_exit

    try:
        with application(arguments) as app:
            note_exit(app, run, code)
    except AntiphonError as error:
        print(f"antiphon: the exit code was not recorded: {error.message}", file=sys.stderr)


def _cut_off(run: str, code: int, replay: bool) -> int:
    """The process was killed, or left by os._exit: what it had recorded is there, and it was compared with nothing."""
    if replay:
        print(
            f"antiphon: the replay of {run} ended abruptly; its result is unknown.",
            file=sys.stderr,
        )
        return code or EXIT["diverged"]
    print(f"antiphon: run {run} ended abruptly. What was recorded: antiphon show {run}", file=sys.stderr)
    return code


def _name(command: Sequence[str]) -> str:
    script = next((word for word in command if word.endswith(".py")), command[-1] if "-m" in command else command[0])
    return Path(script).stem


def _resolve(arguments: argparse.Namespace) -> tuple[str, int | None]:
    """The id of the recording, and its exit code if that is known; an artifact is read into the store first."""
    from antiphon._recording.run import EXIT_TAG
    from antiphon.ops.artifacts import open_recording

    with application(arguments) as app:
        manifest = open_recording(app, arguments.replay).manifest
    code = manifest.tags.get(EXIT_TAG, "0" if manifest.status == "completed" else "")
    return manifest.id, int(code) if code.isdecimal() else None


def _start(command: Sequence[str], order: Mapping[str, Any]) -> int:
    import orjson

    from antiphon import _version
    from antiphon._minilm import model_folder
    from antiphon.config.place import state_place

    hook = str(Path(_version.__file__).parent / "_hook")
    paths = [hook, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "ANTIPHON_EXEC": orjson.dumps(order).decode()}
    with contextlib.suppress(RuntimeError):  # no home folder, so no models
        env["ANTIPHON_MODELS"] = str(model_folder().parent.absolute())
    with contextlib.suppress(ConfigError):  # the program reports it itself if it needs the store
        env["ANTIPHON_HOME"] = str(state_place().folder.absolute())  # it may be in another project
    child = subprocess.Popen(command, env=env)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal signals the program directly
    signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
    try:
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _summary(found: Mapping[str, Any], code: int) -> str:
    parts = [f"{found['modelCalls']} model calls", f"{found['mcpCalls']} MCP calls"]
    for name in ("toolCalls", "failed", "refusals", "tokens"):
        if found[name]:
            parts.append(f"{found[name]} {'tool calls' if name == 'toolCalls' else name}")
    status = f"{found['status']} with exit code {code}" if code else found["status"]
    return f"antiphon: run {found['run']} {status} · {', '.join(parts)} · {_NOTE}"


def _replayed(found: Mapping[str, Any], code: int, quiet: bool) -> int:
    for divergence in found["divergences"][:10]:
        print(f"antiphon: {divergence['message']}", file=sys.stderr)
        if "show" in divergence:
            print(f"          {shlex.join(divergence['show'].split())}", file=sys.stderr)
    for escape in found["escapes"][:5]:
        print(f"antiphon: the sandbox refused {escape}", file=sys.stderr)
    diverged = bool(found["divergenceCount"])
    if not quiet:
        verdict = plural(found["divergenceCount"], "divergence") if diverged else "no divergence"
        answered = f"{plural(found['answered'], 'call')} answered from the recording"
        line = f"antiphon: replay of {found['run']} · {answered} · {verdict}"
        print(ui.dim(f"{line} · {_NOTE}"), file=sys.stderr)
    return EXIT["diverged"] if diverged else code
