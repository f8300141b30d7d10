"""The commands of the proxy: over HTTP, and around a server on stdio."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

from antiphon._diff import plural
from antiphon.cli import EXIT
from antiphon.cli._base import (
    CONFIG,
    Argument,
    application,
    argument,
    call,
    command,
    flag,
    non_negative_int,
    non_negative_number,
    repeated,
    run_server,
)
from antiphon.errors import ConfigError, InvalidInput, missing_extra

PORT = 8800


def _mode(text: str) -> Argument:
    return argument("--mode", choices=("record", "replay", "record-new", "live"), default="record", help=text)


@command(
    _mode(
        "record; replay: answer from the recording only; record-new: answer what is known, record the rest; "
        "live: pass on (default: record)",
    ),
    repeated("--upstream", "NAME=URL", "a model provider (openai, anthropic and gemini are known)"),
    repeated("--mcp", "NAME=URL", "an MCP server (streamable HTTP)"),
    argument("--host", default="127.0.0.1", help="address to bind (default: 127.0.0.1)"),
    argument("--port", type=int, default=PORT, help=f"port to bind, 0 for any (default: {PORT})"),
    flag("--require-key", "serve only clients with a key of 'antiphon apikeys' in the header Antiphon-Key"),
    argument(
        "--retries",
        type=non_negative_int,
        default=0,
        metavar="N",
        help="retry a failed model call up to N times (default: 0; then set your client's retries to 0)",
    ),
    argument("--timeout", type=float, default=600.0, metavar="S", help="seconds an upstream may be silent"),
    argument(
        "--lost-answers",
        type=non_negative_number,
        default=120.0,
        metavar="S",
        help="seconds for which the lost answer of an MCP tool call without identity waits for an equal call "
        "(default: 120; 0: never)",
    ),
    repeated(
        "--tool",
        "SERVER/TOOL:OPTIONS",
        "how calls of an MCP tool are treated: read, approve[=POLICY], window=S, guard_handed_over, "
        "on_disconnect=cancel; * matches any text",
    ),
    repeated("--identity", "FIELD", "a field of _meta that names an MCP tool call, besides dev.antiphon/callId"),
    argument(
        "--breaker",
        type=non_negative_int,
        default=5,
        metavar="N",
        help="hold back requests to an upstream (and model) for 30 s after N failures in a row (default: 5; 0: never)",
    ),
    flag("--realtime", "replay streams with their recorded pauses"),
    argument("--log-level", default="info", choices=("debug", "info", "warning", "error")),
    argument("--log-format", default="text", choices=("text", "json"), help="lines for people or for machines"),
    CONFIG,
)
def proxy(arguments: argparse.Namespace) -> int:
    """Stand between any program and its models and MCP servers: record, replay and guard what passes.

    A client changes its base URL and nothing else: http://127.0.0.1:8800/run/NAME/openai/v1, …/anthropic, …/gemini.
    Without /run/NAME the header Antiphon-Run names the run. DELETE /run/NAME ends it and returns its report.
    Credentials pass through and are never stored. [loop] max_cost of antiphon.toml limits what a run may cost in the
    modes record and record-new; live has no runs.

    examples:
      antiphon proxy --mode record
      OPENAI_BASE_URL=http://127.0.0.1:8800/run/orders/openai/v1 node agent.js
      antiphon proxy --mode replay
      antiphon proxy --mcp files=https://mcp.example.com
      antiphon proxy --mcp shop=https://shop.example.com --tool 'shop/get_*:read' --tool shop/charge:approve
    """
    try:
        import uvicorn

        import antiphon.proxy.transport  # noqa: F401 - what every request needs
        from antiphon.host.http.app import freeze_gc
        from antiphon.host.http.connections import ServerConfig
    except ImportError as error:
        raise missing_extra(error.name or "httpx", "proxy", "antiphon proxy") from None
    from antiphon.contract.spec import BreakerPolicy
    from antiphon.host import logs
    from antiphon.host.http.endpoint import is_loopback
    from antiphon.proxy.app import Proxy, Settings
    from antiphon.proxy.options import identity_keys
    from antiphon.proxy.upstreams import upstreams

    if not 0 <= arguments.port <= 65535 or not arguments.timeout > 0:
        raise InvalidInput("The port must be from 0 to 65535, and the timeout more than 0.")
    if not is_loopback(arguments.host) and not arguments.require_key:
        raise ConfigError(
            f"The proxy does not bind to {arguments.host} without keys.",
            hint="Add --require-key, and make a key: antiphon apikeys create",
            path="--require-key",
        )
    with application(arguments) as app:
        settings = Settings(
            upstreams(arguments.upstream, arguments.mcp),
            arguments.mode,
            require_key=arguments.require_key,
            retries=arguments.retries,
            timeout_s=arguments.timeout,
            realtime=arguments.realtime,
            lost_answer_s=arguments.lost_answers,
            grace_s=app.config.host.shutdown_grace_s,
            max_connections=app.config.host.max_connections,
            tools=arguments.tool,
            identity=identity_keys(arguments.identity),
            breaker=BreakerPolicy(consecutive=arguments.breaker) if arguments.breaker else None,
        )
        if arguments.mode == "live" and app.config.loop.max_cost is not None:
            print("antiphon: [loop] max_cost limits runs; --mode live has none, so nothing is limited", file=sys.stderr)
        app.journal.ping()  # reports an unusable store here, once
        served = Proxy(app, settings)
        server = ServerConfig(
            served,
            app.config.host,
            host=arguments.host,
            port=arguments.port,
            log_config=logs.settings(arguments.log_level, arguments.log_format),
            proxy_headers=False,
        )

        def tell(address: str) -> None:
            print(f"antiphon: proxy on {address}, mode {arguments.mode}; store {app.store.url}", file=sys.stderr)

        freeze_gc()
        started = run_server(uvicorn.Server(server), tell)
        for report in served.ended:
            print(f"antiphon: {report_line(report)}", file=sys.stderr)
        return 0 if started else 1


def report_line(report: dict[str, Any]) -> str:
    """A run's report in one line."""
    head = f"run {report['name']} ({report['run']}): {plural(report['requests'], 'request')}"
    if report["mode"] == "replay":
        return f"{head}, {report['answered']} answered, {report['missed']} missed, {report['notAsked']} not asked"
    known = f", {report['answered']} answered from {report['source']}" if "source" in report else ""
    return f"{head}{known}, {report['recorded']} recorded"


