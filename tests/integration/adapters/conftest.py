"""A world and an application for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from antiphon import Antiphon
from antiphon.ops.app import using
from antiphon.stores import MemoryStore
from tests.integration.adapters.world import World


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    with made.provider:
        yield made


@pytest.fixture
def app() -> Iterator[Antiphon]:
    made = Antiphon(store=MemoryStore())
    with using(made):
        yield made
