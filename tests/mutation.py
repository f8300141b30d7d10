"""Mutation testing: every small mistake in the code that decides about a call has to make a test fail.

    make mutants                                   all areas; part of `make prove-long`
    python -m tests.mutation --only decide/claim.py,keys.py

A mutant is one change of one expression or statement of a function: another comparison, a condition turned round,
``and`` for ``or``, a number or word that is off, a result that is dropped, a call that is left out. The tests of a file
are imported and collected once; each mutant runs in a forked child, which swaps the code of the function and runs only
the tests that reach it, until one fails. Survivors are printed; those that change nothing that anybody can see are
explained in docs/explanation/mutants.md and left out of the score.
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
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "antiphon"
EXPLAINED = ROOT / "docs" / "explanation" / "mutants.md"
_GATEWAY = ("tests/unit/gateway", "tests/unit/pitfalls", "tests/unit/turn")
_REPLAY = ("tests/unit/replay",)
AREAS: dict[str, tuple[str, ...]] = {
    **{
        f"decide/{name}.py": tests
        for name, tests in (
            ("claim", ("tests/unit/decide/test_claim.py",)),
            ("retry", ("tests/unit/decide/test_retry.py", "tests/unit/decide/test_budget.py")),
            ("breaker", ("tests/unit/decide/test_breaker.py", "tests/unit/decide/test_breaker_model.py")),
            ("loop", ("tests/unit/decide/test_loop.py",)),
            ("classify", ("tests/unit/decide",)),
            ("_answers", ("tests/unit/decide",)),
            ("effects", ("tests/unit/decide/test_effects.py",)),
        )
    },
    "keys.py": ("tests/unit/keys",),
    **{
        f"_gateway/{name}.py": _GATEWAY
        for name in ("admission", "attempt", "call", "claim", "leases", "repair", "settlement", "late", "drivers")
    },
    **{f"_replay/{name}.py": _REPLAY for name in ("recording", "observe", "strict", "explore")},
}
"""By file: the tests that have to notice."""
_LIMIT_S = 20.0
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


def _places(function: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """The nodes of a function with the field that holds each; not what is only said (messages, notes, log lines)."""
    waiting: list[ast.AST] = [function]
    while waiting:
        node = waiting.pop(0)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                if not isinstance(child, ast.AST) or isinstance(child, (ast.JoinedStr, ast.Raise)) or _only_says(child):
                    continue
                yield node, field, index, child
                waiting.append(child)


def _only_says(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr):
        return False
    if isinstance(node.value, ast.Constant):
        return True  # a docstring
    call = node.value.func if isinstance(node.value, ast.Call) else None
    return isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name) and call.value.id == "log"


def _functions(tree: ast.AST, path: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{path}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{path}{node.name}.")


def mutants_of(file: str) -> list[Mutant]:
    """All of a file's."""
    path = SOURCE / file
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[Mutant] = []
    seen: dict[str, int] = {}
    for name, function in _functions(tree):
        for parent, field, index, node in list(_places(function)):
            for other in _changes(node):
                mutant = _made(path, file, tree, (name, function), (parent, field, index, node, other))
                if mutant is not None:
                    number = seen.get(mutant.name, 0)
                    seen[mutant.name] = number + 1
                    found.append(mutant._replace(number=number))
    return found


def _made(path: Path, file: str, tree: ast.Module, of: tuple[str, Any], change: tuple[Any, ...]) -> Mutant | None:
    parent, field, index, node, other = change
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
    return None if code is None else Mutant(file, name, before, after, 0, getattr(node, "lineno", 0), code, defaults)


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


