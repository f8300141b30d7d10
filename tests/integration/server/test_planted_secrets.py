"""Secrets in every place of a run, looked for in everything that the host says, sends and keeps."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import antiphon
from antiphon.host import logs
from tests.integration.server import workflows
from tests.integration.server.harness import Client, application, in_process
from tests.unit.redact.corpus import Forge, in_text, named, personal, tokens

CODE = """
import antiphon

gateway = antiphon.AsyncGateway(store="memory:")

@gateway.tool(idempotent=True, namespace="leak", effect="read")
async def echo(note: object) -> object:
    return {"echo": note}

@gateway.tool(idempotent=True, namespace="leak", effect="read")
async def fail(note: object = "", password: object = "") -> object:
    raise ValueError(f"wrong: {password} {note}")

@antiphon.agent
def careless(password: str) -> str:
    raise RuntimeError(f"cannot log in with {password}")
"""
Receiver = tuple[str, list[bytes]]
TEXTS = tokens(Forge(1)) + in_text(Forge(2)) + personal(Forge(3)) + in_text(Forge(5))
LISTED: dict[str, Any] = {
    "Tr0ub4dor-9x": "password is Tr0ub4dor-9x",
    "S3cretPgPassX1": "db.example:5432:app:admin:S3cretPgPassX1",
    "S3cretMyX9": "mysql -u root -pS3cretMyX9 app",
    "S3cretSshX9": "sshpass -p S3cretSshX9 ssh ada@db.example",
    "S3cretYamlX9": "password: |\n  S3cretYamlX9\n",
    "S3cretYamlX8": "password:\n  S3cretYamlX8",
    "S3cretXmlX9": "<password>S3cretXmlX9</password>",
    "S3cretAddX9": '<add key="ApiKey" value="S3cretAddX9"/>',
    "S3cretDeX9": "Passwort: S3cretDeX9",
    "S3cretEsX9": "contraseña: S3cretEsX9",
    "S3cretOraX9": "jdbc:oracle:thin:scott/S3cretOraX9@//db:1521/x",
    "S3cretCodeX9abcdef1234567890": "https://x.example/cb?code=S3cretCodeX9abcdef1234567890",
    "S3cretTheX9": "The password is S3cretTheX9.",
    "S3cretCsvX9": "user,password\nada,S3cretCsvX9",
    "S3cretMdX9": "| user | password |\n|---|---|\n| ada | S3cretMdX9 |",
    "S3cretWpX9": "CREATE USER x WITH PASSWORD 'S3cretWpX9'",
    "S3cretInX9": "INSERT INTO users (name, password) VALUES ('ada', 'S3cretInX9')",
    "078-05-1121": "my SSN is 078-05-1121",
    "C01X00T47": "passport number C01X00T47",
    "S3cretPairX9": ["password", "S3cretPairX9"],
    "S3cretPairX8": [["password", "S3cretPairX8"]],
}
"""Forms that an audit found to leak."""
NAMED = [
    (name, f"{value}78" if value == "123456" else value, kind)  # six digits are in a database by chance
    for name, value, kind in named(Forge(4))
]
PLANTED: list[tuple[str, Any]] = [
    (one.secret, one.text) for one in TEXTS if len(one.secret) >= 6 and not one.secret.startswith("cvv")
] + [(value, {name: value}) for name, value, _ in NAMED if len(value) >= 6]
"""Long enough not to be the pseudonym of another one by chance, as three digits are."""
PLANTED += LISTED.items()


def test_there_are_enough() -> None:
    assert len({secret for secret, _ in PLANTED}) >= 110


@pytest.fixture
async def receiver() -> AsyncIterator[tuple[str, list[bytes]]]:
    got: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-l"))
        got.append(head + await reader.readexactly(length))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook", got
    server.close()


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What ``antiphon serve`` would write, of every level."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logs.JsonFormatter())
    logger = logging.getLogger("antiphon")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield text
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What a collector of spans would get."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setenv("ANTIPHON_TELEMETRY_OTEL", "true")
    return exporter


def _flows() -> list[dict[str, Any]]:
    note = {"type": "variable", "variableName": "note"}
    messages = {"type": "variable", "variableName": "messages"}
    model = workflows.node("ask", "core.llm.chat", {"provider": "mock", "model": "mock-mini"}, {"messages": messages})
    nodes = [
        workflows.node("same", "core.identity", None, {"note": note}),
        model,
        workflows.node("echo", "tool:leak/echo", None, {"note": note}),
        workflows.node("fail", "tool:leak/fail", None, {"note": note}),
    ]
    variables = [workflows.variable("note", "any"), workflows.variable("messages", "any")]
    return [workflows.workflow("leaky", nodes, variables)]


async def test_no_secret_leaves_the_host(
    tmp_path: Path, receiver: Receiver, log: io.StringIO, spans: InMemorySpanExporter
) -> None:
    found = await _walk(tmp_path, receiver, log, PLANTED)
    told = "\n".join(span.to_json() for span in spans.get_finished_spans())
    assert told.count('"name": "tool_execution"') > 20
    assert "wrong:" in told, "the messages of exceptions are there"
    found += [f"{secret!r} in spans" for secret, _ in PLANTED if _is_in(secret, told)]
    assert not found, f"{len(found)}: {found[:20]}"


def test_no_secret_is_in_the_log_of_hooks_and_listeners_that_fail(caplog: pytest.LogCaptureFixture) -> None:
    """Agents' processes log with handlers of their own, which redact nothing."""

    class Broken:
        def emit(self, event: str, fields: Any) -> None:
            raise RuntimeError(f"{event}: {dict(fields)}")

    gateway = antiphon.Gateway(store="memory:", listeners=(Broken(),))

    @gateway.tool(idempotent=True, effect="read")
    def echo(note: object, password: str) -> object:
        raise ValueError(f"wrong: {note} {password}")

    @gateway.after
    def tell(call: Any, outcome: Any) -> None:
        raise ValueError(f"cannot tell of {dict(call.params)} and {outcome.message}")

    for secret, text in PLANTED:
        with contextlib.suppress(ValueError):
            echo(text, f"word-{secret}")
    gateway.close()
    assert "after-hook" in caplog.text
    assert "a listener failed" in caplog.text
    found = [secret for secret, _ in PLANTED if _is_in(secret, caplog.text)]
    assert not found, f"{len(found)}: {found[:20]}"


