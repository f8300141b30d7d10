"""What changed between the recorded setup and the current one, and which kind of replay that requires (K3, K4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from antiphon._diff import ABSENT, diff_values
from antiphon.errors import InvalidInput
from antiphon.scoring._scores import THRESHOLD, flat_config, setting, unit

ReplayType = Literal["A", "B"]
Change = dict[str, Any]
"""``{"artifact": old, "current": new}``."""
Changes = dict[str, dict[str, Change]]
"""Section (``llm_config``, ``tools``, ``prompt``, ``graph``, ``code``) to field to change."""

SECTIONS = ("llm_config", "tools", "prompt", "graph", "code")
CRITICAL_SECTIONS = ("tools", "prompt", "graph")
WHERE = ("endpoint", "headers")
"""Settings that only some ways of asking a model tell: compared if both sides have them."""
CRITICAL_SETTINGS = ("model_name", "provider")
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "llm_config": ("llm_config", "llmConfig"),
    "tools": ("tools", "tool_schemas", "toolSchemas"),
    "prompt": ("prompt", "prompts", "resolved_prompt", "resolvedPrompt"),
    "graph": ("graph", "graph_digest", "graphDigest", "graph_version", "graphVersion"),
    "code": ("code",),
}


class Decision(NamedTuple):
    """The kind of replay and, in words, why."""

    type: ReplayType
    reason: str


def changes(recorded: Any, current: Any) -> Changes:
    """Every difference between two setups: run manifests, artifacts, or mappings with some of :data:`SECTIONS`.

    A section that one side lacks (absent or ``None``) is not compared; :func:`not_compared` names it. An empty section
    counts as known.

    >>> changes({"llm_config": {"model_name": "gpt-4"}}, {"llm_config": {"model_name": "gpt-4o"}})
    {'llm_config': {'model_name': {'artifact': 'gpt-4', 'current': 'gpt-4o'}}}
    """
    old, new = _sections(recorded), _sections(current)
    found: Changes = {}
    for section in SECTIONS:
        if section in old and section in new:
            fields = _COMPARE[section](old[section], new[section])
            if fields:
                found[section] = fields
    return found


def not_compared(recorded: Any, current: Any) -> list[str]:
    """Sections that only one side has, and that therefore cannot be compared."""
    old, new = _sections(recorded), _sections(current)
    unknown = [section for section in SECTIONS if (section in old) != (section in new)]
    if "llm_config" in old and "llm_config" in new:
        configs = flat_config(old["llm_config"]), flat_config(new["llm_config"])
        unknown += [f"llm_config.{name}" for name in WHERE if (name in configs[0]) != (name in configs[1])]
    return unknown


def critical(found: Changes) -> list[str]:
    """The changes that always require an explore replay, as dotted names."""
    settings = [f"llm_config.{name}" for name in CRITICAL_SETTINGS if name in found.get("llm_config", {})]
    return settings + [section for section in CRITICAL_SECTIONS if found.get(section)]


def decide_replay_type(score: float, found: Changes, threshold: float = THRESHOLD) -> Decision:
    """A, unless something critical changed or the score is below the threshold.

    >>> decide_replay_type(0.875, {})
    Decision(type='A', reason='score 0.875 is at least 0.80 and nothing critical changed')
    """
    value, limit = unit(score, "score"), unit(threshold, "threshold")
    named = critical(found)
    if named:
        return Decision("B", f"critical change: {', '.join(named)}")
    if value < limit:
        return Decision("B", f"score {value:.4g} is below {limit:.2f}")
    return Decision("A", f"score {value:.4g} is at least {limit:.2f} and nothing critical changed")


def _sections(setup: Any) -> dict[str, Any]:
    """The known sections of a setup, under any of their names."""
    plain = setup.to_wire() if hasattr(setup, "to_wire") else setup
    if not isinstance(plain, Mapping):
        raise InvalidInput(f"A setup must be a mapping or a run manifest, not {type(setup).__name__}.")
    found: dict[str, Any] = {}
    for section, spellings in _SPELLINGS.items():
        value = next((plain[name] for name in spellings if plain.get(name) is not None), None)
        # A manifest has the empty string for an unknown digest.
        if value is not None and value != "":
            found[section] = value
    return found


def _change(old: Any, new: Any) -> Change:
    return {"artifact": None if old is ABSENT else old, "current": None if new is ABSENT else new}


def _llm_config(old: Any, new: Any) -> dict[str, Change]:
    left, right = _named(flat_config(old)), _named(flat_config(new))
    for name in WHERE:
        if name not in left or name not in right:
            left.pop(name, None)
            right.pop(name, None)
    diffs = diff_values(left, right, root="")
    return {diff.path.removeprefix("."): _change(diff.left, diff.right) for diff in diffs}


def _named(config: dict[str, Any]) -> dict[str, Any]:
    """One spelling for the model's name, the scored settings first."""
    rest = {name: value for name, value in config.items() if name not in ("model", "modelName", "model_name")}
    model = setting(config, "model")
    first = {"model_name": model} if model is not None else {}
    scored: tuple[str, ...] = ("provider", "temperature", "seed")
    ordered = {name: rest.pop(name) for name in scored if name in rest}
    return {**first, **ordered, **rest}


def _tools(old: Any, new: Any) -> dict[str, Change]:
    left, right = _by_name(old), _by_name(new)
    found: dict[str, Change] = {}
    for name in [*left, *(name for name in right if name not in left)]:
        if name not in right:
            found[name] = {"artifact": "present", "current": "absent"}
        elif name not in left:
            found[name] = {"artifact": "absent", "current": "present"}
        else:
            for diff in diff_values(left[name], right[name], root=name):
                found[diff.path] = _change(diff.left, diff.right)
    return found


def _by_name(tools: Any) -> dict[str, Any]:
    """Tools by name, given as a mapping or as a list of schemas; list order does not matter."""
    if isinstance(tools, Mapping):
        return dict(tools)
    if isinstance(tools, str):
        return {"schemas": tools}
    found: dict[str, Any] = {}
    for place, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else tool
        name = function.get("name") if isinstance(function, Mapping) else function
        found[str(name if name is not None else place)] = tool
    return found


def _prompt(old: Any, new: Any) -> dict[str, Change]:
    left, right = _templates(old), _templates(new)
    return {
        name: _change(left.get(name), right.get(name))
        for name in [*left, *(name for name in right if name not in left)]
        if left.get(name) != right.get(name)
    }


def _templates(prompt: Any, name: str = "template") -> dict[str, Any]:
    """Templates by name. The variables filled in belong to a run, not to its setup."""
    if isinstance(prompt, Mapping):
        for field in ("template", "template_hash", "templateHash", "text"):
            if prompt.get(field) is not None:
                return {str(prompt.get("name") or name): prompt[field]}
        return {key: text for inner, part in prompt.items() for key, text in _templates(part, str(inner)).items()}
    if isinstance(prompt, Sequence) and not isinstance(prompt, str):
        merged: dict[str, Any] = {}
        for place, part in enumerate(prompt):
            merged.update(_templates(part, f"{name}[{place}]"))
        return merged
    return {name: prompt}


def _plain(old: Any, new: Any) -> dict[str, Change]:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return {} if old == new else {"digest": _change(old, new)}
    return {
        diff.path: _change(diff.left, diff.right)
        for name, value in old.items()
        if value is not None and new.get(name) is not None
        for diff in diff_values(value, new[name], root=str(name))
    }


_COMPARE = {"llm_config": _llm_config, "tools": _tools, "prompt": _prompt, "graph": _plain, "code": _plain}