class _Runner:
    """Collects the tests of an area once, then tries mutants in forked children."""

    def __init__(self, mutants: list[Mutant], verdict: Callable[[Mutant, str], None]) -> None:
        self._mutants = mutants
        self._verdict = verdict
        self._failed = False

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._failed = self._failed or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        reached = self._reached(session)
        for mutant in self._mutants:
            function = function_of(mutant)
            known = () if function is None else reached.get(mutant.function, ())
            tests = [session.items[number] for number in known]
            if function is None or not tests:
                self._verdict(mutant, "not reached")
                continue
            self._verdict(mutant, self._try(tests, partial(mutant.plant, function)))
        return True

    def _try(self, tests: list[Any], plant: Callable[[], None]) -> str:
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                plant()
                os._exit(1 if self._fails(tests) else 0)
            os._exit(1)
        return _ended(child, _LIMIT_S)

    def _fails(self, tests: list[Any]) -> bool:
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if self._failed:
                return True
        return False

    def _reached(self, session: pytest.Session) -> dict[str, list[int]]:
        """By function: the tests that call it, the quickest first. Found in a child, as all tests are run."""
        files = {str(SOURCE / mutant.file) for mutant in self._mutants}
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            with suppress(BaseException), open(writer, "w") as out:  # noqa: PTH123 - a descriptor
                json.dump(self._watch(session.items, files), out)
                out.flush()
                os._exit(0)
            os._exit(1)
        os.close(writer)
        with open(reader) as told:  # noqa: PTH123 - a descriptor
            text = told.read()
        os.waitpid(child, 0)
        if not text:
            raise RuntimeError("The tests fail without a mutant.")
        found: dict[str, list[int]] = json.loads(text)
        return found

    def _watch(self, items: list[Any], files: set[str]) -> dict[str, list[int]]:
        taken: dict[str, list[tuple[float, int]]] = {}
        for number, item in enumerate(items):
            seen: set[CodeType] = set()

            def called(frame: Any, event: str, arg: Any, seen: set[CodeType] = seen) -> None:
                if event == "call":
                    seen.add(frame.f_code)

            began = time.perf_counter()
            sys.setprofile(called)
            threading_profile(called)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            sys.setprofile(None)
            threading_profile(None)
            if self._failed:
                os.write(2, f"fails without a mutant: {item.nodeid}\n".encode())
                os._exit(1)
            cost = time.perf_counter() - began
            for name in {code.co_qualname for code in seen if code.co_filename in files}:
                outer = name.partition(".<locals>")[0]
                taken.setdefault(outer, []).append((cost, number))
        return {name: [number for _, number in sorted(set(tests))] for name, tests in taken.items()}


def threading_profile(function: Any) -> None:
    """Watch threads that are started from now on, too."""
    import threading

    threading.setprofile(function)


def _ended(child: int, seconds: float) -> str:
    """How a child ended: ``killed`` (a test failed), ``killed by time``, or ``survived``."""
    descriptor = os.pidfd_open(child)
    try:
        ready = select.select([descriptor], [], [], seconds)[0]
        if not ready:
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.close(descriptor)
    return "killed by time" if not ready else "survived" if status == 0 else "killed"


def explained() -> set[str]:
    """The names of mutants that the page of survivors explains."""
    if not EXPLAINED.exists():
        return set()
    return set(re.findall(r"^\| `([^`]+)` \|", EXPLAINED.read_text(encoding="utf-8"), re.MULTILINE))


def try_area(file: str, said: Callable[[str], None], known: set[str], every: int = 1) -> dict[str, Any]:
    """Try the mutants of one file; *every*: only each so many of them."""
    mutants = mutants_of(file)[::every]
    counts = dict.fromkeys(("killed", "killed by time", "survived", "explained", "not reached"), 0)
    survivors: list[str] = []
    began = time.monotonic()

    def verdict(mutant: Mutant, how: str) -> None:
        if how in ("survived", "not reached") and mutant.name in known:
            how = "explained"
        counts[how] += 1
        if how in ("survived", "not reached"):
            survivors.append(mutant.name)
            said(f"    {how}: {mutant.name} (line {mutant.line})")

    gc.freeze()
    options = ["-q", "-x", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=0", "--no-header", *AREAS[file]]
    with redirect_stdout(StringIO()) as output:
        code = pytest.main(options, plugins=[_Runner(mutants, verdict)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"{file}: {output.getvalue()[-2000:]}")
    killed = counts["killed"] + counts["killed by time"]
    counted = len(mutants) - counts["explained"]
    score = 100.0 * killed / counted if counted else 100.0
    return {
        "mutants": len(mutants),
        **counts,
        "score": score,
        "seconds": time.monotonic() - began,
        "survivors": survivors,
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the score of each file; 1 if one is below the goal."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--only", default="", help="some files, with commas between: decide/claim.py,keys.py")
    parser.add_argument("--every", type=int, default=1, help="only each so many mutants: a sample (default: 1)")
    parser.add_argument("--goal", type=float, default=95.0, help="the least score in percent (default: 95)")
    parser.add_argument("--out", type=Path, help="write the result here as JSON")
    options = parser.parse_args(arguments)
    chosen = options.only.split(",") if options.only else list(AREAS)
    known, results, low = explained(), {}, []
    real = sys.stdout

    def said(text: str) -> None:
        real.write(text + "\n")
        real.flush()

    calm = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    settings.register_profile("mutation", calm)
    os.environ["HYPOTHESIS_PROFILE"] = "mutation"  # a loaded machine is no mistake
    for file in chosen:
        said(f"{file}: {', '.join(AREAS[file])}")
        found = results[file] = try_area(file, said, known, options.every)
        numbers = ", ".join(
            f"{found[name]} {name}" for name in ("killed", "killed by time", "survived", "explained", "not reached")
        )
        said(f"  {found['score']:.1f} % of {found['mutants']} mutants: {numbers}; {found['seconds']:.0f} s")
        if found["score"] < options.goal:
            low.append(file)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    said(f"below {options.goal:g} %: {', '.join(low) or 'none'}")
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
