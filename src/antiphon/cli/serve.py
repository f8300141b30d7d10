"""Commands of the HTTP host: start it, look at runs with its console, and manage its API keys."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from antiphon._diff import plural
from antiphon._drive import drive
from antiphon.cli import _ui as ui
from antiphon.cli._base import CONFIG, JSON, application, argument, command, flag, run_server
from antiphon.errors import ConfigError, InvalidInput, missing_extra
from antiphon.ops.app import Antiphon
from antiphon.ports import Clock

CONSOLE_PORT = 8322


@command(
    argument("--host", help="address to bind (default: 127.0.0.1)"),
    argument("--port", type=int, help="port to bind, 0 for any (default: 8321)"),
    argument("--workers", type=int, metavar="N", help="worker processes (default: 1)"),
    argument("--log-level", default="info", choices=("debug", "info", "warning", "error")),
    argument("--log-format", default="text", choices=("text", "json"), help="lines for people or for machines"),
    CONFIG,
)
def serve(arguments: argparse.Namespace) -> int:
    """Start the HTTP host: runs, replay forks, events, admin. Binds to loopback by default. Logs to standard error.

    example:
      ANTIPHON_API_KEY=$(openssl rand -hex 32) antiphon serve --port 8321 --config antiphon.toml
    """
    try:
        from uvicorn import Server

        from antiphon.host.http.connections import ServerConfig
    except ImportError as error:
        raise missing_extra(error.name or "uvicorn", "server", "antiphon serve") from None
    from antiphon.config.load import load
    from antiphon.host import logs
    from antiphon.host.api_keys import ENVIRONMENT_KEY
    from antiphon.host.http.endpoint import is_loopback

    config = load(arguments.config).config
    settings = config.host
    host = arguments.host or settings.host
    port = settings.port if arguments.port is None else arguments.port
    workers = settings.workers if arguments.workers is None else arguments.workers
    if not 0 <= port <= 65535 or workers < 1:
        raise InvalidInput("The port must be from 0 to 65535, with at least one worker.")
    public = not is_loopback(host)
    if public and not settings.auth:
        raise ConfigError(
            f"The host does not bind to {host} without keys ([host] auth = false).",
            hint="Leave auth on and make a key: antiphon apikeys create --role admin",
            path="host.auth",
        )
    if settings.workflows is not None and not Path(settings.workflows).is_dir():
        raise ConfigError(
            f"[host] workflows: there is no folder {settings.workflows}.",
            hint="Create it, or leave the setting out.",
            path="host.workflows",
        )
    app = Antiphon(arguments.config)
    if workers > 1 and app.store.in_process:
        raise ConfigError(
            f"{workers} workers cannot share a store in memory ([store] url).",
            hint="Use one worker, or a store that processes share, such as sqlite:///host.db.",
            path="store.url",
        )
    token = ""
    with closing(app.journal) as journal:
        journal.ping()  # reports an unusable store here, once
        if settings.auth and not os.environ.get(ENVIRONMENT_KEY) and not _has_key(journal, config):
            if public:
                raise ConfigError(
                    f"The host does not bind to {host} before there is a key.",
                    hint=f"Make one: antiphon apikeys create --role admin, or set {ENVIRONMENT_KEY}.",
                    path="host.auth",
                )
            os.environ[ENVIRONMENT_KEY] = token = secrets.token_urlsafe(32)
    if arguments.config is not None:
        os.environ["ANTIPHON_CONFIG"] = os.path.abspath(arguments.config)  # noqa: PTH100 - as the user wrote it
    os.environ["ANTIPHON_HOST_HOST"] = host
    server = ServerConfig(
        "antiphon.host.http.app:service",
        settings,
        host=host,
        port=port,
        workers=workers,
        log_config=logs.settings(arguments.log_level, arguments.log_format),
        factory=True,
    )

    def tell(address: str) -> None:
        if token:
            print(f"antiphon: no API key yet; for this process only, with the admin role:\n  {token}", file=sys.stderr)
        print(f"antiphon: serving on {address} with {plural(workers, 'worker')}", file=sys.stderr)

    return 0 if run_server(_workers(server) if workers > 1 else Server(server), tell) else 1


def _workers(config: Any) -> Any:
    """A server of several processes."""
    from uvicorn.config import STARTUP_FAILURE
    from uvicorn.supervisors import Multiprocess

    class Workers(Multiprocess):
        """Stops when a worker cannot start: another one could not either."""

        def run(self, sockets: Any = ()) -> None:
            self.sockets = sockets
            super().run()

        @property
        def started(self) -> bool:
            return all(one.process.exitcode != STARTUP_FAILURE for one in self.processes)

        def keep_subprocess_alive(self) -> None:
            if self.started:
                super().keep_subprocess_alive()
            else:
                self.should_exit.set()

    return Workers(config, sockets=[])


@command(
    argument("--port", type=int, default=CONSOLE_PORT, help=f"port to bind, 0 for any (default: {CONSOLE_PORT})"),
    argument(
        "--entry",
        metavar="TARGET",
        help="file.py with the tools whose reconcile functions the inbox may call",
    ),
    flag("--no-open", "print the address and do not open a browser"),
    CONFIG,
)
def console(arguments: argparse.Namespace) -> int:
    """Open the console in a browser: what waits for a person, runs, and what happened in them.

    It reads the store of this project, starts no run and makes no call. Only this machine can reach it, and only with
    the key in the printed address, which is new at each start. 'antiphon serve' has the same pages under /console,
    behind API keys and roles.

    examples:
      antiphon console
      antiphon console --entry shop.py
      antiphon console --store sqlite:///other.db --port 0 --no-open
    """
    try:
        from uvicorn import Server

        from antiphon.host.http.connections import ServerConfig
    except ImportError as error:
        raise missing_extra(error.name or "uvicorn", "server", "antiphon console") from None
    from antiphon.cli.approvals import user_name
    from antiphon.host import logs
    from antiphon.host.api_keys import ENVIRONMENT_KEY
    from antiphon.host.http.app import create

    if not 0 <= arguments.port <= 65535:
        raise InvalidInput("The port must be from 0 to 65535.")
    if arguments.entry:
        from antiphon.ops.entry import load_module

        load_module(arguments.entry.partition(":")[0])
    with application(arguments) as app:
        app.journal.ping()  # reports an unusable store here, once
        os.environ[ENVIRONMENT_KEY] = token = secrets.token_urlsafe(32)
        config = ServerConfig(
            create(app=app, bind="127.0.0.1", executes=False, operator=user_name()),
            app.config.host,
            host="127.0.0.1",
            port=arguments.port,
            log_config=logs.settings("warning", "text"),
            timeout_graceful_shutdown=1,
        )

        def tell(address: str) -> None:
            page = f"{address}/console#key={token}"
            print(f"antiphon: console on {page}\nantiphon: store {app.store.url}; Ctrl-C ends it", file=sys.stderr)
            if not arguments.no_open:
                import webbrowser

                webbrowser.open(page)

        return 0 if run_server(Server(config), tell) else 1


def _has_key(journal: Any, config: Any) -> bool:
    return bool(drive(_key_ring(journal, config.gateway.tenant).any()))


def _key_ring(journal: Any, tenant: str) -> Any:
    from antiphon.host.api_keys import KeyRing
    from antiphon.stores._adapters import AsyncFromSync

    return KeyRing(AsyncFromSync(journal), Clock(), default_tenant=tenant)


@command(
    argument("act", choices=("create", "list", "revoke")),
    argument("id", nargs="?", help="which key to revoke"),
    argument("--role", choices=("read", "run", "admin"), default="run", help="what it allows (default: run)"),
    argument("--tenant", help="tenant that the key gives access to (default: the configured tenant)"),
    argument("--name", default="", help="a label for people"),
    CONFIG,
    JSON,
)
def apikeys(arguments: argparse.Namespace) -> int:
    """Create, list or revoke API keys of the host. A key is shown once; only its digest is stored.

    example:
      antiphon apikeys create --role run --tenant acme --name ci
    """
    from antiphon.ops.admin import audit_after

    with application(arguments) as app:
        ring = _key_ring(app.journal, app.tenant)
        if arguments.act == "create":
            tenant = arguments.tenant or app.tenant
            token, key = drive(ring.create(role=arguments.role, tenant=tenant, name=arguments.name))
            answer = audit_after(app, "apikey-create", key.to_wire(), {"token": token, **key.to_wire()})
            note = f"key {key.id}: role {key.role}, tenant {key.tenant}. It is not shown again."
            ui.output(arguments, answer, [token, note])
        elif arguments.act == "revoke":
            if not arguments.id:
                raise InvalidInput("Name the key to revoke.", hint="List them: antiphon apikeys list")
            revoked = drive(ring.revoke(arguments.id))
            answer = audit_after(app, "apikey-revoke", revoked.to_wire(), revoked.to_wire())
            ui.output(arguments, answer, f"key {revoked.id} is revoked")
        else:
            keys = drive(ring.keys())
            rows = [
                (key.id, key.role, key.tenant, ui.when(key.created_at_ms), "revoked" if key.revoked else "", key.name)
                for key in keys
            ]
            text = f"No API keys. Looked in {app.store.url} (--store names another)."
            if rows:
                head = ("ID", "ROLE", "TENANT", "CREATED", "STATE", "NAME")
                text = ui.table(head, rows, shorten={5: 10, 2: 10}, keep=(4,))
            ui.output(arguments, [key.to_wire() for key in keys], text)
    return 0
