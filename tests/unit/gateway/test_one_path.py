"""There is one way to make a call: over the syntax tree of the gateway, and as behaviour that two ways once lacked."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import antiphon._gateway
from antiphon import stores
from antiphon._gateway.gateway import AsyncGateway, Gateway
from antiphon._gateway.plan import Dependencies
from antiphon._gateway.settings import Settings, ToolOverride
from antiphon.config.place import FILE_NAME
from antiphon.config.wiring import wire
from antiphon.errors import CallTimeout
from antiphon.ports import Journal, SyncJournal
from antiphon.stores import MemoryStore
from tests.unit.gateway.kit import Hold, ManualClock

FOLDER = Path(antiphon._gateway.__file__).parent
PACKAGE = "antiphon._gateway"
TREES = {path.stem: ast.parse(path.read_text()) for path in FOLDER.glob("*.py") if path.stem != "__init__"}
STEPS = {name for name in vars(SyncJournal) if not name.startswith("_")}


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def short_names(tree: ast.AST) -> dict[str, str]:
    """What ``x`` stands for after ``x = a.b``."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            left, right = node.targets[-1], node.value
            both = isinstance(left, ast.Tuple) and isinstance(right, ast.Tuple)
            pairs += zip(left.elts, right.elts, strict=True) if both else [(left, right)]  # type: ignore[attr-defined]
    return {
        ast.unparse(left): ast.unparse(right)
        for left, right in pairs
        if isinstance(left, ast.Name) and isinstance(right, ast.Attribute) and left.id == right.attr
    }


def called(tree: ast.AST) -> list[str]:
    """What is called, as it is written or under a shorter name of its own."""
    short = short_names(tree)
    return [short.get(name, name) for call in calls(tree) for name in [ast.unparse(call.func)]]


def everywhere(name: str) -> list[str]:
    """The files with a call ``name(...)`` or ``something.name(...)``, as often as there are such calls."""
    return [file for file, tree in TREES.items() for what in called(tree) if what.rpartition(".")[2] == name]


# -- the steps of a call -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["run_sync", "run_async"])
@pytest.mark.parametrize("step", ["runtime.begin", "call.plan.function", "runtime.settle", "admit", "broke_off"])
def test_each_driver_makes_each_step_of_a_plain_call_in_one_place(driver: str, step: str) -> None:
    (body,) = (
        node
        for node in ast.walk(TREES["drivers"])
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == driver
    )
    assert called(body).count(step) == 1


def test_only_drivers_begin_a_claim_and_make_steps() -> None:
    def outside(name: str) -> set[str]:
        return {
            file
            for file, tree in TREES.items()
            for what in called(tree)
            if what.endswith(f".{name}") and not what.startswith(("claim.", "self.scope."))
        }

    assert outside("begin") == {"drivers", "steps"}  # steps: once more, after an interrupt
    assert outside("take_over") == {"steps"}
    assert outside("perform") == {"drivers"}


def test_claims_are_settled_by_drivers_and_for_calls_that_are_over() -> None:
    ended_elsewhere = {"steps": "another's claim, or one that was left", "late": "a result that came too late"}
    found = {file for file, tree in TREES.items() for what in called(tree) if what.endswith("journal.settle")}
    assert found == set(ended_elsewhere)


@pytest.mark.parametrize("booking", ["breaker.success", "plan.credit", "breaker.failure", "breaker.neutral"])
def test_an_attempt_is_booked_in_one_place(booking: str) -> None:
    assert [file for file, tree in TREES.items() for what in called(tree) if what == booking] == ["attempt"]
    name = booking.rpartition(".")[2]
    if name in ("success", "credit"):
        assert everywhere(name) == ["attempt"]


@pytest.mark.parametrize("event", ["call.started", "call.finished"])
def test_the_events_of_a_call_are_written_in_one_place(event: str) -> None:
    found = [
        file
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value == event
    ]
    assert found == ["recording"]


@pytest.mark.parametrize("driver", ["run_sync", "run_async"])
def test_only_gateways_and_the_driver_itself_start_a_driver(driver: str) -> None:
    allowed = {"gateway"} | ({"drivers"} if driver == "run_async" else set())  # the rest of a cancelled call
    assert set(everywhere(driver)) == allowed


# -- journals ------------------------------------------------------------------------------------------------------


def test_nobody_probes_for_what_a_journal_can_do() -> None:
    probed = [
        (file, ast.unparse(call))
        for file, tree in TREES.items()
        for call in calls(tree)
        if ast.unparse(call.func) in ("hasattr", "getattr")
        and (
            "journal" in ast.unparse(call.args[0])
            or (isinstance(call.args[1], ast.Constant) and call.args[1].value in STEPS)
        )
    ]
    assert probed == []


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_the_two_variants_of_a_journal_have_the_same_methods_and_no_third_one() -> None:
    assert public(SyncJournal) == public(Journal)
    memory = MemoryStore()
    for kind in (SyncJournal, Journal, type(memory.open_sync()), type(memory.open_async()), stores.SQLiteStore):
        assert not {name for name in public(kind) if name.endswith("_now")}
    for file, tree in TREES.items():
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not {name for name in names if name.removesuffix("_now") in STEPS and name.endswith("_now")}, file


