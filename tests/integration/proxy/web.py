"""httpx with a timeout that a loaded machine does not exceed; every function opens a connection of its own."""

from __future__ import annotations

from functools import partial

import httpx

TIMEOUT_S = 60.0

delete = partial(httpx.delete, timeout=TIMEOUT_S)
get = partial(httpx.get, timeout=TIMEOUT_S)
post = partial(httpx.post, timeout=TIMEOUT_S)
request = partial(httpx.request, timeout=TIMEOUT_S)
stream = partial(httpx.stream, timeout=TIMEOUT_S)
Client = partial(httpx.Client, timeout=TIMEOUT_S)