async def test_planted_bug_a_delivery_that_is_not_masked_is_found(
    tmp_path: Path, receiver: Receiver, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.host.host.HostRun.masked", lambda self, payload: payload)
    found = await _walk(tmp_path, receiver, log, PLANTED[:3])
    assert len([one for one in found if one.endswith("in deliveries")]) == 3


async def _walk(tmp_path: Path, receiver: Receiver, log: io.StringIO, planted: list[tuple[str, Any]]) -> list[str]:
    """Which of the secrets are found, and where."""
    url, got = receiver
    code = tmp_path / "leaks.py"
    code.write_text(CODE)
    folder = workflows.write(tmp_path / "flows", *_flows())
    settings = {"tools": [str(code)], "webhooks": True, "webhooks_loopback": True}
    seen: list[str] = []
    async with in_process(application(tmp_path, folder, **settings)) as client:
        await client.post("/v1/webhooks", json={"url": url})
        runs = 0
        for start in range(0, len(planted), 6):
            some = [text for _, text in planted[start : start + 6]]
            prompt = [{"role": "user", "content": json.dumps(one) if isinstance(one, dict) else one} for one in some]
            said = "\n".join(str(one["content"]) for one in prompt)
            await client.program("ask", {"content": said})
            run = await client.run("leaky", {"note": some, "messages": prompt})
            assert (run["status"], run["error"]["code"]) == ("failed", "unclassified"), run
            runs += 1
            await _look(client, run["runId"], seen)
            fork = await client.fork(run["runId"])
            seen.append(json.dumps(await client.ended(fork)))
        while len(got) < runs * 10:
            await asyncio.sleep(0.02)
        for path in ("/v1/runs", "/v1/webhooks", "/v1/admin/audit", "/v1/admin/claims", "/metrics"):
            seen.append((await client.get(path)).text)
    channels = {"answers": "\n".join(seen), "deliveries": b"\n".join(got).decode(), "log": log.getvalue()}
    found = [
        f"{secret!r} in {channel}"
        for secret, _ in planted
        for channel, text in channels.items()
        if _is_in(secret, text)
    ]
    for file in tmp_path.rglob("*"):
        if file.is_file() and file != code:
            data = file.read_bytes()
            found += [f"{secret!r} in {file.name}" for secret, _ in planted if secret.encode() in data]
    return found


def _is_in(secret: str, text: str) -> bool:
    return secret in text or json.dumps(secret)[1:-1] in text


async def _look(client: Client, run: str, seen: list[str]) -> None:
    for path in ("", "/events", "/events/poll"):
        seen.append((await client.get(f"/v1/runs/{run}{path}")).text)


async def test_a_quoted_parameter_is_none_in_the_message(tmp_path: Path) -> None:
    code = tmp_path / "leaks.py"
    code.write_text(CODE)
    secret = "correct horse battery"
    bound = {"password": {"type": "variable", "variableName": "password"}}
    node = workflows.node("fail", "tool:leak/fail", None, bound)
    flow = workflows.workflow("quoting", [node], [workflows.variable("password", "string")])
    folder = workflows.write(tmp_path / "flows", flow)
    settings = {"tools": [str(code)], "agents": [f"{code}:careless"]}
    async with in_process(application(tmp_path, folder, **settings)) as client:
        for workflow in ("quoting", "agent:careless"):
            run = await client.run(workflow, {"password": secret})
            assert run["status"] == "failed"
            assert run["error"]["message"].strip()
            assert secret not in json.dumps([run, await client.events(run["runId"])])
