"""Patterns that are compiled when they are first needed: most processes never see a secret."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable


def deferred(source: str) -> Callable[[], re.Pattern[str]]:
    """``pattern()`` is the compiled *source*; compiling happens once."""
    return functools.cache(functools.partial(re.compile, source))
