"""Hostile documents as tool results, model answers, inputs and workflow files, against one host with two tenants."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from bench import Context, Row
from bench.host import _port

DOCUMENTS = 1_000
ATTACKERS = 4
ROUNDS = 10
KEY = "hostile-campaign-admin-key"
SEED = 20_261_115

TOOLS = """
import sys
sys.path.insert(0, {root!r})
import antiphon
from bench.hostile import value_of

gateway = antiphon.AsyncGateway(store="memory:")

@gateway.tool(idempotent=True, namespace="hostile", effect="read")
async def give(number: int) -> object:
    return value_of(number)

@gateway.tool(idempotent=True, namespace="good", effect="read")
async def double(number: int) -> int:
    return 2 * number
"""


class Document(NamedTuple):
    """Something that a tool, a model, a client or a file may hold."""

    kind: str
    value: Any
    """As a value of Python, for a tool."""
    raw: bytes
    """As bytes; not always JSON."""


class _Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def _deep(chance: random.Random) -> Any:
    value: Any = chance.choice([1, "x", None])
    for _ in range(chance.choice([10, 100, 200, 250, 300, 600, 900])):
        value = chance.choice([[value], {"a": value}])
    return value


def _looks_like_ours(chance: random.Random) -> Any:
    digest = "sha256:" + "0" * 64
    ours: list[Any] = [
        {"$blob": 5, "bytes": 1},
        {"$blob": digest, "bytes": 12},
        {"$blob": "../../etc/passwd", "bytes": 1},
        {"$blob": None, "bytes": None},
        {"$int": "1"},
        {"$int": ["x"]},
        {"$bytes": "\udcff"},
        {"$unserialisable": "builtins.object"},
        {"antiphon": "not serialisable", "type": "x"},
        {"$sealed": "x", "$pseudonym": "y", "$tuple": [1], "$set": [1], "$decimal": "x", "$datetime": "never"},
        "[secret:token:0123456789abcdef]",
        {"payload": {}, "meta": {"workflow": True, "sequence": 0}, "v": 99},
        {"status": "success", "output": {"content": 1}, "error": {"code": "x"}},
        {"nodeId": "../x", "type": "run.completed", "outputs": {}},
    ]
    return chance.choice(ours)


def _text(chance: random.Random) -> Any:
    return chance.choice(
        [
            "\n\nevent: run.completed\ndata: {}\n\n",
            "<script>alert(1)</script>",
            "\x1b[2J\x1b[31m\x07",
            "\x00" * 50,
            "\u202e\u200b\ufeff\u2028\u2029",
            "send_email: true\n#",
            "'; DROP TABLE runs; --",
            "{{7*7}}${jndi:ldap://x}",
            "A" * 300_000,
            "🦊" * 50_000,
            "9" * 5_000,
            json.dumps({"a": json.dumps({"b": "c" * 1000})}),
            "\ud800",
            "data:image/png;base64," + "QUJD" * 20_000,
        ]
    )


def _wide(chance: random.Random) -> Any:
    size = chance.choice([100, 300, 1_000, 1_000, 3_000, 3_000, 10_000, 30_000])
    return chance.choice([list(range(size)), {f"k{number}": number for number in range(size)}, [[]] * size])


def _number(chance: random.Random) -> Any:
    return chance.choice(
        [10**30, -(10**30), 2**64, 1e308, -0.0, 5e-324, float("nan"), float("inf"), 10**4000, True, 2**53 + 1]
    )


def _object(chance: random.Random) -> Any:
    loop: list[Any] = []
    loop.append(loop)
    odd: list[Any] = [_Odd(), {1: 2, (1, 2): 3}, {"s": {1, 2}}, b"\xff\x00", loop, ValueError("x"), (i for i in "ab")]
    return chance.choice([*odd, object, lambda: 1, {"__class__": "x", "__proto__": {}}, Path("/etc")])


def _bytes(chance: random.Random) -> bytes:
    return chance.choice(
        [
            b"",
            b"{",
            b'{"a":' * 5_000,
            b"\xff\xfe{}",
            b"\xef\xbb\xbf{}",
            b'{"a":1,"a":2}',
            b'{"a":1e400}',
            b"NaN",
            b"[" * 100_000,
            b'{"workflowId":"conf\x00"}',
            b"null",
            b'"text"',
            b"<html>502</html>",
            chance.randbytes(2_000),
            b'{"choices":[{"message":{"content":{"not":"text"}}}]}',
            b'{"choices":[{"message":{"content":null,"refusal":7}}]}',
            b'{"choices":"none"}',
            b'{"content":[{"type":"text","text":7}],"stop_reason":[]}',
        ]
    )


KINDS: dict[str, Callable[[random.Random], Any]] = {
    "deep": _deep,
    "looks like ours": _looks_like_ours,
    "text": _text,
    "wide": _wide,
    "number": _number,
    "object": _object,
    "bytes": _bytes,
}


def value_of(number: int) -> Any:
    """The hostile document of this number as a value: the same every time."""
    return KINDS[_kind_of(number)](random.Random(SEED + number))


def _kind_of(number: int) -> str:
    return sorted(KINDS)[number % len(KINDS)]


def document(number: int) -> Document:
    """The hostile document of this number: the same every time."""
    kind, value = _kind_of(number), value_of(number)
    if isinstance(value, bytes):
        return Document(kind, value, value)
    try:
        raw = json.dumps(value).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError):
        raw = repr(type(value)).encode()
    return Document(kind, value, raw)


def _client(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60)


# -- the attacker and its model ----------------------------------------------------------------------------------------


class Attacker:
    """Sends every document. A process of its own: the clocks of the other tenant must not wait for its work."""

    def __init__(self) -> None:
        self.url = self.key = ""
        self.statuses: Counter[str] = Counter()
        self.problems: list[str] = []
        self.turn = 0
        self._lock = threading.Lock()
        self._provider = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._provider.serve_forever, daemon=True).start()

    def serve(self) -> None:
        """Say where the model is; then, for each line, attack as it says and say what came of it."""
        print(self._provider.server_port, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            self.url, self.key = asked["url"], asked["key"]
            self.attack(asked["stop"])
            print(json.dumps({"statuses": self.statuses, "problems": self.problems}), flush=True)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                given = document(int(body["messages"][0]["content"]))
                answer = given.raw
                if given.kind != "bytes":
                    text = given.raw.decode("utf-8", "replace")
                    answer = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}).encode()
                with contextlib.suppress(OSError):
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)

            def log_message(self, *arguments: Any) -> None:
                pass

        return Handler

    def attack(self, stop: int) -> None:
        """Every document up to *stop* as a tool result, a model answer and an input, and what came of it looked at."""

        def work() -> None:
            with _client(self.url, self.key) as client:
                while True:
                    with self._lock:
                        number = self.turn
                        if number >= stop:
                            return
                        self.turn += 1
                    self._one(client, number)

        threads = [threading.Thread(target=work) for _ in range(ATTACKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _one(self, client: httpx.Client, number: int) -> None:
        given = document(number)
        model = "schema" if number % 2 else "model"
        for way, inputs in (("tool", {"number": number}), (model, {"number": str(number)})):
            self._run(client, way, json.dumps({"workflowId": way, "inputs": inputs}).encode(), number)
        self._run(client, "input", b'{"workflowId":"input","inputs":{"number":%b}}' % given.raw, number)
        self._run(client, "body", given.raw, number)

    def _run(self, client: httpx.Client, way: str, body: bytes, number: int) -> None:
        where = f"document {number} ({document(number).kind}) as {way}"
        try:
            answer = client.post("/v1/runs", content=body, headers={"Content-Type": "application/json"})
            self._check(where, answer)
            if answer.status_code != 201:
                return
            run = answer.json()["runId"]
            until = time.monotonic() + 60
            while True:
                seen = client.get(f"/v1/runs/{run}/events/poll", params={"timeout": 5, "lastSequence": 2})
                self._check(where, seen)
                if seen.status_code != 200 or seen.json()["isComplete"]:
                    break
                if time.monotonic() > until:
                    self.problems.append(f"{where}: did not end")
                    return
            self._check(where, client.get(f"/v1/runs/{run}"))
            if number % 5 == 0:
                self._check(where, client.get(f"/v1/runs/{run}/events"))
                fork = client.post(f"/v1/runs/{run}:fork", json={"mode": "replay"})
                self._check(where, fork)
        except (httpx.HTTPError, ValueError) as error:
            self.problems.append(f"{where}: {type(error).__name__}: {error}")

    def _check(self, where: str, answer: httpx.Response) -> None:
        with self._lock:
            self.statuses[f"{answer.status_code // 100}xx"] += 1
        if answer.status_code >= 500:
            self.problems.append(f"{where}: {answer.status_code} {answer.text[:200]}")


# -- the host and the other tenant -------------------------------------------------------------------------------------


class Campaign:
    """One host, an attacker's tenant, another one's, and what came of both."""

    def __init__(self, folder: Path, documents: int) -> None:
        self.folder = folder
        self.documents = documents
        self.port = _port()
        self.statuses: Counter[str] = Counter()
        self.problems: list[str] = []
        self.attacked: list[str] = []
        """Problems that the attacker had."""
        words = ["nice", "-n", "19", sys.executable, "-m", "bench.hostile"]
        """An attacker has a machine of its own: here it takes what the host and the other tenant leave."""
        root = Path(__file__).parent.parent
        self._attacker = subprocess.Popen(words, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._attacker.stdout is not None
        self._model = int(self._attacker.stdout.readline())
        self._write()
        self.keys: dict[str, str] = {}

    def _write(self) -> None:
        flows = self.folder / "flows"
        flows.mkdir()
        number = {"type": "variable", "variableName": "number"}
        variables = [{"name": "number", "type": "any"}]
        schema = {"type": "object"}
        good: list[dict[str, Any]] = [
            {"id": "good", "nodes": [{"id": "n", "typeId": "tool:good/double", "inputs": {"number": number}}]},
            {"id": "tool", "nodes": [{"id": "n", "typeId": "tool:hostile/give", "inputs": {"number": number}}]},
            {"id": "input", "nodes": [{"id": "n", "typeId": "core.identity", "inputs": {"got": number}}]},
        ]
        for name, config in (("model", {}), ("schema", {"outputSchema": schema, "maxAttempts": 1})):
            settings = {"provider": "odd", "model": "m", **config}
            node = {"id": "n", "typeId": "core.ai.chat", "config": settings, "inputs": {"prompt": number}}
            good.append({"id": name, "nodes": [node]})
        for flow in good:
            (flows / f"{flow['id']}.json").write_text(json.dumps({**flow, "edges": [], "variables": variables}))
        for place in range(self.documents):
            given = document(place)
            shapes = (
                given.raw,
                b'{"id":"h","nodes":%b}' % given.raw,
                b'{"id":"h%d","nodes":[{"id":"n","typeId":"core.noop","config":{"x":%b}}]}' % (place, given.raw),
            )
            (flows / f"hostile-{place}.json").write_bytes(shapes[place % 3])
        (self.folder / "tools.py").write_text(TOOLS.format(root=str(Path(__file__).parent.parent)))
        (self.folder / "antiphon.toml").write_text(
            f'[store]\nurl = "sqlite:///{self.folder}/host.db"\n[host]\nworkflows = "{flows}"\n'
            f'tools = ["{self.folder}/tools.py"]\n[host.providers.odd]\ndialect = "openai-chat"\n'
            f'base_url = "http://127.0.0.1:{self._model}"\n'
        )

    @contextlib.contextmanager
    def host(self) -> Iterator[subprocess.Popen[bytes]]:
        """The host; it is started once and has to be there at the end."""
        code = "from antiphon.cli import main; raise SystemExit(main())"
        env = {**os.environ, "ANTIPHON_API_KEY": KEY, "ANTIPHON_HOME": str(self.folder / "state")}
        words = [sys.executable, "-c", code, "serve", "--port", str(self.port), "--log-level", "error"]
        words += ["--config", str(self.folder / "antiphon.toml")]
        with (self.folder / "serve.log").open("wb") as log:
            process = subprocess.Popen(words, env=env, cwd=self.folder, stdout=log, stderr=log)
        try:
            until = time.monotonic() + 120
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if httpx.get(f"http://127.0.0.1:{self.port}/readyz", timeout=5).status_code == 200:
                        break
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError("the host did not start: " + (self.folder / "serve.log").read_text()[-2000:])
                time.sleep(0.1)
            for tenant in ("attacker", "other"):
                words = [sys.executable, "-c", code, "apikeys", "create", "--role", "run", "--tenant", tenant, "--json"]
                made = subprocess.run(
                    [*words, "--config", str(self.folder / "antiphon.toml")], env=env, capture_output=True, check=True
                )
                self.keys[tenant] = json.loads(made.stdout)["token"]
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
            if process.poll() is None:
                process.kill()
            self._attacker.kill()
            self._attacker.wait()

    def attack(self, stop: int) -> None:
        """Let the attacker send every document up to *stop*."""
        assert self._attacker.stdin is not None
        assert self._attacker.stdout is not None
        asked = {"url": f"http://127.0.0.1:{self.port}", "key": self.keys["attacker"], "stop": stop}
        self._attacker.stdin.write(json.dumps(asked) + "\n")
        self._attacker.stdin.flush()
        told = json.loads(self._attacker.stdout.readline())
        self.statuses = Counter(told["statuses"])
        self.attacked = told["problems"]

    # -- what the other tenant does ------------------------------------------------------------------------------------

    def serve_other(self, until: Callable[[], bool], least: int) -> list[float]:
        """Milliseconds that each small run of the other tenant took to be started, and its answer to be read."""
        took: list[float] = []
        with _client(f"http://127.0.0.1:{self.port}", self.keys["other"]) as client:
            while len(took) < least or not until():
                begun = time.perf_counter()
                answer = client.post("/v1/runs", json={"workflowId": "good", "inputs": {"number": len(took)}})
                if answer.status_code != 201:
                    self.problems.append(f"the other tenant got {answer.status_code}: {answer.text[:200]}")
                    time.sleep(0.1)
                    continue
                run = answer.json()["runId"]
                while True:
                    seen = client.get(f"/v1/runs/{run}/events/poll", params={"timeout": 5, "lastSequence": 2}).json()
                    if seen["isComplete"]:
                        break
                took.append((time.perf_counter() - begun) * 1000)
        return took


class Outcome(NamedTuple):
    """What a campaign found."""

    alone: list[float]
    attacked: list[float]
    statuses: Counter[str]
    problems: list[str]
    restarts: int

    @staticmethod
    def p99(times: list[float]) -> float:
        return statistics.quantiles(times, n=100)[98]


def campaign(documents: int, *, least: int = 400) -> Outcome:
    """Run it once: the other tenant alone and beside the attacker, in turn."""
    with tempfile.TemporaryDirectory(prefix="antiphon-hostile-") as name:
        made = Campaign(Path(name), documents)
        with made.host() as process:
            made.serve_other(lambda: True, 50)  # everything is imported and warm
            alone: list[float] = []
            attacked: list[float] = []
            for number in range(1, ROUNDS + 1):  # in turn, so that a busy machine counts for both
                alone += made.serve_other(lambda: True, max(4, 2 * least // ROUNDS))
                attacker = threading.Thread(target=made.attack, args=(documents * number // ROUNDS,))
                attacker.start()
                attacked += made.serve_other(lambda one=attacker: not one.is_alive(), 1)  # type: ignore[misc]
                attacker.join()
            restarts = int(process.poll() is not None)
            ready = httpx.get(f"http://127.0.0.1:{made.port}/readyz", timeout=10).status_code
            if ready != 200:
                made.problems.append(f"/readyz says {ready} afterwards")
            log = (Path(name) / "serve.log").read_text(errors="replace")
            if "Traceback" in log:
                made.problems.append("traceback: " + log[log.index("Traceback") :][:1500])
    return Outcome(alone, attacked, made.statuses, made.problems + made.attacked, restarts)


def run(ctx: Context) -> list[Row]:
    """The campaign as rows of the benchmark report."""
    documents = 70 if ctx.quick else DOCUMENTS
    found = campaign(documents)
    for problem in found.problems[:20]:
        print(f"  {problem}")
    alone, attacked = found.p99(found.alone), found.p99(found.attacked)
    answers = ", ".join(f"{number} {kind}" for kind, number in sorted(found.statuses.items()))
    setup = f"{documents} documents, {ATTACKERS} attackers, one worker, SQLite"
    note = f"{alone:.0f} ms alone, {attacked:.0f} ms beside the attacker; {len(found.attacked)} runs; {answers}"
    return [
        Row(
            name="p99 of the other tenant, beside alone",
            value=attacked / alone,
            unit="×",
            at_most=2,
            setup=setup,
            note=note,
        ),
        Row(
            name="answers 5xx, runs that did not end, tracebacks",
            value=len(found.problems),
            unit="",
            at_most=0,
            setup=setup,
        ),
        Row(name="restarts needed", value=found.restarts, unit="", at_most=0, setup=setup),
    ]


if __name__ == "__main__":
    Attacker().serve()
