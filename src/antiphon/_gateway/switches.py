"""Kill switch, breaker enforcement, key derivation and shadow mode: a snapshot read on every call (R12)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from antiphon._gateway.settings import Settings
from antiphon._gateway.tool import Tool
from antiphon.errors import ConfigError

_OFF = frozenset({"0", "false", "off", "no", "disable", "disabled"})
_ON = frozenset({"1", "true", "on", "yes", "enable", "enabled"})

VARIABLES = {
    "enabled": "TOOL_RELIABILITY_ENABLED",
    "open_mode": "TOOL_RELIABILITY_OPEN_MODE",
    "derive_keys": "TOOL_RELIABLE_DERIVE_IDEMPOTENCY",
    "shadow": "ANTIPHON_SHADOW",
}
"""What sets the initial value of a switch, whatever the settings say."""


def start_value(environment: Mapping[str, str], flag: str) -> bool | None:
    """The environment's value of a switch, if any."""
    value = environment.get(VARIABLES[flag], "").strip().lower()
    if value and value not in _OFF | _ON:
        raise ConfigError(
            f"{VARIABLES[flag]} is {value!r}, which says neither on nor off.",
            path=VARIABLES[flag],
            hint="Set it to true or false, or leave it out.",
        )
    return value in _ON if value else None


def _flag(flag: str, default: bool) -> bool:
    value = start_value(os.environ, flag)
    return default if value is None else value


class Switches:
    """Four flags and the staged tools. Setting one of them notifies those who made plans from them."""

    def __init__(self, settings: Settings, changed: Callable[[], None]) -> None:
        """The environment gives the initial values."""
        self._changed: Callable[[], None]
        self.enabled: bool = _flag("enabled", settings.enabled)
        self.open_mode: bool = _flag("open_mode", settings.open_mode)
        self.derive_keys: bool = _flag("derive_keys", settings.derive_keys)
        self.shadow: bool = _flag("shadow", settings.shadow)
        self._settings = settings
        self._stage(settings)
        object.__setattr__(self, "_changed", changed)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if hasattr(self, "_changed"):
            self._changed()

    def take(self, settings: Settings) -> None:
        """Apply what *settings* change; a flag that they leave as it was keeps its current value."""
        for flag in ("enabled", "open_mode", "derive_keys", "shadow"):
            wanted = getattr(settings, flag)
            if wanted != getattr(self._settings, flag):
                setattr(self, flag, wanted)
        self._settings = settings
        self._stage(settings)

    def _stage(self, settings: Settings) -> None:
        self.tools_off: frozenset[str] = frozenset(
            name for name, tool in settings.tools.items() if tool.enabled is False
        )
        self.tools_shadow: frozenset[str] = frozenset(name for name, tool in settings.tools.items() if tool.shadow)
        self.any_shadow: bool = self.shadow or bool(self.tools_shadow)

    def shadows(self, tool: Tool) -> bool:
        """Whether the tool's calls are only watched."""
        return self.shadow or tool.full_name in self.tools_shadow or tool.spec.name in self.tools_shadow
