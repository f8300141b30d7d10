"""Kill switch, breaker enforcement, key derivation and shadow mode (R12)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec.structs import replace

from antiphon._gateway.settings import Settings
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
            f"{VARIABLES[flag]} is {value!r}, which is neither on nor off.",
            path=VARIABLES[flag],
            hint="Set it to true or false, or leave it out.",
        )
    return value in _ON if value else None


def in_effect(settings: Settings, given: Settings | None = None, current: Settings | None = None) -> Settings:
    """*settings* with the switches that apply: the environment gives the initial values.

    Later, a switch that *settings* leave as *given* before keeps its *current* value.
    """
    switches = {}
    for flag in VARIABLES:
        value = getattr(settings, flag)
        if given is None:
            start = start_value(os.environ, flag)
            value = value if start is None else start
        elif value == getattr(given, flag):
            value = getattr(current, flag)
        switches[flag] = value
    return replace(settings, **switches)
