"""Mutation testing: every small mistake in the code that decides about a call has to make a test fail.

    make mutants                                   all files; part of `make prove-long`
    python -m tests.mutation --only decide/claim.py,keys.py

A mutant is one change of one expression or statement of a function: another comparison, a condition turned round,
``and`` for ``or``, a number or word that is off, a result that is dropped, a call that is left out. The tests are
imported and collected once; each mutant runs in a forked child, which swaps the code of the function and runs only
the tests that execute its line, the quickest first, until one fails or hangs. Survivors are printed; those that change
nothing that anybody can see are explained in docs/explanation/mutants.md and left out of the score.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import importlib
import inspect
import json
import os
import re
import select
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from functools import partial
from io import StringIO
from itertools import accumulate
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, Self

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "antiphon"
EXPLAINED = ROOT / "docs" / "explanation" / "mutants.md"
PARTS = {
    "decide": tuple(
        f"decide/{name}.py" for name in ("claim", "retry", "breaker", "loop", "classify", "_answers", "effects")
    ),
    "keys": ("keys.py",),
    "call core": tuple(
        f"_gateway/{name}.py"
        for name in ("admission", "attempt", "call", "claim", "leases", "repair", "settlement", "late", "drivers")
    ),
    "matcher": tuple(f"_replay/{name}.py" for name in ("recording", "observe", "strict", "explore", "by_content")),
}
FILES = tuple(file for files in PARTS.values() for file in files)
TESTS = (
    *(f"tests/unit/{name}" for name in ("decide", "keys", "gateway", "pitfalls", "turn", "sim", "recording", "replay")),
    "tests/integration/usage/test_sagas.py",
)
_PYTEST = (*"-q -x -s -p no:cacheprovider -p no:xdist --timeout=0 --no-header -k".split(), "not redis and not postgres")
_LIMIT_S = 5.0
"""For one test, and three times what it took without a mutant."""
_WORD = re.compile(r"[A-Za-z_][\w./-]*\Z")


class Mutant(NamedTuple):
    """One change."""

    file: str
    function: str
    before: str
    after: str
    number: int
    """Of those that read alike."""
    line: int
    lines: range
    """Of the statement that it is in: of an ``if`` its condition, of a ``match`` all of it."""
    code: CodeType
    defaults: tuple[list[CodeType], dict[str, CodeType]] | None = None
    """Of the parameters, if one of them is what changed: they are not part of the code."""

    def plant(self, function: FunctionType) -> None:
        """Make the change."""
        function.__code__ = self.code
        if self.defaults is not None:
            given, named = self.defaults
            function.__defaults__ = tuple(eval(code, function.__globals__) for code in given)
            function.__kwdefaults__ = {name: eval(code, function.__globals__) for name, code in named.items()}

    @property
    def name(self) -> str:
        """Stable while the function is."""
        again = f" ({self.number})" if self.number else ""
        return f"{self.file} {self.function}: {self.before} → {self.after}{again}"


# -- making mutants --------------------------------------------------------------------------------------------------

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """What could stand in the place of a node."""
    changed: Any = copy.copy(node)
    match node:
        case ast.Compare(ops=[op, *rest]):
            changed.ops = [_COMPARED[type(op)](), *rest]
            yield changed
        case ast.BoolOp(op=op):
            changed.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield changed
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(op=op) if type(op) in _COUNTED and not _is_text(node):
            changed.op = _COUNTED[type(op)]()
            yield changed
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(value=str() as value) if _WORD.match(value):
            yield ast.Constant(f"{value}X")
        case ast.IfExp(test=test, body=body, orelse=orelse) if not isinstance(
            test, (ast.Compare, ast.UnaryOp, ast.BoolOp)
        ):
            yield ast.IfExp(test, orelse, body)
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, (ast.Compare, ast.UnaryOp, ast.BoolOp)):
            changed.test = ast.UnaryOp(ast.Not(), test)
            yield changed
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign():
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, (ast.JoinedStr, ast.Constant)) and not isinstance(getattr(side, "value", 0), (int, float))
        for side in (node.left, node.right)
    )


def _places(function: ast.stmt) -> Iterator[tuple[ast.AST, str, int | None, ast.AST, ast.stmt]]:
    """The nodes of a function, each with the field that holds it and its statement; not what is only said (messages,
    notes, log lines, assertions)."""
    waiting: list[tuple[ast.AST, ast.stmt]] = [(function, function)]
    while waiting:
        node, statement = waiting.pop(0)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                if not isinstance(child, ast.AST) or _only_says(child):
                    continue
                inner = child if isinstance(child, ast.stmt) else statement
                yield node, field, index, child, inner
                waiting.append((child, inner))


def _lines(statement: ast.stmt) -> range:
    body = getattr(statement, "body", None)
    end = body[0].lineno - 1 if body else statement.end_lineno or 0
    return range(statement.lineno, max(end, statement.lineno) + 1)


def _only_says(node: ast.AST) -> bool:
    if isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert)):
        return True
    if not isinstance(node, ast.Expr):
        return False
    if isinstance(node.value, ast.Constant):
        return True  # a docstring
    call = node.value.func if isinstance(node.value, ast.Call) else None
    return isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name) and call.value.id.endswith("log")


def functions_of(tree: ast.AST, path: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """The functions and methods outside of other functions, by qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{path}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from functions_of(node, f"{path}{node.name}.")


