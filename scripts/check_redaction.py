"""Check redaction on the ground truth of public agent suites: ``python -m scripts.check_redaction --dojo PYTHON``.

*PYTHON* is an interpreter of an environment that has agentdojo (``pip install agentdojo``); ``--tau FOLDER`` is a
checkout of sierra-research/tau-bench. Neither is a dependency, and nothing of them is kept. Each task is run by an
agent that asks a scripted model for the next call, makes it, and gives the result, cut to 400 characters, back to the
model. The run is recorded in a SQLite store and replayed with its key and without, unchanged and with one argument
changed, for every call. ``antiphon export`` writes its artifact and says which steps need the key; a task that does not
pass without the key counts as named only if each of its divergences is among them.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import hashlib
import html
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

import antiphon

DOJO = """
import json, sys
from agentdojo.task_suite.load_suites import get_suites
from agentdojo.functions_runtime import FunctionCall, FunctionsRuntime
from agentdojo.agent_pipeline.tool_execution import tool_result_to_str
found = []
for name, suite in get_suites("v1").items():
    for task_id, task in suite.user_tasks.items():
        env = task.init_environment(suite.load_and_inject_default_environment({}))
        runtime, calls = FunctionsRuntime(suite.tools), []
        for call in task.ground_truth(env):
            if any(isinstance(value, FunctionCall) for value in call.args.values()):
                continue
            try:
                result, error = runtime.run_function(env, call.function, call.args)
            except Exception as raised:
                result, error = "", str(raised)
            args = json.loads(json.dumps(call.args, default=str))
            text = error or tool_result_to_str(result)
            calls.append({"tool": call.function, "args": args, "result": text})
        found.append({"name": f"{name}/{task_id}", "prompt": task.PROMPT, "calls": calls})
json.dump(found, sys.stdout)
"""
TAU = """
import json, sys, types
for missing in ("litellm",):
    sys.modules.setdefault(missing, types.SimpleNamespace(completion=None))
import importlib
found = []
for domain in ("retail", "airline"):
    tools = importlib.import_module(f"tau_bench.envs.{domain}.tools").ALL_TOOLS
    load = importlib.import_module(f"tau_bench.envs.{domain}.data").load_data
    by_name = {tool.get_info()["function"]["name"]: tool for tool in tools}
    module = importlib.import_module(f"tau_bench.envs.{domain}.tasks_test")
    tasks = getattr(module, "TASKS_TEST", None) or getattr(module, "TASKS", None) or module.tasks
    for number, task in enumerate(tasks):
        data, calls = load(), []
        get = (lambda name: task[name]) if isinstance(task, dict) else (lambda name: getattr(task, name))
        for action in get("actions"):
            name = action["name"] if isinstance(action, dict) else action.name
            args = action.get("kwargs", action.get("arguments")) if isinstance(action, dict) else action.kwargs
            result = by_name[name].invoke(data=data, **args) if name in by_name else ""
            calls.append({"tool": name, "args": args, "result": str(result)})
        found.append({"name": f"{domain}/{number}", "prompt": get("instruction"), "calls": calls})
