"""The command of the console."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import webbrowser

from antiphon.cli._base import CONFIG, application, argument, command, flag, run_server
from antiphon.errors import InvalidInput, missing_extra

PORT = 8322


@command(
    argument("--port", type=int, default=PORT, help=f"port to bind, 0 for any (default: {PORT})"),
    argument("--entry", metavar="TARGET", help="file.py that registers the tools whose reconcile the inbox may ask"),
    flag("--no-open", "print the address and do not open a browser"),
    CONFIG,
)
def console(arguments: argparse.Namespace) -> int:
    """Open the console in a browser: what waits for a person, runs, and what happened in them.

    It reads the store of this project, starts no run and makes no call. Only this machine can reach it, and only with
    the key in the printed address, which is made anew each time. 'antiphon serve' has the same pages under /console,
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
                webbrowser.open(page)

        return 0 if run_server(Server(config), tell) else 1
