"""Around every request: headers that make browsers careful, and counters."""

from __future__ import annotations

import time
from collections import defaultdict

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_NO_STORE = (b"cache-control", b"no-store")
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"})


class Counters:
    """Requests by method and status: few labels, whatever the paths are."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.open = 0

    def count(self, method: str, status: int, seconds: float) -> None:
        known = method if method in _METHODS else "other"
        self._requests[(known, status)] += 1
        self._seconds[known] += seconds

    def render(self) -> str:
        """Prometheus' text format."""
        name = f"{self._prefix}_http_requests_total"
        lines = [f"# HELP {name} Answered requests.", f"# TYPE {name} counter"]
        for (method, status), number in sorted(self._requests.items()):
            lines.append(f'{name}{{method="{method}",status="{status}"}} {number}')
        name = f"{self._prefix}_http_request_seconds_total"
        lines += [f"# HELP {name} Time spent answering.", f"# TYPE {name} counter"]
        lines += [f'{name}{{method="{method}"}} {seconds:.6f}' for method, seconds in sorted(self._seconds.items())]
        name = f"{self._prefix}_http_requests_open"
        lines += [f"# HELP {name} Requests being answered.", f"# TYPE {name} gauge", f"{name} {self.open}"]
        return "\n".join(lines) + "\n"


class Careful:
    """Adds the headers and counts."""

    def __init__(self, app: ASGIApp, counters: Counters) -> None:
        self.app = app
        self.counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        counters, begun = self.counters, time.perf_counter()
        status = 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), *_HEADERS]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append(_NO_STORE)
                message["headers"] = headers
            await send(message)

        counters.open += 1
        try:
            await self.app(scope, receive, sent)
        finally:
            counters.open -= 1
            counters.count(scope["method"], status, time.perf_counter() - begun)