json.dump(found, sys.stdout)
"""
CUT = 400
ROUNDS = 25
Task = dict[str, Any]


def suites(arguments: argparse.Namespace) -> Iterator[tuple[str, list[Task]]]:
    """The tasks of each suite that was given."""
    if arguments.dojo:
        yield "agentdojo", _dumped([arguments.dojo, "-c", DOJO], None)
    if arguments.tau:
        yield "tau-bench", _dumped([sys.executable, "-c", TAU], arguments.tau)


def _dumped(command: list[str], folder: str | None) -> list[Task]:
    env = {**os.environ, **({"PYTHONPATH": folder} if folder else {})}
    made = subprocess.run(command, capture_output=True, env=env, cwd=folder, check=False)
    if made.returncode:
        raise SystemExit(made.stderr.decode()[-2000:])
    tasks: list[Task] = orjson.loads(made.stdout)
    return [task for task in tasks if task["calls"]]


class Script:
    """What the model and the tools of the present task say, and what the code changes."""

    def __init__(self, app: antiphon.Antiphon, task: Task) -> None:
        self.said: Iterator[dict[str, Any]] = iter([*task["calls"], {"done": "all done"}])
        self.results: Iterator[str] = iter([call["result"] for call in task["calls"]])
        self.change: tuple[int, str] | None = None
        """Which argument of which call the code changes."""

        @app.gateway.tool(idempotent=False)
        def act(tool: str, args: dict[str, Any]) -> str:
            return next(self.results)

        self.act = act


present: Script


def answer(request: Any) -> dict[str, Any]:
    """The next answer of the scripted model."""
    said = next(present.said)
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": json.dumps(said)}}]}


def agent(prompt: str) -> str:
    """Make the calls that the scripted model asks for; the entry point that the recordings name."""
    run = antiphon.current_run()
    messages: list[dict[str, str]] = [{"role": "user", "content": prompt}]
    for number in range(200):
        response = run.llm({"model": "scripted", "messages": list(messages)}, answer)
        content = response["choices"][0]["message"]["content"]
        said = json.loads(content)
        if "done" in said:
            return f"{said['done']}: {messages[-1]['content'][:80]}"
        args = said["args"]
        if present.change is not None and present.change[0] == number:
            args = {**args, present.change[1]: changed(args[present.change[1]])}
        result = present.act(tool=said["tool"], args=args)
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": result[:CUT]}]
    return "endless"


def exported(store: Path, run: str, file: Path) -> list[str]:
    """Run ``antiphon export``; the steps that it says need the key."""
    from antiphon.cli import main as command

    out, trouble = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    words = ["export", run, "-o", str(file), "--json", "--store", f"sqlite:///{store}"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(trouble):
        code = command(words)
    out.seek(0)
    trouble.seek(0)
    if code:
        raise SystemExit(f"antiphon {' '.join(words)}: exit code {code}\n{out.read()}{trouble.read()}")
    steps: list[str] = json.loads(out.read())["needsKey"]
    return steps


def changed(value: Any) -> Any:
    """Another value of the same kind: the first letter or digit becomes its neighbour."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        at = next((n for n, char in enumerate(value) if char.isalnum()), None)
        if at is None:
            return value + "x"
        other = "7" if value[at].isdigit() and value[at] != "7" else "q" if value[at] != "q" else "x"
        return value[:at] + other + value[at + 1 :]
    if isinstance(value, list):
        return [changed(value[0]), *value[1:]] if value else ["x"]
    return {**value, "changed": 1} if isinstance(value, dict) else "x"


def fragments(value: str, kind: str) -> list[str]:
    """What must be nowhere: the value without what stays of it, its beginning and its end."""
    core = value.partition("@")[0] if kind == "email" else value[4:] if kind == "iban" else value
    core = core[:-4] if kind == "card" else core
    if len(core) < 6:
        return [f"{core}@"] if kind == "email" and len(core) >= 5 else []
    if kind in ("iban", "card", "phone", "ssn"):
        return [core[at : at + 6] for at in range(len(core) - 5) if any(c.isdigit() for c in core[at : at + 6])]
    return [core + "@" if kind == "email" else core, core[:6] + core[6:12]]


