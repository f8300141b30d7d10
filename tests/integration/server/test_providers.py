"""Model nodes on a real HTTP provider: request, key, refusal, failures; replay asks nobody."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.integration.server import workflows
from tests.integration.server.harness import Client, application, in_process, observable


class Provider:
    """Answers with what a test puts into ``answers`` and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                provider.asked.append((self.path, headers, body))
                status, answer = provider.answers.pop(0)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def provider() -> Iterator[Provider]:
    found = Provider()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
async def client(tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setenv("TEST_PROVIDER_KEY", "provider-secret-1234567890")
    flows = [
        workflows.workflow("chat", [workflows.model("ask", provider="chatty", model="m-1", temperature=0)]),
        workflows.workflow("claude", [workflows.model("ask", provider="claudy", model="m-2", maxTokens=50)]),
        workflows.workflow("nobody", [workflows.model("ask", provider="nobody")]),
        workflows.workflow("keyless", [workflows.model("ask", provider="keyless")]),
    ]
    providers = {
        "chatty": {"dialect": "openai-chat", "base_url": f"{provider.url}/v1", "api_key_env": "TEST_PROVIDER_KEY"},
        "claudy": {"dialect": "anthropic", "base_url": provider.url, "api_key_env": "TEST_PROVIDER_KEY"},
        "keyless": {"dialect": "anthropic", "base_url": provider.url, "api_key_env": "NOT_SET_ANYWHERE"},
    }
    folder = workflows.write(tmp_path / "flows", *flows)
    async with in_process(application(tmp_path, folder, providers=providers)) as found:
        yield found


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text, **more}, "finish_reason": "stop"}], "usage": {"total_tokens": 3}}


async def test_openai_chat(client: Client, provider: Provider, tmp_path: Path) -> None:
    provider.answers = [(200, chat('{"valid": true}'))]
    run = await client.run("chat")
    assert run["outputs"] == {"ask": {"valid": True}}
    path, headers, body = provider.asked[0]
    assert path == "/v1/chat/completions"
    assert headers["authorization"] == "Bearer provider-secret-1234567890"
    assert len(headers["idempotency-key"]) == 43
    assert (body["model"], body["temperature"]) == ("m-1", 0)
    fork = await client.fork(run["runId"])
    await client.ended(fork)
    assert observable(await client.events(fork)) == observable(await client.events(run["runId"]))
    assert len(provider.asked) == 1
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert b"provider-secret-1234567890" not in file.read_bytes()


async def test_anthropic_and_a_refusal(client: Client, provider: Provider) -> None:
    text = {"type": "message", "content": [{"type": "text", "text": '{"valid": true}'}], "stop_reason": "end_turn"}
    provider.answers = [(200, text), (200, {"type": "message", "content": [], "stop_reason": "refusal"})]
    assert (await client.run("claude"))["status"] == "completed"
    path, headers, body = provider.asked[0]
    assert (path, headers["x-api-key"], body["max_tokens"]) == ("/v1/messages", "provider-secret-1234567890", 50)
    refused = await client.run("claude")
    assert refused["error"]["code"] == "envelope_refusal"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((429, {"error": "slow down"}), "provider_http_429"),
        ((500, b"oops"), "provider_http_500"),
        ((200, b"not json"), "provider_not_json"),
    ],
)
async def test_failures_are_told_and_not_retried(
    client: Client, provider: Provider, answer: tuple[int, Any], code: str
) -> None:
    provider.answers = [answer]
    run = await client.run("chat")
    assert run["error"]["code"] == code
    assert len(provider.asked) == 1


async def test_providers_that_are_not_there(client: Client, provider: Provider) -> None:
    assert (await client.run("nobody"))["error"]["code"] == "provider_unknown"
    assert (await client.run("keyless"))["error"]["code"] == "config_error"
    provider.server.shutdown()
    provider.server.server_close()
    assert (await client.run("chat"))["error"]["code"] == "provider_unreachable"
