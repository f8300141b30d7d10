"""The mock provider: answers as it was programmed, else with the smallest instance of the schema."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import orjson

from antiphon.errors import InvalidInput
from antiphon.host.workflow.schema import minimal


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One answer of the mock provider."""

    content: str | None = None
    stop_reason: Literal["end_turn", "max_tokens", "length", "stop_sequence", "safety"] = "end_turn"
    refusal_text: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    error_code: str | None = None


class MockProvider:
    """Programs by tenant and node; one entry per call of the provider."""

    def __init__(self) -> None:
        self._programs: dict[tuple[str, str], list[Entry]] = {}

    def program(self, tenant: str, node: str, entries: Any) -> int:
        """Replace the program of a node."""
        try:
            parsed = msgspec.convert(entries, list[Entry])
        except msgspec.ValidationError as error:
            raise InvalidInput(f"This is not a program: {error}.", path="$.program") from None
        self._programs[(tenant, node)] = parsed
        return len(parsed)

    def reset(self, tenant: str) -> int:
        """Forget the programs of a tenant."""
        mine = [key for key in self._programs if key[0] == tenant]
        for key in mine:
            del self._programs[key]
        return len(mine)

    def staged(self, tenant: str, node: str) -> bool:
        """Whether the next call for this node is programmed."""
        return bool(self._programs.get((tenant, node)))

    def answer(self, tenant: str, node: str, schema: Any) -> dict[str, Any]:
        """The next response: an envelope of content, stop reason and usage."""
        program = self._programs.get((tenant, node))
        entry = program.pop(0) if program else Entry(content=orjson.dumps(minimal(schema)).decode())
        if entry.error_code is not None:
            raise ProviderError(entry.error_code)
        response: dict[str, Any] = {
            "content": entry.content or "",
            "stopReason": entry.stop_reason,
            "usage": {"inputTokens": entry.input_tokens, "outputTokens": entry.output_tokens},
        }
        if entry.refusal_text is not None or entry.stop_reason == "safety":
            response["kind"] = "refusal"
            response["refusalText"] = entry.refusal_text or "refused"
        return response


class ProviderError(Exception):
    """The provider answered with an error."""

    def __init__(self, code: str) -> None:
        super().__init__(f"The provider answered with {code}.")
        self.code = code
