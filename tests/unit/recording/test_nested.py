"""Runs inside runs: which one is current, before, inside and after."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import pytest

import antiphon
from antiphon.errors import NotFound
from antiphon.stores import MemoryStore


@pytest.fixture
def app() -> antiphon.Antiphon:
    return antiphon.Antiphon(store=MemoryStore())


def _block(app: antiphon.Antiphon) -> None:
    with app.run("inner") as inner:
        assert antiphon.current_run() is inner


def _function(app: antiphon.Antiphon) -> None:
    app.record(lambda: antiphon.current_run().finish(1))


def _failing(app: antiphon.Antiphon) -> None:
    with pytest.raises(ValueError, match="no"), app.run("inner"):
        raise ValueError("no")


@pytest.mark.parametrize("inside", [_block, _function, _failing])
def test_the_outer_run_is_current_again(app: antiphon.Antiphon, inside: Callable[[antiphon.Antiphon], None]) -> None:
    with app.run("outer") as outer:
        inside(app)
        assert antiphon.current_run() is outer
        outer.prompt("after", "text")
    assert [event.type for event in outer.events()] == ["run.started", "prompt", "run.finished"]
    with pytest.raises(NotFound):
        antiphon.current_run()


async def test_the_outer_run_is_current_again_in_asyncio(app: antiphon.Antiphon) -> None:
    async def inner() -> None:
        antiphon.current_run().prompt("inside", "text")

    async with app.run("outer") as outer:
        await app.record(inner)
        async with app.run("another"):
            pass
        assert antiphon.current_run() is outer


def test_a_run_that_is_closed_elsewhere_leaves_the_run_there_alone(app: antiphon.Antiphon) -> None:
    here = app.run("here")

    def elsewhere(what: Callable[..., Any], *arguments: Any) -> Any:
        return contextvars.Context().run(what, *arguments)

    elsewhere(here.__enter__)
    with app.run("there") as there:
        here.__exit__(None, None, None)
        assert antiphon.current_run() is there


@pytest.mark.parametrize("way", ["raised", "passed on", "returned"])
def test_the_outer_run_knows_the_secrets_of_the_inner_one(app: antiphon.Antiphon, way: str) -> None:
    @app.gateway.tool(idempotent=False)
    def login(user: str, password: str) -> None:
        raise LookupError(f"no {user} with {password}")

    @app.gateway.tool(idempotent=False)
    def report(text: str) -> str:
        return "reported"

    def agent() -> Any:
        try:
            with app.run("inner"):
                login("ada", "Zx9!quokkaTree77")
        except LookupError as error:
            if way == "raised":
                raise
            return report(str(error)) if way == "passed on" else str(error)
        return None

    try:
        app.record(agent)
    except LookupError:
        assert way == "raised"
    runs = app.journal.runs(tenant=app.tenant)
    assert {run.name for run in runs} == {"agent", "inner"}
    assert "quokka" not in "".join(repr(app.journal.events(run.id)) for run in runs)
