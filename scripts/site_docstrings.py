"""Docstrings as Markdown, for the API reference: doctests become code blocks, Sphinx roles become code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

DOCTEST = re.compile(r"(?:^>>> .*(?:\n(?!\n).*)*)(?:\n+>>> .*(?:\n(?!\n).*)*)*", re.MULTILINE)
ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")


def markdown(text: str) -> str:
    """A docstring of ours as Markdown."""
    text = ROLE.sub(r"`\1`", text)
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    return DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", text)


class Docstrings(Extension):
    """Rewrites every docstring that is loaded."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called once for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
