"""How close the current configuration is to the recorded one (K3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from antiphon.errors import InvalidInput
from antiphon.scoring._score import Score

THRESHOLD = 0.8
"""From this score on, recorded outputs may stand for the current configuration."""

_NAMES: Mapping[str, tuple[str, ...]] = {
    "temperature": ("temperature",),
    "seed": ("seed",),
    "model": ("model_name", "model", "modelName"),
    "provider": ("provider",),
}


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as one level, whether it was flat or had its sampling values under ``parameters``."""
    if not isinstance(config, Mapping):
        raise InvalidInput(f"An LLM configuration must be a mapping, not {type(config).__name__}.", path="llm_config")
    nested = config.get("parameters")
    flat = dict(nested) if isinstance(nested, Mapping) else {}
    flat.update((name, value) for name, value in config.items() if name != "parameters" and value is not None)
    return {name: value for name, value in flat.items() if value is not None}


def setting(config: Mapping[str, Any], name: str) -> Any:
    """``temperature``, ``seed``, ``model`` or ``provider`` of a flat configuration; ``None`` if it is not given."""
    return next((config[spelling] for spelling in _NAMES[name] if spelling in config), None)


def determinism(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> Score:
    """The mean of the temperature, seed, model and provider scores.

    >>> old = {"model_name": "gpt-4", "provider": "openai", "temperature": 0.0, "seed": 42}
    >>> score = determinism(old, {**old, "temperature": 0.5})
    >>> score, score.parts["temperature"]
    (0.875, 0.5)
    """
    old, new = flat_config(recorded), flat_config(current)
    parts = {
        "temperature": _temperature(setting(old, "temperature"), setting(new, "temperature")),
        "seed": _seed(setting(old, "seed"), setting(new, "seed")),
        "model": _name(setting(old, "model"), setting(new, "model")),
        "provider": _name(setting(old, "provider"), setting(new, "provider")),
    }
    return Score(sum(parts.values()) / len(parts), parts)


def _temperature(old: Any, new: Any) -> float:
    for value in (old, new):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value)):
            raise InvalidInput(f"temperature must be a number, not {value!r}.", path="temperature")
    if old is None or new is None:
        return 1.0 if old is new else 0.5
    if old == new:
        return 1.0
    return max(0.0, round(1.0 - abs(float(old) - float(new)), 12))


def _seed(old: Any, new: Any) -> float:
    if old is None or new is None:
        return 0.5
    return 1.0 if old == new and isinstance(old, bool) == isinstance(new, bool) else 0.0


def _name(old: Any, new: Any) -> float:
    return 1.0 if old == new else 0.0
