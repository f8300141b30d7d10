"""A host for tests: in this process over ASGI, or a real ``antiphon serve`` on a loopback port."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
from starlette.applications import Starlette

from antiphon.host.host import Host
from antiphon.host.http.app import create
from tests.servers import free_port

KEY = "test-key-with-all-rights"
TERMINAL = ("completed", "failed", "cancelled")
VOLATILE = ("eventId", "runId", "timestamp")


def observable(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a replay must reproduce: everything but ids and times."""
    return [{name: value for name, value in event.items() if name not in VOLATILE} for event in events]


# -- in this process ---------------------------------------------------------------------------------------------------


class Client(httpx.AsyncClient):
    """Speaks to one host; remembers nothing but the key."""

    host: Host

    async def start(self, workflow: str, inputs: dict[str, Any] | None = None, **headers: str) -> str:
        body = {"workflowId": workflow, **({"inputs": inputs} if inputs is not None else {})}
        answer = await self.post("/v1/runs", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["runId"])

    async def ended(self, run: str, seconds: float = 20.0) -> dict[str, Any]:
        until = time.monotonic() + seconds
        last = -1
        while time.monotonic() < until:
            answer = await self.get(f"/v1/runs/{run}/events/poll", params={"lastSequence": last, "timeout": 5})
            assert answer.status_code == 200, answer.text
            found = answer.json()
            if found["events"]:
                last = found["events"][-1]["sequence"]
            if found["isComplete"]:
                return cast("dict[str, Any]", (await self.get(f"/v1/runs/{run}")).json())
        raise AssertionError(f"run {run} did not end within {seconds} s")

    async def run(self, workflow: str, inputs: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self.ended(await self.start(workflow, inputs))

    async def events(self, run: str) -> list[dict[str, Any]]:
        answer = await self.get(f"/v1/runs/{run}/events", headers={"Accept": "application/json"})
        assert answer.status_code == 200, answer.text
        return cast("list[dict[str, Any]]", answer.json()["events"])

    async def fork(self, run: str, mode: str = "replay", start: int | None = None, **overlay: Any) -> str:
        body: dict[str, Any] = {"mode": mode}
        if start is not None:
            body["fromSeq"] = start
        if overlay:
            body["runOptionsOverlay"] = overlay
        answer = await self.post(f"/v1/runs/{run}:fork", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["runId"])

    async def program(self, node: str, *entries: dict[str, Any]) -> None:
        body = {"nodeId": node, "program": list(entries)}
        answer = await self.post("/v1/host/sample/test/mock-ai/program", json=body)
        assert answer.status_code == 200, answer.text


@contextlib.asynccontextmanager
async def in_process(application: Starlette, key: str = KEY) -> AsyncIterator[Client]:
    """A client of *application*, which is started and stopped around it."""
    async with application.router.lifespan_context(application):
        transport = httpx.ASGITransport(app=application, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with Client(transport=transport, base_url="http://127.0.0.1:8321", headers=headers) as client:
            client.host = application.state.host
            yield client


def application(folder: Path, workflows: Path | None = None, **host: Any) -> Starlette:
    """A host with a SQLite file in *folder*; the key is taken from the environment."""
    settings = {"workflows": str(workflows) if workflows else None, "test_seams": True, **host}
    return create(
        {
            "store": {"url": f"sqlite:///{folder}/host.db?synchronous=NORMAL"},
            "host": {name: value for name, value in settings.items() if value is not None},
        }
    )


# -- a real server -----------------------------------------------------------------------------------------------------


class Served:
    """``antiphon serve`` in a process of its own."""

    def __init__(
        self,
        folder: Path,
        workflows: Path,
        environment: dict[str, str] | None = None,
        *,
        port: int | None = None,
        descriptors: int | None = None,
    ) -> None:
        self.folder = folder
        self._descriptors = descriptors
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = {
            **os.environ,
            "ANTIPHON_HOME": str(folder / "state"),
            "ANTIPHON_API_KEY": KEY,
            "ANTIPHON_TEST_SEAMS": "true",
            "ANTIPHON_WORKFLOWS": str(workflows),
            "ANTIPHON_STORE": f"sqlite:///{folder}/host.db?synchronous=NORMAL",
            **(environment or {}),
        }
        self._log = folder / "serve.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str, wait_s: float = 30.0) -> Served:
        command = [sys.executable, "-c", "from antiphon.cli import main; raise SystemExit(main())"]
        if self._descriptors is not None:
            command = ["/bin/sh", "-c", f'ulimit -n {self._descriptors} && exec "$@"', "sh", *command]
        words = [*command, "serve", "--host", "127.0.0.1", "--port", str(self.port), *arguments]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                words, env=self._environment, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(f"the host ended with code {self.process.returncode}: {self.log()}")
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200:
                    return self
            time.sleep(0.05)
        raise AssertionError(f"the host did not become ready: {self.log()}")

    def log(self) -> str:
        return self._log.read_text()[-4000:] if self._log.exists() else ""

    def client(self, **options: Any) -> Client:
        return Client(base_url=self.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=30, **options)

    def kill(self) -> None:
        """kill −9 of the server and its workers."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self, wait_s: float = 20.0) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the host did not stop: {self.log()}") from None


@contextlib.contextmanager
def serving(folder: Path, workflows: Path, *arguments: str, **environment: str) -> Iterator[Served]:
    served = Served(folder, workflows, environment).start(*arguments)
    try:
        yield served
    finally:
        if served.process is not None and served.process.poll() is None:
            served.kill()
