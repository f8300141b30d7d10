"""pytest in a process of its own, without the plugins that cost a second at every start and that no test needs."""

from __future__ import annotations

import sys

WITHOUT = ("cacheprovider", "hypothesispytest", "langsmith_plugin", "platformdirs", "schemathesis", "valkey")
WITHOUT_THEM = [f"-pno:{name}" for name in WITHOUT]
PYTEST = (sys.executable, "-m", "pytest", "-q", *WITHOUT_THEM)
