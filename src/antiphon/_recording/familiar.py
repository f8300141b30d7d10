"""Parts of conversations that were looked at for secrets and have none.

The next request of a conversation says again what the one before said: the prompt, the tools, all earlier messages.
Only what is new has to be looked at. A message is looked at as a whole, with the names of its fields, so looking at the
parts finds what looking at the request finds; rules of users may name any field, so with them every request is looked
at as it is.
"""

from __future__ import annotations

from typing import Any

from antiphon._recording.plain import dump
from antiphon.redact import Redactor

Part = str | bytes | tuple[Any, Any]
"""The text of a plain message, another message as JSON, and the rest of a request: as JSON, or model and provider."""
_BARE = {"model", "provider", "messages", "tools"}
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_PARTS_KEPT = 4096
_LENGTH_KEPT = 4_000_000


class Familiar:
    """What one run has heard already."""

    __slots__ = ("_known", "_length", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._known: set[Part] = set()
        self._length = 0

    def has_no_secret(self, request: dict[str, Any]) -> bool:
        """Whether there is nothing to redact in a canonical request; ``False`` also means that it is not known."""
        messages = request.get("messages")
        if type(messages) is not list or not self._redactor.in_parts:
            return False
        if len(messages) == 2 and type(messages[0]) is str and self._redactor.redact(messages) is not messages:
            return False  # a name and its value
        known = self._known
        fresh: dict[Part, Any] = {}
        for message in messages:
            role = message.get("role") if type(message) is dict and len(message) == 2 else None
            content = message.get("content") if type(role) is str and role in _ROLES else None
            part = content if type(content) is str else dump(message)
            if part not in known:
                fresh[part] = message
        model, provider = request.get("model"), request.get("provider")
        bare = request.keys() == _BARE and not request["tools"] and type(model) is type(provider) is str
        rest: Part = (model, provider) if bare else dump({**request, "messages": None})
        if rest not in known:
            fresh[rest] = {**request, "messages": None}
        return not fresh or self._look(fresh)

    def _look(self, fresh: dict[Part, Any]) -> bool:
        if self._redactor.redact_bytes(dump(list(fresh.values())))[1]:
            return False
        self._length += sum(map(len, fresh))
        if len(self._known) > _PARTS_KEPT or self._length > _LENGTH_KEPT:
            self._known.clear()
            self._length = 0
        self._known.update(fresh)
        return True
