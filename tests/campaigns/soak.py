"""Hours of work in minutes: a host and agents on three stores, and whether memory, descriptors and threads stay flat.

    make soak [ARGS="--minutes 15 --json"]
    python -m tests.campaigns.soak [--minutes 15] [--store sqlite|redis|postgres …] [--plant descriptor|thread|memory]

``antiphon serve`` on SQLite gets guarded calls, workflow runs, runs of a synchronous agent, streams (read, and left in
the middle), replay forks, webhooks, subscriptions that come and go, and requests that it refuses, as fast as eight
clients can ask. One agent's process per store records runs with guarded calls, model streams and redeliveries, in two
threads and on an event loop, and replays every tenth run strictly.

Memory (anonymous, as the kernel counts it), descriptors and threads of every process are looked at once a second. The
first third is warm-up. Over the rest the slope must not lead further than the tolerance: see :data:`TOLERANCE`.
What is kept on disk grows with the work; the table says by how much for 1,000 calls in the first and the second half.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.integration.server import workflows
from tests.integration.server.harness import Served
from tests.servers import Postgres, Valkey

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 8
STORES = ("sqlite", "redis", "postgres")
WARM_UP = 1 / 3


class Tolerance(NamedTuple):
    """How far each measure may drift between warm-up and end."""

    memory_mb: float = 8.0
    memory_share: float = 0.05
    """… or this share of what it was after the warm-up, if that is more."""
    descriptors: float = 4.0
    threads: float = 2.0


TOLERANCE = Tolerance()
TOOLS = """
import sys
sys.path.insert(0, {root!r})
import antiphon
from tests.campaigns.soak_agent import leak

gateway = antiphon.AsyncGateway(store="memory:")

@gateway.tool(idempotent=False, namespace="soak", effect="write")
async def send(order: str) -> dict:
    leak(*{leaks!r})
    return {{"sent": order}}

@gateway.tool(idempotent=True, namespace="soak", effect="read")
async def count(to: int):
    for number in range(to):
        yield {{"number": number}}

@antiphon.agent
def desk(order: str) -> str:
    run = antiphon.current_run()
    return f"{{order}} at {{run.now()}}"
