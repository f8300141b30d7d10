"""``antiphon serve``."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from typing import Any

from antiphon.cli._base import add_config
from antiphon.errors import ConfigError, InvalidInput, missing_extra

DESCRIPTION = "Start the HTTP host: runs, replay forks, events, admin. Binds to loopback unless told otherwise."
EXAMPLE = "example:\n  ANTIPHON_API_KEY=$(openssl rand -hex 32) antiphon serve --port 8321 --config antiphon.toml"


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--host", help="address to bind (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to bind (default: 8321)")
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes (default: 1)")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    add_config(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted."""
    try:
        import uvicorn
    except ImportError:
        raise missing_extra("uvicorn", "server", "antiphon serve") from None
    from antiphon.config.load import load
    from antiphon.host.api_keys import ENVIRONMENT_KEY
    from antiphon.host.http.endpoint import is_loopback

    config = load(arguments.config).config
    settings = config.host
    host = arguments.host or settings.host
    port = settings.port if arguments.port is None else arguments.port
    workers = arguments.workers or settings.workers
    if not 0 <= port <= 65535 or workers < 1:
        raise InvalidInput("A port is from 0 to 65535, and there is at least one worker.")
    public = not is_loopback(host)
    if public and not settings.auth:
        raise ConfigError(
            f"The host does not bind to {host} without keys ([host] auth = false).",
            hint="Leave auth on and make a key: antiphon apikeys create --role admin",
            path="host.auth",
        )
    if settings.auth and not _has_key(arguments.config):
        if public:
            raise ConfigError(
                f"The host does not bind to {host} before there is a key.",
                hint=f"Make one: antiphon apikeys create --role admin, or set {ENVIRONMENT_KEY}.",
                path="host.auth",
            )
        os.environ[ENVIRONMENT_KEY] = token = secrets.token_urlsafe(32)
        print(f"antiphon: no API key yet; for this process only, with all rights:\n  {token}", file=sys.stderr)
    if arguments.config is not None:
        os.environ["ANTIPHON_CONFIG"] = os.path.abspath(arguments.config)  # noqa: PTH100 - as the user wrote it
    os.environ["ANTIPHON_HOST_HOST"] = host
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "workers": workers,
        "log_level": arguments.log_level,
        "factory": True,
        "server_header": False,
        "date_header": False,
        "access_log": False,
        "timeout_graceful_shutdown": max(1, int(settings.shutdown_grace_s)),
        "timeout_keep_alive": 30,
        "h11_max_incomplete_event_size": 65_536,
        "lifespan": "on",
    }
    print(f"antiphon: serving on http://{host}:{port} with {workers} worker(s)", file=sys.stderr)
    uvicorn.run("antiphon.host.http.app:create", **options)
    return 0


def _has_key(config: str | None) -> bool:
    from antiphon._drive import drive
    from antiphon.host.api_keys import ENVIRONMENT_KEY, KeyRing
    from antiphon.ops.app import Antiphon
    from antiphon.stores._adapters import AsyncFromSync

    if os.environ.get(ENVIRONMENT_KEY):
        return True
    app = Antiphon(config)
    ring = KeyRing(AsyncFromSync(app.journal), app.clock, default_tenant=app.tenant)
    return drive(ring.any())
