"""pytest in a process of its own, with the plugins that its tests need: finding those of all packages takes longer.

That pytest finds ours is tested where it is installed as users install it (``test_typed.py``).
"""

from __future__ import annotations

import sys

PLUGINS = ("antiphon.pytest_plugin", "anyio.pytest_plugin", "pytest_asyncio.plugin", "xdist.plugin")
WITH_PLUGINS = ["--disable-plugin-autoload", "-pno:cacheprovider", *(f"-p{name}" for name in PLUGINS)]
PYTEST = (sys.executable, "-m", "pytest", "-q", *WITH_PLUGINS)
