"""LiteLLM, in an environment of its own because its pins exclude ours: recorded, replayed with the provider off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_provider import FakeProvider, Reply

ROOT = Path(__file__).resolve().parents[3]
VARIANTS = (
    "litellm-openai",
    "litellm-openai-stream",
    "litellm-openai-async",
    "litellm-openai-stream-async",
    "litellm-anthropic",
    "litellm-anthropic-stream",
    "litellm-anthropic-async",
    "litellm-anthropic-stream-async",
)

_ASK = """
import asyncio, json, os, sys
import litellm

def options(variant):
    base = os.environ["URL"]
    if "openai" in variant:
        route = {"model": "openai/gpt-4o", "api_base": base + "/v1"}
    else:
        route = {"model": "anthropic/claude-sonnet-4-5", "api_base": base}
    asked = [{"role": "user", "content": variant}]
    return {"messages": asked, "api_key": "none", "stream": "stream" in variant, **route}

def ask(variant, client=None, **more):
    said = litellm.completion(client=client, **options(variant), **more)
    if "stream" in variant:
        return "".join(c.choices[0].delta.content or "" for c in said)
    return said.choices[0].message.content

async def ask_async(variant, client=None, **more):
    said = await litellm.acompletion(client=client, **options(variant), **more)
    if "stream" in variant:
        return "".join([c.choices[0].delta.content or "" async for c in said])
    return said.choices[0].message.content
"""

_PLAIN = (
    _ASK
    + """
def answer(variant):
    return asyncio.run(ask_async(variant)) if "async" in variant else ask(variant)

print(json.dumps({variant: answer(variant) for variant in sys.argv[1].split(",")}))
"""
)

_HOOKED = (
    _ASK
    + """
import httpx
from antiphon import Antiphon
from antiphon.adapters.httpx import async_transport, transport
from antiphon.ops.replay import replay
from antiphon.stores import MemoryStore
from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler, HTTPHandler

app = Antiphon(store=MemoryStore())
litellm.client_session = httpx.Client(transport=transport())
handler = HTTPHandler(client=httpx.Client(transport=transport()))

async def main(variant):
    if "openai" in variant:
        async with httpx.AsyncClient(transport=async_transport()) as litellm.aclient_session:
            litellm.in_memory_llm_clients_cache.flush_cache()
            return await ask_async(variant)
    return await ask_async(variant, AsyncHTTPHandler(transport=async_transport()))

def agent(variant):
    if "async" in variant:
        return asyncio.run(main(variant))
    return ask(variant, None if "openai" in variant else handler)

def outcomes(run):
    return [event.payload["outcome"] for event in run.events() if event.type == "call.finished"]

runs = {variant: app.record(agent, variant) for variant in sys.argv[1].split(",")}
with app.run("retries") as retried:
    ask("openai again", num_retries=1)
starts = [event.meta.get("sdkRetry") for event in retried.events() if event.type == "call.started"]
recorded = {name: [run.output, outcomes(run)] for name, run in runs.items()}
print(json.dumps({"recorded": recorded, "retries": starts}), flush=True)
sys.stdin.readline()  # the provider is off now
found = {name: replay(run, app=app, function=agent, mode="strict").divergences for name, run in runs.items()}
print(json.dumps({name: found[name] for name in found}))
"""
)

_AIOHTTP = """
import aiohttp, asyncio, os

async def main():
    async with aiohttp.ClientSession() as session:
        body = {"messages": [{"role": "user", "content": "hi"}]}
        async with session.post(os.environ["URL"] + "/v1/chat/completions", json=body) as answer:
            print((await answer.json())["choices"][0]["message"]["content"])

asyncio.run(main())
"""


class Peer:
    """Programs in LiteLLM's environment, with Antiphon on their path and a provider that counts."""

    def __init__(self, folder: Path, provider: FakeProvider, python: str) -> None:
        self.folder = folder
        self.provider = provider
        self.python = python
        self.env = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "ANTIPHON_HOME": str(folder / ".antiphon"),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "URL": provider.url,
        }
        del self.env["PYTHONDONTWRITEBYTECODE"]  # a fresh environment is compiled once, not in each process

    def exec(self, code: str, *words: str, replay: bool = False) -> subprocess.CompletedProcess[str]:
        (self.folder / "agent.py").write_text(code)
        command = [str(Path(sys.executable).parent / "antiphon"), "exec", *(["--replay", "latest"] if replay else [])]
        command += ["--", self.python, "agent.py", *words]
        if replay:
            self.env.pop("LITELLM_LOCAL_MODEL_COST_MAP")
        return subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=240)


@pytest.fixture
def peer(tmp_path: Path, litellm_python: str) -> Iterator[Peer]:
    tries: list[int] = []

    def answer(body: dict[str, Any]) -> Reply:
        if "again" in json.dumps(body):
            tries.append(1)
            return Reply("at last") if len(tries) > 1 else Reply(status=500)
        return _hello(body)

    with FakeProvider(answer) as provider:
        yield Peer(tmp_path, provider, litellm_python)


def _hello(body: dict[str, Any]) -> Reply:
    said = body["messages"][0]["content"]
    return Reply(f"hello {said if isinstance(said, str) else said[0]['text']}")


HELLOS = {variant: f"hello {variant}" for variant in VARIANTS}


def test_recorded_without_a_change_and_replayed_without_a_provider(peer: Peer) -> None:
    first = peer.exec(_PLAIN, ",".join(VARIANTS))
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout) == HELLOS
    assert f"{len(VARIANTS)} model calls" in first.stderr, "aiohttp under LiteLLM's asynchronous clients is seen too"
    assert "not recorded" not in first.stderr
    assert peer.provider.requests == len(VARIANTS)
    peer.provider.switch_off()
    again = peer.exec(_PLAIN, ",".join(VARIANTS), replay=True)
    assert (again.returncode, again.stdout) == (0, first.stdout), again.stderr
    assert f"{len(VARIANTS)} calls answered from the recording · no divergence" in again.stderr
    assert peer.provider.requests == len(VARIANTS)


def test_recorded_through_the_clients_it_is_given_with_retries_told(peer: Peer) -> None:
    command = [peer.python, "-c", _HOOKED, ",".join(VARIANTS)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=peer.folder, env=peer.env, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())
        assert found["recorded"] == {variant: [hello, ["ok"]] for variant, hello in HELLOS.items()}
        assert found["retries"] == [None, 1], "a retry of the SDK is a call that says so (D22)"
        asked = peer.provider.requests
        assert asked == len(VARIANTS) + 2
        peer.provider.switch_off()
        out, _ = process.communicate("off\n", timeout=240)
    assert json.loads(out) == {variant: [] for variant in VARIANTS}
    assert peer.provider.requests == asked


def test_a_model_call_that_nothing_can_see_is_told(peer: Peer) -> None:
    found = peer.exec(_AIOHTTP)
    assert found.stdout == "hello hi\n", found.stderr
    assert "RuntimeWarning: antiphon: a model call over aiohttp is not recorded" in found.stderr
    assert "0 model calls" in found.stderr