# -- imports -------------------------------------------------------------------------------------------------------


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every import, wherever it stands: also for types, and inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def test_no_coroutine_is_driven_by_hand() -> None:
    driven = [
        file
        for file, tree in TREES.items()
        for module, name in imports(tree)
        if (module, name) == ("antiphon._drive", "drive")
    ]
    assert driven == []


def needs(tree: ast.AST) -> set[str]:
    """The files of the package that a file imports."""
    found = set()
    for module, name in imports(tree):
        if module == PACKAGE and name in TREES:
            found.add(name)
        elif module.startswith(f"{PACKAGE}."):
            found.add(module.removeprefix(f"{PACKAGE}."))
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Files that import each other, or nothing."""
    done: set[str] = set()

    def visit(file: str, path: tuple[str, ...]) -> list[str]:
        if file in path:
            return [*path[path.index(file) :], file]
        if file in done:
            return []
        for other in sorted(graph[file]):
            found = visit(other, (*path, file))
            if found:
                return found
        done.add(file)
        return []

    return next((found for file in sorted(graph) if (found := visit(file, ()))), [])


def test_no_file_needs_itself_not_even_for_its_types() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert circle({file: needs(tree) for file, tree in TREES.items()}) == []


# -- what differed between two ways in release 0.1.0 ---------------------------------------------------------------

SLOW = Settings(tools={"slow": ToolOverride(timeout=0.05)})
FEW = 3
"""Calls before and after a change: the first one after it was right even then."""


def silent() -> Dependencies:
    """Nobody listens: the shortest way."""
    return Dependencies(store=MemoryStore())


@pytest.fixture
def hold() -> Iterator[Hold]:
    hold = Hold()
    yield hold
    hold.go.set()


def slow_on(gateway: Gateway, hold: Hold) -> Callable[[int], str]:
    """A decorated function that has been called without a time limit."""

    @gateway.tool(idempotent=True, retry={"max_attempts": 1})
    def slow(n: int) -> str:
        hold.wait_here()
        return "done"

    hold.go.set()
    assert [slow(n) for n in range(FEW)] == ["done"] * FEW
    hold.go.clear()
    return slow


def test_a_live_time_limit_binds_a_decorated_function(hold: Hold) -> None:
    gateway = Gateway(silent())
    slow = slow_on(gateway, hold)
    gateway.configure(SLOW)
    for n in range(FEW):
        with pytest.raises(CallTimeout):
            slow(FEW + n)


async def test_a_live_time_limit_binds_a_decorated_coroutine() -> None:
    gateway = AsyncGateway(silent())
    waits = False

    @gateway.tool(idempotent=True, retry={"max_attempts": 1})
    async def slow(n: int) -> str:
        if waits:
            await asyncio.Event().wait()
        return "done"

    assert [await slow(n) for n in range(FEW)] == ["done"] * FEW
    waits = True
    gateway.configure(SLOW)
    for n in range(FEW):
        with pytest.raises(CallTimeout):
            await slow(FEW + n)


def test_a_time_limit_in_a_watched_file_binds_a_decorated_function(hold: Hold, tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    file.write_text("[telemetry]\nlogs = false\n")
    clock = ManualClock()
    gateway = Gateway(wire(MemoryStore(), file, clock=clock))
    slow = slow_on(gateway, hold)
    file.write_text("[telemetry]\nlogs = false\n\n[tools.slow]\ntimeout = 0.05\n")
    clock.advance(1.1)
    for n in range(FEW):
        with pytest.raises(CallTimeout):
            slow(FEW + n)


class Stubborn:
    """A result that has no form in which it can be kept."""

    __slots__ = ()

    def model_dump(self, mode: str = "python") -> Any:
        raise KeyError("not loaded")


def budget_of(gateway: Gateway | AsyncGateway) -> float:
    return gateway._plans.budget(gateway._plans.tools["tools/make"]).tokens(0.0)


def test_a_success_whose_result_cannot_be_kept_credits_the_retry_budget() -> None:
    gateway = Gateway(silent())

    @gateway.tool(idempotent=True)
    def make(n: int) -> Stubborn:
        return Stubborn()

    for n in range(10):
        make(n)
    assert budget_of(gateway) == pytest.approx(11.0)


async def test_a_success_whose_result_cannot_be_kept_credits_the_retry_budget_of_coroutines() -> None:
    gateway = AsyncGateway(silent())

    @gateway.tool(idempotent=True)
    async def make(n: int) -> Stubborn:
        return Stubborn()

    for n in range(10):
        await make(n)
    assert budget_of(gateway) == pytest.approx(11.0)
