"""Unit tests neither sleep nor connect: time and answers are handed in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

_watching = False


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and (event == "socket.connect" or (event == "time.sleep" and arguments[0] > 0)):
        raise PermissionError(f"a unit test did {event}{arguments[-1:]}: hand in a clock or a fake instead")


sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def _no_sleep_no_network() -> Iterator[None]:
    global _watching
    _watching = True
    yield
    _watching = False
