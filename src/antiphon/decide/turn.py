"""Turn control: what the model may not repeat within one turn (T1-T4)."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from antiphon.keys import turn_key

__all__ = ["ReplayControl", "TurnSpec"]

Past = Literal["success", "failure", "timeout", "denied"]


class TurnSpec(Protocol):
    """All that turn control needs of a tool's spec."""

    @property
    def idempotent(self) -> bool:
        """Whether repeating the tool is harmless, and so a repeat within a turn is waste."""


class ReplayControl:
    """Remembers the calls of one turn and says which of them would be a wasteful repetition.

    | the tool is                       | decision            |
    |-----------------------------------|---------------------|
    | not idempotent                    | always allowed      |
    | idempotent, first call            | allowed             |
    | idempotent, has succeeded before  | skip (a duplicate)  |
    | idempotent, failed or timed out   | allowed (a retry)   |
    | idempotent, was denied            | allowed             |

    A tool without a spec counts as idempotent. Success is sticky: nothing recorded later erases it.

    >>> control = ReplayControl()
    >>> control.should_skip("web_search", {"q": "capital of France"})
    (False, '')
    >>> control.record_success("web_search", {"q": "capital of France"})
    >>> control.should_skip("web_search", {"q": "capital of France"})[0]
    True
    """

    __slots__ = ("_past",)

    def __init__(self) -> None:
        self._past: dict[str, Past] = {}

    def should_skip(self, tool_name: str, arguments: Any, spec: TurnSpec | None = None) -> tuple[bool, str]:
        """Whether to answer with a denial instead of the call, and why (empty if not)."""
        key = turn_key(tool_name, arguments)
        if spec is not None and not spec.idempotent:
            return False, ""
        if self._past.get(key) != "success":
            return False, ""
        return True, f"duplicate: {tool_name} has already succeeded with these arguments in this turn"

    def record_success(self, tool_name: str, arguments: Any, spec: TurnSpec | None = None) -> None:
        """The call returned an answer."""
        self._record(tool_name, arguments, "success")

    def record_failure(self, tool_name: str, arguments: Any, spec: TurnSpec | None = None) -> None:
        """The call ended with an error."""
        self._record(tool_name, arguments, "failure")

    def record_timeout(self, tool_name: str, arguments: Any, spec: TurnSpec | None = None) -> None:
        """The call ran out of time."""
        self._record(tool_name, arguments, "timeout")

    def record_denied(self, tool_name: str, arguments: Any, spec: TurnSpec | None = None) -> None:
        """The call was not made."""
        self._record(tool_name, arguments, "denied")

    def history_size(self) -> int:
        """The number of distinct calls that were recorded, idempotent or not."""
        return len(self._past)

    def _record(self, tool_name: str, arguments: Any, outcome: Past) -> None:
        key = turn_key(tool_name, arguments)
        if self._past.get(key) != "success":
            self._past[key] = outcome
