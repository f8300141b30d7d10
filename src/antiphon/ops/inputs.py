"""The input of a run in its recording.

JSON is recorded unchanged. Anything else is recorded with tags, and only if it round-trips: code must never continue
with a different input.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from antiphon._gateway.tagged import exactly, tagged, untagged


class ArgumentEncoding(NamedTuple):
    """How an input's arguments were recorded, by place: ``0`` is the first positional one, ``k0`` the first keyword."""

    tagged: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    """What could not be recorded in a form that round-trips."""

    @classmethod
    def of(cls, wire: Any) -> ArgumentEncoding | None:
        return None if wire is None else cls(tuple(wire.get("tagged", ())), tuple(wire.get("lost", ())))

    def to_wire(self) -> dict[str, list[str]]:
        return {name: list(places) for name, places in self._asdict().items() if places}


def is_arguments(given: Any) -> bool:
    """Whether the input itself specifies ``args`` and ``kwargs``."""
    return isinstance(given, dict) and bool(given) and set(given) <= {"args", "kwargs"}


def arguments_of(given: Any) -> tuple[list[Any], dict[str, Any]]:
    """The input as call arguments."""
    if is_arguments(given):
        return list(given.get("args", [])), dict(given.get("kwargs", {}))
    return ([] if given is None else [given]), {}


def by_name(function: Callable[..., Any], given: Any) -> dict[str, Any]:
    """The positional arguments of an input under their parameter names, as far as *function* has them."""
    args, _ = arguments_of(given)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # code without a signature
        return {}
    return dict(zip(parameters, args, strict=False))


def written_input(given: Any) -> tuple[Any, ArgumentEncoding | None]:
    """An input as it is recorded, and how; ``None`` if all of it is JSON."""
    if not is_arguments(given) or _is_json(given):
        return given, None
    exact: list[str] = []
    lost: list[str] = []

    def written(place: str, value: Any) -> Any:
        if _is_json(value):
            return value
        form = exactly(value)
        (lost if form is None else exact).append(place)
        return value if form is None else form

    args, kwargs = arguments_of(given)
    form: dict[str, Any] = {}
    if "args" in given:
        form["args"] = [written(str(place), value) for place, value in enumerate(args)]
    if "kwargs" in given:
        form["kwargs"] = {name: written(f"k{place}", value) for place, (name, value) in enumerate(kwargs.items())}
    return form, ArgumentEncoding(tuple(exact), tuple(lost))


def arguments_again(given: Any, kept: ArgumentEncoding | None) -> tuple[list[Any], dict[str, Any], list[str]]:
    """The arguments of a recorded input as the code received them, and in words which of them could not be restored."""
    args, kwargs = arguments_of(given)
    if kept is None:
        return args, kwargs, []
    lost: list[str] = []

    def again(place: str, words: str, value: Any) -> Any:
        if place in kept.lost:
            lost.append(words)
        elif place in kept.tagged:
            try:
                made = untagged(value)
                if tagged(made) == value:
                    return made
            except Exception:  # noqa: S110 - a class that is not loaded, or another one by now
                pass
            lost.append(words)
            return untagged(value, classes=False)
        return value

    args = [again(str(place), f"argument {place + 1}", value) for place, value in enumerate(args)]
    named = enumerate(kwargs.items())
    return args, {name: again(f"k{place}", f"argument {name!r}", value) for place, (name, value) in named}, lost


def _is_json(value: Any) -> bool:
    """Whether *value* survives a round trip through JSON."""
    try:
        return _is_plain(value)
    except (RecursionError, UnicodeEncodeError):
        return False


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return all(type(name) is str and _is_plain(name) and _is_plain(item) for name, item in value.items())
    if kind is list:
        return all(map(_is_plain, value))
    if kind is int:
        return bool(-(2**63) <= value < 2**64)
    if kind is float:
        return bool(value - value == 0)  # neither infinite nor NaN
    if kind is str:
        return value.isascii() or bool(value.encode())  # a lone surrogate has no JSON form
    return value is None or kind is bool