def mutants_of(file: str) -> list[Mutant]:
    """All of a file's."""
    path = SOURCE / file
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[Mutant] = []
    seen: dict[str, int] = {}
    for name, function in functions_of(tree):
        for parent, field, index, node, statement in list(_places(function)):
            for other in _changes(node):
                mutant = _made(path, file, tree, (name, function), (parent, field, index, node, other, statement))
                if mutant is not None:
                    number = seen.get(mutant.name, 0)
                    seen[mutant.name] = number + 1
                    found.append(mutant._replace(number=number))
    return found


def changes_of(file: str) -> set[str]:
    """The names of a file's mutants, without the numbers of those that read alike."""
    functions = functions_of(ast.parse((SOURCE / file).read_text(encoding="utf-8")))
    return {
        f"{file} {name}: {_short(node)} → {_short(other)}"
        for name, function in functions
        for _, _, _, node, _ in _places(function)
        for other in _changes(node)
    }


def _made(path: Path, file: str, tree: ast.Module, of: tuple[str, Any], change: tuple[Any, ...]) -> Mutant | None:
    parent, field, index, node, other, statement = change
    name, function = of
    before = _short(node)
    ast.copy_location(other, node)
    held = getattr(parent, field)
    _put(parent, field, index, other)
    try:
        whole = ast.fix_missing_locations(tree)
        code = _find(compile(whole, str(path), "exec"), name)
        after = _short(other)
        in_front = any(parent is part for part in ast.walk(function.args))
        defaults = _defaults(function.args) if in_front else None
    except SyntaxError:
        return None
    finally:
        setattr(parent, field, held) if index is None else _put(parent, field, index, node)
    line = getattr(node, "lineno", 0)
    return None if code is None else Mutant(file, name, before, after, 0, line, _lines(statement), code, defaults)


def _defaults(arguments: ast.arguments) -> tuple[list[CodeType], dict[str, CodeType]]:
    """What the parameters are if nothing is given, as code."""
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [_evaluated(value) for value in arguments.defaults], {
        argument.arg: _evaluated(value) for argument, value in named if value is not None
    }


def _evaluated(value: ast.expr) -> CodeType:
    return compile(ast.Expression(value), "<default>", "eval")


