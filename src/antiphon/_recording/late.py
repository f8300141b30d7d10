"""Events that are written out when they are read: for stores that live and die with the process.

What the event says is taken down at once, so that nothing a caller changes afterwards shows in it. Redaction and check
sum come with the first reader; before that the event is in this process's memory only, like the call itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from antiphon._scope import Site
from antiphon.ports import Row

Write = Callable[[str, Site | None, dict[str, Any], dict[str, Any]], bytes]


class LateBody:
    """What has to be known to write an event, until it is written."""

    __slots__ = ("_body", "_late")

    def __init__(self, write: Write, kind: str, site: Site | None, taken: bytes) -> None:
        self._late: tuple[Write, str, Site | None, bytes] | None = (write, kind, site, taken)
        self._body = b""

    def body(self) -> bytes:
        """The event as it is stored; written once."""
        late = self._late
        if late is not None:
            write, kind, site, taken = late
            parts = orjson.loads(taken)
            self._body = write(kind, site, parts["payload"], parts["meta"])
            self._late = None
        return self._body


class LateRow(Row):
    """A row whose body is still to be written."""

    __slots__ = ()

    @property
    def body(self) -> bytes:
        late: Any = self[3]
        body: bytes = late.body()
        return body


def late_row(run: str, kind: str, at_ms: int, late: LateBody) -> Row:
    """The row of an event that is written when somebody reads it."""
    row: Row = tuple.__new__(LateRow, (run, kind, at_ms, late))
    return row
