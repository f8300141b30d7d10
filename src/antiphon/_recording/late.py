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
Taken = bytes | tuple[dict[str, Any], dict[str, Any]]
"""Payload and ``meta`` as JSON, or as values that nobody changes."""


class LateRow(Row):
    """A row whose body is still to be written: in its place is a list of what that takes, or, later, of the body."""

    __slots__ = ()

    def __repr__(self) -> str:  # what is not redacted yet is shown to nobody
        return f"LateRow({self.run!r}, {self.type!r}, {self.at_ms})"

    @property
    def body(self) -> bytes:
        late: Any = self[3]
        found: bytes | tuple[Write, str, Site | None, Taken] = late[0]
        if isinstance(found, bytes):
            return found
        write, kind, site, taken = found
        payload, meta = orjson.loads(taken if isinstance(taken, bytes) else orjson.dumps(taken))
        body = late[0] = write(kind, site, payload, meta)
        return body