def _put(parent: Any, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _short(node: ast.AST) -> str:
    """Its first line, as it reads."""
    return ast.unparse(node).partition("\n")[0].removesuffix(":").replace("|", "¦")[:90]


def _find(code: CodeType, name: str) -> CodeType | None:
    """The code of a function by its qualified name."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if const.co_qualname == name:
                return const
            if name.startswith(f"{const.co_qualname}.") and (found := _find(const, name)) is not None:
                return found
    return None


def function_of(mutant: Mutant) -> FunctionType | None:
    """The function whose code a mutant replaces."""
    found: Any = importlib.import_module("antiphon." + mutant.file.removesuffix(".py").replace("/", "."))
    for part in mutant.function.split("."):
        found = inspect.getattr_static(found, part, None)
        if found is None:
            return None
    for inner in ("fget", "func", "__func__", "__wrapped__"):
        found = getattr(found, inner, found)
    fits = isinstance(found, FunctionType) and found.__code__.co_freevars == mutant.code.co_freevars
    return found if fits else None


# -- trying them -----------------------------------------------------------------------------------------------------


class Reach(NamedTuple):
    """Which tests, by their number, execute a line of a file or call a function; and how long each of them takes."""

    lines: dict[str, list[int]]
    functions: dict[str, list[int]]
    """For defaults, and for tests that trace lines themselves: of those only the functions are known."""
    tracing: list[int]
    cost: list[float]

    def tests(self, mutant: Mutant, first: list[int], seconds: float) -> list[int]:
        """Those that could notice: the *first*, then the quickest, as many as took so many seconds without it."""
        called = self.functions.get(f"{mutant.file} {mutant.function}", [])
        if mutant.defaults is not None:
            found = set(called)
        else:
            found = set(called).intersection(self.tracing)
            for line in mutant.lines:
                found.update(self.lines.get(f"{mutant.file} {line}", ()))
        ordered = sorted(found, key=lambda test: (test not in first, self.cost[test]))
        until = accumulate(self.cost[test] for test in ordered)
        return [test for test, spent in zip(ordered, until, strict=True) if spent <= seconds or test == ordered[0]]


class _Trial:
    """A mutant that is tried: a child that tells which test it runs."""

    def __init__(self, mutant: Mutant, tests: list[int], reach: Reach, run: Callable[[int], bool]) -> None:
        self.mutant = mutant
        self._tests = tests
        self._reach = reach
        self._at = 0
        self._told, tell = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            with suppress(BaseException):
                os._exit(1 if self._fails(run, tell) else 0)
            os._exit(1)
        os.close(tell)
        os.set_blocking(self._told, False)
        self.ended = os.pidfd_open(self.child)
        self._extend()

    def _fails(self, run: Callable[[int], bool], tell: int) -> bool:
        function = function_of(self.mutant)
        assert function is not None
        self.mutant.plant(function)
        for number in self._tests:
            if run(number):
                return True
            os.write(tell, b".")
        return False

    def _extend(self) -> None:
        test = self._tests[min(self._at, len(self._tests) - 1)]
        self._deadline = time.monotonic() + _LIMIT_S + 3 * self._reach.cost[test]

    def verdict(self) -> tuple[str, int | None] | None:
        """How it ended, and the test that failed; None while it runs."""
        with suppress(BlockingIOError):
            if passed := os.read(self._told, 65536):
                self._at += len(passed)
                self._extend()
        over = bool(select.select([self.ended], [], [], 0)[0])
        late = not over and time.monotonic() > self._deadline
        if not over and not late:
            return None
        if late:
            os.kill(self.child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        os.close(self.ended)
        os.close(self._told)
        if not late and status == 0:
            return "survived", None
        return "killed by time" if late else "killed", self._tests[min(self._at, len(self._tests) - 1)]


class _Runner:
    """Collects the tests of some files once, then tries mutants in forked children, some at a time."""

    def __init__(
        self, mutants: list[Mutant], verdict: Callable[[Mutant, str], None], jobs: int, seconds: float
    ) -> None:
        self._mutants = mutants
        self._jobs = jobs
        self._seconds = seconds
        self._verdict = verdict
        self._failed = False

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._failed = self._failed or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        reach = self._reached(session)
        waiting = self._mutants[::-1]
        good: dict[str, list[int]] = {}  # by function: the tests that found the last mutants of it
        trials: list[_Trial] = []
        while waiting or trials:
            while waiting and len(trials) < self._jobs:
                mutant = waiting.pop()
                tests = reach.tests(mutant, good.get(mutant.function, []), self._seconds)
                if not tests or function_of(mutant) is None:
                    self._verdict(mutant, "not reached")
                    continue
                trials.append(_Trial(mutant, tests, reach, partial(self._run, session.items)))
            select.select([trial.ended for trial in trials], [], [], 0.5)
            for trial in list(trials):
                if (verdict := trial.verdict()) is not None:
                    trials.remove(trial)
                    how, test = verdict
                    if test is not None:
                        known = good.setdefault(trial.mutant.function, [])
                        good[trial.mutant.function] = [test, *(other for other in known if other != test)][:8]
                    self._verdict(trial.mutant, how)
        return True

    def _run(self, items: list[Any], number: int) -> bool:
        """Run a test; did it fail?"""
        try:
            items[number].config.hook.pytest_runtest_protocol(item=items[number], nextitem=None)
        except BaseException:  # an interrupt that came late
            return True
        return self._failed

    def _reached(self, session: pytest.Session) -> Reach:
        """Found in a child, as all tests are run."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            try:
                with open(writer, "w") as out:  # noqa: PTH123 - a descriptor
                    json.dump(self._watch(session.items), out)
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        os.close(writer)
        with open(reader) as told:  # noqa: PTH123 - a descriptor
            text = told.read()
        os.waitpid(child, 0)
        if not text:
            raise RuntimeError("The tests could not be run without a mutant.")
        return Reach(*json.loads(text))

    def _watch(self, items: list[Any]) -> Reach:
        names = {str(SOURCE / mutant.file): mutant.file for mutant in self._mutants}
        reach = Reach({}, {}, [], [])
        for number, item in enumerate(items):
            began = time.perf_counter()
            with _Watched(names, sys.settrace, threading.settrace, sys.gettrace) as watched:
                failed = self._run(items, number)
            reach.cost.append(time.perf_counter() - began)
            if watched.replaced:
                reach.tracing.append(number)
                with _Watched(names, sys.setprofile, threading.setprofile, sys.getprofile) as watched:
                    failed = failed or self._run(items, number)
            if failed:  # beside a tracer; it would seem to find every mutant
                os.write(2, f"left out, it fails without a mutant: {item.nodeid}\n".encode())
                self._failed = False
                continue
            for line in watched.lines.copy():  # threads that a test left behind still add to it
                reach.lines.setdefault(line, []).append(number)
            for function in watched.functions.copy():
                reach.functions.setdefault(function, []).append(number)
        return reach


class _Watched:
    """Notes the lines and functions of some files that run, on every thread that starts meanwhile."""

    def __init__(self, names: dict[str, str], here: Any, there: Any, now: Callable[[], Any]) -> None:
        self._names = names
        self._here, self._there, self._now = here, there, now
        self._mine = self._saw
        self.lines: set[str] = set()
        self.functions: set[str] = set()
        self.replaced = False

    def __enter__(self) -> Self:
        self._there(self._mine)
        self._here(self._mine)
        return self

    def __exit__(self, *raised: object) -> None:
        self.replaced = self._now() is not self._mine
        self._here(None)
        self._there(None)

    def _saw(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        code = frame.f_code
        name = self._names.get(code.co_filename)
        if name is None:
            return None
        if event == "call":
            self.functions.add(f"{name} {code.co_qualname.partition('.<locals>')[0]}")
        self.lines.add(f"{name} {frame.f_lineno}")
        return self._mine


def explained() -> set[str]:
    """The names of mutants that the page of survivors explains."""
    if not EXPLAINED.exists():
        return set()
    return set(re.findall(r"^\| `([^`]+)` \|", EXPLAINED.read_text(encoding="utf-8"), re.MULTILINE))


def try_files(
    files: list[str], tests: list[str], said: Callable[[str], None], options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Try the mutants of files."""
    known = explained()
    mutants = [mutant for file in files for mutant in mutants_of(file)[:: options.every]]
    if options.survivors:
        last = json.loads(options.survivors.read_text())
        mutants = [mutant for mutant in mutants if mutant.name in last.get(mutant.file, {}).get("survivors", ())]
    left = Counter(mutant.file for mutant in mutants)
    kinds = ("killed", "killed by time", "survived", "explained", "not reached")
    results: dict[str, dict[str, Any]] = {
        file: {"mutants": left[file], **dict.fromkeys(kinds, 0), "survivors": [], "score": 100.0} for file in files
    }

    def verdict(mutant: Mutant, how: str) -> None:
        found = results[mutant.file]
        if how in ("survived", "not reached") and mutant.name in known:
            how = "explained"
        found[how] += 1
        if how in ("survived", "not reached"):
            found["survivors"].append(mutant.name)
            said(f"    {how}: {mutant.name} (line {mutant.line})")
        left[mutant.file] -= 1
        if not left[mutant.file]:
            found["score"] = _score([found])
            numbers = ", ".join(f"{found[kind]} {kind}" for kind in kinds)
            said(f"  {mutant.file}: {found['score']:.1f} % of {found['mutants']} mutants: {numbers}")

    gc.freeze()
    with redirect_stdout(StringIO()) as output:
        code = pytest.main([*_PYTEST, *tests], plugins=[_Runner(mutants, verdict, options.jobs, options.seconds)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"{', '.join(files)}: {output.getvalue()[-2000:]}")
    return results


def _score(found: list[dict[str, Any]]) -> float:
    """How many of those that can be found were, in percent."""
    counted = sum(one["mutants"] - one["explained"] for one in found)
    return 100.0 * sum(one["killed"] + one["killed by time"] for one in found) / counted if counted else 100.0


def main(arguments: list[str] | None = None) -> int:
    """Print the score of each file and each part; 1 if a part is below the goal."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--only", default="", help="some files, with commas between: decide/claim.py,keys.py")
    parser.add_argument("--tests", default="", help=f"other tests than {', '.join(TESTS)}, with commas between")
    parser.add_argument("--every", type=int, default=1, help="only each so many mutants: a sample (default: 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="so many mutants at a time")
    parser.add_argument("--seconds", type=float, default=30.0, help="of tests for each mutant at most (default: 30)")
    parser.add_argument("--survivors", type=Path, help="only those of this result, which --out wrote")
    parser.add_argument("--goal", type=float, default=95.0, help="the least score in percent (default: 95)")
    parser.add_argument("--out", type=Path, help="write the result here as JSON")
    options = parser.parse_args(arguments)
    chosen = options.only.split(",") if options.only else list(FILES)
    tests = options.tests.split(",") if options.tests else list(TESTS)
    real = sys.stdout

    def said(text: str) -> None:
        real.write(text + "\n")
        real.flush()

    calm = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    settings.register_profile("mutation", calm)
    os.environ["HYPOTHESIS_PROFILE"] = "mutation"  # a loaded machine is no mistake
    began = time.monotonic()
    results = try_files(chosen, tests, said, options)
    said(f"{sum(found['mutants'] for found in results.values())} mutants in {time.monotonic() - began:.0f} s")
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    scores = {}
    for part, files in PARTS.items():
        if found := [results[file] for file in files if file in results]:
            scores[part] = _score(found)
            said(f"{part}: {scores[part]:.1f} % in {len(found)} of its {len(files)} files")
    low = [part for part, score in scores.items() if score < options.goal]
    said(f"below {options.goal:g} %: {', '.join(low) or 'none'}")
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
