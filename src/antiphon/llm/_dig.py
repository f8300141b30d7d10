"""Looking into answers of any shape without ever failing: what is not as expected is simply not there."""

from __future__ import annotations

import re
from typing import Any, Final

_CAPITAL: Final = re.compile("[A-Z]")


def dig(value: Any, *path: str | int) -> Any:
    """The value at *path*, or ``None``; a camelCase name is found in snake_case too, as some SDKs spell it."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, (list, tuple)) and -len(value) <= step < len(value) else None
        elif not isinstance(value, dict):
            return None
        elif step in value or step.islower():
            value = value.get(step)
        else:
            value = value.get(_CAPITAL.sub(r"_\g<0>", step).lower())
    return value


def texts(value: Any) -> str:
    """*value* if it is text, else nothing."""
    return value if isinstance(value, str) else ""


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list, else nothing."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, (list, tuple)) else []


def count(value: Any) -> int | None:
    """*value* if it is a whole number of something."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