@command(
    _mode("as for antiphon proxy; a replay starts no process (default: record)"),
    argument("--run", metavar="NAME", help="name of the run (default: mcp-SERVER)"),
    argument("--server", metavar="NAME", help="name of the server in records (default: the program's file name)"),
    argument("--timeout", type=float, default=600.0, metavar="S", help="seconds a tool may take"),
    repeated("--tool", "TOOL:OPTIONS", "how calls of a tool are treated: read, approve[=POLICY]; * matches any text"),
    repeated("--identity", "FIELD", "a field of _meta that names a tool call, besides dev.antiphon/callId"),
    flag("--quiet", "no summary on standard error"),
    CONFIG,
    argument("words", nargs=argparse.REMAINDER, metavar="wrap -- COMMAND", help="the server and its arguments"),
)
def mcp(arguments: argparse.Namespace) -> int:
    """Start an MCP server on stdio and stand between it and its client: write this in place of the server's command.

    Everything passes. Requests are recorded; with --mode replay they are answered without a server, and the exit code
    is 1 if one was not recorded. A tool call with dev.antiphon/callId in its _meta runs once.

    examples:
      antiphon mcp wrap -- npx -y @modelcontextprotocol/server-filesystem .
      antiphon mcp wrap --tool 'delete_*:approve' -- npx -y @modelcontextprotocol/server-filesystem .
      antiphon mcp wrap --run files --mode replay -- npx -y @modelcontextprotocol/server-filesystem .
    """
    words: list[str] = arguments.words
    if words[1:2] in (["--help"], ["-h"]):
        return call("mcp", mcp, ["--help"])
    if not words or words[0] != "wrap":
        raise InvalidInput("There is nothing to wrap.", hint="Write: antiphon mcp wrap -- COMMAND")
    place = words.index("--") if "--" in words else 0
    if place > 1 and words[1].startswith("-"):  # options after "wrap"
        return call("mcp", mcp, [*words[1:place], "wrap", *words[place:]], arguments)
    server = words[2:] if place == 1 else words[1:]
    if not server:
        raise InvalidInput("There is no command to start.", hint="Write: antiphon mcp wrap -- COMMAND")
    if arguments.mode != "replay" and shutil.which(server[0]) is None:
        raise InvalidInput(f"There is no program {server[0]!r}.", hint="Give its path, or a name in PATH.")
    with application(arguments) as app:
        code, report = asyncio.run(_wrapped(app, arguments, server))
    if report and not arguments.quiet:
        print(f"antiphon: {report_line(report)}", file=sys.stderr)
    if report.get("missed"):
        return EXIT["diverged"]
    return 128 - code if code < 0 else code


async def _wrapped(app: Any, arguments: argparse.Namespace, server: list[str]) -> tuple[int, dict[str, Any]]:
    import signal

    from antiphon.proxy.options import identity_keys
    from antiphon.proxy.stdio import StdioProxy, pump

    out = sys.stdout.buffer

    def write(line: bytes) -> None:
        out.write(line)
        out.flush()

    loop = asyncio.get_running_loop()
    lines = pump(open(0, "rb", closefd=False), loop)  # noqa: SIM115 - it is the thread's, which may never return from it
    name = arguments.server or Path(server[0]).stem
    wrapped = StdioProxy(
        app,
        name,
        mode=arguments.mode,
        run=arguments.run,
        timeout_s=arguments.timeout,
        identity=identity_keys(arguments.identity),
        tools=arguments.tool,
        command=() if arguments.server else server,
        write=write,
    )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, wrapped.stop)
    return await wrapped.serve(server, lines)
