"""Public modules are declared in one place: each can be imported, and every object that they offer is documented."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from antiphon.contract.spec import ToolSpec
from scripts.site_pages import public_modules, public_names
from tests.docs.pages import DOCS


def members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A public object and, for a class of ours, its public methods and properties."""
    yield name, value
    if not inspect.isclass(value) or not value.__module__.startswith("antiphon"):
        return
    for kind in value.__mro__:
        if not kind.__module__.startswith("antiphon"):
            continue
        for member, found in vars(kind).items():
            plain = inspect.isfunction(found) or isinstance(found, (property, classmethod, staticmethod))
            if plain and not member.startswith("_"):
                yield f"{name}.{member}", found


def undocumented(modules: list[str]) -> list[str]:
    """Every public module, class, function, method and property without a docstring."""
    lost = []
    for module in modules:
        if not (import_module(module).__doc__ or "").strip():
            lost.append(module)
        for name in public_names(module):
            value = getattr(import_module(module), name)
            if not (inspect.isclass(value) or inspect.isroutine(value)):
                continue  # a constant or a type alias: its value says what it is
            lost += [
                found for found, it in members(f"{module}.{name}", value) if not (inspect.getdoc(it) or "").strip()
            ]
    return sorted(set(lost))


def test_every_public_object_is_documented() -> None:
    assert undocumented(public_modules()) == []


def test_the_check_can_fail() -> None:
    assert undocumented(["tests.docs.test_public"]) != []


def test_every_option_of_a_tool_has_its_section_with_an_example() -> None:
    text = (DOCS / "reference" / "tool-spec.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(ToolSpec.__struct_fields__)
    for name, section in sections.items():
        example = "".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
        assert re.search(rf"\b{name}\b", example) or name in ("name", "description"), name
        assert f"(#{name})" in text, f"{name} is not in the table"
