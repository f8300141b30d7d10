"""Which differences between two sets of tool parameters do not matter (R3, D4)."""

from __future__ import annotations

from typing import Any, Final

from antiphon.canonical import canonical_json
from antiphon.contract.spec import ToolSpec
from antiphon.errors import CanonicalError, InvalidInput

VOLATILE: Final = frozenset({"clientTs", "retryCount", "traceparent"})
"""Top-level parameters that never belong to an intent, unless the tool marks them ``exact``."""


class ParamsRule:
    """How one tool's parameters are normalised: volatile ones left out, white space of insensitive ones squeezed.

    Paths are dotted (``"options.note"``), run through lists, and stand for everything below them. ``exact``
    wins over everything else.
    """

    __slots__ = ("_everywhere", "_exact", "_insensitive", "_names", "_paths", "_squeezes", "only_leaves_out")

    def __init__(self, spec: ToolSpec | None) -> None:
        self._exact: frozenset[str] = frozenset(spec.exact) if spec is not None else frozenset()
        self._insensitive: frozenset[str] = frozenset(spec.insensitive) if spec is not None else frozenset()
        self._everywhere = spec is not None and spec.effect == "read"
        self._squeezes = self._everywhere or bool(self._insensitive)
        volatile = (VOLATILE | set(spec.volatile) if spec is not None else VOLATILE) - self._exact
        self._names = frozenset(name for name in volatile if "." not in name)
        self.only_leaves_out = None if self._squeezes or any("." in name for name in volatile) else self._names
        """The names of parameters that are left out, if that is all this rule does."""
        self._paths = tuple(tuple(path.split(".")) for path in sorted(volatile) if "." in path)

    def canonical(self, params: dict[str, Any]) -> tuple[bytes, bytes]:
        """Canonical JSON of the normalised and of the given parameters: one object where they are equal."""
        if not isinstance(params, dict):
            raise InvalidInput(f"The parameters are an object, not a {type(params).__name__}.", path="$.params")
        exact = canonical_json(params)
        kept = params
        if not self._names.isdisjoint(params):
            kept = {name: value for name, value in params.items() if name not in self._names}
        for path in self._paths:
            kept = _without(kept, path)
        if self._squeezes and not _surely_tidy(exact):
            try:
                named = self._exact or self._insensitive
                kept = self._squeezed(kept, self._everywhere, "") if named else _all_squeezed(kept)
            except RecursionError:
                raise CanonicalError("The value is nested deeper than the interpreter's stack allows here.") from None
        return (exact if kept is params else canonical_json(kept)), exact

    def _squeezed(self, value: Any, on: bool, path: str) -> Any:
        """*value* with white space trimmed and collapsed where that is *on*; itself if there was nothing to do."""
        if isinstance(value, str):
            tidy = " ".join(value.split()) if on else value
            return value if tidy == value else tidy
        if isinstance(value, dict):
            pairs = [(name, item, f"{path}.{name}" if path else name) for name, item in value.items()]
        elif isinstance(value, (list, tuple)):
            pairs = [(index, item, path) for index, item in enumerate(value)]
        else:
            return value
        copy: Any = None
        for place, item, where in pairs:
            if where in self._exact:
                continue
            tidy = self._squeezed(item, on or where in self._insensitive, where)
            if tidy is not item:
                if copy is None:
                    copy = dict(value) if isinstance(value, dict) else list(value)
                copy[place] = tidy
        return value if copy is None else copy


def _surely_tidy(data: bytes) -> bool:
    """Whether no string in canonical JSON can have white space to squeeze; ``False`` means: look at each.

    In ASCII text without escapes the only white space is the blank, and it stands inside strings only.
    """
    return data.isascii() and b"\\" not in data and b"  " not in data and b'" ' not in data and b' "' not in data


def _all_squeezed(value: Any) -> Any:
    """*value* with the white space of all its strings squeezed; itself if there was nothing to do."""
    is_object = isinstance(value, dict)
    copy: Any = None
    for place, item in value.items() if is_object else enumerate(value):
        if isinstance(item, str):
            tidy: Any = " ".join(item.split())
            if tidy == item:
                continue
        elif isinstance(item, (dict, list, tuple)):
            tidy = _all_squeezed(item)
            if tidy is item:
                continue
        else:
            continue
        if copy is None:
            copy = dict(value) if is_object else list(value)
        copy[place] = tidy
    return value if copy is None else copy


def _without(value: Any, path: tuple[str, ...]) -> Any:
    """*value* without the field at *path*; itself if there is none."""
    if isinstance(value, dict):
        name = path[0]
        if name not in value:
            return value
        if len(path) == 1:
            return {key: item for key, item in value.items() if key != name}
        inner = _without(value[name], path[1:])
        return value if inner is value[name] else {**value, name: inner}
    if isinstance(value, (list, tuple)):
        items = [_without(item, path) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value
