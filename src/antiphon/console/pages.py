"""Serves the console's static files: one document, one script, one stylesheet; without data, they need no key."""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILES = {
    "/console": ("index.html", "text/html; charset=utf-8"),
    "/console/console.js": ("console.js", "text/javascript; charset=utf-8"),
    "/console/console.css": ("console.css", "text/css; charset=utf-8"),
    "/console/licenses.txt": ("licenses.txt", "text/plain; charset=utf-8"),
}
"""The file and media type for every console path; no other file is ever served."""


@functools.cache
def _content(name: str) -> tuple[bytes, str]:
    data = (files("antiphon.console") / "static" / name).read_bytes()
    return data, f'"{hashlib.sha256(data).hexdigest()[:32]}"'


async def page(request: Request) -> Response:
    """Serve one of the files."""
    name, kind = FILES[request.scope["path"]]
    data, tag = _content(name)
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=kind, headers=headers)


def routes() -> list[Route]:
    """The console routes, for an application that also serves the API."""
    return [Route(path, page) for path in FILES]
