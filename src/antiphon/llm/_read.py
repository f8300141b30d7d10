"""Reading a provider's request body strictly: every complaint names the path in that body."""

from __future__ import annotations

from typing import Any

from antiphon.errors import ContractError


def wrong(path: str, what: str) -> ContractError:
    """The error for a value that is not *what* it should be."""
    return ContractError(f"{path} must be {what}.", path=path)


def as_text(value: Any, path: str) -> str:
    """*value* if it is a string."""
    if not isinstance(value, str):
        raise wrong(path, "a string")
    return value


def as_list(value: Any, path: str) -> list[Any]:
    """*value* if it is a list."""
    if not isinstance(value, (list, tuple)):
        raise wrong(path, "a list")
    return list(value)


def as_object(value: Any, path: str) -> dict[str, Any]:
    """*value* if it is an object."""
    if not isinstance(value, dict):
        raise wrong(path, "an object")
    return value


class Fields:
    """The fields of one object: each is taken once, under any of its spellings, and :meth:`rest` is what nobody knew.

    Null counts as absent: for a provider the two mean the same.
    """

    __slots__ = ("_left", "path")

    def __init__(self, value: Any, path: str) -> None:
        self.path = path
        self._left = {name: item for name, item in as_object(value, path).items() if item is not None}

    def at(self, *names: str) -> str:
        """The path of a field, in the spelling that is there."""
        for name in names:
            if name in self._left:
                return f"{self.path}.{name}"
        return f"{self.path}.{names[0]}"

    def has(self, *names: str) -> bool:
        """Whether the field is there and not yet taken."""
        return any(name in self._left for name in names)

    def take(self, *names: str) -> Any:
        """The field's value, or ``None``."""
        for name in names:
            if name in self._left:
                return self._left.pop(name)
        return None

    def drop(self, *names: str) -> list[str]:
        """Forget fields that do not matter; returns their paths."""
        return [f"{self.path}.{name}" for name in names if self._left.pop(name, None) is not None]

    def text(self, *names: str) -> str | None:
        """The field as a string, or ``None``."""
        for name in names:
            value = self._left.pop(name, None)
            if value is not None:
                return as_text(value, f"{self.path}.{name}")
        return None

    def need_text(self, *names: str) -> str:
        """The field as a non-empty string."""
        value = self.text(*names)
        if not value:
            raise wrong(f"{self.path}.{names[0]}", "a non-empty string")
        return value

    def number(self, *names: str) -> float | int | None:
        """The field as a number, or ``None``."""
        path = self.at(*names)
        value = self.take(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise wrong(path, "a number")
        return value

    def integer(self, *names: str) -> int | None:
        """The field as an integer, or ``None``; ``7.0`` is one."""
        path = self.at(*names)
        value = self.number(*names)
        if isinstance(value, float):
            if not value.is_integer():
                raise wrong(path, "an integer")
            return int(value)
        return value

    def flag(self, *names: str) -> bool | None:
        """The field as true or false, or ``None``."""
        path = self.at(*names)
        value = self.take(*names)
        if value is not None and not isinstance(value, bool):
            raise wrong(path, "true or false")
        return value

    def items(self, *names: str) -> list[tuple[Any, str]]:
        """The elements of a list field with their paths; nothing if it is absent."""
        for name in names:
            value = self._left.pop(name, None)
            if value is not None:
                path = f"{self.path}.{name}"
                return [(item, f"{path}[{index}]") for index, item in enumerate(as_list(value, path))]
        return []

    def texts(self, *names: str) -> list[str] | None:
        """The field as a list of strings; one string alone counts as a list of one."""
        path = self.at(*names)
        value = self.take(*names)
        if value is None:
            return None
        if isinstance(value, str):
            return [value]
        return [as_text(item, f"{path}[{index}]") for index, item in enumerate(as_list(value, path))]

    def fields(self, *names: str) -> Fields | None:
        """The field as an object, or ``None``."""
        for name in names:
            value = self._left.pop(name, None)
            if value is not None:
                return Fields(value, f"{self.path}.{name}")
        return None

    def object(self, *names: str) -> dict[str, Any] | None:
        """The field as an object that is kept as it is, or ``None``."""
        path = self.at(*names)
        value = self.take(*names)
        return None if value is None else as_object(value, path)

    def rest(self) -> dict[str, Any]:
        """The fields nobody has taken."""
        return self._left