"""


# -- looking -----------------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """What a process had at a time."""

    at_s: float
    calls: int
    memory_mb: float
    descriptors: int
    threads: int
    kept_kb: float
    """What its store keeps."""


class Watched:
    """A process that is looked at."""

    def __init__(self, name: str, pid: int, calls: Callable[[], int], kept: Callable[[], float]) -> None:
        self.name = name
        self.pid = pid
        self.calls = calls
        self._kept = kept
        self.samples: list[Sample] = []

    def look(self, at_s: float) -> None:
        status = Path(f"/proc/{self.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        memory = int(fields["RssAnon"].split()[0]) / 1024
        number = sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())
        self.samples.append(Sample(at_s, self.calls(), memory, number, int(fields["Threads"]), self._kept()))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """How steep the points rise: the median of the slopes between all pairs, which single peaks do not move."""
    points = points[:: max(1, len(points) // 150)]
    found = [(y - b) / (x - a) for (a, b), (x, y) in itertools.combinations(points, 2) if x > a]
    return statistics.median(found) if found else 0.0


class Finding(NamedTuple):
    """One measure of one process."""

    process: str
    measure: str
    after_warm_up: float
    at_end: float
    drift: float
    """Where the slope leads from the warm-up to the end."""
    allowed: float

    @property
    def is_flat(self) -> bool:
        return self.drift <= self.allowed


def judge(name: str, samples: Sequence[Sample], tolerance: Tolerance = TOLERANCE) -> list[Finding]:
    """What became of each measure of a process after the warm-up."""
    begun = samples[0].at_s + (samples[-1].at_s - samples[0].at_s) * WARM_UP
    warm = [sample for sample in samples if sample.at_s >= begun]
    few = max(1, len(warm) // 10)
    found = []
    for measure in ("memory_mb", "descriptors", "threads"):
        values = [float(getattr(sample, measure)) for sample in warm]
        first, last = statistics.median(values[:few]), statistics.median(values[-few:])
        drift = slope([(sample.at_s, value) for sample, value in zip(warm, values, strict=True)])
        drift *= warm[-1].at_s - warm[0].at_s
        allowed = float(getattr(tolerance, measure))
        if measure == "memory_mb":
            allowed = max(allowed, first * tolerance.memory_share)
        found.append(Finding(name, measure, first, last, drift, allowed))
    return found


def growth(samples: Sequence[Sample]) -> tuple[float, float]:
    """kB that the store grew by for 1,000 calls, in the first and in the second half after the warm-up."""
    warm = samples[int(len(samples) * WARM_UP) :]
    half = len(warm) // 2

    def of(some: Sequence[Sample]) -> float:
        calls = some[-1].calls - some[0].calls
        return (some[-1].kept_kb - some[0].kept_kb) / calls * 1000 if calls else 0.0

    return of(warm[: half + 1]), of(warm[half:])


def _folder_kb(folder: Path) -> float:
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total / 1024


def _redis_kb(url: str) -> Callable[[], float]:
    import redis

    client = redis.Redis.from_url(url)
    return lambda: int(client.info("memory")["used_memory"]) / 1024


def _postgres_kb(url: str) -> Callable[[], float]:
    import psycopg

    connection = psycopg.connect(url, autocommit=True)

    def kept() -> float:
        row = connection.execute("select pg_database_size(current_database())").fetchone()
        return int(row[0]) / 1024 if row else 0.0

    return kept


# -- agents ------------------------------------------------------------------------------------------------------------


class Agent:
    """An agent's process on one store."""

    def __init__(self, kind: str, url: str, folder: Path, leaks: Sequence[str] = ()) -> None:
        self.calls = 0
        self.said = ""
        environment = {**os.environ, "ANTIPHON_HOME": str(folder / f"{kind}-home")}
        words = [sys.executable, "-m", "tests.campaigns.soak_agent", url, *leaks]
        self._log = (folder / f"{kind}.log").open("w+")
        self.process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        threading.Thread(target=self._read, daemon=True).start()
        if kind == "sqlite":
            kept: Callable[[], float] = lambda: _folder_kb(Path(urllib.parse.urlsplit(url).path).parent)  # noqa: E731
        else:
            kept = _redis_kb(url) if kind == "redis" else _postgres_kb(url)
        self.watched = Watched(f"agent, {kind}", self.process.pid, lambda: self.calls, kept)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip().isdigit():
                self.calls = int(line)
            else:
                self.said = line.strip()

    def check(self) -> None:
        if self.process.poll() is not None:
            self._log.seek(0)
            raise AssertionError(f"{self.watched.name} ended: {self.said} {self._log.read()[-3000:]}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._log.close()


# -- the host and its clients ------------------------------------------------------------------------------------------


def _flows() -> list[dict[str, Any]]:
    order = {"type": "variable", "variableName": "order"}
    said = {"type": "static", "value": [{"role": "user", "content": "where is it?"}]}
    nodes = [
        workflows.node("same", "core.identity", None, {"order": order}),
        workflows.node("ask", "core.llm.chat", {"provider": "mock", "model": "mock-mini"}, {"messages": said}),
        workflows.node("send", "tool:soak/send", None, {"order": order}),
    ]
    hold = [workflows.node("hold", "core.delay", {"delayMs": 300})]
    return [
        workflows.workflow("order", nodes, [workflows.variable("order", "string", required=True)]),
        workflows.workflow("hold", hold),
    ]


class Clients:
    """What asks the host, as fast as it answers."""

    def __init__(self, host: Served) -> None:
        self.host = host
        self.calls = 0
        self.statuses: Counter[str] = Counter()
        self.deliveries = 0
        self.over = threading.Event()
        self.problem = ""
        self._ids = itertools.count()
        self._thread = threading.Thread(target=self._work)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.over.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            asyncio.run(self._all())
        except BaseException as error:
            self.problem = "".join(traceback.format_exception(error))

    async def _all(self) -> None:
        server = await asyncio.start_server(self._deliver, "127.0.0.1", 0)
        hook = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        async with self.host.client() as client:
            await self._ask(client, "POST", "/v1/webhooks", json={"url": hook})
            async with asyncio.TaskGroup() as group:
                for number in range(CLIENTS):
                    group.create_task(self._client(random.Random(number), hook))
        server.close()

    async def _deliver(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            fields = [line.split(b":") for line in head.lower().split(b"\r\n")]
            await reader.readexactly(next(int(field[1]) for field in fields if field[0] == b"content-length"))
            self.deliveries += 1
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            await writer.drain()
        writer.close()

    async def _client(self, chance: random.Random, hook: str) -> None:
        acts = (
            self._call,
            self._call,
            self._stream_call,
            self._run,
            self._run,
            self._agent,
            self._leave,
            self._refused,
        )
        async with self.host.client() as client:
            while not self.over.is_set():
                await chance.choice(acts)(client, f"o-{next(self._ids)}")
                self.calls += 1
                if self.calls % 100 == 0:
                    await self._look_around(client, hook)

    async def _ask(self, client: httpx.AsyncClient, method: str, path: str, **more: Any) -> httpx.Response:
        answer = await client.request(method, path, **more)
        self.statuses[str(answer.status_code)] += 1
        if answer.status_code >= 500:
            raise AssertionError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer

    def _envelope(self, tool: str, request: str, **params: Any) -> dict[str, Any]:
        return {
            "contractVersion": "1.1",
            "requestId": request,
            "toolName": tool,
            "toolNamespace": "soak",
            "target": {"sessionKey": request, "actorId": "ada"},
            "payload": {"version": "1.0", "params": params},
            "transport": {"dedupeMode": "enforced", "retryBudget": {"maxAttempts": 2, "maxElapsedMs": 30_000}},
            "control": {},
            "trace": {},
        }

    async def _call(self, client: httpx.AsyncClient, order: str) -> None:
        """A guarded call, and its redelivery."""
        body = self._envelope("send", order, order=order)
        for _ in range(2):
            answer = await self._ask(client, "POST", "/v1/calls", json=body, headers={"Idempotency-Key": order})
            assert answer.json()["output"]["content"] == {"sent": order}, answer.text

    async def _stream_call(self, client: httpx.AsyncClient, order: str) -> None:
        body = self._envelope("count", order, to=5)
        answer = await self._ask(client, "POST", "/v1/calls", json=body, headers={"Accept": "text/event-stream"})
        assert "event: result" in answer.text, answer.text

    async def _begun(self, client: httpx.AsyncClient, workflow: str, inputs: dict[str, Any]) -> str:
        answer = await self._ask(client, "POST", "/v1/runs", json={"workflowId": workflow, "inputs": inputs})
        return str(answer.json()["runId"])

    async def _ended(self, client: httpx.AsyncClient, run: str) -> None:
        answer = await self._ask(client, "GET", f"/v1/runs/{run}/events", headers={"Accept": "text/event-stream"})
        assert "event: run.completed" in answer.text, answer.text[-300:]

    async def _run(self, client: httpx.AsyncClient, order: str) -> None:
        """A workflow, read as a stream; every fifth is forked."""
        run = await self._begun(client, "order", {"order": order})
        await self._ended(client, run)
        await self._ask(client, "GET", f"/v1/runs/{run}")
        if int(order[2:]) % 5 == 0:
            fork = await self._ask(client, "POST", f"/v1/runs/{run}:fork", json={"mode": "replay"})
            await self._ended(client, fork.json()["runId"])

    async def _agent(self, client: httpx.AsyncClient, order: str) -> None:
        run = await self._begun(client, "agent:desk", {"order": order})
        while not (await self._ask(client, "GET", f"/v1/runs/{run}/events/poll", params={"timeout": 5})).json()[
            "isComplete"
        ]:
            pass

    async def _leave(self, client: httpx.AsyncClient, order: str) -> None:
        """Open a stream, read its first line and go away."""
        run = await self._begun(client, "hold", {})
        async with client.stream("GET", f"/v1/runs/{run}/events", headers={"Accept": "text/event-stream"}) as stream:
            async for _ in stream.aiter_lines():
                break

    async def _refused(self, client: httpx.AsyncClient, order: str) -> None:
        await self._ask(client, "GET", f"/v1/runs/{order}")
        await self._ask(client, "POST", "/v1/runs", content=b'{"workflowId":', headers={"Content-Type": "text/json"})
        await self._ask(client, "GET", "/v1/runs", headers={"Authorization": f"Bearer {order}"})

    async def _look_around(self, client: httpx.AsyncClient, hook: str) -> None:
        await self._ask(client, "GET", "/v1/runs", params={"limit": 20})
        await self._ask(client, "GET", "/readyz")
        made = await self._ask(client, "POST", "/v1/webhooks", json={"url": f"{hook}/2", "events": ["run.cancelled"]})
        await self._ask(client, "DELETE", f"/v1/webhooks/{made.json()['webhookId']}")


# -- all of it ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _host(folder: Path, leaks: Sequence[str]) -> Iterator[tuple[Clients, Watched]]:
    place = folder / "host"
    place.mkdir()
    tools = place / "tools.py"
    tools.write_text(TOOLS.format(root=str(ROOT), leaks=tuple(leaks)))
    (place / "antiphon.toml").write_text(
        f'[host]\ntools = ["{tools}"]\nagents = ["{tools}:desk"]\nwebhooks = true\nwebhooks_loopback = true\n'
    )
    environment = {"ANTIPHON_TEST_SEAMS": "false", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    served = Served(place, workflows.write(place / "flows", *_flows()), environment)
    served.start("--log-level", "error", "--config", str(place / "antiphon.toml"))
    assert served.process is not None
    clients = Clients(served)
    try:
        yield clients, Watched("host", served.process.pid, lambda: clients.calls, lambda: _folder_kb(place))
    finally:
        clients.stop() if clients._thread.is_alive() else None
        served.kill()


@contextlib.contextmanager
def _urls(stores: Sequence[str], folder: Path, given: dict[str, str]) -> Iterator[dict[str, str]]:
    """Addresses of the stores; servers that are not given are started."""
    with contextlib.ExitStack() as held:
        found: dict[str, str] = {}
        for kind in stores:
            if kind in given:
                found[kind] = given[kind]
            elif kind == "sqlite":
                (folder / "sqlite").mkdir()
                found[kind] = f"sqlite:///{folder}/sqlite/agent.db"
            else:
                found[kind] = held.enter_context(Valkey(appendonly=True) if kind == "redis" else Postgres()).url
        yield found


def run(
    seconds: float,
    *,
    stores: Sequence[str] = STORES,
    leaks: Sequence[str] = (),
    with_host: bool = True,
    every_s: float = 1.0,
    least_calls: int = 0,
    urls: dict[str, str] | None = None,
    tolerance: Tolerance = TOLERANCE,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Let all of them work, look at them, and judge; longer if one has made fewer than *least_calls* calls."""
    with contextlib.ExitStack() as held:
        folder = Path(
            held.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-soak-", ignore_cleanup_errors=True))
        )
        agents: list[Agent] = []
        for kind, url in held.enter_context(_urls(stores, folder, urls or {})).items():
            agents.append(Agent(kind, url, folder, leaks))
            held.callback(agents[-1].stop)
        watched = [agent.watched for agent in agents]
        clients: Clients | None = None
        if with_host:
            clients, host = held.enter_context(_host(folder, leaks))
            clients.start()
            watched.insert(0, host)
        begun = time.monotonic()
        told = 0.0
        while (now := time.monotonic() - begun) < seconds or any(
            len(one.samples) < 9 or one.calls() - one.samples[0].calls < least_calls for one in watched
        ):
            for agent in agents:
                agent.check()
            if clients is not None and clients.problem:
                raise AssertionError(f"the clients of the host failed: {clients.problem}\n{clients.host.log()}")
            for one in watched:
                if one.calls():  # it has started
                    one.look(now)
            if now - told >= 60:
                told = now
                tell(f"{now:4.0f} s: " + "; ".join(_in_short(one) for one in watched))
            time.sleep(every_s)
        found = [finding for one in watched for finding in judge(one.name, one.samples, tolerance)]
        report: dict[str, Any] = {
            "seconds": round(seconds),
            "warmUpSeconds": round(seconds * WARM_UP),
            "tolerance": tolerance._asdict(),
            "processes": {
                one.name: {
                    "calls": one.calls(),
                    "callsPerSecond": round(one.calls() / seconds, 1),
                    "keptKbPer1000Calls": [round(number) for number in growth(one.samples)],
                }
                for one in watched
            },
            "findings": [{**finding._asdict(), "isFlat": finding.is_flat} for finding in found],
            "statuses": dict(sorted(clients.statuses.items())) if clients else {},
            "deliveries": clients.deliveries if clients else 0,
            "isFlat": all(finding.is_flat for finding in found),
        }
    return report


def _in_short(one: Watched) -> str:
    last = one.samples[-1]
    return f"{one.name} {last.calls} calls, {last.memory_mb:.0f} MB, {last.descriptors} fds, {last.threads} threads"


def text(report: dict[str, Any]) -> str:
    """The report as a table, and the verdict."""
    lines = [f"{'process':<16}{'measure':<14}{'warm':>9}{'end':>9}{'drift':>9}{'allowed':>9}  verdict"]
    for found in report["findings"]:
        numbers = "".join(f"{found[name]:>9.1f}" for name in ("after_warm_up", "at_end", "drift", "allowed"))
        lines.append(f"{found['process']:<16}{found['measure']:<14}{numbers}  {'flat' if found['isFlat'] else 'RISES'}")
    lines += ["", f"{'process':<16}{'calls':>9}{'calls/s':>9}{'kB kept per 1,000 calls, first and second half':>50}"]
    for name, one in report["processes"].items():
        first, second = one["keptKbPer1000Calls"]
        lines.append(f"{name:<16}{one['calls']:>9}{one['callsPerSecond']:>9}{first:>40}{second:>10}")
    if report["statuses"]:
        answers = ", ".join(f"{number} × {status}" for status, number in report["statuses"].items())
        lines += ["", f"answers of the host: {answers}; webhook deliveries: {report['deliveries']}"]
    verdict = "flat" if report["isFlat"] else "RISES"
    lines += ["", f"{verdict}: {report['seconds']} s, of which {report['warmUpSeconds']} s warm-up"]
    return "\n".join(lines)


def main() -> int:
    """Soak, and say whether all of it stayed flat."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--store", choices=STORES, action="append", help="only agents on this store (repeatable)")
    parser.add_argument("--plant", choices=["descriptor", "thread", "memory"], action="append", default=[])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    report = run(
        asked.minutes * 60,
        stores=asked.store or STORES,
        leaks=asked.plant,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(json.dumps(report, indent=2) if asked.json else text(report), flush=True)
    return 0 if report["isFlat"] else 1


if __name__ == "__main__":
    sys.exit(main())