def spellings(text: str) -> set[bytes]:
    """The text in common encodings."""
    import base64

    data = text.encode()
    found = {data, data.hex().encode(), quote(text, safe="").encode(), html.escape(text).encode()}
    found |= {base64.b64encode(data)[: len(data) * 4 // 3 // 4 * 4]} if len(data) >= 9 else set()
    return {one for one in found if len(one) >= 6}


class Suite:
    """What was found of the tasks of a suite."""

    def __init__(self, folder: str) -> None:
        from antiphon.redact import Redactor, Rules

        self.folder = Path(folder)
        self.finder = Redactor(Rules())
        self.counts: collections.Counter[str] = collections.Counter()
        self.missed: list[str] = []
        self.named: list[str] = []
        self.excluded: list[str] = []

    def check(self, task: Task) -> None:
        """Record one task, replay it unchanged and changed, export it, and look for fragments in all that was made."""
        global present
        from antiphon.stores import SQLiteStore

        counts = self.counts
        counts["tasks"] += 1
        counts["calls"] += len(task["calls"])
        database, artifact = (self.folder / f"{counts['tasks']}.{end}" for end in ("db", "antiphon"))
        app = antiphon.Antiphon(
            {"telemetry": {"logs": False}, "replay": {"embedder": "lexical"}}, store=SQLiteStore(database)
        )
        present = Script(app, task)
        run = app.record(agent, task["prompt"])

        def replay(masked: bool) -> Any:
            return antiphon.replay(
                run, app=app, mode="strict", function=agent, keep=False, sandbox=False, masked=masked
            )

        whole = replay(False)
        counts["masked"] += whole["masked"]["values"]
        counts["with_key"] += whole.passed
        if not whole.passed:
            self.missed.append(f"{task['name']}: unchanged, with the key: {whole.divergences[:1]}")
        self._compare(task, replay(True), exported(database, run.id, artifact))
        texts = [whole.text(), json.dumps(whole.to_wire()), whole.html(), *self._change(task, replay)]
        files = [artifact, *self.folder.glob(f"{database.name}*")]
        self._look(task, b"\0".join([*(path.read_bytes() for path in files), *map(str.encode, texts)]))

    def _compare(self, task: Task, masked: Any, steps: list[str]) -> None:
        """The replay without the key, and what the export said of it."""
        self.counts["without_key"] += masked.passed
        unnamed = [found["message"] for found in masked.divergences if found["message"] not in steps]
        if masked.passed and steps:
            self.missed.append(f"{task['name']}: passes without the key, but the export names {steps[:1]}")
        elif not masked.passed and (unnamed or not steps):
            self.missed.append(f"{task['name']}: unchanged, without the key, not named by the export: {unnamed[:1]}")
        elif steps:
            self.counts["named_by_export"] += 1
            self.named += [f"{task['name']}: {step}" for step in steps]

    def _change(self, task: Task, replay: Callable[[bool], Any]) -> Iterator[str]:
        """Change each argument of each call; the reports of the first one."""
        for at, call in enumerate(task["calls"]):
            for argument in call["args"]:
                present.change = (at, argument)
                self.counts["mutations"] += 1
                for mode, key in ((False, "named_with"), (True, "named_without")):
                    report = replay(mode)
                    self.counts[key] += not report.passed
                    if report.passed:
                        self.missed.append(f"{task['name']}: call {at}, {argument}, masked={mode}")
                    elif at == 0:
                        yield json.dumps(report.to_wire())
        present.change = None

    def _look(self, task: Task, everything: bytes) -> None:
        """Look for fragments of detected values."""
        given = {"prompt": task["prompt"], "calls": [[call["args"], call["result"]] for call in task["calls"]]}
        found = list(self.finder.leaves(given))
        rest = json.dumps(given, ensure_ascii=False)
        for _, _, secret in found:
            rest = rest.replace(secret, "\0")
        wanted = {(kind, fragment) for _, kind, secret in found for fragment in fragments(secret, kind)}
        for kind, fragment in sorted(wanted):
            if fragment in rest:  # also a word, or a part of a value that is no secret: finding it would say nothing
                self.excluded.append(f"{task['name']}: {kind}: {fragment!r}")
                continue
            self.counts["fragments"] += 1
            if any(one in everything for one in spellings(fragment)):
                self.counts["leaks"] += 1
                self.missed.append(f"{task['name']}: a raw fragment of kind {kind} ({len(fragment)} characters)")


def check(name: str, tasks: list[Task], limit: int, verbose: bool) -> bool:
    """Print what holds for a suite; whether all of it does."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ANTIPHON_HOME"] = folder
        suite = Suite(folder)
        for task in tasks[: limit or None]:
            suite.check(task)
    counts, missed, excluded, took = suite.counts, suite.missed, suite.excluded, time.perf_counter() - began
    print(f"{name}: {counts['tasks']} tasks, {counts['calls']} calls, {counts['masked']} masked values ({took:.0f} s)")
    print(
        f"  with the key: unchanged {counts['with_key']} of {counts['tasks']} pass; "
        f"changed {counts['named_with']} of {counts['mutations']} named"
    )
    print(
        f"  without it:   unchanged {counts['without_key']} of {counts['tasks']} pass, "
        f"{counts['named_by_export']} of the {counts['tasks'] - counts['without_key']} others named by the export; "
        f"changed {counts['named_without']} of {counts['mutations']} named"
    )
    print(f"  raw fragments on disk, in artifact and reports: {counts['leaks']} of {counts['fragments']}")
    if excluded:
        more = "" if verbose else " (--verbose lists them)"
        print(f"  not looked for, as the same task also has them outside detected values: {len(excluded)}{more}")
    if verbose:
        print("".join(f"    named by the export: {line}\n" for line in suite.named), end="")
        print("".join(f"    not looked for: {line}\n" for line in excluded), end="")
    print("".join(f"    FAILED: {line}\n" for line in (missed if verbose else missed[:10])), end="")
    if len(missed) > 10 and not verbose:
        print(f"    … and {len(missed) - 10} more (--verbose lists them)")
    return not missed


def guesses() -> bool:
    """Ten thousand guesses against each masked four-digit value, with all that an artifact shows."""
    from antiphon.canonical import canonical_json
    from antiphon.ops.artifacts import export_run
    from antiphon.stores import SQLiteStore

    found = 0
    values = {"pin": "4821", "otp": "7302", "cvv": "913", "password": "2468"}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ANTIPHON_HOME"] = folder
        app = antiphon.Antiphon({"telemetry": {"logs": False}}, store=SQLiteStore(Path(folder, "g.db")))

        @app.gateway.tool(idempotent=False)
        def unlock(code: dict[str, str]) -> str:
            return "open"

        for name, value in values.items():
            run = app.record(functools.partial(unlock, code={name: value}))
            manifest = app.journal.manifest(run.id)
            assert manifest is not None
            file = Path(folder, f"{name}.antiphon")
            export_run(app, manifest, file)
            text = file.read_text()
            digests = set(re.findall(r"[0-9a-f]{16,64}", text))
            starts = {digest[:16] for digest in digests}
            for number in range(10 ** len(value)):
                guess = f"{number:0{len(value)}}"
                for document in ({"code": {name: guess}}, {name: guess}, guess, [guess]):
                    data = canonical_json(document)
                    tried = {hashlib.sha256(data).hexdigest(), hashlib.md5(data, usedforsecurity=False).hexdigest()}
                    if any(one[:16] in starts for one in tried):
                        found += guess == value
            found += f'"{value}"' in text
    print(f"guesses: 10,000 against each of {len(values)} short values in their artifacts: {found} found")
    return found == 0


def cost(calls: int) -> bool:
    """CPU of a recorded call without and with something to mask, on a SQLite store."""
    text = "please send the order to the customer as soon as it is ready, with the usual note. " * 4
    kinds = {
        "nothing": text,
        "an address": text + "ada.lovelace@example.org",
        "three values": text + "ada.lovelace@example.org DE89370400440532013000 +49 170 1234567",
    }
    spent = dict.fromkeys(kinds, 1e9)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ANTIPHON_HOME"] = folder
        made = {name: _sender(Path(folder, f"{at}.db")) for at, name in enumerate(kinds)}
        for _ in range(ROUNDS):  # in turns: whatever else the machine does is spent on all of them
            for name, (app, send) in made.items():
                with app.run("cost"):
                    send(n=-1, text=kinds[name])
                    begin = time.process_time()
                    for n in range(max(1, calls // ROUNDS)):
                        send(n=n, text=f"{n}: {kinds[name]}")
                    took = (time.process_time() - begin) / max(1, calls // ROUNDS)
                spent[name] = min(spent[name], took * 1e6)
    base = spent["nothing"]
    print(
        "cost of a recorded call (SQLite, CPU): "
        + ", ".join(f"{name} {value:.0f} µs ({value / base:.2f}×)" for name, value in spent.items())
    )
    return all(value <= 2 * base for value in spent.values())


def _sender(path: Path) -> tuple[antiphon.Antiphon, Callable[..., str]]:
    from antiphon.stores import SQLiteStore

    app = antiphon.Antiphon({"telemetry": {"logs": False}}, store=SQLiteStore(path, synchronous="NORMAL"))

    @app.gateway.tool(idempotent=False)
    def send(n: int, text: str) -> str:
        return "sent"

    return app, send


def main() -> int:
    """Run the checks that were asked for; 1 if one of them does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dojo", metavar="PYTHON", help="interpreter of an environment with agentdojo")
    parser.add_argument("--tau", metavar="FOLDER", help="checkout of sierra-research/tau-bench")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="only the first N tasks of each suite")
    parser.add_argument("--calls", type=int, default=500, metavar="N", help="calls per measurement of the cost")
    parser.add_argument("--verbose", action="store_true", help="list what is only counted otherwise")
    arguments = parser.parse_args()
    held = [check(name, tasks, arguments.limit, arguments.verbose) for name, tasks in suites(arguments)]
    held += [guesses(), cost(arguments.calls)]
    return 0 if all(held) else 1


if __name__ == "__main__":
    raise SystemExit(main())
